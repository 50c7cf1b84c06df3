//! An operator's word that a table may be programmed which the agent holds back.

use portolan_model::NodeKey;

use super::Registry;

/// Why an agent cannot be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unconfirmed {
    /// No agent of that name has ever connected.
    #[error("no agent of that node has connected")]
    Unknown,
    /// Its agent has no stream now.
    #[error("its agent is not connected")]
    Disconnected,
    /// It has not said on this stream that it holds a table back.
    #[error("its agent holds no table back")]
    NothingHeld,
}

impl Registry {
    /// Lets a node's agent program the table that it holds back, and says of which revision that
    /// is.
    ///
    /// # Errors
    /// If there is no stream to say it on, or no table.
    pub fn confirm(&self, node: &NodeKey) -> Result<u64, Unconfirmed> {
        let nodes = self.lock();
        let entry = nodes.entries.get(node).ok_or(Unconfirmed::Unknown)?;
        entry.confirm()
    }
}
