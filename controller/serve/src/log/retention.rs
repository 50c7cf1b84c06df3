//! How much a log remembers of what is gone.

/// What is kept at least of what is gone. As much as there is of what is not gone is kept in any
/// case: up to there, telling an agent what is gone is cheaper than a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Deleted records, for each cluster.
    pub record_tombstones: usize,
    /// Deleted lists, for each node; fewer, as there are many nodes.
    pub list_tombstones: usize,
    /// Nodes that have nothing of their own any more, for each cluster.
    pub idle_nodes: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            record_tombstones: 1_000,
            list_tombstones: 64,
            idle_nodes: 1_000,
        }
    }
}
