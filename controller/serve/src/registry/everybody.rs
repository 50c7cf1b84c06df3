// SPDX-License-Identifier: Apache-2.0

//! Progress of all agents of a cluster, which a relay acknowledges upstream.

use super::Registry;

/// Statement of all connected agents and relays of a cluster on the tables in their kernels.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AllProgrammed {
    /// Whether each of them stated the hashes of its table, and refused no record of it. There are no
    /// hashes while it holds deletions back.
    pub has_hashes: bool,
    /// Number of refusals of all kernels and agents.
    pub errors_total: u32,
}

impl AllProgrammed {
    /// All kernels are equal to their tables; so it is if there are none.
    pub const EQUAL: Self = Self {
        has_hashes: true,
        errors_total: 0,
    };
}

impl Registry {
    /// Returns the statement of all connected agents and relays of a cluster on the tables that they have
    /// programmed; `None` if one of them lacks the revision. Costs O(agents).
    #[must_use]
    pub fn all_programmed(&self, cluster: &str, revision: u64) -> Option<AllProgrammed> {
        let nodes = self.lock();
        let mut all = AllProgrammed::EQUAL;
        for (node, entry) in &nodes.entries {
            if *node.cluster == *cluster {
                let one = entry.has_programmed(revision)?;
                all.has_hashes &= one.has_hashes;
                all.errors_total = all.errors_total.saturating_add(one.errors_total);
            }
        }
        Some(all)
    }
}
