// SPDX-License-Identifier: Apache-2.0

//! Faults of any message, and kills of the agent at any point: the next runs converge, and foreign
//! objects stay untouched.

use std::collections::BTreeMap;

use portolan_dataplane::{Errno, Fault};
use portolan_model::ipset::{Set, SetEntry, SetHeader, SetKind};
use portolan_model::ipvs::{RealServerConfig, VirtualServer, VirtualServerConfig};
use portolan_model::{Lists, NodeOverlay};
use portolan_plan::{MarkMask, ownership_entry};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::drains::DrainingServers;

/// Errors of a message: no privileges, no memory, no room, busy, or a stale observed state.
const ERRORS: [i32; 11] = [1, 2, 3, 12, 16, 17, 22, 105, 4100, 4352, 4353];

fn config() -> Config {
    Config {
        families: [Family::V4].into(),
        short_circuit_mask: MarkMask::new(0x7_0000, 0x4000).unwrap(),
        ..Config::default()
    }
}

fn destinations() -> impl Strategy<Value = Vec<Destination>> {
    let address = |last| Destination::new(([10, 0, 0, last], 80).into());
    btree_set(1..5u8, 0..4).prop_map(move |all| all.into_iter().map(address).collect())
}

/// One of a few records, with some of a few frontends; records often share one.
fn record() -> impl Strategy<Value = (Record, NodeOverlay)> {
    let key = (0..4u8, select(&[Protocol::Tcp, Protocol::Udp][..]));
    let frontends = btree_map(1..5u8, any::<bool>(), 1..3);
    (key, frontends, destinations(), destinations()).prop_map(
        |((number, protocol), frontends, cluster, local)| {
            let key = RecordKey {
                service: format!("s{number}").into(),
                protocol,
                ..table(&[]).records.keys().next().unwrap().clone()
            };
            let frontend = |(last, is_local): (u8, bool)| {
                let vip = FrontendAddress::Vip([10, 96, 0, last].into());
                let lists = if is_local {
                    Lists::Local
                } else {
                    Lists::Cluster
                };
                Frontend {
                    lists,
                    ..Frontend::new(FrontendKind::ExternalIp, vip, 80)
                }
            };
            let local: Vec<_> = local.into_iter().filter(|d| cluster.contains(d)).collect();
            let record = Record {
                frontends: frontends.into_iter().map(frontend).collect(),
                available: cluster.iter().map(|_| Family::V4).collect(),
                destinations: cluster,
                ..Record::new(key)
            };
            let own = local
                .iter()
                .map(|destination| destination.address)
                .collect();
            let lists = NodeOverlay {
                local,
                own,
                ..NodeOverlay::default()
            };
            (record, lists)
        },
    )
}

/// Changes of a table, one record at a time: put, or deleted.
fn edits() -> impl Strategy<Value = Vec<(Record, Option<NodeOverlay>)>> {
    let edit = (record(), prop::bool::weighted(0.75));
    vec(edit, 1..4).prop_map(|edits| {
        let value = |((record, lists), stays): ((Record, NodeOverlay), bool)| {
            (record, stays.then_some(lists))
        };
        edits.into_iter().map(value).collect()
    })
}

fn edit(table: &mut NodeTable, edits: Vec<(Record, Option<NodeOverlay>)>) {
    for (record, lists) in edits {
        let key = record.key.clone();
        table.records.remove(&key);
        table.lists.remove(&key);
        if let Some(lists) = lists {
            table.records.insert(key.clone(), Arc::new(record));
            table.lists.insert(key, Arc::new(lists));
        }
    }
}

fn fault() -> impl Strategy<Value = Fault> {
    let errno = || select(&ERRORS[..]).prop_map(Errno::new);
    prop_oneof![
        errno().prop_map(Fault::Refused),
        (0..9usize, errno()).prop_map(|(index, errno)| Fault::Entry(index, errno)),
        Just(Fault::AnswerLost),
        Just(Fault::Deleted),
    ]
}

