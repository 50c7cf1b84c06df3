//! Steps about virtual and real servers as IPVS requests, one batch for all.

use portolan_netlink::Errno;
use portolan_netlink::ipvs::{Ipvs, Request};
use portolan_plan::Step;

use super::Failure;

/// Takes steps; one result each.
pub(super) fn take(ipvs: &mut Ipvs, steps: &[&Step]) -> Vec<Result<(), Failure>> {
    let requests: Vec<Request> = steps.iter().filter_map(|step| request(step)).collect();
    let mut results: Vec<Result<(), Failure>> = steps.iter().map(|_| Ok(())).collect();
    match ipvs.apply(&requests) {
        Ok(errors) => {
            for error in errors
                .iter()
                .filter(|error| !is_gone(&requests[error.index], error.errno))
            {
                results[error.index] = Err(Failure::whole(error.errno.to_string()));
            }
        }
        Err(error) => {
            results.fill_with(|| Err(Failure::whole(error.to_string())));
        }
    }
    results
}

/// That what is to be deleted is not there is no failure.
fn is_gone(request: &Request, errno: Errno) -> bool {
    matches!(
        request,
        Request::DelService { .. } | Request::DelDest { .. }
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
