// SPDX-License-Identifier: Apache-2.0

//! Records of load balancers: one for each frontend.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::check::{Check, CheckDefaults, Via};
use portolan_model::{
    Balancing, ByRecord, Destination, Family, Frontend, FrontendAddress, FrontendKind, PortRange,
    Profile, Protocol, Record, RecordKey, Scheduling, ipvs,
};

use crate::check::DeclaredCheck;
use crate::document::{PersistenceEngine, SchedulerFlag, TunnelChecksum};
use crate::rules::frontend_of;
use crate::{Backend, Forwarding, LoadBalancer, Packets, Tunnel};

/// The records of load balancers on a host, whose director gives the defaults of checks; without them, for hosts that
/// each have their own.
///
/// A mark has any protocol; its record's key has TCP, as the kernel says of marks too.
#[must_use]
pub fn records(
    balancers: &[LoadBalancer],
    defaults: Option<&CheckDefaults>,
    cluster: &Arc<str>,
) -> ByRecord<Record> {
    let of_one = |balancer| records_of(balancer, defaults, cluster);
    let all = balancers.iter().flat_map(of_one);
    all.map(|record| (record.key.clone(), Arc::new(record)))
        .collect()
}

fn records_of<'a>(
    balancer: &'a LoadBalancer,
    defaults: Option<&'a CheckDefaults>,
    cluster: &'a Arc<str>,
) -> impl Iterator<Item = Record> + 'a {
    balancer.frontends.iter().map(move |frontend| {
        let protocol = frontend.packets.protocol();
        let key = RecordKey {
            cluster: Arc::clone(cluster),
            namespace: balancer.name.namespace.as_str().into(),
            service: balancer.name.name.as_str().into(),
            port: frontend.name.as_str().into(),
            protocol: protocol.unwrap_or(Protocol::Tcp),
        };
        let frontends = frontends(balancer, frontend);
        // A backend of several ports or of a mark without a port of its own gets packets at the client's.
        let port = frontend.packets.port().unwrap_or_default();
        let (destinations, balancing) = balancing(balancer, port, defaults);
        Record {
            frontends,
            available: destinations
                .iter()
                .map(|destination| Family::of(destination.address.ip()))
                .collect(),
            destinations,
            scheduling: Scheduling {
                scheduler: Some(balancer.scheduler.as_str().into()),
                flags: Some(flags(balancer, protocol)),
            },
            drain_seconds: balancer
                .drain_timeout
                .map(|time| u32::try_from(time.as_secs()).unwrap_or(u32::MAX)),
            balancing: Some(Arc::new(balancing)),
            ..Record::new(key)
        }
    })
}

/// The addresses or marks of a frontend, sorted.
fn frontends(balancer: &LoadBalancer, from: &crate::Frontend) -> Vec<Frontend> {
    let (kind, port, ranges) = match &from.packets {
        Packets::Port { port, .. } => (FrontendKind::Balanced, *port, Vec::new()),
        Packets::Mark { .. } => (FrontendKind::Balanced, 0, Vec::new()),
        Packets::Ranges { ports, .. } => {
            let range = |(first, last): &(u16, u16)| PortRange {
                first: *first,
                last: *last,
            };
            let ranges = ports.iter().map(range).collect();
            (FrontendKind::BalancedRanges, 0, ranges)
        }
    };
    let at = |ip: &IpAddr| Frontend {
        masquerade: balancer.source_nat,
        source_ranges: of_family(&from.source_ranges, *ip),
        ranges: ranges.clone(),
        ..Frontend::new(kind, FrontendAddress::Vip(*ip), port)
    };
    let mut frontends: Vec<_> = match &from.packets {
        Packets::Mark { mark, families } => {
            let of_family = |family| FrontendAddress::Mark {
                family,
                mark: *mark,
            };
            let addresses = families.iter().map(of_family);
            let by_mark = |address| Frontend::new(kind, address, port);
            addresses.map(by_mark).collect()
        }
        packets => packets.addresses().iter().map(at).collect(),
    };
    frontends.sort();
    frontends
}

/// The ranges of an address's family, sorted.
pub(crate) fn of_family(ranges: &[IpNet], ip: IpAddr) -> Vec<IpNet> {
    let of_family = |range: &&IpNet| Family::of(range.addr()) == Family::of(ip);
    let mut ranges: Vec<_> = ranges.iter().filter(of_family).copied().collect();
    ranges.sort();
    ranges.dedup();
    ranges
}

