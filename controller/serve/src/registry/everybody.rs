//! What all agents have, for a relay, which answers for them.

use super::Registry;

impl Registry {
    /// Whether all connected agents of a cluster, and relays, have programmed a revision; also if
    /// there are none. Costs as much as there are agents.
    #[must_use]
    pub fn all_programmed(&self, cluster: &str, revision: u64) -> bool {
        let nodes = self.lock();
        let entries = nodes.entries.iter();
        let mut of_cluster = entries.filter(|(node, _)| *node.cluster == *cluster);
        !of_cluster.any(|(_, entry)| entry.lacks(revision))
    }
}
