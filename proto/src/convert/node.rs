//! What is known of a node itself.

use portolan_model::{Family, NodeInfo};

use super::network::{decode_network, encode_network};
use super::{DecodeError, DecodeErrorKind};
use crate::v1;

/// A node's own facts.
#[must_use]
pub fn encode_node(node: &NodeInfo) -> v1::NodeInfo {
    v1::NodeInfo {
        zone: node.zone.as_deref().unwrap_or_default().to_owned(),
        pod_cidrs: node.pod_cidrs.iter().map(encode_network).collect(),
        eligible: node.eligible,
    }
}

/// What the facts are.
///
/// # Errors
/// If they break a rule of the protocol.
pub fn decode_node(from: &v1::NodeInfo) -> Result<NodeInfo, DecodeError> {
    let mut node = NodeInfo {
        zone: (!from.zone.is_empty()).then(|| from.zone.as_str().into()),
        pod_cidrs: Vec::new(),
        eligible: from.eligible,
    };
    for network in &from.pod_cidrs {
        let Some(net) = decode_network(network)? else {
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
    Ok(node)
}
