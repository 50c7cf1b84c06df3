// SPDX-License-Identifier: Apache-2.0

//! A controller's explanation beside the agent's answer.

use std::collections::BTreeSet;

use anyhow::Context as _;
use portolan_model::Lists;
use portolan_model::trace::{Difference, Origin, Outcome, Trace};
use portolan_select::Explanation;

use crate::answers::first;
use crate::client::{Client, encoded};

/// Adds the reasons and notes of the first controller that answers, and what its destinations differ in. Each
/// controller before it has a sentence.
pub(super) async fn compare(
    controllers: &[Client],
    protocol: &str,
    trace: &mut Trace,
) -> anyhow::Result<Vec<String>> {
    let path = format!(
        "/debug/explain?address={}&protocol={protocol}&node={}",
        encoded(&trace.packet.destination.to_string()),
        encoded(&trace.node)
    );
    let (value, notes) = first(controllers, |controller| controller.get(&path)).await?;
    let explanation = serde_json::from_value(value).context("the controller's answer")?;
    join(&explanation, trace);
    Ok(notes)
}

fn join(explanation: &Explanation, trace: &mut Trace) {
    for way in [&mut trace.wanted, &mut trace.found] {
        if let Outcome::Forwarded { servers, .. } = &mut way.outcome {
            for server in servers {
                let mut all = explanation.endpoints.iter();
                if let Some(explained) = all.find(|e| e.address == server.address) {
                    server.why.clone_from(&explained.reason);
                }
            }
        }
    }
    // The explanation is about clients outside.
    let is_about_all =
        explanation.lists == Lists::Cluster || trace.packet.origin == Origin::Outside;
    let used: BTreeSet<_> = explanation
        .endpoints
        .iter()
        .filter(|explained| explained.used && explained.weight > 0)
        .map(|explained| explained.address)
        .collect();
    let chosen: BTreeSet<_> = trace
        .wanted
        .outcome
        .chosen()
        .map(|server| server.address)
        .collect();
    if is_about_all && used != chosen {
        let text = |addresses: &BTreeSet<std::net::SocketAddr>| match addresses.is_empty() {
            true => "no destination".to_owned(),
            false => {
                let all: Vec<_> = addresses.iter().map(ToString::to_string).collect();
                all.join(", ")
            }
        };
        trace.differences.push(Difference {
            place: "the controller (TABLE) and the node's table (KERNEL)".to_owned(),
            wanted: text(&used),
            found: text(&chosen),
        });
    }
    trace.notes.extend(explanation.notes.iter().cloned());
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use axum::routing::get;
    use axum::{Json, Router};
    use portolan_model::trace::{Packet, Way};
    use portolan_model::{FrontendKind, Protocol};
    use serde_json::json;
    use tokio::net::TcpListener;

    use super::*;
    use crate::client::of_agent;

    /// A controller that answers this to each question.
    async fn controller(status: StatusCode, answer: serde_json::Value) -> Client {
        let router = Router::new().fallback(get(move || async move { (status, Json(answer)) }));
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        tokio::spawn(async move { axum::serve(listener, router).await });
        of_agent(&address, std::time::Duration::from_secs(5)).unwrap()
    }

    fn trace() -> Trace {
        let way = Way {
            steps: Vec::new(),
            outcome: Outcome::Refused { by: "a".to_owned() },
        };
        Trace {
            node: "a".to_owned(),
            revision: 1,
            dataplane: "ipvs".to_owned(),
            packet: Packet {
                origin: Origin::Node,
                source: [10, 0, 0, 1].into(),
                destination: ([10, 96, 0, 1], 80).into(),
                protocol: Protocol::Tcp,
            },
            record: None,
            wanted: way.clone(),
            found: way,
            differences: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[tokio::test]
    async fn a_controller_without_an_answer_is_followed_by_the_next_one() {
        let explanation = Explanation {
            record: "ns/web/TCP".to_owned(),
            kind: FrontendKind::ClusterIp,
            lists: Lists::Cluster,
            node: "a".to_owned(),
            zone: None,
            endpoints: Vec::new(),
            notes: vec!["the second controller".to_owned()],
        };
        let starts = json!({"error": "the source has not synced yet"});
        let controllers = [
            of_agent("http://127.0.0.1:1", std::time::Duration::from_secs(5)).unwrap(),
            controller(StatusCode::SERVICE_UNAVAILABLE, starts).await,
            controller(StatusCode::OK, json!(explanation)).await,
        ];
        let mut found = trace();
        let notes = compare(&controllers, "tcp", &mut found).await.unwrap();
        assert_eq!(notes.len(), 2, "{notes:?}");
        assert!(notes[1].contains("not synced yet"), "{notes:?}");
        assert_eq!(found.notes, ["the second controller"]);
        // A refusal would be the same at another controller.
        let unknown = json!({"error": "node a: there is no such Node"});
        let controllers = [
            controller(StatusCode::NOT_FOUND, unknown).await,
            controller(StatusCode::OK, json!(explanation)).await,
        ];
        let error = compare(&controllers, "tcp", &mut found).await.unwrap_err();
        assert_eq!(error.to_string(), "node a: there is no such Node");
    }
}