/// Foreign objects: a virtual server at an address of ours, and a set.
fn foreign() -> KernelState {
    let real_servers = [(([10, 9, 9, 9], 80).into(), RealServerConfig::masquerade(0))];
    let server = VirtualServer {
        config: VirtualServerConfig {
            persistence: Some(7),
            ..VirtualServerConfig::round_robin()
        }
        .into(),
        real_servers: Arc::new(real_servers.into()),
    };
    let key = VirtualServerKey::new(Protocol::Tcp, [10, 96, 0, 4].into(), 80);
    let header = SetHeader {
        kind: SetKind::HashIpPort,
        family: Family::V4,
        max_entries: 9,
    };
    let entries = [SetEntry::IpPort([10, 96, 0, 1].into(), Protocol::Tcp, 80)].into();
    KernelState {
        sets: [("somebody-elses".to_owned(), Set { header, entries })].into(),
        virtual_servers: [(key, server)].into(),
        ..KernelState::default()
    }
}

/// The foreign objects of a state.
fn not_ours(state: &KernelState) -> KernelState {
    let sets = state
        .sets
        .iter()
        .filter(|(name, _)| !name.starts_with("KUBE-"));
    KernelState {
        sets: sets
            .map(|(name, set)| (name.clone(), set.clone()))
            .collect(),
        virtual_servers: state.foreign_virtual_servers(&config().names),
        ..KernelState::default()
    }
}

/// The desired objects of a state: without draining and foreign ones.
fn wanted_part(state: &KernelState, desired: &KernelState) -> KernelState {
    let mut state = state.clone();
    let names = &config().names;
    let foreign = state.foreign_virtual_servers(names);
    state
        .virtual_servers
        .retain(|key, _| !foreign.contains_key(key));
    state.sets.retain(|name, _| name.starts_with("KUBE-"));
    for (key, server) in &mut state.virtual_servers {
        let wanted = desired.virtual_servers.get(key);
        let is_wanted = |address: &SocketAddr| {
            wanted.is_some_and(|wanted| wanted.real_servers.contains_key(address))
        };
        let real_servers = Arc::make_mut(&mut server.real_servers);
        real_servers.retain(|address, config| config.weight != 0 || is_wanted(&address));
    }
    state
}

/// The state kept by the reconciler equals one computed from scratch.
fn assert_kept(reconciler: &mut Reconciler<FakeKernel>, table: &NodeTable) {
    let Some(draining) = reconciler.draining(table) else {
        return;
    };
    let draining: BTreeSet<Draining> = draining.into_keys().collect();
    let observed = reconciler.observed().unwrap().clone();
    let anew = reconciler
        .desired
        .read(|desired| DrainingServers::new(&observed, &desired.state));
    assert_eq!(draining, anew.iter().collect());
    let real_servers = observed
        .virtual_servers
        .values()
        .map(|s| s.real_servers.len());
    let counts = Counts {
        virtual_servers: observed.virtual_servers.len(),
        real_servers: real_servers.sum(),
    };
    assert_eq!(reconciler.counts(), Some(counts));
}

/// One round: changes, the step at which the agent is killed, and the number of failing reads.
type Round = (Vec<(Record, Option<NodeOverlay>)>, Option<usize>, usize);

fn rounds() -> impl Strategy<Value = Vec<Round>> {
    let crash = prop::option::weighted(0.3, 0..30usize);
    vec(
        (edits(), crash, prop_oneof![4 => Just(0), 1 => 1..3usize]),
        1..6,
    )
}

