// SPDX-License-Identifier: Apache-2.0

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_dataplane::FakeKernel;
use portolan_model::ipset::{Set, SetEntry, SetHeader, SetKind};
use portolan_model::ipvs::{
    RealServerConfig, VirtualServer, VirtualServerConfig, VirtualServerKey,
};
use portolan_model::{
    Destination, Frontend, FrontendAddress, FrontendKind, Protocol, Record, RecordKey,
};
use portolan_plan::Config;
use portolan_plan::kube_proxy::RuleMode;

use super::*;

const STAYS: u8 = 1;
const GONE: u8 = 2;

fn vip(last: u8) -> IpAddr {
    [10, 96, 0, last].into()
}

fn key(last: u8, port: u16) -> VirtualServerKey {
    VirtualServerKey::new(Protocol::Tcp, vip(last), port)
}

/// A table with one Service of two endpoints.
fn table() -> Arc<NodeTable> {
    let key = RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: "svc".into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    let address = FrontendAddress::Vip(vip(STAYS));
    let destinations = ["10.0.0.1:80", "10.0.0.2:80"];
    let destination = |text: &str| Destination::new(text.parse().unwrap());
    let record = Record {
        frontends: vec![Frontend::new(FrontendKind::ClusterIp, address, 80)],
        destinations: destinations.map(destination).into(),
        ..Record::new(key)
    };
    Arc::new(NodeTable {
        records: std::iter::once((record.key.clone(), Arc::new(record))).collect(),
        ..NodeTable::default()
    })
}

fn set(kind: SetKind, entries: &[SetEntry]) -> Set {
    let header = SetHeader {
        kind,
        family: Family::V4,
        max_entries: 65_536,
    };
    Set {
        header,
        entries: entries.iter().cloned().collect(),
    }
}

fn server(real_servers: &[&str]) -> VirtualServer {
    let config = RealServerConfig::masquerade(1);
    let real = |address: &&str| (address.parse().unwrap(), config);
    VirtualServer {
        config: VirtualServerConfig::round_robin().into(),
        real_servers: Arc::new(real_servers.iter().map(real).collect()),
    }
}

/// Objects of a kube-proxy with one endpoint of the Service and another Service, and a foreign virtual
/// server at the Service's address.
fn left() -> FakeKernel {
    let entry = |last| SetEntry::IpPort(vip(last), Protocol::Tcp, 80);
    let mut kernel = FakeKernel::default();
    kernel.state.sets = BTreeMap::from([
        (
            "KUBE-CLUSTER-IP".to_owned(),
            set(SetKind::HashIpPort, &[entry(STAYS), entry(GONE)]),
        ),
        (
            "KUBE-LOAD-BALANCER-SOURCE-IP".to_owned(),
            set(SetKind::HashIpPortIp, &[]),
        ),
    ]);
    kernel.state.virtual_servers = BTreeMap::from([
        (key(STAYS, 80), server(&["10.0.0.1:80"])),
        (key(GONE, 80), server(&["10.0.0.9:80"])),
        (key(STAYS, 9999), server(&["10.0.0.7:80"])),
    ]);
    let bound = BTreeSet::from([vip(STAYS), vip(GONE)]);
    kernel.devices.insert(VIP_DEVICE.to_owned(), bound);
    kernel
}

fn reconciler(kernel: FakeKernel) -> Reconciler<FakeKernel> {
    Reconciler::new(kernel, Config::default())
}

/// One run of an agent; returns whether it came to the end.
async fn live(reconciler: &mut Reconciler<FakeKernel>, asked: bool) -> bool {
    let begun = reconciler.begin_takeover(&table(), asked, |_| false).await;
    if !matches!(begun, Ok(TakeoverStart::Begun(_))) {
        return matches!(begun, Ok(TakeoverStart::Nothing));
    }
    let Ok(outcome) = reconciler.reconcile(&table()).await else {
        return false;
    };
    loop {
        match reconciler.continue_takeover().await {
            Ok(TakeoverProgress::More) => {}
            Ok(TakeoverProgress::Done) => return outcome.errors.is_empty(),
            Ok(_) | Err(_) => return false,
        }
    }
}

