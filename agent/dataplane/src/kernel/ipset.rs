// SPDX-License-Identifier: Apache-2.0

//! Steps about sets as ipset requests, adjacent steps in one batch.

use std::sync::Arc;

use portolan_model::ipset::{Set, SetEntry};
use portolan_netlink::ipset::{Ipset, IpsetError, Request, RequestError};
use portolan_plan::Step;

use crate::runs::StepFailure;
use crate::{DataplaneError, Doubt};

/// Set that is filled and then swapped in as a replacement. A killed agent may leave it.
pub const REPLACEMENT: &str = "PORTOLAN-REPLACEMENT";

/// Applies steps; one result each.
pub(super) fn apply(ipset: &mut Ipset, steps: &[&Step]) -> Vec<Result<(), StepFailure>> {
    let mut results = Vec::with_capacity(steps.len());
    for run in steps.chunk_by(|a, b| !is_replacement(a) && !is_replacement(b)) {
        match run {
            [Step::ReplaceSet { name, set }] => results.push(replace(ipset, name, set)),
            _ => {
                let mut send = |requests: &[Request]| ipset.apply(requests);
                results.extend(batch(&mut send, run));
            }
        }
    }
    results
}

fn is_replacement(step: &Step) -> bool {
    matches!(step, Step::ReplaceSet { .. })
}

/// Applies steps by `send`, together if that is possible.
fn batch(
    send: &mut impl FnMut(&[Request]) -> Result<Vec<RequestError>, IpsetError>,
    steps: &[&Step],
) -> Vec<Result<(), StepFailure>> {
    let requests: Vec<Request> = steps.iter().filter_map(|step| request(step)).collect();
    let mut results: Vec<Result<(), StepFailure>> = steps.iter().map(|_| Ok(())).collect();
    match send(&requests) {
        Ok(errors) => {
            for of_one in errors.chunk_by(|a, b| a.index == b.index) {
                let index = of_one[0].index;
                results[index] = Err(failure(steps[index], &requests[index], of_one));
            }
        }
        // Nothing was sent because of one request: it must not hold up the others.
        Err(IpsetError::Name { .. } | IpsetError::Entry { .. } | IpsetError::NoType { .. })
            if steps.len() > 1 =>
        {
            let each = steps.chunks(1);
            return each.flat_map(|step| batch(send, step)).collect();
        }
        Err(error) => results.fill_with(|| Err(not_done(&error))),
    }
    results
}

/// Failure of a step: by bad entries, or as a whole.
fn failure(step: &Step, request: &Request, errors: &[RequestError]) -> StepFailure {
    let entry_of = |error: &RequestError| entry_of(request, error.entry?);
    let entries: Vec<SetEntry> = errors.iter().filter_map(entry_of).collect();
    let shown = errors.iter().map(|error| match entry_of(error) {
        Some(entry) => format!("entry {entry}: {}", error.errno),
        None => error.errno.to_string(),
    });
    let message = shown.collect::<Vec<_>>().join("; ");
    match errors.iter().find(|error| error.entry.is_none()) {
        Some(whole) => StepFailure {
            message,
            entries,
            ..StepFailure::refused(step, whole.errno)
        },
        None => StepFailure {
            message,
            ..StepFailure::of_entries(step, entries)
        },
    }
}

/// Failure of requests that were not sent, or got no answer.
fn not_done(error: &IpsetError) -> StepFailure {
    let doubt = match error {
        IpsetError::Socket(_) => Doubt::Lost,
        _ => Doubt::Stale,
    };
    StepFailure::new(doubt, error.to_string())
}

fn entry_of(request: &Request, index: usize) -> Option<SetEntry> {
    match request {
        Request::Add { entries, .. } | Request::Del { entries, .. } => entries.get(index).cloned(),
        _ => None,
    }
}

fn request(step: &Step) -> Option<Request> {
    Some(match step {
        Step::CreateSet { name, header } => Request::Create {
            name: name.clone(),
            header: header.clone(),
            expected_entries: 1024,
            exclusive: false,
        },
        Step::AddEntries { name, entries } => Request::Add {
            name: name.clone(),
            entries: Arc::clone(entries),
        },
        Step::DelEntries { name, entries } => Request::Del {
            name: name.clone(),
            entries: Arc::clone(entries),
        },
        _ => return None,
    })
}

