// SPDX-License-Identifier: Apache-2.0

//! Facts about a node itself.

use std::collections::BTreeMap;
use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Facts of the Node object that the agent needs; the default is that of a node without one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// The label `topology.kubernetes.io/zone`, if it has one that is not empty.
    pub zone: Option<Arc<str>>,
    /// `spec.podCIDRs`: networks of the node's own pods (`--detect-local-mode NodeCIDR`). One of each
    /// family at most.
    pub pod_cidrs: Vec<IpNet>,
    /// Whether load balancers may send the node new connections: it exists, is not being deleted,
    /// and the cluster autoscaler has not chosen it for deletion (KEP-3836).
    pub eligible: bool,
    /// Groups of nodes that the node belongs to ([`group_name`], [`import_group`]), sorted.
    #[serde(default)]
    pub groups: Vec<Arc<str>>,
    /// The `Director` of the host as JSON; `None` if the controller has none. Controllers forward it unread, so that
    /// relays need not know its fields.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub director: Option<Arc<str>>,
}

/// The name of the group of nodes that an ImportPolicy selects, the same on every controller. It stays when the policy
/// selects others, so that records stay as they are.
#[must_use]
pub fn import_group(policy: &str) -> Arc<str> {
    format!("ImportPolicy/{policy}").into()
}

/// The name of the group of nodes that a node selector stands for, the same on every controller: the selector as JSON.
/// `None` for a selector without labels, which selects all nodes.
#[must_use]
pub fn group_name(selector: &BTreeMap<String, String>) -> Option<Arc<str>> {
    // Writing a map of texts to memory does not fail.
    let name = || serde_json::to_string(selector).ok();
    if selector.is_empty() {
        None
    } else {
        name().map(Into::into)
    }
}
