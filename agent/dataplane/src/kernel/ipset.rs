//! Steps about sets as ipset requests, one batch for neighbouring steps.

use std::sync::Arc;

use portolan_model::ipset::Set;
use portolan_netlink::ipset::{Ipset, Request};
use portolan_plan::Step;

use super::Failure;
use crate::DataplaneError;

/// The set in which a replacement is filled before it is swapped in. One that was killed meanwhile
/// leaves it.
pub const REPLACEMENT: &str = "PORTOLAN-REPLACEMENT";

/// Takes steps; one result each.
pub(super) fn take(ipset: &mut Ipset, steps: &[&Step]) -> Vec<Result<(), Failure>> {
    let mut results = Vec::with_capacity(steps.len());
    for run in steps.chunk_by(|a, b| !is_replacement(a) && !is_replacement(b)) {
        match run {
            [Step::ReplaceSet { name, set }] => results.push(replace(ipset, name, set)),
            _ => results.extend(batch(ipset, run)),
        }
    }
    results
}

fn is_replacement(step: &Step) -> bool {
    matches!(step, Step::ReplaceSet { .. })
}

fn batch(ipset: &mut Ipset, steps: &[&Step]) -> Vec<Result<(), Failure>> {
    let requests: Vec<Request> = steps.iter().filter_map(|step| request(step)).collect();
    let mut results: Vec<Result<(), Failure>> = steps.iter().map(|_| Ok(())).collect();
    match ipset.apply(&requests) {
        Ok(errors) => {
            for error in errors {
                let entry = error
                    .entry
                    .and_then(|entry| entry_of(&requests[error.index], entry));
                note(&mut results[error.index], entry, &error.errno.to_string());
            }
        }
        Err(error) => results.fill_with(|| Err(Failure::whole(error.to_string()))),
    }
    results
}

/// Adds an error to what is known of a step: of a bad entry, or of the step as a whole.
fn note(
    result: &mut Result<(), Failure>,
    entry: Option<portolan_model::ipset::SetEntry>,
    errno: &str,
) {
    let mut failure = std::mem::replace(result, Ok(())).err().unwrap_or_default();
    let separator = if failure.message.is_empty() { "" } else { "; " };
    match entry {
        Some(entry) => {
            failure
                .message
                .push_str(&format!("{separator}entry {entry}: {errno}"));
            failure.entries.push(entry);
        }
        None => failure.message.push_str(&format!("{separator}{errno}")),
    }
    *result = Err(failure);
}

fn entry_of(request: &Request, index: usize) -> Option<portolan_model::ipset::SetEntry> {
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

/// Fills a new set and swaps it in: rules that refer to the name never see a half-filled one.
fn replace(ipset: &mut Ipset, name: &str, set: &Set) -> Result<(), Failure> {
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
    // What an earlier run that was killed may have left. That there is none is no failure.
    let _ = all(ipset, &destroy);
    let filled = all(ipset, &fill).and_then(|()| all(ipset, &swap));
    let destroyed = all(ipset, &destroy);
    filled.and(destroyed)
}

fn all(ipset: &mut Ipset, requests: &[Request]) -> Result<(), Failure> {
    let errors = ipset
        .apply(requests)
        .map_err(|error| Failure::whole(error.to_string()))?;
    match errors.first() {
        None => Ok(()),
        Some(error) => Err(Failure::whole(error.errno.to_string())),
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
