// SPDX-License-Identifier: Apache-2.0

//! Packed Nodes: most have a zone, networks of pods and addresses only.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::NodeInfo;

use super::Pack;
use crate::{HostFacts, Node};

/// A Node without its name, which is its key, and without its weight.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PackedNode {
    zone: Option<Arc<str>>,
    pod_cidrs: Box<[IpNet]>,
    addresses: Box<[IpAddr]>,
    more: Option<Box<More>>,
    eligible: bool,
}

/// Fields that few Nodes set.
#[derive(Debug, Default, PartialEq, Eq)]
struct More {
    groups: Vec<Arc<str>>,
    director: Option<Arc<str>>,
    host: Option<Box<HostFacts>>,
}

impl PackedNode {
    pub(crate) fn pack(node: Node, names: &mut Pack) -> Self {
        // All fields by name: a new field must be handled here.
        let Node {
            key: _,
            info,
            addresses,
            weight: _,
            host,
        } = node;
        let NodeInfo {
            zone,
            pod_cidrs,
            eligible,
            groups,
            director,
        } = info;
        let more = More {
            groups,
            director,
            host,
        };
        Self {
            zone: zone.map(|zone| names.name(zone)),
            pod_cidrs: pod_cidrs.into(),
            addresses: addresses.into_iter().collect(),
            more: (more != More::default()).then(|| Box::new(more)),
            eligible,
        }
    }

    /// The information for the node's agent.
    pub(crate) fn info(&self) -> NodeInfo {
        let more = self.more.as_deref();
        NodeInfo {
            zone: self.zone.clone(),
            pod_cidrs: self.pod_cidrs.to_vec(),
            eligible: self.eligible,
            groups: more.map(|more| more.groups.clone()).unwrap_or_default(),
            director: more.and_then(|more| more.director.clone()),
        }
    }

    pub(crate) fn zone(&self) -> Option<&Arc<str>> {
        self.zone.as_ref()
    }

    pub(crate) fn addresses(&self) -> &[IpAddr] {
        &self.addresses
    }

    /// Facts about the host, if its cluster shares Services with others.
    pub(crate) fn host(&self) -> Option<&HostFacts> {
        self.more.as_deref()?.host.as_deref()
    }
}
