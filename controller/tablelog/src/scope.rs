// SPDX-License-Identifier: Apache-2.0

//! The part of the tables that a stream carries.

use std::sync::Arc;

use portolan_model::NodeKey;

/// The part of the tables that a stream carries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Scope {
    /// One node's table: an agent's stream.
    Node(NodeKey),
    /// The shared records of a cluster and the own parts of all its nodes: a relay's stream.
    AllNodes(Arc<str>),
}

impl Scope {
    /// The cluster of the stream.
    #[must_use]
    pub fn cluster(&self) -> &Arc<str> {
        match self {
            Self::Node(node) => &node.cluster,
            Self::AllNodes(cluster) => cluster,
        }
    }
}

impl From<&NodeKey> for Scope {
    fn from(node: &NodeKey) -> Self {
        Self::Node(node.clone())
    }
}
