// SPDX-License-Identifier: Apache-2.0

use portolan_model::check::{DnsProbe, HealthPolicy, Probe, TcpProbe};
use portolan_model::ipvs::Tunnel;
use portolan_model::{
    AdministrativeState, Destination, Frontend, FrontendKind, NodeTable, PortRange, Profile,
    Protocol,
};
use proptest::prelude::*;

use super::*;
use crate::{IncrementalDesired, NodeFacts, Refused, Step, desire, plan};

const VIP: &str = "192.0.2.53";

fn check(frontend: &str, probe: Probe) -> Arc<Check> {
    let via = Via::Service {
        frontend: Some(frontend.into()),
    };
    Arc::new(Check {
        via,
        ..Check::new(probe)
    })
}

fn dns() -> Arc<Check> {
    check("udp-53", Probe::Dns(DnsProbe::default()))
}

/// A record of a load balancer: one frontend, and backends with a check each.
fn record(
    port: &str,
    protocol: Protocol,
    backends: &[(&str, ForwardingMethod)],
    check: &Arc<Check>,
) -> Record {
    let profile = |(_, forwarding): &(&str, ForwardingMethod)| Profile {
        forwarding: *forwarding,
        thresholds: Thresholds::default(),
        checks: vec![Arc::clone(check)],
        administrative_state: AdministrativeState::Enabled,
    };
    let balancing = Balancing {
        profiles: backends.iter().map(profile).collect(),
        profile_of: (0..).take(backends.len()).collect(),
        health: HealthPolicy::default(),
        ..Balancing::default()
    };
    let destinations = backends.iter();
    Record {
        frontends: vec![Frontend::new(
            FrontendKind::Balanced,
            FrontendAddress::Vip(VIP.parse().unwrap()),
            53,
        )],
        destinations: destinations
            .map(|(address, _)| Destination::new(address.parse().unwrap()))
            .collect(),
        balancing: Some(Arc::new(balancing)),
        ..Record::new(RecordKey {
            cluster: "".into(),
            namespace: "default".into(),
            service: "dns".into(),
            port: port.into(),
            protocol,
        })
    }
}

fn table(records: impl IntoIterator<Item = Record>) -> NodeTable {
    NodeTable {
        records: records
            .into_iter()
            .map(|record| (record.key.clone(), Arc::new(record)))
            .collect(),
        ..NodeTable::default()
    }
}

const DIRECT: [(&str, ForwardingMethod); 2] = [
    ("10.0.0.21:53", ForwardingMethod::Direct),
    ("10.0.0.22:53", ForwardingMethod::Direct),
];

/// One load balancer with a frontend of each protocol.
fn both() -> NodeTable {
    let of = |port, protocol| record(port, protocol, &DIRECT, &dns());
    table([of("tcp-53", Protocol::Tcp), of("udp-53", Protocol::Udp)])
}

fn desired(table: &NodeTable, observed: &KernelState) -> crate::Desired {
    let (facts, config) = (NodeFacts::default(), Config::default());
    desire(table, &facts, &config, observed)
}

/// The kernel after all steps to a desired state.
fn programmed(desired: &crate::Desired, mut observed: KernelState) -> KernelState {
    let steps = plan(desired, &observed, &Config::default());
    steps.iter().for_each(|step| observed.advance(step));
    observed
}

fn by_marks(desired: &crate::Desired) -> Vec<(VirtualServerKey, VirtualServer)> {
    let servers = desired.state.virtual_servers.iter();
    let by_mark = servers.filter(|(key, _)| key.mark().is_some());
    by_mark
        .map(|(key, server)| (*key, server.clone()))
        .collect()
}

