// SPDX-License-Identifier: Apache-2.0

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

fn parsed(text: &str) -> Arc<LoadBalancer> {
    let file = File {
        name: "lb.yaml",
        text,
    };
    let generation = parse(&[file], &Already::default()).unwrap();
    generation.load_balancers.into_iter().next().unwrap()
}

fn only_record(text: &str) -> Record {
    let all = records(
        [&*parsed(text)],
        Some(&CheckDefaults::default()),
        &"".into(),
    );
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
fn a_range_of_all_addresses_opens_its_family_and_is_no_range() {
    let port = "port: 80, sourceRanges: [192.0.2.0/24, \"::/0\"]}]";
    let record = only_record(&WEB.replace("port: 80}]", port));
    let ranges = |frontend: &Frontend| {
        let ranges = frontend.source_ranges.iter();
        let ranges: Vec<_> = ranges.map(ToString::to_string).collect();
        (frontend.family(), ranges)
    };
    let ranges: Vec<_> = record.frontends.iter().map(ranges).collect();
    let of_v4 = vec!["192.0.2.0/24".to_owned()];
    assert_eq!(ranges, [(Family::V4, of_v4), (Family::V6, Vec::new())]);
}

#[test]
fn the_engine_of_persistence_is_for_udp_and_the_rest_of_it_is_for_all() {
    let text = r#"
apiVersion: portolan.dev/v1alpha1
kind: LoadBalancer
metadata: {name: sip}
spec:
  frontends:
  - {addresses: [192.0.2.60], port: 5060}
  - {addresses: [192.0.2.60], protocol: UDP, port: 5060}
  - {addresses: [192.0.2.60], ports: "5061-5070"}
  - {mark: 7, family: IPv4}
  persistence: {timeout: 10m, ipv4PrefixLength: 24, engine: Sip}
  backends: [{address: 10.0.0.21}, {address: 10.0.0.22}]
"#;
    let all = records(
        [&*parsed(text)],
        Some(&CheckDefaults::default()),
        &"".into(),
    );
    let engine = |record: &Arc<Record>| {
        let balancing = record.balancing.as_ref().unwrap();
        let persistence = balancing.persistence.as_ref().unwrap();
        assert_eq!(persistence.timeout_seconds, 600);
        assert_eq!(persistence.ipv4_prefix_length, 24);
        (record.key.port.to_string(), persistence.engine.is_some())
    };
    let engines: Vec<_> = all.values().map(engine).collect();
    let expected = [
        ("mark-7", true),
        ("tcp-5060", false),
        ("tcp-5061-5070", false),
        ("udp-5060", true),
    ];
    assert_eq!(engines, expected.map(|(port, has)| (port.to_owned(), has)));
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
    let all = records(
        [&*parsed(text)],
        Some(&CheckDefaults::default()),
        &"".into(),
    );
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
    let all = records(
        [&*parsed(text)],
        Some(&CheckDefaults::default()),
        &"".into(),
    );
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
    let all = records([&*balancer], Some(&CheckDefaults::default()), &"".into());
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
fn records_that_did_not_change_are_the_same_allocations() {
    let cluster: Arc<str> = "".into();
    let other = WEB
        .replace("name: web", "name: api")
        .replace("192.0.2.10", "192.0.2.11");
    let other = other.replace("2001:db8::10", "2001:db8::11");
    // A second frontend, whose record stays when the first one's changes.
    let ports = "port: 80}, {name: alt, addresses: [192.0.2.10], port: 81}]";
    let (web, api) = (parsed(&WEB.replace("port: 80}]", ports)), parsed(&other));
    let mut changed = LoadBalancer::clone(&web);
    changed.frontends[0].source_ranges = vec!["10.0.0.0/8".parse().unwrap()];
    let mut slow = CheckDefaults::default();
    slow.timers.timeout *= 2;
    let fast = CheckDefaults::default();
    let mut cache = RecordCache::default();
    let mut last = cache.records(&[], Some(&fast), &cluster);
    let (again, changed) = (Arc::new(LoadBalancer::clone(&web)), Arc::new(changed));
    // Each reading, and the records of it that are new allocations.
    let readings = [
        (vec![&web, &api], &fast, 3),
        (vec![&web, &api], &fast, 0),
        (vec![&api, &again], &fast, 0),
        (vec![&changed, &api], &fast, 1),
        (vec![&api], &fast, 0),
        (vec![&web, &api], &fast, 2),
        (vec![&web, &api], &slow, 3),
    ];
    for (balancers, defaults, expected) in readings {
        let balancers: Vec<_> = balancers.into_iter().cloned().collect();
        let now = cache.records(&balancers, Some(defaults), &cluster);
        let plain = balancers.iter().map(|balancer| &**balancer);
        assert_eq!(now, records(plain, Some(defaults), &cluster));
        let same = |(key, record): &(&RecordKey, &Arc<Record>)| {
            last.get(*key).is_some_and(|last| Arc::ptr_eq(last, record))
        };
        assert_eq!(now.iter().filter(|each| !same(each)).count(), expected);
        last = now;
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
        let all = records([&*parsed(WEB)], defaults, &"".into());
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
