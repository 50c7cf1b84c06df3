// SPDX-License-Identifier: Apache-2.0

//! A controller's explanation beside the agent's answer.

use std::collections::BTreeSet;

use anyhow::Context as _;
use portolan_model::Lists;
use portolan_model::trace::{Difference, Origin, Outcome, Trace};
use portolan_select::Explanation;

use crate::client::{Client, encoded};

/// Adds a controller's reasons and notes, and what its destinations differ in.
pub(super) async fn compare(
    controller: &Client,
    protocol: &str,
    trace: &mut Trace,
) -> anyhow::Result<()> {
    let path = format!(
        "/debug/explain?address={}&protocol={protocol}&node={}",
        encoded(&trace.packet.destination.to_string()),
        encoded(&trace.node)
    );
    let value = controller.get(&path).await?;
    let explanation = serde_json::from_value(value).context("the controller's answer")?;
    join(&explanation, trace);
    Ok(())
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
