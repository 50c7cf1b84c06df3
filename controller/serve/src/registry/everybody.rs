// SPDX-License-Identifier: Apache-2.0

//! Progress of all agents of a cluster, which a relay acknowledges upstream.

use super::Registry;

impl Registry {
    /// Whether all connected agents and relays of a cluster have programmed a revision; `true` if
    /// there are none. Costs O(agents).
    #[must_use]
    pub fn all_programmed(&self, cluster: &str, revision: u64) -> bool {
        let nodes = self.lock();
        let entries = nodes.entries.iter();
        let mut of_cluster = entries.filter(|(node, _)| *node.cluster == *cluster);
        !of_cluster.any(|(_, entry)| entry.lacks(revision))
    }
}