/// The kernel has the table's and the foreign objects, and no object that stays was ever deleted.
fn assert_taken_over(reconciler: &Reconciler<FakeKernel>) {
    let mut wanted = reconciler.desired.read(|desired| desired.state.clone());
    let foreign = server(&["10.0.0.7:80"]);
    wanted.virtual_servers.insert(key(STAYS, 9999), foreign);
    let kernel = &reconciler.dataplane;
    assert_eq!(kernel.state, wanted);
    assert!(kernel.devices.is_empty(), "{:?}", kernel.devices);
    let chain = (Family::V4, "KUBE-IPVS-OUT-FILTER".to_owned());
    assert!(kernel.removed_chains.contains(&chain));
    let harmful = kernel.applied.iter().filter(|step| match step {
        Step::AddVirtualServer { .. } => true,
        Step::DelVirtualServer { key: of } => *of != key(GONE, 80),
        Step::DelRealServer { .. } => true,
        Step::AddRealServer { address, .. } => *address != "10.0.0.2:80".parse().unwrap(),
        _ => false,
    });
    assert_eq!(harmful.count(), 0, "{:#?}", kernel.applied);
}

#[tokio::test]
async fn desired_virtual_servers_stay_and_leftovers_go() {
    let mut reconciler = reconciler(left());
    let begun = reconciler.begin_takeover(&table(), true, |_| false).await;
    let claim = Claim {
        wanted: [key(STAYS, 80)].into(),
        unwanted: [key(GONE, 80)].into(),
        foreign: [key(STAYS, 9999)].into(),
        ..Claim::default()
    };
    assert_eq!(begun.unwrap(), TakeoverStart::Begun(claim));
    // Nothing of the data path has changed yet.
    let servers = reconciler.dataplane.state.virtual_servers.clone();
    assert_eq!(servers, left().state.virtual_servers);
    assert!(live(&mut reconciler, true).await);
    assert_taken_over(&reconciler);
    // A second takeover finds nothing left.
    let steps = reconciler.dataplane.applied.len();
    assert!(live(&mut reconciler, true).await);
    assert_eq!(reconciler.dataplane.applied.len(), steps);
}

#[tokio::test]
async fn takeover_continues_after_a_crash_anywhere() {
    for asked in [true, false] {
        let mut limit = 0;
        loop {
            let mut kernel = left();
            kernel.crash_after = Some(limit);
            let mut first = reconciler(kernel);
            let finished = live(&mut first, true).await;
            let mut kernel = first.into_dataplane();
            kernel.crash_after = None;
            let begun = kernel.state.sets.contains_key("KUBE-PORTOLAN-TAKEOVER");
            let mut second = reconciler(kernel);
            // Without the flag, a takeover that had not begun does not continue.
            if begun || asked {
                assert!(live(&mut second, asked).await, "after {limit} steps");
                second.reconcile(&table()).await.unwrap();
                assert_taken_over(&second);
            }
            if finished {
                break;
            }
            limit += 1;
        }
        assert!(limit > 10, "{limit}");
    }
}

#[tokio::test]
async fn address_stays_on_the_device_until_it_has_a_route() {
    let mut reconciler = reconciler(left());
    reconciler
        .begin_takeover(&table(), true, |_| false)
        .await
        .unwrap();
    let first = reconciler.dataplane.applied.len();
    reconciler.dataplane.failures = (first..first + 100)
        .map(|number| (number, "ENOMEM".to_owned()))
        .collect();
    let outcome = reconciler.reconcile(&table()).await.unwrap();
    assert!(!outcome.errors.is_empty());
    // The other address is not desired, but still has its virtual server.
    let progress = reconciler.continue_takeover().await.unwrap();
    assert_eq!(progress, TakeoverProgress::Waiting { addresses: 2 });
    reconciler.dataplane.failures.clear();
    assert!(live(&mut reconciler, false).await);
    assert_taken_over(&reconciler);
}

#[tokio::test]
async fn an_address_of_the_node_itself_leaves_the_device_without_a_route() {
    let mut kernel = left();
    kernel.facts.addresses = [vip(STAYS)].into();
    let mut reconciler = reconciler(kernel);
    assert!(live(&mut reconciler, true).await);
    let kernel = &reconciler.dataplane;
    assert!(kernel.state.routes.is_empty() && kernel.devices.is_empty());
    assert!(kernel.state.virtual_servers.contains_key(&key(STAYS, 80)));
    assert!(!kernel.state.sets.contains_key("KUBE-PORTOLAN-TAKEOVER"));
}

