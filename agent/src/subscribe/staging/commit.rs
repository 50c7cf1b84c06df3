// SPDX-License-Identifier: Apache-2.0

//! The end of a transition.

use std::sync::Arc;

use portolan_model::SetHash;
use portolan_proto::convert::decode_set_hash;
use portolan_proto::v1;

use super::{Committed, Staging, StagingError, own_hash};

impl Staging {
    /// Swaps, if the hashes fit.
    pub(super) fn commit(&mut self, commit: v1::Commit) -> Result<Committed, StagingError> {
        let (snapshot, revision) = (commit.snapshot, commit.revision);
        if snapshot {
            self.records.replace_all();
            self.lists.replace_all();
            self.staged_node.get_or_insert_default();
        }
        let staged = self.staged_node.as_ref().map(|staged| &staged.node);
        let node_hash = staged.unwrap_or(&self.node).hash;
        let records_hash = decode_set_hash("records_hash", &commit.records_hash)?;
        let own_stated = self.stated_own_hash(&commit)?;
        fits("records", revision, records_hash, self.records.hash_after())?;
        let own_got = own_hash(self.lists.hash_after(), node_hash);
        fits("the node's own", revision, own_stated, own_got)?;
        if self.has_staged() {
            self.swap();
        }
        self.position = Some((self.epoch, revision));
        self.source_versions = commit.source_versions;
        Ok(Committed {
            epoch: self.epoch,
            revision,
            snapshot,
            table: Arc::clone(&self.table),
            records_hash,
            own_hash: own_stated,
            trigger_times_ms: commit.trigger_times_ms,
            refused: self.refused(),
        })
    }

    /// Without one, the node's own part is unchanged; not so in a snapshot.
    fn stated_own_hash(&self, commit: &v1::Commit) -> Result<SetHash, StagingError> {
        if commit.own_hash.is_empty() && !commit.snapshot && self.position.is_some() {
            return Ok(self.own_hash());
        }
        Ok(decode_set_hash("own_hash", &commit.own_hash)?)
    }

    fn has_staged(&self) -> bool {
        self.records.has_staged() || self.lists.has_staged() || self.staged_node.is_some()
    }

    fn swap(&mut self) {
        // Clones the maps, not their values, while the last table is in use elsewhere.
        let table = Arc::make_mut(&mut self.table);
        if let Some(staged) = self.staged_node.take() {
            self.node = staged.node;
            if let Some(info) = staged.info {
                let before = std::mem::replace(&mut table.node, info);
                if staged.keeps_director {
                    table.node.director = before.director;
                }
            }
        }
        self.records.commit(&mut table.records, &self.cluster);
        self.lists.commit(&mut table.lists, &self.cluster);
    }

    fn refused(&self) -> Vec<v1::Refusal> {
        let records = self
            .records
            .problems()
            .map(|(key, why)| (key, why.to_string()));
        let lists = self.lists.problems();
        let lists = lists.map(|(key, why)| (key, format!("the node's own lists: {why}")));
        let of_records = records.chain(lists).map(|(key, reason)| v1::Refusal {
            key: Some(key.clone()),
            reason,
        });
        let of_node = self.node.problem.iter().map(|why| v1::Refusal {
            key: None,
            reason: format!("the node's info: {why}"),
        });
        of_node.chain(of_records).collect()
    }
}

fn fits(
    part: &'static str,
    revision: u64,
    stated: SetHash,
    got: SetHash,
) -> Result<(), StagingError> {
    (stated == got).then_some(()).ok_or(StagingError::Mismatch {
        part,
        revision,
        stated,
        got,
    })
}
