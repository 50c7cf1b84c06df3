// SPDX-License-Identifier: Apache-2.0

//! `/debug/programmed?revision=N` and `?service=NAMESPACE/NAME`: the nodes whose kernel has a revision,
//! or the newest state of a Service.

use axum::Json;
use axum::extract::{RawQuery, State};
use portolan_serve::{NodeStatus, RELAY, Standing};
use serde::Serialize;

use super::{Debug, Failure};

/// The subject of the question.
#[derive(Debug, PartialEq, Eq)]
enum Target {
    Revision(u64),
    Service { namespace: String, name: String },
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
    State(debug): State<Debug>,
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
    fn has_programmed(&self, status: &NodeStatus, target: &Target) -> bool {
        match target {
            Target::Revision(revision) => status.programmed >= Some(*revision),
            // The records that single nodes behind a relay lack are not known here.
            Target::Service { .. } if status.node.starts_with(RELAY) => {
                status.programmed >= Some(self.tables.head(&self.cluster))
            }
            Target::Service { namespace, name } => {
                let prefix = match &*self.cluster {
                    "" => format!("{namespace}/{name}"),
                    cluster => format!("{cluster}/{namespace}/{name}"),
                };
                has_programmed_service(&status.standing(&self.tables), &prefix)
            }
        }
    }
}

/// Whether none of the changes that a node lacks is of a Service, whose records begin with a prefix.
fn has_programmed_service(standing: &Standing, prefix: &str) -> bool {
    if standing.programmed.is_none() {
        return false;
    }
    let is_of_service = |record: &str| {
        let rest = record.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with(['/', ':']))
    };
    match &standing.changed {
        None => standing.records_equal && standing.own_equal,
        Some(changed) => {
            let mut records = changed.iter().filter_map(|one| one.record.as_deref());
            !records.any(is_of_service)
        }
    }
}

impl Target {
    fn parse(query: &str) -> Result<Self, Failure> {
        let mut target = None;
        for (key, value) in form_urlencoded::parse(query.as_bytes()) {
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
                        Self::Service { namespace, name }
                    }
                    _ => return Err(wrong("NAMESPACE/NAME")),
                },
                other => return Err(Failure::bad_request(format!("{other}: no such parameter"))),
            };
            target = Some(parsed);
        }
        target.ok_or_else(|| Failure::bad_request("revision or service: missing".to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use portolan_serve::ChangedRecord;

    use super::*;

    #[test]
    fn targets_are_parsed_and_bad_ones_named() {
        assert_eq!(Target::parse("revision=7").unwrap(), Target::Revision(7));
        let service = Target::Service {
            namespace: "default".to_owned(),
            name: "web".to_owned(),
        };
        assert_eq!(Target::parse("service=default%2Fweb").unwrap(), service);
        for (query, named) in [
            ("", "revision or service: "),
            ("revision=x", "revision: "),
            ("service=web", "service: "),
            ("node=a", "node: "),
        ] {
            let error = Target::parse(query).unwrap_err().message;
            assert!(error.starts_with(named), "{query}: {error}");
        }
    }

    #[test]
    fn only_changes_of_the_service_itself_count() {
        let standing = |programmed, equal: bool, changed: Option<&[Option<&str>]>| Standing {
            revision: 9,
            programmed,
            records_equal: equal,
            own_equal: equal,
            changed: changed.map(|records| {
                let changed = records.iter().map(|record| ChangedRecord {
                    record: record.map(str::to_owned),
                    own: false,
                    deleted: false,
                });
                changed.collect()
            }),
        };
        let other: &[_] = &[None, Some("ns/web-2/TCP"), Some("ns/we/TCP")];
        let own: &[_] = &[Some("ns/web:http/TCP")];
        let plain: &[_] = &[Some("ns/web/UDP")];
        for (standing, expected) in [
            (standing(Some(5), false, Some(other)), true),
            (standing(Some(5), false, Some(own)), false),
            (standing(Some(5), false, Some(plain)), false),
            (standing(Some(9), true, Some(&[])), true),
            // The log no longer knows the changes, or the agent has reported nothing.
            (standing(Some(1), false, None), false),
            (standing(Some(1), true, None), true),
            (standing(None, false, None), false),
            (standing(None, false, Some(&[])), false),
        ] {
            assert_eq!(
                has_programmed_service(&standing, "ns/web"),
                expected,
                "{standing:?}"
            );
        }
    }
}
