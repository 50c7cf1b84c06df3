// SPDX-License-Identifier: Apache-2.0

//! Services with a health check node port, and their numbers of endpoints on this node.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::{Family, NodeTable, Protocol, Record, RecordKey};

/// A Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// Its cluster's name; empty for a single one.
    pub cluster: Arc<str>,
    /// Its namespace.
    pub namespace: Arc<str>,
    /// Its name.
    pub name: Arc<str>,
}

impl ServiceKey {
    /// The Service of a record.
    #[must_use]
    pub fn of(record: &RecordKey) -> Self {
        Self {
            cluster: Arc::clone(&record.cluster),
            namespace: Arc::clone(&record.namespace),
            name: Arc::clone(&record.service),
        }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.cluster.is_empty() {
            write!(f, "{}/", self.cluster)?;
        }
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Health check of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HealthCheck {
    /// The port, 1 to 65,535.
    pub port: u16,
    /// Number of ready pods on this node by family of the Service. A pod counts once for all its ports.
    pub endpoints: BTreeMap<Family, usize>,
}

/// Health check of a Service in a table; `None` without a health check node port.
#[must_use]
pub fn wanted_by(table: &NodeTable, service: &ServiceKey) -> Option<HealthCheck> {
    let mut port = None;
    let mut ips: BTreeMap<Family, BTreeSet<IpAddr>> = BTreeMap::new();
    for record in records(table, service) {
        if record.health_check_port.is_none() {
            continue;
        }
        port = record.health_check_port;
        for frontend in &record.frontends {
            ips.entry(frontend.family()).or_default();
        }
        let Some(lists) = table.lists.get(&record.key) else {
            continue;
        };
        for destination in &lists.local {
            let ip = destination.address.ip();
            let family = Family::of(ip);
            if let Some(ips) = ips.get_mut(&family)
                && !lists.terminating.contains(family)
            {
                ips.insert(ip);
            }
        }
    }
    let endpoints = ips.into_iter().map(|(f, ips)| (f, ips.len())).collect();
    port.map(|port| HealthCheck { port, endpoints })
}

/// The records of a Service, which are adjacent.
fn records<'a>(table: &'a NodeTable, service: &'a ServiceKey) -> impl Iterator<Item = &'a Record> {
    let first = RecordKey {
        cluster: Arc::clone(&service.cluster),
        namespace: Arc::clone(&service.namespace),
        service: Arc::clone(&service.name),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    let records = table.records.range(first..).map(|(_, record)| &**record);
    records.take_while(move |record| ServiceKey::of(&record.key) == *service)
}

#[cfg(test)]
mod tests {
    use portolan_model::{
        Destination, Families, Frontend, FrontendAddress, FrontendKind, NodeOverlay,
    };

    use super::*;

    fn wanted(table: &NodeTable) -> BTreeMap<ServiceKey, HealthCheck> {
        let services: BTreeSet<_> = table.records.keys().map(ServiceKey::of).collect();
        let wanted = services.into_iter();
        wanted
            .filter_map(|service| Some((service.clone(), wanted_by(table, &service)?)))
            .collect()
    }

    type Port<'a> = (&'a str, &'a str, Option<u16>, &'a [&'a str], &'a [Family]);

    /// Ports as service, port name, health check port, local destinations, terminating families.
    fn table(ports: &[Port<'_>]) -> NodeTable {
        let mut table = NodeTable::default();
        for (service, port, health_check_port, local, terminating) in ports {
            let key = RecordKey {
                cluster: "".into(),
                namespace: "ns".into(),
                service: (*service).into(),
                port: (*port).into(),
                protocol: Protocol::Tcp,
            };
            let vip = |ip: &str| FrontendAddress::Vip(ip.parse().unwrap());
            let frontend = |ip| Frontend::new(FrontendKind::LoadBalancer, vip(ip), 80);
            let record = Record {
                frontends: vec![frontend("192.0.2.1"), frontend("fd00:2::1")],
                health_check_port: *health_check_port,
                ..Record::new(key.clone())
            };
            let destination = |a: &&str| Destination::new(a.parse().unwrap());
            let lists = NodeOverlay {
                local: local.iter().map(destination).collect(),
                terminating: terminating.iter().copied().collect::<Families>(),
                ..NodeOverlay::default()
            };
            table.records.insert(key.clone(), Arc::new(record));
            table.lists.insert(key, Arc::new(lists));
        }
        table
    }

    #[test]
    fn pods_count_once_by_family_and_not_while_they_terminate() {
        let table = table(&[
            (
                "a",
                "http",
                Some(30001),
                &["10.0.0.1:80", "10.0.0.2:80", "[fd00::1]:80"],
                &[],
            ),
            (
                "a",
                "https",
                Some(30001),
                &["10.0.0.1:443", "10.0.0.3:443"],
                &[],
            ),
            (
                "b",
                "",
                Some(30002),
                &["10.0.0.1:80", "[fd00::1]:80"],
                &[Family::V4],
            ),
            ("c", "", Some(30003), &[], &[]),
            ("none", "", None, &["10.0.0.1:80"], &[]),
        ]);
        let found: Vec<_> = wanted(&table)
            .into_iter()
            .map(|(key, check)| {
                let count = Family::ALL.map(|family| check.endpoints[&family]);
                (key.to_string(), check.port, count)
            })
            .collect();
        let expected = [
            ("ns/a", 30001, [3, 1]),
            ("ns/b", 30002, [0, 1]),
            ("ns/c", 30003, [0, 0]),
        ];
        assert_eq!(
            found,
            expected.map(|(name, port, count)| (name.to_owned(), port, count))
        );
    }

    #[test]
    fn service_of_one_family_has_no_count_for_the_other() {
        let mut table = table(&[("a", "", Some(30001), &["10.0.0.1:80", "[fd00::1]:80"], &[])]);
        for key in table.clone().records.keys() {
            Arc::make_mut(&mut table.records[key]).frontends.truncate(1);
        }
        let found = wanted(&table).into_values().next().unwrap();
        assert_eq!(found.endpoints, [(Family::V4, 1)].into());
    }
}
