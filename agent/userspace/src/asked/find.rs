// SPDX-License-Identifier: Apache-2.0

//! The way that a client asks for by name or address. Pure.

use portolan_model::{FrontendAddress, FrontendKind, NodeTable, Protocol};
use portolan_nftables::WayKey;

use super::request::Target;

/// The ways that a target may mean, the best first: of a Service its cluster IPs, IPv4 first.
pub(super) fn ways(
    table: &NodeTable,
    target: &Target,
    protocol: Protocol,
    zone: &str,
    namespace: &str,
) -> Vec<WayKey> {
    let (name, port) = match target {
        Target::Ip(address, port) => {
            let (address, port) = (*address, *port);
            return vec![WayKey {
                address,
                protocol,
                port,
            }];
        }
        Target::Name(name, port) => (name, *port),
    };
    let Some((service, namespace)) = service(name, zone, namespace) else {
        return Vec::new();
    };
    let records = table.records.values().filter(|record| {
        let key = &record.key;
        (&*key.service, &*key.namespace) == (service, namespace) && key.protocol == protocol
    });
    let frontends = records.flat_map(|record| &record.frontends);
    let mut found: Vec<_> = frontends
        .filter(|frontend| frontend.port == port && frontend.kind != FrontendKind::NodePort)
        .filter_map(|frontend| match frontend.address {
            FrontendAddress::Vip(address) => Some((
                frontend.kind,
                WayKey {
                    address,
                    protocol,
                    port,
                },
            )),
            _ => None,
        })
        .collect();
    found.sort_by_key(|(kind, key)| (*kind, key.address.is_ipv6(), key.address));
    found.into_iter().map(|(_, key)| key).collect()
}

/// A zone in the form that names of targets have: in lower case, without the dot at the end.
pub(super) fn plain(zone: &str) -> String {
    zone.trim_end_matches('.').to_ascii_lowercase()
}

/// Name and namespace of a Service by its name: `web`, `web.shop`, `web.shop.svc`, `web.shop.svc.cluster.local`.
fn service<'a>(name: &'a str, zone: &str, namespace: &'a str) -> Option<(&'a str, &'a str)> {
    let name = match name.strip_suffix(zone) {
        Some(within) => within.strip_suffix('.')?,
        None => name,
    };
    let name = name.strip_suffix(".svc").unwrap_or(name);
    let mut labels = name.split('.');
    let service = labels.next()?;
    let namespace = labels.next().unwrap_or(namespace);
    labels.next().is_none().then_some((service, namespace))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_model::{Frontend, Record, RecordKey};

    use super::*;

    #[test]
    fn a_zone_may_be_written_with_capitals_and_a_dot() {
        for zone in ["cluster.local", "Cluster.Local", "cluster.local."] {
            let zone = plain(zone);
            let found = service("web.shop.svc.cluster.local", &zone, "default");
            assert_eq!(found, Some(("web", "shop")), "{zone}");
        }
    }

    #[test]
    fn names_of_all_lengths_lead_to_the_cluster_ip() {
        let mut table = NodeTable::default();
        let key = RecordKey {
            cluster: "".into(),
            namespace: "shop".into(),
            service: "web".into(),
            port: "http".into(),
            protocol: Protocol::Tcp,
        };
        let frontend = |kind, address: &str| {
            Frontend::new(kind, FrontendAddress::Vip(address.parse().unwrap()), 80)
        };
        let record = Record {
            frontends: vec![
                frontend(FrontendKind::ClusterIp, "fd00::1"),
                frontend(FrontendKind::ClusterIp, "10.96.0.1"),
                frontend(FrontendKind::ExternalIp, "192.0.2.1"),
            ],
            ..Record::new(key.clone())
        };
        table.records.insert(key, Arc::new(record));
        let find = |name: &str, port, protocol| -> Vec<_> {
            let target = Target::Name(name.to_owned(), port);
            let found = ways(&table, &target, protocol, "cluster.local", "shop");
            found.iter().map(|key| key.address.to_string()).collect()
        };
        let all = ["10.96.0.1", "fd00::1", "192.0.2.1"];
        for name in [
            "web",
            "web.shop",
            "web.shop.svc",
            "web.shop.svc.cluster.local",
        ] {
            assert_eq!(find(name, 80, Protocol::Tcp), all, "{name}");
        }
        for name in [
            "",
            "other",
            "web.default",
            "a.web.shop",
            "web.shop.svc.example",
        ] {
            assert!(find(name, 80, Protocol::Tcp).is_empty(), "{name}");
        }
        assert!(find("web", 81, Protocol::Tcp).is_empty());
        assert!(find("web", 80, Protocol::Udp).is_empty());
    }
}
