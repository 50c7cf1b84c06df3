// SPDX-License-Identifier: Apache-2.0

//! Facts about a node itself.

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
}