#[tokio::test]
async fn without_the_flag_and_on_a_doubtful_table_nothing_is_touched() {
    let mut reconciler = reconciler(left());
    let begin = reconciler.begin_takeover(&table(), false, |_| false).await;
    assert_eq!(begin.unwrap(), TakeoverStart::Nothing);
    let empty = NodeTable::default();
    let none_wanted = |claim: &Claim| claim.wanted.is_empty();
    let begin = reconciler.begin_takeover(&empty, true, none_wanted).await;
    assert!(matches!(begin.unwrap(), TakeoverStart::Doubtful(claim) if claim.len() == 2));
    assert!(reconciler.dataplane.applied.is_empty());
}

/// Returns the rules that a kube-proxy in another mode leaves: for the Service and another one.
fn left_rules(mode: RuleMode) -> FakeKernel {
    FakeKernel {
        packet_rules: PacketRules {
            modes: [mode].into(),
            frontends: [key(STAYS, 80), key(GONE, 80)].into(),
        },
        ..FakeKernel::default()
    }
}

#[tokio::test]
async fn rules_stay_in_force_until_virtual_servers_are_behind_them() {
    for mode in [RuleMode::Iptables, RuleMode::Nftables] {
        // The crash of an agent anywhere, and none.
        for limit in (0..30).map(Some).chain([None]) {
            let mut kernel = left_rules(mode);
            kernel.crash_after = limit;
            let mut first = reconciler(kernel);
            live(&mut first, true).await;
            let mut kernel = first.into_dataplane();
            kernel.crash_after = None;
            let mut second = reconciler(kernel);
            assert!(live(&mut second, true).await, "{mode:?} after {limit:?}");
            let kernel = &second.dataplane;
            // The Service that the table lacks loses its rules, and nothing else does.
            assert_eq!(
                kernel.unserved_frontends,
                [key(GONE, 80)].into(),
                "{mode:?} {limit:?}"
            );
            assert!(kernel.packet_rules.is_empty());
            assert!(kernel.state.virtual_servers.contains_key(&key(STAYS, 80)));
            assert!(!kernel.state.sets.contains_key("KUBE-PORTOLAN-TAKEOVER"));
        }
    }
}

#[tokio::test]
async fn rules_wait_for_virtual_servers_that_cannot_be_added_yet() {
    let mut kernel = left_rules(RuleMode::Iptables);
    kernel.failures = (0..100)
        .map(|number| (number, "ENOMEM".to_owned()))
        .collect();
    kernel.failures.remove(&0);
    let mut reconciler = reconciler(kernel);
    let begun = reconciler.begin_takeover(&table(), true, |_| false).await;
    assert!(matches!(begun.unwrap(), TakeoverStart::Begun(claim) if claim.wanted_rules.len() == 1));
    reconciler.reconcile(&table()).await.unwrap();
    let progress = reconciler.continue_takeover().await.unwrap();
    assert!(
        matches!(
            progress,
            TakeoverProgress::Waiting { .. } | TakeoverProgress::Unserved { .. }
        ),
        "{progress:?}"
    );
    assert!(!reconciler.dataplane.packet_rules.is_empty());
    reconciler.dataplane.failures.clear();
    assert!(live(&mut reconciler, false).await);
    assert!(reconciler.dataplane.packet_rules.is_empty());
}

#[tokio::test]
async fn rules_are_not_touched_without_the_flag_or_on_a_doubtful_table() {
    let mut reconciler = reconciler(left_rules(RuleMode::Iptables));
    let begin = reconciler.begin_takeover(&table(), false, |_| false).await;
    assert_eq!(begin.unwrap(), TakeoverStart::Nothing);
    let none_wanted = |claim: &Claim| claim.kept() == 0;
    let begin = reconciler
        .begin_takeover(&NodeTable::default(), true, none_wanted)
        .await;
    assert!(matches!(begin.unwrap(), TakeoverStart::Doubtful(claim) if claim.lacking() == 2));
    assert!(!reconciler.dataplane.packet_rules_kept);
    assert!(reconciler.dataplane.applied.is_empty());
}
