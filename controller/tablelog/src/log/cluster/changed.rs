// SPDX-License-Identifier: Apache-2.0

//! The keys of changed records, for display.

use portolan_model::RecordKey;

use super::Cluster;
use crate::log::Journal;

/// The part of a table that changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TablePart {
    /// A record that all nodes share.
    Shared,
    /// The node's own lists for a record.
    Own,
}

/// The differences of a node's table since some revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differences {
    /// The key of each change, its part, and whether it is a deletion.
    pub records: Vec<(RecordKey, TablePart, bool)>,
    /// Whether the node's info changed.
    pub info: bool,
}

impl Cluster {
    /// The changes of a node's table after `cursor`, sorted. `None` if some have been dropped, or
    /// `cursor` is after the head.
    pub(crate) fn differences_since(&self, node: &str, cursor: u64) -> Option<Differences> {
        if cursor > self.head {
            return None;
        }
        let mut differences = Differences {
            records: of_journal(&self.records, TablePart::Shared, cursor)?,
            info: false,
        };
        match self.nodes.get(node) {
            None if cursor < self.idle_floor => return None,
            None => {}
            Some(own) => {
                let lists = of_journal(&own.lists, TablePart::Own, cursor)?;
                differences.records.extend(lists);
                differences.info = own.info_changed > cursor;
            }
        }
        differences.records.sort();
        Some(differences)
    }
}

fn of_journal<T>(
    journal: &Journal<T>,
    part: TablePart,
    cursor: u64,
) -> Option<Vec<(RecordKey, TablePart, bool)>> {
    let changed = journal.changed_since(cursor)?;
    let difference = |key: &RecordKey| (key.clone(), part, journal.get(key).is_none());
    Some(changed.map(difference).collect())
}
