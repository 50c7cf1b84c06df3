// SPDX-License-Identifier: Apache-2.0

//! Operator confirmation of held deletions.

use portolan_model::NodeKey;

use super::Registry;

/// Reasons that a confirmation cannot be sent to an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Unconfirmed {
    /// No agent of that name has ever connected.
    #[error("no agent of that node has connected")]
    Unknown,
    /// Its agent has no stream now.
    #[error("its agent is not connected")]
    Disconnected,
    /// The agent has not reported held deletions on this stream.
    #[error("its agent holds no table back")]
    NothingHeld,
}

impl Registry {
    /// Confirms the deletions that a node's agent holds back, and returns the revision of their
    /// table.
    ///
    /// # Errors
    /// If the agent is unknown, has no stream, or holds nothing back.
    pub fn confirm(&self, node: &NodeKey) -> Result<u64, Unconfirmed> {
        let nodes = self.lock();
        let entry = nodes.entries.get(node).ok_or(Unconfirmed::Unknown)?;
        entry.confirm()
    }
}
