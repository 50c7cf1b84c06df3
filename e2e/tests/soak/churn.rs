// SPDX-License-Identifier: Apache-2.0

//! Services, endpoints and nodes that are added, changed and removed at random.

use std::collections::BTreeMap;

use fastrand::Rng;
use portolan_e2e::cluster::Cluster;
use portolan_e2e::objects::{merge, ports, service, slice_of};
use portolan_e2e::rig::Family;
use serde_json::{Value, json};

const SERVICES: u8 = 40;
const NODES: u8 = 10;
/// The highest number of Services that one turn changes.
const TOUCHED: u8 = 8;

/// All changing objects.
pub(crate) struct Churn {
    services: BTreeMap<u8, Vec<Value>>,
    nodes: BTreeMap<u8, Value>,
    step: u16,
}

impl Churn {
    pub(crate) fn new() -> Self {
        Self {
            services: BTreeMap::new(),
            nodes: BTreeMap::new(),
            step: 0,
        }
    }

    /// Adds, changes or removes some Services, and perhaps a node.
    pub(crate) fn advance(&mut self, random: &mut Rng) {
        for _ in 0..random.u8(1..=TOUCHED) {
            let number = random.u8(..SERVICES);
            if random.u8(..4) == 0 {
                self.services.remove(&number);
            } else {
                self.services.insert(number, objects(number, random));
            }
        }
        let number = random.u8(..NODES);
        if random.bool() {
            self.nodes.remove(&number);
        } else {
            self.nodes
                .insert(number, node(&format!("passing{number}"), random));
        }
    }

    /// Marks the next write, so that its arrival can be recognised.
    pub(crate) fn stamp(&mut self) -> Value {
        self.step += 1;
        let port = json!([{ "name": "stamp", "protocol": "TCP", "port": self.stamped() }]);
        service(
            "stamp",
            ["10.96.0.99", "fd00:10:96::99"],
            json!({ "ports": port }),
        )
    }

    /// The port of the newest stamp. No other Service has a port as high.
    pub(crate) fn stamped(&self) -> u16 {
        40_000 + self.step % 20_000
    }

    pub(crate) fn objects(&self) -> impl Iterator<Item = &Value> {
        self.services.values().flatten().chain(self.nodes.values())
    }
}

fn node(name: &str, random: &mut Rng) -> Value {
    let zone = format!("z{}", random.u8(..3));
    let labels = json!({ "topology.kubernetes.io/zone": zone });
    json!({ "apiVersion": "v1", "kind": "Node", "metadata": { "name": name, "labels": labels } })
}

fn objects(number: u8, random: &mut Rng) -> Vec<Value> {
    let name = format!("s{number}");
    let ips = [
        format!("10.96.1.{number}"),
        format!("fd00:10:96::1:{number}"),
    ];
    let node_port = random.bool().then(|| 31_000 + u16::from(number));
    let mut spec = json!({
        "ports": ports(node_port),
        "internalTrafficPolicy": random.choice(["Cluster", "Local"]),
        "sessionAffinity": random.choice(["None", "ClientIP"]),
    });
    if node_port.is_some() {
        let policy = random.choice(["Cluster", "Local"]);
        merge(
            &mut spec,
            json!({ "type": "NodePort", "externalTrafficPolicy": policy }),
        );
    }
    let endpoints = |family: Family, random: &mut Rng| -> Vec<Value> {
        (0..random.u8(..6))
            .map(|_| endpoint(family, random))
            .collect()
    };
    let mut objects = vec![service(&name, [&ips[0], &ips[1]], spec)];
    for family in Family::ALL {
        let endpoints = endpoints(family, random);
        objects.push(slice_of(&name, family, &endpoints));
    }
    objects
}

/// An endpoint in either node's range, without a pod and without clients.
fn endpoint(family: Family, random: &mut Rng) -> Value {
    let node = random.usize(..2);
    let host = random.u8(100..);
    let address = match family {
        Family::V4 => format!("10.244.{}.{host}", node + 1),
        Family::V6 => format!("fd00:244:{}::{host}", node + 1),
    };
    let ready = random.u8(..4) > 0;
    json!({
        "addresses": [address],
        "nodeName": Cluster::node_name(node),
        "conditions": { "ready": ready, "serving": ready || random.bool(), "terminating": !ready && random.bool() },
    })
}
