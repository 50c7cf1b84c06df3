// SPDX-License-Identifier: Apache-2.0

//! A stream that a node's agent has beside that of its table: at most one, which lasts no longer
//! than its node.

use std::sync::Arc;

use portolan_model::NodeKey;

use super::{NodeStanding, Registry, SessionSignals};

/// A node's stream. A newer one ends it; dropping it frees its place.
#[derive(Debug)]
pub(crate) struct SideStream {
    registry: Arc<Registry>,
    node: NodeKey,
    signals: Arc<SessionSignals>,
}

/// Reason for the end of such a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SideStreamEnd {
    /// A newer stream of the same node has begun.
    Replaced,
    /// The node is not served any more.
    Node(NodeStanding),
}

impl Registry {
    /// Begins a node's stream, and ends the previous one.
    pub(crate) fn begin_side_stream(self: &Arc<Self>, node: NodeKey) -> SideStream {
        let signals = Arc::<SessionSignals>::default();
        let mut nodes = self.lock();
        if !nodes.is_served(&node) {
            signals.delete();
        }
        let old = nodes
            .side_streams
            .insert(node.clone(), Arc::clone(&signals));
        drop(nodes);
        if let Some(old) = old {
            old.replace();
        }
        SideStream {
            registry: Arc::clone(self),
            node,
            signals,
        }
    }
}

impl SideStream {
    /// Completes when the stream must end.
    pub(crate) async fn parted(&self) -> SideStreamEnd {
        loop {
            if self.signals.is_replaced() {
                return SideStreamEnd::Replaced;
            }
            if self.signals.is_deleted() {
                return SideStreamEnd::Node(self.registry.standing(&self.node));
            }
            self.signals.news().await;
        }
    }
}

impl Drop for SideStream {
    fn drop(&mut self) {
        let mut nodes = self.registry.lock();
        let current = nodes.side_streams.get(&self.node);
        if current.is_some_and(|signals| Arc::ptr_eq(signals, &self.signals)) {
            nodes.side_streams.remove(&self.node);
        }
    }
}
