// SPDX-License-Identifier: Apache-2.0

//! `/debug/federation?cluster=C&import=NS/NAME` and `&export=NS/NAME`, `/debug/plan-policy`, and the actions `drain/CLUSTER` and
//! `undrain/CLUSTER`, which need a credential.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::{Path, RawQuery, State};
use portolan_federate::imports::ImportName;
use portolan_policy::{Drain, File, read};
use portolan_runtime::parse_duration;
use portolan_select::ShownImport;
use serde_json::{Value, json};
use tokio::sync::oneshot;

use super::scoped::{Scoped, parameters};
use super::{Debug, Failure};
use crate::writer::{DrainError, Question};

/// Subject of a request.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    Import(ImportName),
    Export(ImportName),
}

/// An import or export of a cluster.
pub(super) async fn federation(
    Scoped(debug): Scoped,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Failure> {
    let cluster = Arc::clone(&debug.cluster);
    let no_member = || {
        Failure::not_found(format!(
            "cluster {cluster}: no member of several clusters, or its source has not synced yet"
        ))
    };
    match parse(&query.unwrap_or_default())? {
        Asked::Import(name) => {
            let asked = |answer| Question::Import {
                cluster: Arc::clone(&cluster),
                name,
                answer,
            };
            let shown = debug.ask(asked).await?.ok_or_else(no_member)?;
            Ok(Json(debug.with_states(&shown)))
        }
        Asked::Export(name) => {
            let asked = |answer| Question::Export {
                cluster: Arc::clone(&cluster),
                name,
                answer,
            };
            let shown = debug.ask(asked).await?.ok_or_else(no_member)?;
            Ok(Json(json!(shown)))
        }
    }
}

fn parse(query: &str) -> Result<Asked, Failure> {
    let mut asked = None;
    for (parameter, value) in parameters(query) {
        let name = || {
            let (namespace, name) = value.split_once('/').unwrap_or_default();
            let is_good = !namespace.is_empty() && !name.is_empty();
            let wrong = || {
                let message = format!("{parameter}: {value:?} is not of the form NAMESPACE/NAME");
                Failure::bad_request(message)
            };
            let name = ImportName {
                namespace: namespace.into(),
                name: name.into(),
            };
            is_good.then_some(name).ok_or_else(wrong)
        };
        asked = Some(match &*parameter {
            "import" => Asked::Import(name()?),
            "export" => Asked::Export(name()?),
            other => return Err(Failure::bad_request(format!("{other}: no such parameter"))),
        });
    }
    asked.ok_or_else(|| Failure::bad_request(String::from("import or export: missing")))
}

/// The imports that the policy in the request's body would change. Nothing is written.
pub(super) async fn plan_policy(
    State(debug): State<Debug>,
    text: String,
) -> Result<Json<Value>, Failure> {
    let reading = read(&[File {
        name: "policy",
        text: &text,
    }]);
    let problems: Vec<String> = reading.problems.iter().map(ToString::to_string).collect();
    let objects = Box::new(reading.objects);
    let asked = |answer| Question::Plan { objects, answer };
    let planned = debug.ask(asked).await?;
    Ok(Json(json!({"imports": planned, "problems": problems})))
}

/// Drains a cluster: `?to=PERCENT&over=DURATION`.
pub(super) async fn drain(
    State(debug): State<Debug>,
    Path(cluster): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Json<Value>, Failure> {
    let drain = parse_drain(&query.unwrap_or_default())?;
    debug.set_drain(&cluster, Some(drain)).await?;
    tracing::warn!(cluster, to = drain.to, over = ?drain.over, "an operator drains the cluster");
    Ok(Json(
        json!({"cluster": cluster, "to": drain.to, "overSeconds": drain.over.as_secs()}),
    ))
}

/// Ends the drain of a cluster.
pub(super) async fn undrain(
    State(debug): State<Debug>,
    Path(cluster): Path<String>,
) -> Result<Json<Value>, Failure> {
    debug.set_drain(&cluster, None).await?;
    tracing::warn!(cluster, "an operator ends the drain of the cluster");
    Ok(Json(json!({"cluster": cluster})))
}

fn parse_drain(query: &str) -> Result<Drain, Failure> {
    let mut drain = Drain {
        to: 0,
        over: Duration::ZERO,
    };
    for (name, value) in parameters(query) {
        match &*name {
            "to" => {
                let percent = value.parse().ok().filter(|percent| *percent <= 100);
                let message = || format!("to: {value:?} is not a percentage: expected 0 to 100");
                drain.to = percent.ok_or_else(|| Failure::bad_request(message()))?;
            }
            "over" => {
                let over = parse_duration(&value);
                drain.over = over.map_err(|e| Failure::bad_request(format!("over: {e}")))?;
            }
            other => return Err(Failure::bad_request(format!("{other}: no such parameter"))),
        }
    }
    Ok(drain)
}

impl Debug {
    async fn set_drain(&self, cluster: &str, drain: Option<Drain>) -> Result<(), Failure> {
        let asked = |answer| Question::Drain {
            cluster: cluster.into(),
            drain,
            answer,
        };
        let drained = self.ask(asked).await?;
        drained.map_err(|error| match error {
            DrainError::Follows(_) => Failure::misdirected(error.to_string()),
            _ => Failure::bad_request(error.to_string()),
        })
    }

    /// Asks the writer.
    pub(super) async fn ask<T>(
        &self,
        question: impl FnOnce(oneshot::Sender<T>) -> Question,
    ) -> Result<T, Failure> {
        let Some(questions) = &self.questions else {
            let message = "a relay has no objects: ask the controller behind it";
            return Err(Failure::not_found(message.to_owned()));
        };
        let (answer, answered) = oneshot::channel();
        let stopping = || Failure::unavailable("the controller is stopping");
        let sent = questions.send(question(answer)).await;
        sent.map_err(|_| stopping())?;
        answered.await.map_err(|_| stopping())
    }

    /// An import with the states of clusters, and where it is programmed.
    fn with_states(&self, shown: &ShownImport) -> Value {
        let states = self.states.lock();
        let phases = states.statuses.iter();
        let phases: serde_json::Map<_, _> = phases
            .map(|(name, status)| (name.to_string(), json!(status.phase.as_str())))
            .collect();
        drop(states);
        let revision = self.tables.head(&self.cluster);
        let agents = self.sessions.snapshot();
        let agents = agents.iter();
        let connected = agents.filter(|agent| agent.connected && *agent.cluster == *self.cluster);
        let (mut all, mut programmed) = (0, 0);
        for agent in connected {
            all += 1;
            programmed += usize::from(agent.programmed >= Some(revision));
        }
        json!({
            "import": shown,
            "phases": phases,
            "revision": revision,
            "connected": all,
            "programmed": programmed,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries_name_one_import_or_export() {
        let name = ImportName {
            namespace: "shop".into(),
            name: "web".into(),
        };
        let parsed = |query| parse(query).map_err(|failure| failure.message);
        assert_eq!(parsed("import=shop%2Fweb"), Ok(Asked::Import(name.clone())));
        assert_eq!(parsed("cluster=a&export=shop/web"), Ok(Asked::Export(name)));
        for (query, field) in [
            ("", "import or export: "),
            ("import=web", "import: "),
            ("export=/web", "export: "),
            ("imports=shop/web", "imports: "),
        ] {
            let error = parsed(query).unwrap_err();
            assert!(error.starts_with(field), "{query}: {error}");
        }
    }

    #[test]
    fn drains_have_a_percentage_and_a_time() {
        let parsed = |query| parse_drain(query).map_err(|failure| failure.message);
        let drain = |to, seconds| Drain {
            to,
            over: Duration::from_secs(seconds),
        };
        assert_eq!(parsed(""), Ok(drain(0, 0)));
        assert_eq!(parsed("to=50&over=20s"), Ok(drain(50, 20)));
        for (query, field) in [("to=101", "to: "), ("over=x", "over: "), ("til=1", "til: ")] {
            let error = parsed(query).unwrap_err();
            assert!(error.starts_with(field), "{query}: {error}");
        }
    }
}
