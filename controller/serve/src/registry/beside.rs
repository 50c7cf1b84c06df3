//! The stream that a node's agent has beside that of its table: one, as long as the node is there.

use std::sync::Arc;

use portolan_model::NodeKey;

use super::{NodeStanding, Registry, Told};

/// A node's stream; another one takes its place when this is dropped, or ends it.
#[derive(Debug)]
pub(crate) struct Beside {
    registry: Arc<Registry>,
    node: NodeKey,
    told: Arc<Told>,
}

/// Why such a stream must end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Parted {
    /// A newer one of the same node has begun.
    Replaced,
    /// The node is not served any more.
    Node(NodeStanding),
}

impl Registry {
    /// Begins a node's stream, and ends the one that it had.
    pub(crate) fn begin_beside(self: &Arc<Self>, node: NodeKey) -> Beside {
        let told = Arc::<Told>::default();
        let mut nodes = self.lock();
        if !nodes.is_served(&node) {
            told.delete();
        }
        let old = nodes.beside.insert(node.clone(), Arc::clone(&told));
        drop(nodes);
        if let Some(old) = old {
            old.replace();
        }
        Beside {
            registry: Arc::clone(self),
            node,
            told,
        }
    }
}

impl Beside {
    /// Completes when the stream must end.
    pub(crate) async fn parted(&self) -> Parted {
        loop {
            if self.told.is_replaced() {
                return Parted::Replaced;
            }
            if self.told.is_deleted() {
                return Parted::Node(self.registry.standing(&self.node));
            }
            self.told.news().await;
        }
    }
}

impl Drop for Beside {
    fn drop(&mut self) {
        let mut nodes = self.registry.lock();
        let current = nodes.beside.get(&self.node);
        if current.is_some_and(|told| Arc::ptr_eq(told, &self.told)) {
            nodes.beside.remove(&self.node);
        }
    }
}
