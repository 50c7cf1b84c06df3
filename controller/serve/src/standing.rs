// SPDX-License-Identifier: Apache-2.0

//! Comparison of a node's observed and desired state, for operators.

use portolan_model::NodeKey;
use portolan_tablelog::{Differences, Scope, TablePart, TableReader};
use serde::Serialize;

use crate::{NodeStatus, RELAY};

/// Observed state of a node's kernel, compared with the desired state.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// The desired revision.
    pub revision: u64,
    /// The programmed revision; `None` if the agent has reported none.
    pub programmed: Option<u64>,
    /// Whether the shared records in the kernel equal those of `revision`, by hash.
    pub records_equal: bool,
    /// Whether the node's own part equals the controller's, by hash.
    pub own_equal: bool,
    /// Changes since `programmed`, sorted by record. `None` if `programmed` is `None` or too old to
    /// compare.
    pub changed: Option<Vec<ChangedRecord>>,
}

/// One record that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedRecord {
    /// The record, as `namespace/service[:port]/PROTOCOL`; `None` for the node's info.
    pub record: Option<String>,
    /// Whether the change is in the node's own part, rather than in the records that all nodes
    /// share.
    pub own: bool,
    /// Whether the record was deleted.
    pub deleted: bool,
}

impl NodeStatus {
    /// Compares the agent's last report with the desired state.
    #[must_use]
    pub fn standing(&self, tables: &TableReader) -> Standing {
        let node = NodeKey {
            cluster: self.cluster.as_str().into(),
            name: self.node.as_str().into(),
        };
        let scope = match node.name.starts_with(RELAY) {
            false => Scope::Node(node.clone()),
            true => Scope::AllNodes(node.cluster.clone()),
        };
        let (revision, hashes) = tables.hashes(&scope);
        let programmed = self.programmed;
        let differences = programmed.and_then(|at| tables.differences_since(&node, at));
        Standing {
            revision,
            programmed,
            records_equal: self.records_hash == Some(hashes.records),
            own_equal: self.own_hash == Some(hashes.own),
            changed: differences.map(changed),
        }
    }
}

fn changed(differences: Differences) -> Vec<ChangedRecord> {
    let info = differences.info.then_some(ChangedRecord {
        record: None,
        own: true,
        deleted: false,
    });
    let records = differences.records.into_iter();
    let records = records.map(|(key, part, deleted)| ChangedRecord {
        record: Some(key.to_string()),
        own: part == TablePart::Own,
        deleted,
    });
    info.into_iter().chain(records).collect()
}

#[cfg(test)]
mod tests;
