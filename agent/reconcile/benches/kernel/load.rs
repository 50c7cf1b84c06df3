// SPDX-License-Identifier: Apache-2.0

//! The programmed load: a number of Services, each with a number of endpoints.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use portolan_model::{
    Destination, Frontend, FrontendAddress, FrontendKind, NodeTable, Protocol, Record, RecordKey,
};

/// The size of a cluster.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Load {
    pub(crate) services: u32,
    pub(crate) endpoints: u32,
}

impl Load {
    pub(crate) fn vip(self, service: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 96, 0, 0)) + service)
    }

    fn endpoint(service: u32, endpoint: u32, of: u32) -> Ipv4Addr {
        Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 128, 0, 0)) + service * of + endpoint)
    }

    /// Each virtual server's address with the address of each of its real servers.
    pub(crate) fn pairs(self) -> impl Iterator<Item = (Ipv4Addr, Ipv4Addr)> {
        (0..self.services).flat_map(move |service| {
            (0..self.endpoints).map(move |endpoint| {
                let address = Self::endpoint(service, endpoint, self.endpoints);
                (self.vip(service), address)
            })
        })
    }

    /// The addresses of a service's real servers.
    pub(crate) fn endpoints_of(self, service: u32) -> impl Iterator<Item = Ipv4Addr> {
        (0..self.endpoints).map(move |endpoint| Self::endpoint(service, endpoint, self.endpoints))
    }

    fn key(service: u32) -> RecordKey {
        RecordKey {
            cluster: "".into(),
            namespace: "bench".into(),
            service: format!("service-{service:05}").into(),
            port: "http".into(),
            protocol: Protocol::Tcp,
        }
    }

    fn record(self, service: u32) -> Record {
        let vip = FrontendAddress::Vip(self.vip(service).into());
        let addresses = (0..self.endpoints).map(|e| Self::endpoint(service, e, self.endpoints));
        Record {
            frontends: vec![Frontend::new(FrontendKind::ClusterIp, vip, 80)],
            destinations: addresses
                .map(|address| Destination::new(SocketAddr::new(address.into(), 8080)))
                .collect(),
            ..Record::new(Self::key(service))
        }
    }

    /// The table of a node.
    pub(crate) fn table(self) -> NodeTable {
        let records = (0..self.services).map(|service| (Self::key(service), self.record(service)));
        NodeTable {
            records: records
                .map(|(key, record)| (key, Arc::new(record)))
                .collect(),
            ..NodeTable::default()
        }
    }

    /// The table with one service changed.
    pub(crate) fn changed(table: &NodeTable, service: u32, how: impl Fn(&mut Record)) -> NodeTable {
        let mut table = table.clone();
        if let Some(record) = table.records.get_mut(&Self::key(service)) {
            how(Arc::make_mut(record));
        }
        table
    }

    /// Input of `ipvsadm -R`.
    pub(crate) fn ipvsadm(self) -> String {
        use std::fmt::Write as _;
        let mut text = String::new();
        for service in 0..self.services {
            let vip = self.vip(service);
            let _ = writeln!(text, "-A -t {vip}:80 -s rr");
            for endpoint in 0..self.endpoints {
                let address = Self::endpoint(service, endpoint, self.endpoints);
                let _ = writeln!(text, "-a -t {vip}:80 -r {address}:8080 -m -w 1");
            }
        }
        text
    }
}
