// SPDX-License-Identifier: Apache-2.0

//! Rules on demand: a host whose load balancers need none is left alone until one does.

use portolan_model::check::{Check, HealthPolicy, Probe, TcpProbe, Via};
use portolan_model::ipvs::{ForwardingMethod, Thresholds, VirtualServerKey};
use portolan_model::{AdministrativeState, Balancing, PortRange, Profile};
use portolan_plan::RulesMode;
use portolan_plan::host::{Host, Owned};

use super::*;

const VIP: &str = "192.0.2.10";

/// A load balancer with NAT, whose frontend is changed.
fn balancer(change: impl FnOnce(&mut Frontend)) -> Record {
    let address = FrontendAddress::Vip(VIP.parse().unwrap());
    let mut frontend = Frontend::new(FrontendKind::Balanced, address, 80);
    frontend.masquerade = false;
    change(&mut frontend);
    let profile = Profile {
        forwarding: ForwardingMethod::Masquerade,
        thresholds: Thresholds::default(),
        checks: Vec::new(),
        administrative_state: AdministrativeState::Enabled,
    };
    Record {
        frontends: vec![frontend],
        destinations: vec![Destination::new("10.0.0.1:80".parse().unwrap())],
        balancing: Some(Arc::new(Balancing {
            profiles: vec![profile],
            profile_of: vec![0],
            health: HealthPolicy::default(),
            ..Balancing::default()
        })),
        ..Record::new(RecordKey {
            cluster: "".into(),
            namespace: "default".into(),
            service: "web".into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        })
    }
}

fn ranges(frontend: &mut Frontend) {
    frontend.kind = FrontendKind::BalancedRanges;
    (frontend.port, frontend.ranges) = (0, vec![PortRange { first: 1, last: 2 }]);
}

fn with_source_nat(frontend: &mut Frontend) {
    frontend.masquerade = true;
}

fn table_of(records: impl IntoIterator<Item = Record>) -> Arc<NodeTable> {
    let records = records.into_iter();
    Arc::new(NodeTable {
        records: records
            .map(|record| (record.key.clone(), Arc::new(record)))
            .collect(),
        ..NodeTable::default()
    })
}

fn on_demand(kernel: FakeKernel) -> Reconciler<FakeKernel> {
    let config = Config {
        rules_mode: RulesMode::OnDemand,
        ..Config::default()
    };
    Reconciler::new(kernel, config)
}

/// Another program whose rules use these bits of marks.
fn uses_marks(kernel: &mut FakeKernel, mask: &str) {
    let rule = format!("-A OTHER -m mark --mark {mask}/{mask} -j ACCEPT");
    kernel.mark_users.scan(&[rule], &BTreeSet::new());
}

fn writes(kernel: &FakeKernel) -> usize {
    let steps = kernel.applied.iter();
    steps
        .filter(|step| matches!(step, Step::WriteRules { .. }))
        .count()
}

#[tokio::test]
async fn the_first_load_balancer_that_needs_rules_gets_them_and_free_marks() {
    let mut reconciler = on_demand(FakeKernel::default());
    let plain = table_of([balancer(|_| {})]);
    let outcome = reconciler.reconcile(&plain).await.unwrap();
    assert_eq!((outcome.errors, outcome.again), (vec![], false));
    let kernel = &mut reconciler.dataplane;
    assert_eq!((writes(kernel), kernel.mark_choices), (0, 0));
    assert_eq!(kernel.state.virtual_servers.len(), 1);

    uses_marks(kernel, "0x10000");
    let ranged = table_of([balancer(ranges)]);
    let outcome = reconciler.reconcile(&ranged).await.unwrap();
    assert_eq!((outcome.errors, outcome.again), (vec![], false));
    let kernel = &reconciler.dataplane;
    assert_eq!((writes(kernel), kernel.mark_choices), (1, 1));
    let marks = kernel.state.virtual_servers.keys().map(|key| key.mark());
    let marks: Vec<_> = marks.collect();
    assert!(
        matches!(marks[..], [Some(mark)] if mark & 0x3_ffff == 0),
        "{marks:x?}"
    );

    // The choice is made once, and a restart makes the same one.
    reconciler.reconcile(&plain).await.unwrap();
    reconciler.reconcile(&ranged).await.unwrap();
    assert_eq!(reconciler.dataplane.mark_choices, 1);
    let mut restarted = on_demand(reconciler.into_dataplane());
    let outcome = restarted.reconcile(&ranged).await.unwrap();
    assert_eq!((outcome.objects, outcome.errors), (0, vec![]));
    assert_eq!(restarted.dataplane.mark_choices, 2);
}

