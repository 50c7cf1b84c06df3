// SPDX-License-Identifier: Apache-2.0

//! Invariants at every step from one whole table to another, with traffic policies.

use std::sync::Arc;

use portolan_model::ipset::SetEntry;
use portolan_model::{
    Destination, Frontend, FrontendAddress, FrontendKind, Lists, NodeOverlay, NodeTable, Record,
    RecordKey,
};
use portolan_plan::{MarkMask, NodeFacts, desire, plan};

use super::*;

const SHORT_CIRCUIT: &str = "KUBE-SHORT-CIRCUIT";
const NO_LOCAL: &str = "KUBE-NO-LOCAL";

fn config() -> Config {
    Config {
        families: [Family::V4].into(),
        // Few marks, so that they often move to another record.
        short_circuit_mask: MarkMask::new(0x7_0000, 0x4000).expect("a good mask"),
        ..Config::default()
    }
}

fn destinations() -> impl Strategy<Value = Vec<Destination>> {
    btree_set(1..4u8, 0..3).prop_map(|set| {
        let address = |last| Destination::new(SocketAddr::from(([10, 0, 0, last], 80)));
        set.into_iter().map(address).collect()
    })
}

/// One of a few records, with some of a few frontends.
fn record() -> impl Strategy<Value = (Record, NodeOverlay)> {
    let key = (0..4u8, select(&[Protocol::Tcp, Protocol::Udp][..]));
    let frontends = btree_map(1..4u8, any::<bool>(), 1..3);
    (key, frontends, destinations(), destinations()).prop_map(
        |((name, protocol), frontends, cluster, local)| {
            let key = RecordKey {
                cluster: "".into(),
                namespace: "ns".into(),
                service: format!("s{name}").into(),
                port: "".into(),
                protocol,
            };
            let frontend = |(last, is_local): (u8, bool)| Frontend {
                lists: if is_local {
                    Lists::Local
                } else {
                    Lists::Cluster
                },
                ..Frontend::new(
                    FrontendKind::ExternalIp,
                    FrontendAddress::Vip([10, 96, 0, last].into()),
                    80,
                )
            };
            // Local destinations are a subset.
            let local: Vec<_> = local.into_iter().filter(|d| cluster.contains(d)).collect();
            let record = Record {
                frontends: frontends.into_iter().map(frontend).collect(),
                available: cluster.iter().map(|_| Family::V4).collect(),
                destinations: cluster,
                ..Record::new(key)
            };
            let lists = NodeOverlay {
                local,
                ..NodeOverlay::default()
            };
            (record, lists)
        },
    )
}

fn table() -> impl Strategy<Value = NodeTable> {
    proptest::collection::vec(record(), 0..5).prop_map(|records| {
        let mut table = NodeTable::default();
        for (record, lists) in records {
            table.lists.insert(record.key.clone(), Arc::new(lists));
            table.records.insert(record.key.clone(), Arc::new(record));
        }
        table
    })
}

fn desired(table: &NodeTable, state: &KernelState) -> Desired {
    desire(table, &NodeFacts::default(), &config(), state)
}

/// State of an empty kernel after a table.
fn settled(table: &NodeTable) -> KernelState {
    let mut state = KernelState::default();
    let desired = desired(table, &state);
    for step in plan(&desired, &state, &config()) {
        state.advance(&step);
    }
    state
}

fn has(state: &KernelState, set: &str, key: &VirtualServerKey) -> bool {
    let Some(socket) = key.socket() else {
        return false;
    };
    state.sets.get(set).is_some_and(|set| {
        set.entries.iter().any(|entry| match entry {
            SetEntry::IpPort(ip, protocol, port) | SetEntry::IpPortMark(ip, protocol, port, _) => {
                (SocketAddr::new(*ip, *port), Some(*protocol)) == (socket, key.protocol())
            }
            _ => false,
        })
    })
}

fn takes_connections(server: &VirtualServer) -> bool {
    server.real_servers.values().any(|real| real.weight > 0)
}

/// Every mark has a virtual server, and every virtual server is ours.
fn assert_consistent(state: &KernelState) -> Result<(), TestCaseError> {
    let entries = state.sets.get(SHORT_CIRCUIT).into_iter();
    for entry in entries.flat_map(|set| &set.entries) {
        if let SetEntry::IpPortMark(.., mark) = entry {
            let (family, mark) = (Family::V4, *mark);
            let key = VirtualServerKey::Mark { family, mark };
            prop_assert!(
                state.virtual_servers.contains_key(&key),
                "{entry} leads nowhere"
            );
        }
    }
    let foreign = state.foreign_virtual_servers(&config().names);
    prop_assert!(foreign.is_empty(), "{foreign:?} would be left behind");
    Ok(())
}

/// Frontends with the same policy before and after have it all the time.
fn assert_policies_hold(
    state: &KernelState,
    before: &KernelState,
    after: &Desired,
) -> Result<(), TestCaseError> {
    for (key, _) in after.state.virtual_servers.iter().filter(|(key, _)| {
        before.virtual_servers.contains_key(key) && has(before, SHORT_CIRCUIT, key)
    }) {
        if !has(&after.state, SHORT_CIRCUIT, key) {
            continue;
        }
        prop_assert!(has(state, SHORT_CIRCUIT, key), "{key} has no short circuit");
        let available = |state: &KernelState| {
            has(state, NO_LOCAL, key) || takes_connections(&state.virtual_servers[key])
        };
        if available(before) && available(&after.state) {
            prop_assert!(available(state), "{key} refuses");
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn every_step_from_one_table_to_another_is_safe(before in table(), after in table()) {
        let before = settled(&before);
        let desired = desired(&after, &before);
        let mut state = before.clone();
        for step in plan(&desired, &before, &config()) {
            state.advance(&step);
            assert_consistent(&state)?;
            assert_policies_hold(&state, &before, &desired)?;
        }
        prop_assert_eq!(plan(&desired, &state, &config()), vec![]);
        prop_assert_eq!(&without_draining(state, &desired.state), &desired.state);
    }

    #[test]
    fn failures_and_crashes_are_repaired(
        before in table(), after in table(),
        failures in btree_set(0..40usize, 0..4), crash in proptest::option::of(0..40usize),
    ) {
        let failures = failures.into_iter().map(|number| (number, "ENOMEM".to_owned())).collect();
        let mut kernel = FakeKernel {
            state: settled(&before), failures, crash_after: crash, ..FakeKernel::default()
        };
        let wanted = desired(&after, &kernel.state);
        run(kernel.apply(&plan(&wanted, &kernel.state, &config())));
        let foreign = kernel.state.foreign_virtual_servers(&config().names);
        prop_assert!(foreign.is_empty(), "{:?}", foreign);

        (kernel.failures, kernel.crash_after) = (BTreeMap::new(), None);
        // In the second run more marks may be free.
        for _ in 0..2 {
            let wanted = desired(&after, &kernel.state);
            let errors = run(kernel.apply(&plan(&wanted, &kernel.state, &config())));
            prop_assert_eq!(errors, vec![]);
        }
        let wanted = desired(&after, &kernel.state);
        prop_assert_eq!(&without_draining(kernel.state.clone(), &wanted.state), &wanted.state);
        prop_assert_eq!(plan(&wanted, &kernel.state, &config()), vec![]);
    }
}
