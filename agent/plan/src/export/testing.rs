// SPDX-License-Identifier: Apache-2.0

//! Services for tests of exports.

use std::sync::Arc;

use portolan_model::{
    Affinity, Destination, Family, Frontend, FrontendAddress, FrontendKind, Lists, NodeOverlay,
    NodeTable, Protocol, Record, RecordKey,
};

use crate::{Config, DetectLocal};

/// One Service with the port `p80`, by which clients reach `p80` at its addresses.
pub(super) struct Case {
    pub(super) record: Record,
    /// The node's own list.
    pub(super) local: Vec<Destination>,
}

impl Case {
    /// The Service `nsN/svcN` with the cluster IP `172.30.0.N`.
    pub(super) fn new(number: u8) -> Self {
        let mut record = Record::new(RecordKey {
            cluster: "".into(),
            namespace: format!("ns{number}").into(),
            service: format!("svc{number}").into(),
            port: "p80".into(),
            protocol: Protocol::Tcp,
        });
        let ip = FrontendAddress::Vip([172, 30, 0, number].into());
        record.frontends = vec![Frontend::new(FrontendKind::ClusterIp, ip, 80)];
        Self {
            record,
            local: Vec::new(),
        }
    }

    pub(super) fn endpoints(mut self, addresses: &[&str]) -> Self {
        let destination = |address: &&str| Destination::new(address.parse().unwrap());
        self.record.destinations = addresses.iter().map(destination).collect();
        let families = self.record.destinations.iter();
        let families = families.map(|d| Family::of(d.address.ip()));
        self.record.available = families.collect();
        self
    }

    pub(super) fn at(mut self, kind: FrontendKind, address: &str, lists: Lists) -> Self {
        let address = FrontendAddress::Vip(address.parse().unwrap());
        self.record.frontends.push(Frontend {
            lists,
            masquerade: lists == Lists::Cluster,
            ..Frontend::new(kind, address, 80)
        });
        self
    }

    pub(super) fn node_port(mut self, port: u16, lists: Lists) -> Self {
        let address = FrontendAddress::NodeAddresses(Family::V4);
        self.record.frontends.push(Frontend {
            lists,
            ..Frontend::new(FrontendKind::NodePort, address, port)
        });
        self
    }
}

pub(super) fn table(cases: Vec<Case>) -> NodeTable {
    let mut table = NodeTable::default();
    for case in cases {
        let key = case.record.key.clone();
        let lists = NodeOverlay {
            local: case.local,
            ..NodeOverlay::default()
        };
        table.lists.insert(key.clone(), Arc::new(lists));
        table.records.insert(key, Arc::new(case.record));
    }
    table
}

pub(super) fn config() -> Config {
    Config {
        detect_local: DetectLocal::ClusterCidr(vec!["10.0.0.0/8".parse().unwrap()]),
        ..Config::default()
    }
}

/// Services of every kind: a cluster IP alone; all addresses with policy Local and no endpoint here; a
/// node port; an external IP; source ranges and affinity; no endpoint.
pub(super) fn cases() -> Vec<Case> {
    use FrontendKind::{ExternalIp, LoadBalancer};
    let mut all = Case::new(2)
        .endpoints(&["10.180.0.2:80"])
        .at(ExternalIp, "192.168.99.22", Lists::Local)
        .at(LoadBalancer, "1.2.3.4", Lists::Local)
        .node_port(3001, Lists::Local);
    all.record.health_check_port = Some(30000);
    let mut restricted = Case::new(5)
        .endpoints(&["10.180.0.3:80"])
        .at(LoadBalancer, "5.6.7.8", Lists::Cluster)
        .node_port(3002, Lists::Cluster);
    restricted.record.affinity = Some(Affinity {
        timeout_seconds: 10_800,
    });
    restricted.record.frontends[1].source_ranges = vec!["203.0.113.0/25".parse().unwrap()];
    vec![
        Case::new(1).endpoints(&["10.180.0.1:80"]),
        all,
        Case::new(3)
            .endpoints(&["10.180.0.3:80"])
            .node_port(3003, Lists::Cluster),
        Case::new(4)
            .endpoints(&["10.180.0.4:80", "10.180.0.5:80"])
            .at(ExternalIp, "192.168.99.33", Lists::Cluster),
        restricted,
        Case::new(6),
    ]
}