async fn converges(rounds: Vec<Round>, faults: BTreeMap<usize, Fault>) {
    let meddled = faults.values().any(|fault| *fault == Fault::Deleted);
    let kernel = FakeKernel {
        state: foreign(),
        faults,
        ..FakeKernel::default()
    };
    let (mut reconciler, mut table) = (Reconciler::new(kernel, config()), Arc::default());
    for (edits, crash, unreadable) in rounds {
        edit(Arc::make_mut(&mut table), edits);
        reconciler.dataplane.unreadable = unreadable;
        let taken = reconciler.dataplane.applied.len();
        reconciler.dataplane.crash_after = crash.map(|after| taken + after);
        let outcome = reconciler.reconcile(&table).await;
        assert_eq!(outcome.is_err(), outcome.is_err() && unreadable > 0);
        assert_kept(&mut reconciler, &table);
        assert_eq!(not_ours(&reconciler.dataplane.state), foreign());
        if crash.is_some() {
            let mut kernel = reconciler.into_dataplane();
            kernel.crash_after = None;
            reconciler = Reconciler::new(kernel, config());
        } else {
            reconciler.finish_drains(|_| true).await.unwrap();
            assert_kept(&mut reconciler, &table);
        }
    }

    let kernel = &mut reconciler.dataplane;
    (kernel.faults, kernel.unreadable) = (BTreeMap::new(), 0);
    // Deletions by others are noticed later, not at once. Failures are retried without that.
    if meddled {
        reconciler.forget();
    }
    // In the second run more marks may be free.
    for _ in 0..2 {
        // The agent retries failures after a while.
        reconciler.try_again(Instant::now());
        let outcome = reconciler.reconcile(&table).await.unwrap();
        let refused = |(_, text): &(Option<RecordKey>, String)| {
            text.contains("left untouched")
                || text.contains("already belongs")
                || text.contains("mark")
        };
        assert!(outcome.errors.iter().all(refused), "{:?}", outcome.errors);
    }
    let wanted = reconciler.desired.read(|desired| desired.state.clone());
    let state = &reconciler.dataplane.state;
    assert_eq!(wanted_part(state, &wanted), wanted);
    assert_eq!(not_ours(state), foreign());
    for key in wanted.virtual_servers.keys() {
        let owned = &state.sets["KUBE-PORTOLAN-OWNED"].entries;
        assert!(owned.contains(&ownership_entry(key)), "{key}");
    }
    let outcome = reconciler.reconcile(&table).await.unwrap();
    assert_eq!(outcome.objects, 0);
    assert!(outcome.broken.is_empty(), "{:?}", outcome.broken);
    let mut restarted = Reconciler::new(reconciler.into_dataplane(), config());
    assert_eq!(restarted.reconcile(&table).await.unwrap().objects, 0);
}

fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    runtime.unwrap().block_on(test);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn runs_converge_after_any_fault_and_any_kill(
        rounds in rounds(), faults in btree_map(0..120usize, fault(), 0..8),
    ) {
        run(converges(rounds, faults));
    }
}

/// Exhaustive: one change of every kind, and each of its messages with each fault.
#[test]
fn each_message_fails_once_with_each_fault() {
    let change = |destinations: &[&str]| {
        let record = table(destinations).records.values().next().unwrap().clone();
        vec![(Record::clone(&record), Some(NodeOverlay::default()))]
    };
    let gone = || vec![(change(&[]).remove(0).0, None)];
    let rounds = || {
        let first = change(&["10.0.0.1:80", "10.0.0.2:80"]);
        let all = [first, change(&["10.0.0.2:80"]), gone()];
        all.map(|edits| (edits, None, 0))
    };
    let mut kernel = Reconciler::new(FakeKernel::default(), config());
    let mut target = Arc::default();
    for (edits, ..) in rounds() {
        edit(Arc::make_mut(&mut target), edits);
        run(async { drop(kernel.reconcile(&target).await.unwrap()) });
    }
    let messages = kernel.dataplane.applied.len();
    assert!(messages > 30, "{messages}");
    for message in 0..messages {
        let refused = ERRORS.map(|errno| Fault::Refused(Errno::new(errno)));
        let entry = [12, 4352].map(|errno| Fault::Entry(0, Errno::new(errno)));
        let others = [Fault::AnswerLost, Fault::Deleted];
        for fault in refused.into_iter().chain(entry).chain(others) {
            run(converges(rounds().into(), [(message, fault)].into()));
        }
        for killed in 0..3 {
            let mut rounds = rounds();
            rounds[killed].1 = Some(message);
            run(converges(rounds.into(), BTreeMap::new()));
        }
    }
}
