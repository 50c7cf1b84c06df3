// SPDX-License-Identifier: Apache-2.0

//! Disconnected agents, whose entries are kept within bounds: without authentication any peer can make
//! up names of nodes.

use std::collections::BTreeMap;

use portolan_model::NodeKey;

use super::Nodes;

/// Maximum number of disconnected agents kept.
pub(super) const MAX_DISCONNECTED: usize = 10_000;

/// Maximum size of their health reports together, in load balancers and backends.
const MAX_HEALTH: usize = 1_000_000;

/// The disconnected agents by the number of their last session, oldest first.
#[derive(Debug)]
pub(super) struct Disconnected {
    nodes: BTreeMap<u64, NodeKey>,
    /// Size of each health report that is kept and not empty.
    health: BTreeMap<u64, usize>,
    /// The sum of `health`.
    total: usize,
    /// Maximum of `total`.
    most: usize,
}

impl Default for Disconnected {
    fn default() -> Self {
        Self::keeping(MAX_HEALTH)
    }
}

impl Disconnected {
    /// Keeps health reports up to a size.
    pub(super) fn keeping(most: usize) -> Self {
        Self {
            nodes: BTreeMap::new(),
            health: BTreeMap::new(),
            total: 0,
            most,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Adds an agent whose last health report has this size.
    pub(super) fn insert(&mut self, session: u64, node: NodeKey, health: usize) {
        self.nodes.insert(session, node);
        if health > 0 {
            self.health.insert(session, health);
            self.total += health;
        }
    }

    /// Removes an agent that is connected again, or that is forgotten.
    pub(super) fn remove(&mut self, session: u64) -> Option<NodeKey> {
        self.take_health(session);
        self.nodes.remove(&session)
    }

    /// Removes the oldest agent if there are too many.
    fn pop_surplus(&mut self) -> Option<NodeKey> {
        if self.nodes.len() <= MAX_DISCONNECTED {
            return None;
        }
        let oldest = *self.nodes.first_key_value()?.0;
        self.remove(oldest)
    }

    /// The agent with the oldest health report if the reports are too large together. The report does
    /// not count from then on.
    fn pop_health(&mut self) -> Option<NodeKey> {
        if self.total <= self.most {
            return None;
        }
        let oldest = *self.health.first_key_value()?.0;
        self.take_health(oldest);
        self.nodes.get(&oldest).cloned()
    }

    fn take_health(&mut self, session: u64) {
        let size = self.health.remove(&session).unwrap_or(0);
        self.total = self.total.saturating_sub(size);
    }
}

impl Nodes {
    /// Forgets what is beyond the bounds for disconnected agents.
    pub(super) fn bound_disconnected(&mut self) {
        while let Some(oldest) = self.disconnected.pop_surplus() {
            self.entries.remove(&oldest);
        }
        while let Some(oldest) = self.disconnected.pop_health() {
            if let Some(entry) = self.entries.get_mut(&oldest) {
                entry.forget_health();
            }
        }
    }
}
