// SPDX-License-Identifier: Apache-2.0

//! Facts about the node itself. As with every other part, their hash is the controller's.

use portolan_director::Director;
use portolan_model::{ContentHash, NodeInfo};
use portolan_proto::convert::{decode_hash, decode_node};
use portolan_proto::v1;

/// The state in force; the facts themselves are in the table.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) hash: ContentHash,
    /// The reason of a refusal.
    pub(super) problem: Option<String>,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            hash: NodeInfo::default().content_hash(),
            problem: None,
        }
    }
}

/// The state after the Commit.
#[derive(Debug, Clone)]
pub(super) struct StagedNode {
    /// `None` if it was refused: the last good facts stay.
    pub(super) info: Option<NodeInfo>,
    /// True if the Director was refused: the last good one stays.
    pub(super) keeps_director: bool,
    pub(super) node: Node,
}

impl Default for StagedNode {
    /// The staged state of a node without facts.
    fn default() -> Self {
        Self {
            info: Some(NodeInfo::default()),
            keeps_director: false,
            node: Node::default(),
        }
    }
}

impl StagedNode {
    /// Reads the facts about the node `name`.
    pub(super) fn new(message: &v1::NodeInfo, name: &str) -> Self {
        let mut keeps_director = false;
        let (info, hash, problem) = match decode_node(message) {
            Ok(mut decoded) => {
                if !message.director.is_empty()
                    && let Err(why) = Director::from_sent(&message.director, name)
                {
                    decoded.node.director = None;
                    decoded.left_out = vec![why.to_string()];
                    keeps_director = true;
                }
                let left_out = decoded.left_out.join("; ");
                let problem = (!left_out.is_empty()).then_some(left_out);
                (Some(decoded.node), decoded.hash, problem)
            }
            Err(why) => {
                // A hash that is none adds nothing to the sum, so that the Commit will not fit.
                let hash = decode_hash(&message.hash).unwrap_or(ContentHash(0));
                (None, hash, Some(format!("refused: {why}")))
            }
        };
        Self {
            info,
            keeps_director,
            node: Node { hash, problem },
        }
    }
}