/// Fills a new set and swaps it in: rules never see a half-filled one.
fn replace(ipset: &mut Ipset, name: &str, set: &Set) -> Result<(), StepFailure> {
    let expected_entries = u32::try_from(set.entries.len()).unwrap_or(u32::MAX);
    let temporary = || REPLACEMENT.to_owned();
    let fill = [
        Request::Create {
            name: temporary(),
            header: set.header.clone(),
            expected_entries,
            exclusive: true,
        },
        Request::Add {
            name: temporary(),
            entries: Arc::new(set.entries.iter().cloned().collect()),
        },
    ];
    let swap = [Request::Swap {
        a: temporary(),
        b: name.to_owned(),
    }];
    let destroy = [Request::Destroy { name: temporary() }];
    // Left by a killed agent, if it exists.
    let _ = all(ipset, &destroy);
    let filled = all(ipset, &fill).and_then(|()| all(ipset, &swap));
    let destroyed = all(ipset, &destroy);
    filled.and(destroyed)
}

fn all(ipset: &mut Ipset, requests: &[Request]) -> Result<(), StepFailure> {
    let errors = ipset.apply(requests).map_err(|error| not_done(&error))?;
    match errors.first() {
        None => Ok(()),
        Some(error) => Err(StepFailure::new(Doubt::Stale, error.errno.to_string())),
    }
}

/// Whether the kernel has a set. One without ipset has none.
///
/// # Errors
/// If ipset cannot be read.
pub fn has_set(name: &str) -> Result<bool, DataplaneError> {
    match Ipset::open() {
        Err(IpsetError::NoIpset) => Ok(false),
        opened => Ok(opened?.names()?.contains(name)),
    }
}

/// Destroys those of the sets that exist.
pub(super) fn destroy(ipset: &mut Ipset, names: &[String]) -> Result<(), DataplaneError> {
    let existing = ipset.names()?;
    let requests: Vec<_> = names
        .iter()
        .filter(|name| existing.contains(*name))
        .map(|name| Request::Destroy { name: name.clone() })
        .collect();
    let errors = ipset.apply(&requests)?;
    match errors.first() {
        None => Ok(()),
        Some(error) => Err(DataplaneError::Command {
            command: format!(
                "destroy {}",
                requests.get(error.index).map_or("", destroyed_name)
            ),
            message: error.errno.to_string(),
        }),
    }
}

fn destroyed_name(request: &Request) -> &str {
    match request {
        Request::Destroy { name } => name,
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::ipset::{SetHeader, SetKind};
    use portolan_model::{Family, Protocol};
    use portolan_netlink::ipset::EntryFault;

    use super::*;

    fn create(name: &str) -> Step {
        Step::CreateSet {
            name: name.to_owned(),
            header: SetHeader {
                kind: SetKind::HashIpPortNet,
                family: Family::V4,
                max_entries: 65_536,
            },
        }
    }

    fn add(name: &str, net: &str) -> Step {
        let (ip, net) = ([192, 0, 2, 10].into(), net.parse().unwrap());
        let entry = SetEntry::IpPortNet(ip, Protocol::Tcp, 80, net);
        Step::AddEntries {
            name: name.to_owned(),
            entries: Arc::new(vec![entry]),
        }
    }

    #[test]
    fn an_entry_that_no_set_can_have_fails_its_step_alone() {
        let steps = [
            create("a"),
            add("a", "192.0.2.0/24"),
            add("a", "0.0.0.0/0"),
            add("b", "198.51.100.0/24"),
        ];
        let (mut sent, mut calls) = (Vec::new(), 0);
        // As `Ipset::apply` does: it checks all requests before it sends any.
        let mut send = |requests: &[Request]| {
            calls += 1;
            let is_bad = |request: &Request| {
                matches!(request, Request::Add { entries, .. }
                    if entries.iter().any(|entry| entry.to_string().ends_with("/0")))
            };
            if let Some(index) = requests.iter().position(is_bad) {
                let fault = EntryFault::ZeroPrefix;
                return Err(IpsetError::Entry {
                    index,
                    entry: 0,
                    fault,
                });
            }
            sent.extend_from_slice(requests);
            Ok(Vec::<RequestError>::new())
        };
        let steps: Vec<&Step> = steps.iter().collect();
        let results = batch(&mut send, &steps);
        let failed: Vec<_> = results.iter().map(Result::is_err).collect();
        assert_eq!(failed, [false, false, true, false]);
        // Without a bad one all go together.
        let results = batch(&mut send, &steps[..2]);
        assert!(results.iter().all(Result::is_ok));
        assert_eq!((sent.len(), calls), (5, 6));
    }
}