#[test]
fn each_backend_has_a_virtual_server_of_its_own_by_mark() {
    let table = both();
    let desired = desired(&table, &KernelState::default());
    // The frontends share them.
    assert_eq!(desired.ways.len(), 2);
    let servers = by_marks(&desired);
    assert_eq!(servers.len(), 2);
    for (key, server) in servers {
        let mark = key.mark().unwrap();
        assert!(Config::default().short_circuit_mask.contains(mark));
        let [(backend, config)] = server.real_servers.iter().collect::<Vec<_>>()[..] else {
            panic!("{server:?}");
        };
        assert_eq!((backend.port(), config.weight), (0, 1));
        assert_eq!(config.forwarding, ForwardingMethod::Direct);
        assert_eq!(server.config.flags, Flags(Flags::ONE_PACKET));
        let to = WayTo {
            family: Family::V4,
            backend,
            forwarding: ForwardingMethod::Direct,
        };
        assert_eq!(desired.ways[&to], mark);
        assert!(!desired.records.contains_key(&key));
    }
    // Both records send the probe to the frontend of its protocol.
    for record in table.records.values() {
        let (to, address) = way_of(&table.records, record, 1, &dns()).unwrap();
        assert_eq!(to.backend.to_string(), "10.0.0.22:0");
        assert_eq!(address.to_string(), "192.0.2.53:53");
    }
}

#[test]
fn a_virtual_server_of_a_way_is_there_before_those_of_clients() {
    let steps = plan(
        &desired(&both(), &KernelState::default()),
        &KernelState::default(),
        &Config::default(),
    );
    let added = |by_mark: bool| {
        let is = |step: &Step| {
            matches!(step, Step::FillVirtualServer { key, .. } | Step::AddRealServer { key, .. }
                if key.mark().is_some() == by_mark)
        };
        steps.iter().rposition(is).unwrap()
    };
    assert!(added(true) < added(false), "{steps:?}");
}

#[test]
fn a_way_keeps_its_mark_and_goes_with_its_backend() {
    let first = desired(&both(), &KernelState::default());
    let state = programmed(&first, KernelState::default());
    let again = desired(&both(), &state);
    assert_eq!(again.ways, first.ways);
    assert_eq!(plan(&again, &state, &Config::default()), []);

    // Another forwarding method is another way.
    let method = ForwardingMethod::Tunnel(Tunnel::Ipip);
    let changed = [DIRECT[0], ("10.0.0.22:53", method)];
    let of = record("udp-53", Protocol::Udp, &changed, &dns());
    let other = desired(&table([of]), &state);
    assert_eq!(other.ways.len(), 2);
    let stays = |(to, mark): (&WayTo, &u32)| first.ways.get(to) == Some(mark);
    assert_eq!(other.ways.iter().filter(|way| stays(*way)).count(), 1);
    // The mark of the way that ends is not used for another one while probes may have it.
    let old: BTreeSet<_> = first.ways.values().collect();
    assert_eq!(
        other
            .ways
            .values()
            .filter(|mark| old.contains(mark))
            .count(),
        1
    );

    let state = programmed(&other, state);
    assert_eq!(by_marks(&other).len(), 2);
    let state = programmed(&desired(&NodeTable::default(), &state), state);
    assert_eq!(state.virtual_servers, BTreeMap::new());
}

#[test]
fn marks_of_operators_and_of_ranges_of_ports_are_not_those_of_ways() {
    let first = desired(&both(), &KernelState::default());
    let mut ranged = record("tcp-1-2", Protocol::Tcp, &DIRECT, &dns());
    ranged.frontends[0].kind = FrontendKind::BalancedRanges;
    (ranged.frontends[0].port, ranged.frontends[0].ranges) =
        (0, vec![PortRange { first: 1, last: 2 }]);
    // A record whose hash would take the mark of the first way.
    let taken = *first.ways.values().next().unwrap();
    let mut foreign = KernelState::default();
    let theirs = VirtualServer {
        config: VirtualServerConfig::round_robin().into(),
        real_servers: Arc::default(),
    };
    let key = VirtualServerKey::Mark {
        family: Family::V4,
        mark: taken,
    };
    foreign.virtual_servers.insert(key, theirs);
    let mut records: Vec<_> = both().records.values().map(|r| Record::clone(r)).collect();
    records.push(ranged);
    let desired = desired(&table(records), &foreign);
    assert_eq!(desired.ways.len(), 2);
    assert!(!desired.ways.values().any(|mark| *mark == taken));
    let marks: BTreeSet<_> = by_marks(&desired).iter().map(|(key, _)| *key).collect();
    assert_eq!(marks.len(), 3, "{marks:?}");
}

