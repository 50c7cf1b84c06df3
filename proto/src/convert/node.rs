// SPDX-License-Identifier: Apache-2.0

//! Facts about a node itself.

use portolan_model::{ContentHash, Family, NodeInfo};

use super::network::{decode_network, encode_network};
use super::{DecodeError, DecodeErrorKind, decode_hash};
use crate::v1;

/// A node's own facts as far as this version understands them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedNode {
    /// The facts.
    pub node: NodeInfo,
    /// Their hash as the sender stated it, or that of `node` if the sender states none.
    pub hash: ContentHash,
    /// Descriptions of left-out parts.
    pub left_out: Vec<String>,
}

/// A node's own facts with their hash.
#[must_use]
pub fn encode_node(node: &NodeInfo, hash: ContentHash) -> v1::NodeInfo {
    v1::NodeInfo {
        zone: node.zone.as_deref().unwrap_or_default().to_owned(),
        pod_cidrs: node.pod_cidrs.iter().map(encode_network).collect(),
        eligible: node.eligible,
        hash: hash.to_bytes().into(),
        groups: node.groups.iter().map(|group| (**group).into()).collect(),
        director: node
            .director
            .as_deref()
            .unwrap_or_default()
            .as_bytes()
            .to_vec(),
    }
}

/// Decodes a node's facts.
///
/// # Errors
/// If they break a rule of the protocol.
pub fn decode_node(from: &v1::NodeInfo) -> Result<DecodedNode, DecodeError> {
    let mut left_out = Vec::new();
    let mut node = NodeInfo {
        zone: (!from.zone.is_empty()).then(|| from.zone.as_str().into()),
        pod_cidrs: Vec::new(),
        eligible: from.eligible,
        groups: from
            .groups
            .iter()
            .map(|group| group.as_str().into())
            .collect(),
        director: None,
    };
    match str::from_utf8(&from.director) {
        Ok("") => {}
        Ok(text) => node.director = Some(text.into()),
        Err(_) => left_out.push("director left out: not text".to_owned()),
    }
    node.groups.sort();
    node.groups.dedup();
    for (index, network) in from.pod_cidrs.iter().enumerate() {
        let Some(net) = decode_network(network)? else {
            left_out.push(format!("pod CIDR {index} left out: unknown family"));
            continue;
        };
        let family = Family::of(net.addr());
        if node
            .pod_cidrs
            .iter()
            .any(|n| Family::of(n.addr()) == family)
        {
            return Err(DecodeError::new("node.pod_cidrs", DecodeErrorKind::Family));
        }
        node.pod_cidrs.push(net);
    }
    let hash = match from.hash.as_slice() {
        [] => node.content_hash(),
        stated => decode_hash(stated)?,
    };
    Ok(DecodedNode {
        node,
        hash,
        left_out,
    })
}
