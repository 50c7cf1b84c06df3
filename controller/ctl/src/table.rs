// SPDX-License-Identifier: Apache-2.0

//! `portolanctl table`, in the form of `ipvsadm -L -n`.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Context as _;
use portolan_model::{ByRecord, Frontend, NodeInfo, NodeOverlay, NodeTable, Record};
use serde::Deserialize;
use serde_json::Value;

#[derive(Deserialize)]
struct Answer {
    node: NodeInfo,
    records: Vec<Record>,
    lists: Vec<Lists>,
}

#[derive(Deserialize)]
struct Lists {
    record: String,
    lists: NodeOverlay,
}

/// Reads the answer of `/debug/table/NODE`.
pub(crate) fn parse(answer: Value) -> anyhow::Result<NodeTable> {
    let answer: Answer = serde_json::from_value(answer).context("the controller's answer")?;
    let records: ByRecord<Record> = answer
        .records
        .into_iter()
        .map(|record| (record.key.clone(), Arc::new(record)))
        .collect();
    let keys: BTreeMap<_, _> = records.keys().map(|key| (key.to_string(), key)).collect();
    // An overlay without a record has no effect.
    let lists = answer.lists.into_iter().filter_map(|of| {
        let key = keys.get(&of.record)?;
        Some(((*key).clone(), Arc::new(of.lists)))
    });
    Ok(NodeTable {
        node: answer.node,
        lists: lists.collect(),
        records: records.clone(),
        ..NodeTable::default()
    })
}

/// Shows each frontend with its destinations.
pub(crate) fn show(table: &NodeTable) -> String {
    let mut text = String::new();
    for record in table.records.values() {
        for frontend in &record.frontends {
            let scheduler = record.scheduling.scheduler.as_deref().unwrap_or("default");
            let address = address(frontend);
            let protocol = record.key.protocol;
            text.push_str(&format!(
                "{protocol} {address} {scheduler} ({})",
                record.key
            ));
            if let Some(affinity) = record.affinity {
                text.push_str(&format!(" persistent {}", affinity.timeout_seconds));
            }
            text.push('\n');
            for destination in table.destinations(record, frontend) {
                let (address, weight) = (destination.address, destination.weight);
                text.push_str(&format!("  -> {address} weight {weight}\n"));
            }
        }
    }
    text
}

/// Address and port of a frontend.
fn address(frontend: &Frontend) -> String {
    frontend.place()
}
