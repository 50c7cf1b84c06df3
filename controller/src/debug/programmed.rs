// SPDX-License-Identifier: Apache-2.0

//! `/debug/programmed?revision=N` and `?service=NAMESPACE/NAME`: the nodes whose kernel has a revision,
//! or the newest state of a Service; with `&without=ADDRESS` the newest state, and no destination of
//! that address for new connections.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use axum::Json;
use axum::extract::RawQuery;
use portolan_model::Destination;
use portolan_serve::{NodeStatus, RELAY, RecordProblem, Standing};
use portolan_tablelog::Scope;
use serde::Serialize;

use super::scoped::{Scoped, parameters};
use super::{Debug, Failure};

/// The subject of the question.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Revision(u64),
    Service {
        namespace: String,
        name: String,
        without: Option<Address>,
    },
}

/// An address of endpoints: all ports, or one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Address {
    Host(IpAddr),
    Socket(SocketAddr),
}

impl Address {
    fn parse(text: &str) -> Option<Self> {
        let host = text.parse().map(Self::Host);
        host.or_else(|_| text.parse().map(Self::Socket)).ok()
    }

    /// Returns `true` if new connections are forwarded there.
    fn is_served_by(self, destination: &Destination) -> bool {
        let is_same = match self {
            Self::Host(host) => destination.address.ip() == host,
            Self::Socket(socket) => destination.address == socket,
        };
        is_same && destination.weight > 0
    }
}

#[derive(Debug, Serialize)]
pub(super) struct Answer {
    revision: u64,
    nodes: Vec<NodeProgress>,
}

#[derive(Debug, Serialize)]
struct NodeProgress {
    node: String,
    connected: bool,
    programmed: bool,
}

/// Tells which nodes have programmed the target, among those whose agent has connected.
pub(super) async fn programmed(
    Scoped(debug): Scoped,
    RawQuery(query): RawQuery,
) -> Result<Json<Answer>, Failure> {
    let target = Target::parse(&query.unwrap_or_default())?;
    let nodes = debug.sessions.snapshot().into_iter();
    let nodes = nodes.filter(|status| *status.cluster == *debug.cluster);
    let nodes = nodes.map(|status| NodeProgress {
        programmed: debug.has_programmed(&status, &target),
        connected: status.connected,
        node: status.node,
    });
    Ok(Json(Answer {
        revision: debug.tables.head(&debug.cluster),
        nodes: nodes.collect(),
    }))
}

impl Debug {
    /// Returns `true` if the newest table of a node, or of any behind a relay, forwards new connections
    /// to an address.
    fn forwards(&self, status: &NodeStatus, service: (&str, &str), address: Address) -> bool {
        let scope = match status.node.starts_with(RELAY) {
            true => Scope::AllNodes(Arc::clone(&self.cluster)),
            false => Scope::Node(self.key(&status.node)),
        };
        let is_served = |destination: &Destination| address.is_served_by(destination);
        self.tables.has_destination(&scope, service, is_served)
    }

    fn has_programmed(&self, status: &NodeStatus, target: &Target) -> bool {
        match target {
            Target::Revision(revision) => status.programmed >= Some(*revision),
            Target::Service {
                namespace,
                name,
                without: Some(address),
            } if keeps_old_records(status, &format!("{namespace}/{name}"))
                || self.forwards(status, (namespace, name), *address) =>
            {
                false
            }
            // A refused record is programmed with its revision, as an error.
            Target::Service {
                namespace, name, ..
            } if refuses(status, &format!("{namespace}/{name}")) => false,
            // The records that single nodes behind a relay lack are not known here.
            Target::Service { .. } if status.node.starts_with(RELAY) => {
                status.programmed >= Some(self.tables.head(&self.cluster))
            }
            Target::Service {
                namespace, name, ..
            } => {
                let prefix = match &*self.cluster {
                    "" => format!("{namespace}/{name}"),
                    cluster => format!("{cluster}/{namespace}/{name}"),
                };
                has_programmed_service(&status.standing(&self.tables), &prefix)
            }
        }
    }
}

/// Returns `true` if a node may still have a Service's records as they were: deletions are held, or a
/// record was refused by the agent or by the kernel. A relay tells of its agents only whether all of them
/// have their tables as they are, by its hashes.
fn keeps_old_records(status: &NodeStatus, service: &str) -> bool {
    let is_whole = status.records_hash.is_some() && status.own_hash.is_some();
    status.held.is_some()
        || (status.node.starts_with(RELAY) && !is_whole)
        || refuses(status, service)
}

/// Returns `true` if a record of a Service may have been refused by the agent or by the kernel. A relay
/// counts the refusals of its agents' kernels, and names no record.
fn refuses(status: &NodeStatus, service: &str) -> bool {
    let is_affected = |problems: &[RecordProblem], total: u32| {
        let mut records = problems.iter().filter_map(|one| one.record.as_deref());
        // Not all problems are listed if there are many.
        records.any(|record| is_of_service(record, service)) || total as usize > problems.len()
    };
    is_affected(&status.refused, status.refused_total)
        || is_affected(&status.errors, status.errors_total)
}

/// Returns `true` if a record belongs to the Service whose records begin with a prefix.
fn is_of_service(record: &str, prefix: &str) -> bool {
    let rest = record.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.starts_with(['/', ':']))
}

/// Returns `true` if none of the changes that a node lacks is of a Service, whose records begin with a
/// prefix.
fn has_programmed_service(standing: &Standing, prefix: &str) -> bool {
    if standing.programmed.is_none() {
        return false;
    }
    match &standing.changed {
        None => standing.records_equal && standing.own_equal,
        Some(changed) => {
            let mut records = changed.iter().filter_map(|one| one.record.as_deref());
            !records.any(|record| is_of_service(record, prefix))
        }
    }
}

impl Target {
    fn parse(query: &str) -> Result<Self, Failure> {
        let (mut target, mut excluded) = (None, None);
        for (key, value) in parameters(query) {
            let wrong =
                |expected| Failure::bad_request(format!("{key}: {value:?}: expected {expected}"));
            let parsed = match &*key {
                "revision" => value
                    .parse()
                    .map(Self::Revision)
                    .map_err(|_| wrong("a number"))?,
                "service" => match value.split_once('/') {
                    Some((namespace, name)) if !namespace.is_empty() && !name.is_empty() => {
                        let (namespace, name) = (namespace.to_owned(), name.to_owned());
                        Self::Service {
                            namespace,
                            name,
                            without: None,
                        }
                    }
                    _ => return Err(wrong("NAMESPACE/NAME")),
                },
                "without" => {
                    let address = Address::parse(&value);
                    excluded = Some(address.ok_or_else(|| wrong("IP or IP:PORT"))?);
                    continue;
                }
                other => return Err(Failure::bad_request(format!("{other}: no such parameter"))),
            };
            target = Some(parsed);
        }
        let missing = || Failure::bad_request("revision or service: missing".to_owned());
        let mut target = target.ok_or_else(missing)?;
        match &mut target {
            Self::Service { without, .. } => *without = excluded,
            Self::Revision(_) if excluded.is_some() => {
                let message = "without: only with service".to_owned();
                return Err(Failure::bad_request(message));
            }
            Self::Revision(_) => {}
        }
        Ok(target)
    }
}

#[cfg(test)]
mod tests;
