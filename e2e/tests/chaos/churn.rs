// SPDX-License-Identifier: Apache-2.0

//! Endpoints that are added and removed; no address returns.

use std::net::Ipv4Addr;

use portolan_e2e::cluster::{Cluster, EchoPod};
use portolan_e2e::rig::{Family, Node};
use serde_json::{Value, json};

/// The number of the node whose pods come and go.
const NODE: usize = 1;
/// Half of that node's addresses belong to one pod.
const ROVERS: &str = "10.244.2.128/25";

/// The endpoints of the Service `churn`: two permanent pods, and successive addresses of a third
/// one.
pub(crate) struct Churn {
    /// The permanent pods.
    pub(crate) stay: [EchoPod; 2],
    /// Serves all of the third pod's addresses, removed ones too: a request to one of them is late,
    /// not lost.
    rover: EchoPod,
    step: u8,
}

impl Churn {
    pub(crate) fn new(nodes: [&Node; 2]) -> Self {
        let stay = [
            EchoPod::new(nodes[0], "a").unwrap(),
            EchoPod::new(nodes[1], "b").unwrap(),
        ];
        let rover = EchoPod::new(nodes[NODE], "rover").unwrap();
        let last = rover.pod.v4().octets()[3];
        let (gateway, _) = nodes[NODE].gateway();
        let route = format!("route add {ROVERS} dev pod{last} src {gateway}");
        nodes[NODE].namespace().ip(&[route]).unwrap();
        let own = format!("route add local {ROVERS} dev lo");
        rover.pod.namespace().ip(&[own]).unwrap();
        Self {
            stay,
            rover,
            step: 0,
        }
    }

    fn address(step: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 244, 2, 128 + step)
    }

    /// Adds an address, and removes the one before the last.
    pub(crate) fn advance(&mut self) {
        self.step += 1;
        assert!(self.step < 127, "no address comes twice");
    }

    /// Undoes the last step, whose write failed.
    pub(crate) fn take_back(&mut self) {
        self.step -= 1;
    }

    /// The addresses that must be in force: the last two added.
    pub(crate) fn rovers(&self) -> Vec<Ipv4Addr> {
        let first = self.step.saturating_sub(1).max(1);
        (first..=self.step).map(Self::address).collect()
    }

    fn passing(&self) -> impl Iterator<Item = Value> {
        let rovers = self.rovers().into_iter();
        rovers.map(|address| endpoint(&address.to_string(), NODE))
    }

    /// The endpoints over TCP.
    pub(crate) fn tcp(&self) -> Vec<Value> {
        self.staying().chain(self.passing()).collect()
    }

    /// The endpoints over UDP, where the third pod itself is added and removed.
    pub(crate) fn udp(&self) -> Vec<Value> {
        let odd = self.step % 2 == 1;
        let rover = odd.then(|| self.rover.endpoint(Family::V4, NODE));
        self.staying().chain(rover).collect()
    }

    pub(crate) fn staying(&self) -> impl Iterator<Item = Value> {
        let pods = self.stay.iter().enumerate();
        pods.map(|(node, pod)| pod.endpoint(Family::V4, node))
    }
}

fn endpoint(address: &str, node: usize) -> Value {
    json!({
        "addresses": [address],
        "nodeName": Cluster::node_name(node),
        "conditions": { "ready": true },
    })
}
