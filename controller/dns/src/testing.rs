// SPDX-License-Identifier: Apache-2.0

//! A cluster for tests: the one of CoreDNS's own tests of its kubernetes plugin, and more.

use std::net::IpAddr;

use portolan_model::Protocol;

use crate::*;

pub(crate) fn ips(list: &[&str]) -> Vec<IpAddr> {
    list.iter().map(|ip| ip.parse().unwrap()).collect()
}

pub(crate) fn port(name: &str, number: u16) -> Port {
    Port {
        name: name.to_owned(),
        protocol: Protocol::Tcp,
        number: Some(number),
    }
}

pub(crate) fn service(name: &str, kind: Kind, ports: &[Port]) -> Service {
    Service {
        key: ServiceKey::new("testns", name),
        kind,
        ports: ports.to_vec(),
        publish_not_ready: false,
    }
}

pub(crate) fn cluster_ip(name: &str, addresses: &[&str]) -> Service {
    let ips = ips(addresses);
    service(name, Kind::ClusterIp { ips }, &[port("http", 80)])
}

pub(crate) fn external(name: &str, target: &str) -> Service {
    let target = target.to_owned();
    service(name, Kind::ExternalName { target }, &[port("http", 80)])
}

pub(crate) fn headless(name: &str) -> Service {
    service(name, Kind::Headless, &[])
}

pub(crate) fn endpoint(address: &str) -> Endpoint {
    Endpoint {
        addresses: ips(&[address]),
        ready: true,
        hostname: None,
        pod: None,
        zone: None,
    }
}

pub(crate) fn hosted(address: &str, hostname: &str) -> Endpoint {
    Endpoint {
        hostname: Some(hostname.to_owned()),
        ..endpoint(address)
    }
}

pub(crate) fn slice(service: &str, name: &str, endpoints: &[Endpoint], ports: &[Port]) -> Slice {
    Slice {
        key: SliceKey {
            namespace: "testns".to_owned(),
            name: name.to_owned(),
        },
        service: service.to_owned(),
        cluster: None,
        endpoints: endpoints.to_vec(),
        ports: ports.to_vec(),
    }
}

pub(crate) fn pod(name: &str, addresses: &[&str]) -> Pod {
    Pod {
        key: PodKey {
            namespace: "podns".to_owned(),
            name: name.to_owned(),
        },
        addresses: ips(addresses),
    }
}

pub(crate) fn changes() -> Vec<NamesChange> {
    let http = [port("http", 80)];
    let mut changes = vec![
        NamesChange::Namespace("testns".to_owned()),
        NamesChange::Namespace("emptyns".to_owned()),
        NamesChange::Namespace("podns".to_owned()),
    ];
    changes.extend(services().into_iter().map(NamesChange::Service));
    let hdls1 = [
        endpoint("172.0.0.2"),
        endpoint("172.0.0.3"),
        hosted("172.0.0.4", "dup-name"),
        hosted("172.0.0.5", "dup-name"),
        endpoint("5678:abcd::1"),
        endpoint("5678:abcd::2"),
    ];
    let unready = Endpoint {
        ready: false,
        ..endpoint("172.0.0.40")
    };
    let shared = hosted("10.0.0.99", "double-ep");
    let zoned = |address, zone: &str| Endpoint {
        zone: Some(zone.to_owned()),
        ..endpoint(address)
    };
    let slices = [
        slice(
            "svc1",
            "svc1-a",
            &[hosted("172.0.0.1", "ep1a"), shared.clone()],
            &http,
        ),
        slice("svc6", "svc6-a", &[shared], &http),
        slice("hdls1", "hdls1-a", &hdls1, &http),
        // The same endpoint in two slices, as during a replacement.
        slice("hdls1", "hdls1-b", &hdls1[..1], &http),
        slice("hdlsprtls", "hdlsprtls-a", &[endpoint("172.0.0.20")], &[]),
        slice(
            "unready",
            "unready-a",
            std::slice::from_ref(&unready),
            &http,
        ),
        slice("published", "published-a", &[unready], &http),
        slice(
            "zoned",
            "zoned-a",
            &[
                zoned("172.0.1.1", "us-west-2a"),
                zoned("172.0.1.2", "US-West-2b"),
            ],
            &http,
        ),
        slice("orphaned", "orphaned-a", &[endpoint("172.0.9.9")], &http),
    ];
    changes.extend(slices.map(NamesChange::Slice));
    changes.push(NamesChange::Pod(pod("foo", &["10.240.0.1"])));
    changes.push(NamesChange::Pod(pod("foo6", &["fd00::240:1"])));
    changes
}

fn services() -> Vec<Service> {
    let mut unnamed = cluster_ip("unnamed", &["10.0.0.5"]);
    unnamed.ports = vec![port("", 81)];
    let mut published = headless("published");
    published.publish_not_ready = true;
    vec![
        cluster_ip("svc1", &["10.0.0.1"]),
        cluster_ip("svc6", &["1234:abcd::1"]),
        cluster_ip("svc-dual-stack", &["10.0.0.3", "10::3"]),
        cluster_ip("pending", &[]),
        unnamed,
        headless("hdls1"),
        headless("hdlsprtls"),
        headless("unready"),
        published,
        headless("zoned"),
        external("external", "ext.interwebs.test"),
        external("external-to-service", "svc1.testns.svc.cluster.local."),
        external("external-to-nothing", "svc0.testns.svc.cluster.local"),
        external(
            "external-twice",
            "external-to-service.testns.svc.cluster.local",
        ),
        external("itself", "x.itself.testns.svc.cluster.local"),
        external("loop-a", "loop-b.testns.svc.cluster.local"),
        external("loop-b", "loop-a.testns.svc.cluster.local"),
    ]
}

pub(crate) fn config() -> ZoneConfig {
    ZoneConfig::new("cluster.local").unwrap()
}

/// The zone after these changes, at serial 1.
pub(crate) fn zone_of(config: ZoneConfig, changes: impl IntoIterator<Item = NamesChange>) -> Zone {
    let changes: Vec<_> = changes.into_iter().chain([NamesChange::Synced]).collect();
    let mut zone = Zone::new(config, 0).unwrap();
    for change in changes {
        zone.apply(change);
    }
    zone
}

pub(crate) fn zone() -> Zone {
    zone_of(config(), changes())
}

pub(crate) fn ask(zone: &Zone, name: &str, kind: RecordType) -> Answer {
    zone.answer(&crate::name::absolute(name).unwrap(), kind)
}

/// The records of a section as text, sorted.
pub(crate) fn text(records: &[hickory_proto::rr::Record]) -> Vec<String> {
    let mut lines: Vec<_> = records.iter().map(ToString::to_string).collect();
    lines.sort();
    lines
}