/// The backends behind a frontend's port, sorted by address, with their settings.
fn balancing(
    balancer: &LoadBalancer,
    port: u16,
    defaults: Option<&CheckDefaults>,
) -> (Vec<Destination>, Balancing) {
    let mut profiles = Vec::new();
    let mut rows = BTreeMap::new();
    for backend in &balancer.backends {
        let profile = profile(balancer, backend, defaults);
        let known = profiles.iter().position(|known| *known == profile);
        let index = known.unwrap_or_else(|| {
            profiles.push(profile);
            profiles.len() - 1
        });
        let address = SocketAddr::new(backend.address, backend.port.unwrap_or(port));
        // At most 4,096 backends.
        let index = u16::try_from(index).unwrap_or(u16::MAX);
        rows.insert(address, (u32::from(backend.weight), index));
    }
    let destination = |(address, (weight, _)): (&SocketAddr, &(u32, u16))| Destination {
        address: *address,
        weight: *weight,
    };
    let sorry = balancer.sorry_server.as_ref();
    let balancing = Balancing {
        persistence: balancer.persistence.map(persistence),
        profile_of: rows.values().map(|(_, profile)| *profile).collect(),
        profiles,
        sorry_server: sorry.map(|sorry| portolan_model::SorryServer {
            address: SocketAddr::new(sorry.address, sorry.port.unwrap_or(port)),
            forwarding: method(sorry.forwarding),
            keep_idle: sorry.keep_idle,
        }),
        health: balancer.health,
        group: portolan_model::group_name(&balancer.node_selector),
    };
    (rows.iter().map(destination).collect(), balancing)
}

fn profile(
    balancer: &LoadBalancer,
    backend: &Backend,
    defaults: Option<&CheckDefaults>,
) -> Profile {
    let checks = balancer.checks_of(backend).iter();
    Profile {
        forwarding: method(backend.forwarding),
        thresholds: ipvs::Thresholds {
            upper: backend.thresholds.maximum,
            lower: backend.thresholds.resume,
        },
        checks: checks
            .map(|check| Arc::new(resolved(balancer, backend, check, defaults)))
            .collect(),
        administrative_state: match backend.administrative_state {
            crate::AdministrativeState::Enabled => portolan_model::AdministrativeState::Enabled,
            crate::AdministrativeState::Drain => portolan_model::AdministrativeState::Drain,
            crate::AdministrativeState::Disabled => portolan_model::AdministrativeState::Disabled,
        },
    }
}

/// A check with the defaults that are known here. The records do not have the order of the frontends: the first one is named here.
fn resolved(
    balancer: &LoadBalancer,
    backend: &Backend,
    check: &DeclaredCheck,
    defaults: Option<&CheckDefaults>,
) -> Check {
    let mut resolved = match defaults {
        Some(defaults) => check.resolve(defaults),
        None => check.for_each_host(),
    };
    if let Some(frontend) = frontend_of(balancer, backend, check) {
        resolved.via = Via::Service {
            frontend: Some(frontend.name.as_str().into()),
        };
    }
    resolved
}

fn persistence(from: crate::Persistence) -> portolan_model::Persistence {
    portolan_model::Persistence {
        timeout_seconds: u32::try_from(from.timeout.as_secs()).unwrap_or(u32::MAX),
        ipv4_prefix_length: from.ipv4_prefix_length,
        ipv6_prefix_length: from.ipv6_prefix_length,
        engine: from.engine.map(|engine| match engine {
            PersistenceEngine::Sip => "sip".into(),
        }),
    }
}

fn method(from: Forwarding) -> ipvs::ForwardingMethod {
    match from {
        Forwarding::Masquerade => ipvs::ForwardingMethod::Masquerade,
        Forwarding::Direct => ipvs::ForwardingMethod::Direct,
        Forwarding::Tunnel(tunnel) => ipvs::ForwardingMethod::Tunnel(match tunnel {
            Tunnel::Ipip => ipvs::Tunnel::Ipip,
            Tunnel::Gre { checksum } => ipvs::Tunnel::Gre { checksum },
            Tunnel::Gue { port, checksum } => ipvs::Tunnel::Gue {
                port,
                checksum: match checksum {
                    TunnelChecksum::None => ipvs::GueChecksum::None,
                    TunnelChecksum::Full => ipvs::GueChecksum::Full,
                    TunnelChecksum::Remote => ipvs::GueChecksum::Remote,
                },
            },
        }),
    }
}

