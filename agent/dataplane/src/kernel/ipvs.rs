// SPDX-License-Identifier: Apache-2.0

//! Steps about virtual and real servers as IPVS requests, in one batch.

use std::borrow::Borrow;
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::ipvs::RealServerConfig;
use portolan_netlink::Errno;
use portolan_netlink::ipvs::{Ipvs, Request};
use portolan_plan::Step;

use crate::runs::StepFailure;

/// Applies steps; returns the failed ones. Requests are built one by one: a list of all would cost more
/// than their execution in the kernel.
pub(super) fn apply<S: Borrow<Step>>(ipvs: &mut Ipvs, steps: &[S]) -> Vec<(usize, StepFailure)> {
    let steps = || steps.iter().map(Borrow::borrow);
    let errors = match ipvs.apply(steps().flat_map(requests)) {
        Ok(errors) => errors,
        Err(error) => {
            let all = 0..steps().len();
            return all
                .map(|index| (index, StepFailure::lost(error.to_string())))
                .collect();
        }
    };
    let mut errors = errors.into_iter().peekable();
    let (mut failures, mut end) = (Vec::new(), 0);
    for (index, step) in steps().enumerate() {
        if errors.peek().is_none() {
            break;
        }
        let start = end;
        end += step.objects();
        let mut refused = Vec::new();
        while let Some(error) = errors.next_if(|error| error.index < end) {
            if !is_gone(step, error.errno) {
                refused.push((error.index - start, error.errno));
            }
        }
        if !refused.is_empty() {
            failures.push((index, failure(step, &refused)));
        }
    }
    failures
}

/// Failure of some requests of a step, given by their numbers.
fn failure(step: &Step, refused: &[(usize, Errno)]) -> StepFailure {
    let Step::FillVirtualServer { real_servers, .. } = step else {
        let errno = refused.first().map(|(_, errno)| *errno);
        return StepFailure::refused(step, errno.unwrap_or(Errno::EINVAL));
    };
    let address = |number| real_servers.keys().nth(number);
    let refused = refused.iter();
    let refused = refused.filter_map(|(number, errno)| Some((address(*number)?, *errno)));
    StepFailure::of_real_servers(step, &refused.collect::<Vec<_>>())
}

/// Returns `true` for a deletion whose object was missing, which is no failure.
fn is_gone(step: &Step, errno: Errno) -> bool {
    matches!(
        step,
        Step::DelVirtualServer { .. } | Step::DelRealServer { .. }
    ) && [Errno::ENOENT, Errno::ESRCH].contains(&errno)
}

/// Requests of a step: one, or one for each real server.
fn requests(step: &Step) -> impl Iterator<Item = Request> {
    let filled = match step {
        Step::FillVirtualServer { key, real_servers } => Some((*key, real_servers)),
        _ => None,
    };
    let filled = filled.into_iter().flat_map(|(key, real_servers)| {
        let add = move |(address, config): (SocketAddr, &RealServerConfig)| Request::AddDest {
            key,
            real_server: address,
            config: *config,
        };
        real_servers.iter().map(add)
    });
    request(step).into_iter().chain(filled)
}

fn request(step: &Step) -> Option<Request> {
    Some(match step {
        Step::AddVirtualServer { key, config } => Request::AddService {
            key: *key,
            config: Arc::clone(config),
        },
        Step::SetVirtualServer { key, config } => Request::SetService {
            key: *key,
            config: Arc::clone(config),
        },
        Step::DelVirtualServer { key } => Request::DelService { key: *key },
        Step::AddRealServer {
            key,
            address,
            config,
        } => Request::AddDest {
            key: *key,
            real_server: *address,
            config: *config,
        },
        Step::SetRealServer {
            key,
            address,
            config,
        } => Request::SetDest {
            key: *key,
            real_server: *address,
            config: *config,
        },
        Step::DelRealServer { key, address } => Request::DelDest {
            key: *key,
            real_server: *address,
        },
        _ => return None,
    })
}
