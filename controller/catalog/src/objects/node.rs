// SPDX-License-Identifier: Apache-2.0

//! Nodes, and Pods that have a weight.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use portolan_model::NodeInfo;
use serde::Serialize;

use super::ObjectKey;

/// A Node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its name; the namespace is empty.
    pub key: ObjectKey,
    /// The information for the node's agent.
    pub info: NodeInfo,
    /// `status.addresses[]` of types InternalIP and ExternalIP.
    pub addresses: BTreeSet<IpAddr>,
    /// The weight of the endpoints on it (annotation), 0 to [`MAX_WEIGHT`]; 1 if `None`.
    pub weight: Option<u32>,
    /// Facts that decide whether it is a gateway; `None` if its cluster shares no Services with others.
    pub host: Option<Box<HostFacts>>,
}

/// Facts that decide whether a Node is a gateway of its cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct HostFacts {
    /// Whether its condition `Ready` is true, or absent as in files, and it is not about to go.
    pub ready: bool,
    /// `metadata.labels`.
    pub labels: BTreeMap<String, String>,
    /// `status.addresses[]` of type InternalIP.
    pub internal: BTreeSet<IpAddr>,
    /// `status.addresses[]` of type ExternalIP.
    pub external: BTreeSet<IpAddr>,
}

impl Node {
    /// A Node with a name only.
    #[must_use]
    pub fn new(key: ObjectKey) -> Self {
        Self {
            key,
            info: NodeInfo::default(),
            addresses: BTreeSet::new(),
            weight: None,
            host: None,
        }
    }
}

/// A Pod with a weight of its own; others are not in the catalog.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Pod {
    /// Its name.
    pub key: ObjectKey,
    /// The weight of its endpoints (annotation), 0 to [`MAX_WEIGHT`]; counts more than its node's.
    pub weight: u32,
}

/// The greatest weight of an endpoint. The kernel takes 2^31 - 1, but its schedulers multiply
/// weights with connection counts; 65,535 is what keepalived allows.
pub const MAX_WEIGHT: u32 = 65_535;