#[test]
fn a_check_without_a_mark_is_refused_by_name() {
    let config = Config {
        short_circuit_mask: MarkMask::new(0x1_0000, 0x4000).unwrap(),
        ..Config::default()
    };
    let observed = KernelState::default();
    let desired = desire(&both(), &NodeFacts::default(), &config, &observed);
    assert_eq!(desired.ways.len(), 1);
    let [refused @ Refused::NoWay { .. }] = &desired.refused[..] else {
        panic!("{:?}", desired.refused);
    };
    let text = refused.to_string();
    assert!(text.contains("default/dns:tcp-53/TCP"), "{text}");
    assert!(text.contains("10.0.0.2"), "{text}");
}

#[test]
fn masquerading_translates_the_port_and_keeps_the_connection() {
    let nat = [("10.0.0.21:5353", ForwardingMethod::Masquerade)];
    let tcp = check("tcp-53", Probe::Tcp(TcpProbe::default()));
    let table = table([record("tcp-53", Protocol::Tcp, &nat, &tcp)]);
    let desired = desired(&table, &KernelState::default());
    let to = desired.ways.keys().next().unwrap();
    assert_eq!(to.backend.to_string(), "10.0.0.21:5353");
    assert_eq!(server(to).config.flags, Flags::default());
}

#[test]
fn a_frontend_that_the_table_lacks_gives_no_way() {
    let udp = check("udp-54", Probe::Dns(DnsProbe::default()));
    let icmp = check("udp-53", Probe::Icmp);
    for check in [udp, icmp] {
        let table = table([record("udp-53", Protocol::Udp, &DIRECT, &check)]);
        assert!(desired(&table, &KernelState::default()).ways.is_empty());
    }
}

#[test]
fn a_change_of_health_is_followed_without_the_ways() {
    let (facts, config) = (NodeFacts::default(), Config::default());
    let before = both();
    let mut kept = IncrementalDesired::new(&before, &facts, &config, &KernelState::default());
    let observed = programmed(kept.desired(), KernelState::default());
    let mut after = before.clone();
    let key = after.records.keys().next().unwrap().clone();
    let health = portolan_model::RecordHealth {
        backends: [(
            "10.0.0.21:53".parse().unwrap(),
            portolan_model::Standing::Weight(1),
        )]
        .into(),
        ..Default::default()
    };
    after.health.insert(key.clone(), Arc::new(health));
    let touched = kept.update(&before, &after, &facts, &config, &observed);
    assert_eq!(touched.unwrap().servers.len(), 1);
    assert_eq!(*kept.desired(), desire(&after, &facts, &config, &observed));
    let mut fewer = after.clone();
    fewer.records.remove(&key);
    let touched = kept.update(&after, &fewer, &facts, &config, &observed);
    assert_eq!(touched, None);
}

proptest! {
    /// No two ways share a mark, whatever the kernel has, and no way has another's or a foreign one.
    #[test]
    fn marks_are_distinct_and_free(
        wanted in proptest::collection::btree_set(0_u8..40, 0..20),
        kept in proptest::collection::btree_map(0_u8..40, 1_u32..32, 0..20),
        taken in proptest::collection::btree_set(1_u32..32, 0..8),
    ) {
        let mask = MarkMask::new(0x1f_0000, 0x4000).unwrap();
        let to = |last: u8| WayTo {
            family: Family::V4,
            backend: SocketAddr::from(([10, 0, 0, last], 0)),
            forwarding: ForwardingMethod::Direct,
        };
        let wanted: BTreeSet<_> = wanted.into_iter().map(to).collect();
        // Each mark leads to one backend.
        let mut seen = BTreeSet::new();
        let kept: BTreeMap<_, _> = kept
            .into_iter()
            .filter(|(_, mark)| seen.insert(*mark))
            .map(|(last, mark)| (to(last), mark << 16))
            .collect();
        let taken: BTreeSet<_> = taken.into_iter().map(|mark| mark << 16).collect();
        let marks = allocate(wanted.iter(), &kept, &taken, mask);
        let distinct: BTreeSet<_> = marks.values().collect();
        prop_assert_eq!(distinct.len(), marks.len());
        for (to, mark) in &marks {
            prop_assert!(mask.contains(*mark) && !taken.contains(mark));
            prop_assert!(kept.iter().all(|(other, of)| of != mark || other == to));
        }
        let used: BTreeSet<_> = taken.iter().chain(kept.values()).chain(marks.values()).collect();
        prop_assert!(marks.len() == wanted.len() || used.len() == 31);
    }
}
