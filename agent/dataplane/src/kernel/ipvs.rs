//! Steps about virtual and real servers as IPVS requests, one batch for all.

use portolan_netlink::Errno;
use portolan_netlink::ipvs::{Ipvs, Request};
use portolan_plan::Step;

use super::Failure;
use crate::is_certain;

/// Takes steps, and says which of them failed. They are made requests of one by one: a copy of all
/// would cost more than it takes the kernel to execute them.
pub(super) fn take(ipvs: &mut Ipvs, steps: &[&Step]) -> Vec<(usize, Failure)> {
    let errors = match ipvs.apply(steps.iter().filter_map(|step| request(step))) {
        Ok(errors) => errors,
        Err(error) => {
            let all = 0..steps.len();
            return all
                .map(|index| (index, Failure::whole(error.to_string())))
                .collect();
        }
    };
    let errors = errors
        .iter()
        .filter(|error| !is_gone(steps[error.index], error.errno));
    errors
        .map(|error| {
            let failure = Failure {
                certain: is_certain(steps[error.index], error.errno),
                ..Failure::whole(error.errno.to_string())
            };
            (error.index, failure)
        })
        .collect()
}

/// That what is to be deleted is not there is no failure.
fn is_gone(step: &Step, errno: Errno) -> bool {
    matches!(
        step,
        Step::DelVirtualServer { .. } | Step::DelRealServer { .. }
    ) && [Errno::ENOENT, Errno::ESRCH].contains(&errno)
}

fn request(step: &Step) -> Option<Request> {
    Some(match step {
        Step::AddVirtualServer { key, config } => Request::AddService {
            key: *key,
            config: config.clone(),
        },
        Step::SetVirtualServer { key, config } => Request::SetService {
            key: *key,
            config: config.clone(),
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
