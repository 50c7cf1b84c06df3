// SPDX-License-Identifier: Apache-2.0

//! A node: a machine on the LAN that routes for its pods.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};

use super::host::Host;
use super::lan;
use super::namespace::NamespaceSet;

/// A pod is a host like any other; only its addresses and its routes are special.
pub type Pod = Host;

/// A node and its pods. As a [`Host`] it is the node's own network: 192.168.77.11 for node 0.
#[derive(Debug)]
pub struct Node {
    host: Host,
    number: u8,
    /// The number of its networks of pods, from 0: of all nodes, or of those of its cluster.
    range: u8,
    /// The last part of the address of the pod that was added last.
    last_pod: AtomicU8,
    set: Arc<NamespaceSet>,
}

impl Deref for Node {
    type Target = Host;

    fn deref(&self) -> &Host {
        &self.host
    }
}

impl Node {
    /// A node with a number. `cluster` has the numbers of the nodes to whose pods it has routes, its own included.
    pub(super) fn new(
        host: Host,
        number: u8,
        cluster: Range<u8>,
        set: Arc<NamespaceSet>,
    ) -> Result<Self> {
        host.namespace().sysctl(&[
            ("ipv4/conf/all/forwarding", "1"),
            ("ipv6/conf/all/forwarding", "1"),
        ])?;
        let first = cluster.start;
        let others = cluster.filter(|other| *other != number);
        let routes: Vec<String> = others
            .flat_map(|other| routes_to_pods_of(other, other - first))
            .collect();
        if !routes.is_empty() {
            host.namespace().ip(&routes)?;
        }
        Ok(Self {
            host,
            number,
            range: number - first,
            last_pod: AtomicU8::new(1),
            set,
        })
    }

    /// The IPv4 range of its pods: 10.244.1.0/24 for node 0.
    #[must_use]
    pub fn pod_range_v4(&self) -> String {
        format!("{}/24", pod_v4(self.range, 0))
    }

    /// The IPv6 range of its pods: fd00:244:1::/64 for node 0.
    #[must_use]
    pub fn pod_range_v6(&self) -> String {
        format!("{}/64", pod_v6(self.range, 0))
    }

    /// The addresses of its pods' router, and the source of packets that the node masquerades.
    #[must_use]
    pub fn gateway(&self) -> (Ipv4Addr, Ipv6Addr) {
        (pod_v4(self.range, 1), pod_v6(self.range, 1))
    }

    /// Adds a pod with the next free address: 10.244.1.2 for the first one on node 0.
    pub fn add_pod(&self, name: &str) -> Result<Pod> {
        let k = self.last_pod.fetch_add(1, Ordering::Relaxed) + 1;
        let label = format!("pod{}-{k}", self.number);
        let namespace = self.set.add(&[label])?.pop().context("no namespace")?;
        let (v4, v6) = (pod_v4(self.range, k), pod_v6(self.range, k));
        let pod = Host::new(name.into(), namespace, v4, v6);
        self.namespace().ip(&self.node_side(&pod))?;
        pod.namespace().ip(&self.pod_side(&pod))?;
        Ok(pod)
    }

    /// Removes a pod: its address answers nothing from now on.
    pub fn remove_pod(&self, pod: &Pod) -> Result<()> {
        // The namespace itself may live on for as long as a socket in it does.
        self.namespace().ip(&[format!("link del {}", veth(pod))])?;
        self.set.remove(pod.namespace())
    }

    fn node_side(&self, pod: &Pod) -> Vec<String> {
        let (veth, namespace) = (veth(pod), pod.namespace().name());
        let (gateway_v4, gateway_v6) = self.gateway();
        vec![
            format!("link add {veth} type veth peer name eth0 netns {namespace}"),
            format!("link set {veth} up"),
            format!("addr add {gateway_v4}/32 dev {veth}"),
            format!("addr add {gateway_v6}/128 dev {veth} nodad"),
            format!("route add {}/32 dev {veth} src {gateway_v4}", pod.v4()),
            format!("route add {}/128 dev {veth} src {gateway_v6}", pod.v6()),
        ]
    }

    fn pod_side(&self, pod: &Pod) -> Vec<String> {
        let (gateway_v4, gateway_v6) = self.gateway();
        vec![
            "link set lo up".into(),
            "link set eth0 up".into(),
            format!("addr add {}/32 dev eth0", pod.v4()),
            format!("addr add {}/128 dev eth0 nodad", pod.v6()),
            format!("route add default via {gateway_v4} dev eth0 onlink"),
            format!("route add default via {gateway_v6} dev eth0 onlink"),
        ]
    }
}

/// The name of the node's side of a pod's link.
fn veth(pod: &Pod) -> String {
    format!("pod{}", pod.v4().octets()[3])
}

fn routes_to_pods_of(node: u8, range: u8) -> [String; 2] {
    let (via_v4, via_v6) = lan::node_addresses(node);
    [
        format!("route add {}/24 via {via_v4}", pod_v4(range, 0)),
        format!("route add {}/64 via {via_v6}", pod_v6(range, 0)),
    ]
}

fn pod_v4(range: u8, k: u8) -> Ipv4Addr {
    Ipv4Addr::new(10, 244, range + 1, k)
}

fn pod_v6(range: u8, k: u8) -> Ipv6Addr {
    let (range, k) = (lan::as_written(range + 1), lan::as_written(k));
    Ipv6Addr::new(0xfd00, 0x244, range, 0, 0, 0, 0, k)
}
