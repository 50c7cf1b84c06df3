// SPDX-License-Identifier: Apache-2.0

//! `portolanctl diff`.

use std::collections::BTreeSet;

use anyhow::Context as _;
use portolan_model::{Destination, Family, Lists, NodeTable, RecordKey};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::reply::Reply;

/// Destinations of a record's list that only one of two nodes has.
#[derive(Debug, Serialize)]
struct Difference {
    record: String,
    policy: String,
    removed: Vec<Destination>,
    added: Vec<Destination>,
}

/// Compares the tables of two nodes; `-` is the first one's, `+` the second one's.
pub(crate) fn of_two(name_a: &str, a: &NodeTable, name_b: &str, b: &NodeTable) -> Reply {
    let zones = [a, b].map(|table| table.node.zone.as_deref());
    let differences = differences(a, b);
    let mut text = format!("--- {name_a}\n+++ {name_b}\n");
    if zones[0] != zones[1] {
        let [a, b] = zones.map(|zone| zone.unwrap_or("none"));
        text.push_str(&format!("zone\n  - {a}\n  + {b}\n"));
    }
    for difference in &differences {
        let (record, policy) = (&difference.record, &difference.policy);
        text.push_str(&format!("{record} (policy {policy})\n"));
        for (sign, only) in [('-', &difference.removed), ('+', &difference.added)] {
            for destination in only {
                let (address, weight) = (destination.address, destination.weight);
                text.push_str(&format!("  {sign} {address} weight {weight}\n"));
            }
        }
    }
    let is_equal = differences.is_empty() && zones[0] == zones[1];
    if is_equal {
        text.push_str("equal\n");
    }
    let value = json!({
        "nodes": [name_a, name_b],
        "equal": is_equal,
        "zones": zones,
        "differences": differences,
    });
    Reply::new(value, text).with_code(u8::from(!is_equal))
}

fn differences(a: &NodeTable, b: &NodeTable) -> Vec<Difference> {
    let keys: BTreeSet<_> = a.records.keys().chain(b.records.keys()).collect();
    let lists = [Lists::Cluster, Lists::Local];
    let pairs = keys
        .into_iter()
        .flat_map(|key| lists.map(|lists| (key, lists)));
    let differences = pairs.map(|(key, lists)| {
        let (of_a, of_b) = (destinations(a, key, lists), destinations(b, key, lists));
        Difference {
            record: key.to_string(),
            policy: format!("{lists:?}"),
            removed: of_a.difference(&of_b).copied().collect(),
            added: of_b.difference(&of_a).copied().collect(),
        }
    });
    let differences = differences.filter(|d| !d.removed.is_empty() || !d.added.is_empty());
    differences.collect()
}

/// Destinations of a record's frontends of one policy.
fn destinations(table: &NodeTable, key: &RecordKey, lists: Lists) -> BTreeSet<Destination> {
    let Some(record) = table.records.get(key) else {
        return BTreeSet::new();
    };
    let uses = |family| {
        let mut frontends = record.frontends.iter();
        frontends.any(|f| {
            let short = lists == Lists::Cluster && f.has_short_circuit();
            f.family() == family && (f.lists == lists || short)
        })
    };
    let families = Family::ALL.into_iter().filter(|family| uses(*family));
    families
        .flat_map(|family| table.list(record, family, lists))
        .collect()
}

#[derive(Deserialize)]
struct Standing {
    revision: u64,
    programmed: Option<u64>,
    records_equal: bool,
    own_equal: bool,
    changed: Option<Vec<Changed>>,
}

#[derive(Deserialize)]
struct Changed {
    record: Option<String>,
    own: bool,
    deleted: bool,
}

/// Compares a node's kernel with its table: the answer of `/debug/diff/NODE`.
pub(crate) fn of_one(node: &str, answer: Value) -> anyhow::Result<Reply> {
    let standing: Standing =
        serde_json::from_value(answer.clone()).context("the controller's answer")?;
    let revision = standing.revision;
    if standing.records_equal && standing.own_equal {
        let text = format!("node {node}: equal to revision {revision}\n");
        return Ok(Reply::new(answer, text));
    }
    let text = difference(node, &standing);
    Ok(Reply::new(answer, text).with_code(1))
}

fn difference(node: &str, standing: &Standing) -> String {
    let revision = standing.revision;
    let Some(programmed) = standing.programmed else {
        return format!("node {node}: has programmed nothing yet\n");
    };
    let mut text = format!("node {node}: has revision {programmed}, must have {revision}\n");
    let Some(changed) = &standing.changed else {
        return text + "changes since then are no longer known\n";
    };
    if changed.is_empty() {
        text.push_str("no changes since then: see REFUSED of `portolanctl nodes`\n");
    }
    for one in changed {
        let sign = if one.deleted { '-' } else { '+' };
        let record = one.record.as_deref().unwrap_or("properties of the node");
        let own = if one.own { " (of this node only)" } else { "" };
        text.push_str(&format!("  {sign} {record}{own}\n"));
    }
    text
}

#[cfg(test)]
mod tests;
