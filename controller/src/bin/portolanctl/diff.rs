//! `portolanctl diff`.

use std::collections::BTreeSet;

use anyhow::Context as _;
use portolan_model::{Destination, Family, Lists, NodeTable, RecordKey};
use serde::Deserialize;
use serde_json::Value;

/// What differs between what two nodes must have; `-` is the first's, `+` the second's.
pub(crate) fn of_two(name_a: &str, a: &NodeTable, name_b: &str, b: &NodeTable) -> String {
    let mut text = format!("--- {name_a}\n+++ {name_b}\n");
    let before = text.len();
    let zone = |t: &NodeTable| t.node.zone.as_deref().unwrap_or("none").to_owned();
    if zone(a) != zone(b) {
        text.push_str(&format!("zone\n  - {}\n  + {}\n", zone(a), zone(b)));
    }
    let keys: BTreeSet<_> = a.records.keys().chain(b.records.keys()).collect();
    for key in keys {
        for lists in [Lists::Cluster, Lists::Local] {
            let (of_a, of_b) = (destinations(a, key, lists), destinations(b, key, lists));
            if of_a == of_b {
                continue;
            }
            text.push_str(&format!("{key} (policy {lists:?})\n"));
            for (sign, only) in [('-', of_a.difference(&of_b)), ('+', of_b.difference(&of_a))] {
                for destination in only {
                    let (address, weight) = (destination.address, destination.weight);
                    text.push_str(&format!("  {sign} {address} weight {weight}\n"));
                }
            }
        }
    }
    if text.len() == before {
        text.push_str("equal\n");
    }
    text
}

/// What a record's ways in of one policy lead to.
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

/// Whether a node's kernel has what it must have; the answer of `/debug/diff/NODE`.
pub(crate) fn of_one(node: &str, answer: Value) -> anyhow::Result<String> {
    let at: Standing = serde_json::from_value(answer).context("the controller's answer")?;
    let revision = at.revision;
    if at.records_equal && at.own_equal {
        return Ok(format!("node {node}: equal to revision {revision}\n"));
    }
    let Some(programmed) = at.programmed else {
        return Ok(format!("node {node}: has programmed nothing yet\n"));
    };
    let mut text = format!("node {node}: has revision {programmed}, must have {revision}\n");
    let changed = match at.changed {
        None => return Ok(text + "what changed since is not known any more\n"),
        Some(changed) => changed,
    };
    if changed.is_empty() {
        text.push_str("nothing changed since: see REFUSED of `portolanctl nodes`\n");
    }
    for one in changed {
        let sign = if one.deleted { '-' } else { '+' };
        let record = one.record.as_deref().unwrap_or("what is known of the node");
        let own = if one.own { " (the node's own)" } else { "" };
        text.push_str(&format!("  {sign} {record}{own}\n"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests;