#[tokio::test]
async fn conntrack_knows_masqueraded_servers_that_an_earlier_run_left() {
    let with = |forwarding| {
        let mut record = balancer(|_| {});
        let balancing = Arc::make_mut(record.balancing.as_mut().unwrap());
        balancing.profiles[0].forwarding = forwarding;
        table_of([record])
    };
    for (forwarding, expected) in [
        (ForwardingMethod::Masquerade, true),
        (ForwardingMethod::Direct, false),
    ] {
        let mut earlier = on_demand(FakeKernel::default());
        let table = with(forwarding);
        earlier.reconcile(&table).await.unwrap();
        let mut kernel = earlier.into_dataplane();
        kernel.is_tracking = false;
        // There is no step from which the kernel could tell.
        let mut restarted = on_demand(kernel);
        let outcome = restarted.reconcile(&table).await.unwrap();
        assert_eq!((outcome.objects, outcome.errors), (0, vec![]));
        assert_eq!(restarted.dataplane.is_tracking, expected, "{forwarding:?}");
    }
}

#[tokio::test]
async fn without_a_free_mark_only_what_needs_one_is_refused() {
    let mut reconciler = on_demand(FakeKernel::default());
    uses_marks(&mut reconciler.dataplane, "0xffff3fff");
    let mut other = balancer(with_source_nat);
    other.key.service = "other".into();
    let address = FrontendAddress::Vip("192.0.2.11".parse().unwrap());
    other.frontends[0].address = address;
    let table = table_of([balancer(ranges), other]);
    let outcome = reconciler.reconcile(&table).await.unwrap();
    assert!(outcome.again);
    let said: Vec<_> = outcome.errors.iter().map(|(_, error)| &**error).collect();
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].contains("default/web"), "{said:?}");
    assert!(
        said[1].starts_with("packet marks: the chain OTHER"),
        "{said:?}"
    );
    let kernel = &reconciler.dataplane;
    let served: Vec<_> = kernel.state.virtual_servers.keys().collect();
    assert_eq!(served.len(), 1);
    assert_eq!(served[0].socket(), Some("192.0.2.11:80".parse().unwrap()));

    // The sets that came with the rules of the other one hold nothing up.
    let mut restarted = on_demand(reconciler.into_dataplane());
    let outcome = restarted.reconcile(&table).await.unwrap();
    let again: Vec<_> = outcome.errors.iter().map(|(_, error)| &**error).collect();
    assert_eq!(again.len(), 2, "{again:?}");
    assert_eq!(restarted.dataplane.state.virtual_servers.len(), 1);
}

/// A load balancer that needs no mark, at another address.
fn plain(destination: &str) -> Record {
    let mut record = balancer(|frontend| {
        frontend.address = FrontendAddress::Vip("192.0.2.11".parse().unwrap());
    });
    record.key.service = "plain".into();
    record.destinations = vec![Destination::new(destination.parse().unwrap())];
    record
}

/// Returns `true` if a destination of that load balancer gets new connections.
fn is_served(kernel: &FakeKernel, destination: &str) -> bool {
    let key = VirtualServerKey::new(Protocol::Tcp, "192.0.2.11".parse().unwrap(), 80);
    let real_servers = &kernel.state.virtual_servers[&key].real_servers;
    let config = real_servers.get(&destination.parse().unwrap());
    config.is_some_and(|config| config.weight > 0)
}

#[tokio::test]
async fn marks_in_the_kernel_stay_when_another_program_begins_to_use_them() {
    let mut reconciler = on_demand(FakeKernel::default());
    let table = |destination: &str| table_of([balancer(ranges), plain(destination)]);
    reconciler.reconcile(&table("10.0.0.1:80")).await.unwrap();
    let mut kernel = reconciler.into_dataplane();
    let marks = marks_of(&kernel);
    let marked = kernel.state.sets["KUBE-BALANCED-MARK"].clone();
    assert_eq!((marks.len(), marked.entries.len()), (1, 2));
    uses_marks(&mut kernel, "0xffff3fff");
    let mut restarted = on_demand(kernel);
    // The choice is not made again within the pause, and changes go on.
    for destination in ["10.0.0.2:80", "10.0.0.3:80"] {
        let outcome = restarted.reconcile(&table(destination)).await.unwrap();
        assert!(outcome.again);
        let said: Vec<_> = outcome.errors.iter().map(|(_, error)| &**error).collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].starts_with("packet marks: "), "{said:?}");
        let kernel = &restarted.dataplane;
        assert!(is_served(kernel, destination));
        assert_eq!(marks_of(kernel), marks);
        assert_eq!(kernel.state.sets["KUBE-BALANCED-MARK"], marked);
        assert_eq!(kernel.mark_choices, 2);
    }
}

