//! Whether a node's kernel has what it must have, for people.

use portolan_model::NodeKey;
use portolan_tablelog::{Differences, Scope, TablePart, TableReader};
use serde::Serialize;

use crate::{NodeStatus, RELAY};

/// What a node's kernel has, next to what it must have.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Standing {
    /// The revision that the kernel must have.
    pub revision: u64,
    /// The revision that the kernel has, if the agent has said any.
    pub programmed: Option<u64>,
    /// Whether the shared records in the kernel are, by their hash, those of `revision`.
    pub records_equal: bool,
    /// Whether what is the node's own is, by its hash.
    pub own_equal: bool,
    /// What changed since the revision that the kernel has, sorted by record; `None` if that is not
    /// known any more.
    pub changed: Option<Vec<ChangedRecord>>,
}

/// One record that changed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChangedRecord {
    /// The record, as `namespace/service[:port]/PROTOCOL`; `None` for what is known of the node.
    pub record: Option<String>,
    /// Whether that is the node's own and not shared by all nodes.
    pub own: bool,
    /// Whether it is gone.
    pub deleted: bool,
}

impl NodeStatus {
    /// How the agent stands, by what it said last.
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