/// One-packet scheduling acts on UDP only, also by mark.
fn flags(balancer: &LoadBalancer, protocol: Option<Protocol>) -> ipvs::Flags {
    let bit = |flag: &SchedulerFlag| match flag {
        SchedulerFlag::Fallback | SchedulerFlag::Flag1 => ipvs::Flags::SCHED1,
        SchedulerFlag::Port | SchedulerFlag::Flag2 => ipvs::Flags::SCHED2,
        SchedulerFlag::Flag3 => ipvs::Flags::SCHED3,
    };
    let mut flags = balancer
        .scheduler_flags
        .iter()
        .fold(0, |all, flag| all | bit(flag));
    if balancer.one_packet && protocol.is_none_or(|protocol| protocol == Protocol::Udp) {
        flags |= ipvs::Flags::ONE_PACKET;
    }
    ipvs::Flags(flags)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Already, File, parse};

    const WEB: &str = r#"
apiVersion: portolan.dev/v1alpha1
kind: LoadBalancer
metadata: {name: web}
spec:
  frontends: [{name: http, addresses: [192.0.2.10, "2001:db8::10"], port: 80}]
  backends:
  - {address: 10.0.0.12, port: 8080, weight: 3}
  - {address: 10.0.0.11, port: 8080, maxConnections: 9}
  - {address: "fd00::11", port: 8080}
  sorryServer: {address: 10.0.0.99, port: 8000}
  checks: [{interval: 5s, fall: 3, http: {path: /healthz}}]