/// A check by way of the service, of a load balancer that needs no rules.
fn checked_by_service() -> Record {
    let mut record = balancer(|_| {});
    record.key.port = "http".into();
    let check = Check {
        via: Via::Service {
            frontend: Some("http".into()),
        },
        ..Check::new(Probe::Tcp(TcpProbe::default()))
    };
    let balancing = Arc::make_mut(record.balancing.as_mut().unwrap());
    balancing.profiles[0].checks = vec![Arc::new(check)];
    record
}

fn marks_of(kernel: &FakeKernel) -> Vec<u32> {
    let servers = kernel.state.virtual_servers.keys();
    servers.filter_map(VirtualServerKey::mark).collect()
}

#[tokio::test]
async fn ways_of_checks_are_told_once_the_kernel_has_them() {
    let mut reconciler = on_demand(FakeKernel::default());
    uses_marks(&mut reconciler.dataplane, "0x10000");
    let table = table_of([checked_by_service()]);
    assert_eq!(reconciler.ways(), None);
    let outcome = reconciler.reconcile(&table).await.unwrap();
    assert_eq!((outcome.errors, outcome.again), (vec![], false));
    let kernel = &reconciler.dataplane;
    // Marks are chosen beside those of other programs, without a rule.
    assert_eq!((writes(kernel), kernel.mark_choices), (0, 1));
    let marks = marks_of(kernel);
    assert!(
        matches!(marks[..], [mark] if mark & 0x3_ffff == 0),
        "{marks:x?}"
    );
    let told = reconciler.ways().unwrap().marks;
    assert_eq!(told.values().copied().collect::<Vec<_>>(), marks);

    // Another program deletes it: nothing is told until it is there again.
    reconciler
        .dataplane
        .state
        .virtual_servers
        .retain(|key, _| key.mark().is_none());
    reconciler.forget();
    assert_eq!(reconciler.ways(), None);
    reconciler.reconcile(&table).await.unwrap();
    assert_eq!(reconciler.ways().unwrap().marks, told);
    let mut restarted = on_demand(reconciler.into_dataplane());
    let outcome = restarted.reconcile(&table).await.unwrap();
    assert_eq!((outcome.objects, outcome.errors), (0, vec![]));
    assert_eq!(restarted.ways().unwrap().marks, told);
}

#[tokio::test]
async fn marks_are_of_the_bits_that_the_director_gives() {
    let mut reconciler = on_demand(FakeKernel::default());
    let table = |destination: &str| {
        let mut ranged = balancer(ranges);
        ranged.key.service = "ranged".into();
        table_of([checked_by_service(), ranged, plain(destination)])
    };
    let before = table("10.0.0.1:80");
    for bits in [0x00f0_0000, 0x0f00_0000] {
        let host = Host {
            marks: Some(bits),
            ..Host::default()
        };
        reconciler.set_host(Some(host.into()), Owned::default());
        let outcome = reconciler.reconcile(&before).await.unwrap();
        assert_eq!((outcome.errors, outcome.again), (vec![], false));
        let marks = marks_of(&reconciler.dataplane);
        assert_eq!(marks.len(), 2);
        assert!(marks.iter().all(|mark| mark & !bits == 0), "{marks:x?}");
    }
    // Bits of another program are refused with its name. The kernel keeps its marks, and other changes are made.
    let marks = marks_of(&reconciler.dataplane);
    let choices = reconciler.dataplane.mark_choices;
    uses_marks(&mut reconciler.dataplane, "0x1000");
    let host = Host {
        marks: Some(0x3000),
        ..Host::default()
    };
    reconciler.set_host(Some(host.into()), Owned::default());
    for destination in ["10.0.0.2:80", "10.0.0.3:80"] {
        let outcome = reconciler.reconcile(&table(destination)).await.unwrap();
        assert!(outcome.again);
        let said: Vec<_> = outcome.errors.iter().map(|(_, error)| &**error).collect();
        assert_eq!(said.len(), 1, "{said:?}");
        assert!(said[0].contains("OTHER"), "{said:?}");
        let kernel = &reconciler.dataplane;
        assert!(is_served(kernel, destination));
        assert_eq!(marks_of(kernel), marks);
        assert_eq!(kernel.mark_choices, choices + 1);
    }
}
