//! Which records changed, for people.

use portolan_model::RecordKey;

use super::Cluster;
use crate::log::Journal;

/// What a change was of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TablePart {
    /// A record that all nodes share.
    Shared,
    /// What the node has of its own for a record.
    Own,
}

/// What changed since some revision.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Differences {
    /// Of what, of which record, and whether it is gone.
    pub records: Vec<(RecordKey, TablePart, bool)>,
    /// What is known of the node.
    pub info: bool,
}

impl Cluster {
    /// What changed of a node's table after `cursor`, sorted; `None` if that is not known any more,
    /// or `cursor` never was a revision here.
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
