// SPDX-License-Identifier: Apache-2.0

//! The tables of nodes, as their agents are sent them.

use std::sync::Arc;

use portolan_model::NodeKey;
use portolan_select::TableDelta;
use portolan_tablelog::{Delivery, Feed, Next, Publisher, Retention, Scope, TableReader};

/// Nodes of several clusters, each of which gets all changes of its cluster.
pub(crate) struct Tables {
    publisher: Publisher,
    reader: TableReader,
    nodes: Vec<Follower>,
}

struct Follower {
    feed: Arc<Feed>,
    scope: Scope,
    /// The revision that the node has.
    revision: u64,
}

impl Tables {
    pub(crate) fn new(nodes: impl IntoIterator<Item = NodeKey>) -> Self {
        let (mut publisher, reader) = Publisher::new(Retention::default());
        let mut follow = |node: NodeKey| {
            publisher.set_synced(&node.cluster);
            Follower {
                feed: reader.feed(&node.cluster),
                scope: Scope::Node(node),
                revision: 0,
            }
        };
        Self {
            nodes: nodes.into_iter().map(&mut follow).collect(),
            publisher,
            reader,
        }
    }

    /// Publishes changes. Returns the bytes of the messages that bring each node up to date.
    pub(crate) fn publish(&mut self, delta: &TableDelta) -> Vec<usize> {
        self.publisher.publish(delta);
        let nodes = self.nodes.iter_mut();
        let sent = nodes.map(|node| {
            let delivery = match self.reader.next(&node.feed, &node.scope, node.revision) {
                Next::Nothing => return 0,
                Next::Deliver(delivery) => delivery,
                Next::Snapshot => self.reader.snapshot(&node.feed, &node.scope),
            };
            node.revision = delivery.revision;
            bytes(delivery)
        });
        sent.collect()
    }

    /// The bytes of the whole table of each node.
    pub(crate) fn snapshots(&self) -> Vec<usize> {
        let snapshot = |node: &Follower| bytes(self.reader.snapshot(&node.feed, &node.scope));
        self.nodes.iter().map(snapshot).collect()
    }
}

fn bytes(mut delivery: Delivery) -> usize {
    let chunks = std::iter::from_fn(|| delivery.next_chunk());
    chunks.map(|chunk| chunk.len()).sum()
}
