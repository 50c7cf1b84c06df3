// SPDX-License-Identifier: Apache-2.0

//! Nodes: zone, addresses, and whether balancers may use them.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_catalog::{self as catalog, HostFacts, Kind, Object};
use portolan_model::{Family, NodeInfo};

use super::problems::Problems;
use super::{Converted, Manifest, Node, NodeSpec, NodeStatus, Scope, address, annotations};

const ZONE: &str = "topology.kubernetes.io/zone";
/// The cluster autoscaler is about to remove the node (KEP-3836).
const DOOMED: &str = "ToBeDeletedByClusterAutoscaler";

impl Manifest for Node {
    const KIND: Kind = Kind::Node;

    fn convert(self, scope: &Scope) -> Converted {
        let node = match self.metadata.reference(Self::KIND, &scope.cluster) {
            Ok(node) => node,
            Err(problem) => return Converted::refused(None, problem),
        };
        let spec = self.spec.unwrap_or_default();
        let mut problems = Problems::default();
        let pod_cidrs = pod_cidrs(&spec, &mut problems);
        let status = self.status.unwrap_or_default();
        let is_ready = status.is_ready();
        let [internal, external] = addresses(status, &mut problems);
        let eligible = self.metadata.deletion_timestamp.is_none() && !spec.is_doomed();
        let addresses = &internal | &external;
        let host = scope.shares.then(|| {
            Box::new(HostFacts {
                ready: is_ready && eligible,
                labels: self.metadata.all_labels(),
                internal,
                external,
            })
        });
        let object = catalog::Node {
            key: node.key,
            info: NodeInfo {
                zone: self.metadata.label(ZONE).map(Arc::from),
                pod_cidrs,
                eligible,
                groups: Vec::new(),
                director: None,
            },
            addresses,
            // A bad one is a problem already.
            weight: annotations::weight(&self.metadata, &mut problems).unwrap_or_default(),
            host,
        };
        Converted::Put {
            object: Object::Node(object),
            problems: problems.into_vec(),
        }
    }
}

impl NodeSpec {
    fn is_doomed(&self) -> bool {
        let mut taints = self.taints.iter().flatten();
        taints.any(|taint| taint.key.as_deref() == Some(DOOMED))
    }

    /// `podCIDRs`, or `podCIDR`, with the field's name.
    fn pod_cidr_fields(&self) -> Vec<(String, &str)> {
        let list = self.pod_cidrs.as_deref().unwrap_or(&[]);
        if list.is_empty() {
            let single = self.pod_cidr.as_deref().filter(|cidr| !cidr.is_empty());
            let field = |cidr| ("spec.podCIDR".to_owned(), cidr);
            return single.map(field).into_iter().collect();
        }
        let field = |(index, cidr)| (format!("spec.podCIDRs[{index}]"), cidr);
        let list = list.iter().map(String::as_str);
        list.enumerate().map(field).collect()
    }
}

/// Where the node's own pods are: the first network of each family, as upstream.
fn pod_cidrs(spec: &NodeSpec, problems: &mut Problems) -> Vec<IpNet> {
    let mut cidrs: Vec<IpNet> = Vec::new();
    for (field, text) in spec.pod_cidr_fields() {
        match address::network(text) {
            None => problems.invalid(
                field,
                format!("{text:?} is not a network: expected one like 10.244.1.0/24; ignored"),
            ),
            Some(cidr) => {
                let family = Family::of(cidr.addr());
                if !cidrs.iter().any(|other| Family::of(other.addr()) == family) {
                    cidrs.push(cidr);
                }
            }
        }
    }
    cidrs
}

impl NodeStatus {
    /// Returns `true` if the kubelet says so; files have no kubelet, and say nothing.
    fn is_ready(&self) -> bool {
        let mut conditions = self.conditions.iter().flatten();
        let ready = conditions.find(|condition| condition.type_.as_deref() == Some("Ready"));
        ready.is_none_or(|condition| condition.status.as_deref() == Some("True"))
    }
}

/// The addresses of the node of types InternalIP and ExternalIP. Host names are ignored.
fn addresses(status: NodeStatus, problems: &mut Problems) -> [BTreeSet<IpAddr>; 2] {
    let mut good = [BTreeSet::new(), BTreeSet::new()];
    let all = status.addresses.into_iter().flatten();
    for (index, address) in all.enumerate() {
        let of_type = match address.type_.as_deref() {
            Some("InternalIP") => 0,
            Some("ExternalIP") => 1,
            _ => continue,
        };
        let text = address.address.unwrap_or_default();
        match text.parse() {
            Ok(ip) => _ = good[of_type].insert(ip),
            Err(_) => problems.invalid(
                format!("status.addresses[{index}].address"),
                format!("{text:?} is not an address: expected one like 10.0.0.1 or fd00::1"),
            ),
        }
    }
    good
}
