//! How much a log remembers of what is gone.

/// What is kept of what is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Deleted records, for each cluster, at least. As many as there are of others are kept in any
    /// case: up to there, telling an agent what is gone is cheaper than a snapshot.
    pub record_tombstones: usize,
    /// Deleted lists, for each node, at most. An agent that has missed more is sent all of its
    /// node's, which are few; but there are many nodes.
    pub list_tombstones: usize,
    /// Nodes that have nothing of their own any more, for each cluster, at least. As many as there
    /// are of others are kept in any case.
    pub idle_nodes: usize,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            record_tombstones: 1_000,
            list_tombstones: 8,
            idle_nodes: 1_000,
        }
    }
}