"#;

    fn parsed(text: &str) -> LoadBalancer {
        let file = File {
            name: "lb.yaml",
            text,
        };
        let generation = parse(&[file], &Already::default()).unwrap();
        generation.load_balancers.into_iter().next().unwrap()
    }

    fn only_record(text: &str) -> Record {
        let all = records(&[parsed(text)], Some(&CheckDefaults::default()), &"".into());
        let mut all = all.values();
        let record = all.next().unwrap();
        assert!(all.next().is_none());
        Record::clone(record)
    }

    #[test]
    fn a_frontend_becomes_a_record() {
        let record = only_record(WEB);
        assert_eq!(record.key.to_string(), "default/web:http/TCP");
        let frontends: Vec<_> = record.frontends.iter().map(|f| (f.kind, f.port)).collect();
        assert_eq!(frontends, [(FrontendKind::Balanced, 80); 2]);
        let destinations = record.destinations.iter();
        let destinations: Vec<_> = destinations
            .map(|d| (d.address.to_string(), d.weight))
            .collect();
        let expected = [
            ("10.0.0.11:8080", 1),
            ("10.0.0.12:8080", 3),
            ("[fd00::11]:8080", 1),
        ];
        assert_eq!(
            destinations,
            expected.map(|(address, weight)| (address.to_owned(), weight))
        );
        let balancing = record.balancing.unwrap();
        assert!(balancing.fits(3));
        // One setting differs.
        assert_eq!(balancing.profiles.len(), 2);
        assert_eq!(balancing.profile(0).unwrap().thresholds.upper, 9);
        assert_eq!(balancing.profile(1), balancing.profile(2));
        assert_eq!(balancing.profile(0).unwrap().checks.len(), 1);
        let sorry = balancing.sorry_server.as_ref().unwrap();
        assert_eq!(sorry.address.to_string(), "10.0.0.99:8000");
        let scheduling = record.scheduling;
        assert_eq!(scheduling.scheduler.as_deref(), Some("wlc"));
        assert_eq!(scheduling.flags, Some(ipvs::Flags(0)));
    }

    #[test]
    fn direct_backends_have_the_frontends_port_and_one_packet_is_for_udp() {
        let text = r#"
apiVersion: portolan.dev/v1alpha1
kind: LoadBalancer
metadata: {name: dns}
spec:
  frontends: [{addresses: [192.0.2.53], protocol: UDP, port: 53}, {addresses: [192.0.2.53], port: 53}]
  scheduler: mh
  onePacket: true
  forwarding: {method: Direct}
  backends: [{address: 10.0.0.21}, {address: 10.0.0.22, administrativeState: Drain}]
"#;
        let all = records(&[parsed(text)], Some(&CheckDefaults::default()), &"".into());
        let flags: Vec<_> = all
            .values()
            .map(|record| {
                (
                    record.key.port.to_string(),
                    record.scheduling.flags.unwrap().0,
                )
            })
            .collect();
        let fallback = ipvs::Flags::SCHED1;
        let udp = fallback | ipvs::Flags::ONE_PACKET;
        assert_eq!(
            flags,
            [("tcp-53".to_owned(), fallback), ("udp-53".to_owned(), udp)]
        );
        for record in all.values() {
            let ports = record.destinations.iter().map(|d| d.address.port());
            assert!(ports.eq([53, 53]));
            let balancing = record.balancing.as_ref().unwrap();
            let profile = balancing.profile(1).unwrap();
            assert_eq!(profile.forwarding, ipvs::ForwardingMethod::Direct);
            let drained = portolan_model::AdministrativeState::Drain;
            assert_eq!(profile.administrative_state, drained);
        }
    }

    #[test]
    fn a_check_by_way_of_the_service_names_its_frontend() {
        let text = r#"
apiVersion: portolan.dev/v1alpha1
kind: LoadBalancer
metadata: {name: dns}
spec:
  frontends:
  - {addresses: [192.0.2.53], port: 53}
  - {addresses: [192.0.2.53], protocol: UDP, port: 53}
  - {name: six, addresses: ["2001:db8::53"], protocol: UDP, port: 53}
  backends: [{address: 10.0.0.21}, {address: "fd00::21"}]
  checks: [{via: Service, dns: {}}, {icmp: {}}]
"#;
        let all = records(&[parsed(text)], Some(&CheckDefaults::default()), &"".into());
        assert_eq!(all.len(), 3);
        for record in all.values() {
            let balancing = record.balancing.as_ref().unwrap();
            let name = |index: usize| match &balancing.profile(index).unwrap().checks[0].via {
                Via::Service { frontend } => frontend.clone().unwrap(),
                Via::Direct => panic!("{record:?}"),
            };
            let names = (0..record.destinations.len()).map(name);
            let names: Vec<_> = names.map(|name| name.to_string()).collect();
            assert_eq!(names, ["udp-53", "six"]);
        }
    }

    #[test]
    fn ranges_of_ports_and_marks_become_records() {
        let text = r#"
apiVersion: portolan.dev/v1alpha1
kind: LoadBalancer
metadata: {name: ftp}
spec:
  frontends:
  - {addresses: ["2001:db8::21", 192.0.2.21], ports: "20000-20999,21"}
  - {mark: 7, family: IPv6}
  persistence: {timeout: 10m}
  backends: [{address: 10.1.0.11}, {address: "fd00::11"}]
"#;
        let balancer = parsed(text);
        assert_eq!(crate::unsupported(&balancer), []);
        let all = records(&[balancer], Some(&CheckDefaults::default()), &"".into());
        let places: Vec<_> = all
            .values()
            .map(|record| {
                let places = record.frontends.iter().map(Frontend::place);
                (record.key.to_string(), places.collect::<Vec<_>>())
            })
            .collect();
        let ranged = ["192.0.2.21:21,20000-20999", "[2001:db8::21]:21,20000-20999"];
        let expected = [
            (
                "default/ftp:mark-7/TCP".to_owned(),
                vec!["FWM 7 IPv6".to_owned()],
            ),
            (
                "default/ftp:tcp-21-20000-20999/TCP".to_owned(),
                ranged.map(str::to_owned).to_vec(),
            ),
        ];
        assert_eq!(places, expected);
        for record in all.values() {
            let kinds: Vec<_> = record
                .frontends
                .iter()
                .map(|frontend| frontend.kind)
                .collect();
            let is_ranged = !record.frontends[0].ranges.is_empty();
            assert_eq!(kinds.contains(&FrontendKind::BalancedRanges), is_ranged);
            // They keep the client's port.
            assert!(record.destinations.iter().all(|to| to.address.port() == 0));
        }
    }

    #[test]
    fn what_checks_of_a_fleet_leave_out_is_each_hosts() {
        let host = CheckDefaults {
            source: portolan_model::check::Source {
                mark: Some(5),
                ..Default::default()
            },
            timers: portolan_model::check::Timers {
                interval: std::time::Duration::from_secs(60),
                timeout: std::time::Duration::from_secs(7),
                rise: 4,
                fall: 9,
                ..Default::default()
            },
        };
        let check = |defaults| {
            let all = records(&[parsed(WEB)], defaults, &"".into());
            let record = all.values().next().unwrap();
            let balancing = record.balancing.as_ref().unwrap();
            // As it is on the wire.
            let read = Balancing::from_json(&balancing.to_json()).unwrap();
            assert_eq!(read, **balancing);
            Check::clone(&read.profiles[0].checks[0])
        };
        let (of_fleet, of_host) = (check(None), check(Some(&host)));
        assert_eq!(of_fleet.on_host(&host), Some(of_host.clone()));
        assert_eq!((of_host.timers.rise, of_host.timers.fall), (4, 3));
        assert_eq!(of_host.on_host(&CheckDefaults::default()), None);
        // An agent that does not know of it has the built-in defaults.
        let older = Check {
            inherited: Default::default(),
            ..of_fleet
        };
        assert_eq!(older, check(Some(&CheckDefaults::default())));
    }
}
