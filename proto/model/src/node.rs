//! What is known of a node itself.

use std::sync::Arc;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// What the Node object says that its agent needs; the default is that of a node without one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeInfo {
    /// The label `topology.kubernetes.io/zone`, if it has one that is not empty.
    pub zone: Option<Arc<str>>,
    /// `spec.podCIDRs`: where the node's own pods are (`--detect-local-mode NodeCIDR`). One of each
    /// family at most.
    pub pod_cidrs: Vec<IpNet>,
    /// Whether load balancers may send the node new connections: it exists, is not being deleted,
    /// and the cluster autoscaler does not want it gone (KEP-3836).
    pub eligible: bool,
}
