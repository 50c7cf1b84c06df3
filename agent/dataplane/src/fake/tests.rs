// SPDX-License-Identifier: Apache-2.0

//! Convergence: from any state and after any failure the plan leads to the desired state.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::ipset::{Set, SetHeader, SetKind};
use portolan_model::ipvs::{
    RealServerConfig, VirtualServer, VirtualServerConfig, VirtualServerKey,
};
use portolan_model::{Family, NodeInfo, Protocol};
use portolan_plan::{Config, Desired, KernelState, SetName, Step, ownership_entry, rules};
use proptest::collection::{btree_map, btree_set};
use proptest::prelude::*;
use proptest::sample::select;

use super::FakeKernel;
use crate::Dataplane as _;

mod tables;

fn servers() -> impl Strategy<Value = BTreeMap<VirtualServerKey, VirtualServer>> {
    let key = (
        select(&[Protocol::Tcp, Protocol::Udp][..]),
        1..4u8,
        80..82u16,
    )
        .prop_map(|(protocol, last, port)| {
            VirtualServerKey::new(protocol, IpAddr::from([10, 96, 0, last]), port)
        });
    let real = (1..5u8, 0..3u32).prop_map(|(last, weight)| {
        (
            SocketAddr::from(([10, 0, 0, last], 80)),
            RealServerConfig::masquerade(weight),
        )
    });
    let persistence = proptest::option::of(1..3u32);
    let server = (btree_set(real.prop_map(|r| (r.0, r.1)), 0..4), persistence).prop_map(
        |(real_servers, persistence)| VirtualServer {
            config: VirtualServerConfig {
                persistence,
                ..VirtualServerConfig::round_robin()
            }
            .into(),
            real_servers: Arc::new(real_servers.into_iter().collect()),
        },
    );
    btree_map(key, server, 0..6)
}

/// A complete state of virtual servers: with entries, routes, rules and the ownership record.
fn whole(virtual_servers: BTreeMap<VirtualServerKey, VirtualServer>, max: u32) -> KernelState {
    let config = Config {
        families: [Family::V4].into(),
        ..Config::default()
    };
    let mut state = KernelState {
        virtual_servers,
        ..KernelState::default()
    };
    for set in SetName::ALL {
        // A bitmap of ports has a fixed size.
        let max_entries = if set.kind() == SetKind::BitmapPort {
            65_536
        } else {
            max
        };
        let header = SetHeader {
            kind: set.kind(),
            family: Family::V4,
            max_entries,
        };
        let by_server = matches!(set, SetName::ClusterIp | SetName::VirtualServers);
        let entries = state.virtual_servers.keys().filter(|_| by_server);
        let entries = entries.map(ownership_entry);
        let entries: BTreeSet<_> = entries.collect();
        state
            .sets
            .insert(config.names.set(set, Family::V4), Set { header, entries });
    }
    state.routes = state
        .virtual_servers
        .keys()
        .filter_map(|key| Some((key.socket()?.ip(), None)))
        .collect();
    state.rules = BTreeMap::from([(Family::V4, rules(Family::V4, &config, &NodeInfo::default()))]);
    state
}

fn run<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

fn plan(desired: &KernelState, observed: &KernelState) -> Vec<Step> {
    let desired = Desired {
        state: desired.clone(),
        ..Desired::default()
    };
    portolan_plan::plan(&desired, observed, &Config::default())
}

/// A state without draining real servers.
fn without_draining(mut state: KernelState, desired: &KernelState) -> KernelState {
    for (key, server) in &mut state.virtual_servers {
        let wanted = desired.virtual_servers.get(key);
        Arc::make_mut(&mut server.real_servers).retain(|address, config| {
            config.weight != 0 || wanted.is_some_and(|w| w.real_servers.contains_key(&address))
        });
    }
    state
}

/// Every virtual server has its entries and rules, at any moment.
fn assert_safe(state: &KernelState) -> Result<(), TestCaseError> {
    let owned = &state.sets.get("KUBE-PORTOLAN-OWNED");
    for key in state.virtual_servers.keys() {
        let entry = ownership_entry(key);
        prop_assert!(
            owned.is_some_and(|set| set.entries.contains(&entry)),
            "{key} is not owned"
        );
        prop_assert!(
            state.sets["KUBE-CLUSTER-IP"].entries.contains(&entry),
            "{key} has no entry"
        );
        prop_assert!(
            state.rules.contains_key(&key.family()),
            "{key} comes before the rules"
        );
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn plan_converges_and_is_empty_the_second_time(
        before in servers(), after in servers(), fresh in any::<bool>(), small in any::<bool>(),
    ) {
        let before = if fresh {
            KernelState::default()
        } else {
            whole(before, if small { 8 } else { 65_536 })
        };
        let desired = whole(after, 65_536);
        let mut kernel = FakeKernel { state: before, ..FakeKernel::default() };
        let errors = run(kernel.apply(&plan(&desired, &kernel.state)));
        prop_assert_eq!(errors, vec![]);
        prop_assert_eq!(&without_draining(kernel.state.clone(), &desired), &desired);
        prop_assert_eq!(plan(&desired, &kernel.state), vec![]);
        assert_safe(&kernel.state)?;
    }

    #[test]
    fn failures_and_crashes_leave_a_safe_state_and_the_next_run_converges(
        before in servers(), after in servers(),
        failures in btree_set(0..40usize, 0..4), crash in proptest::option::of(0..40usize),
    ) {
        let desired = whole(after, 65_536);
        let failures = failures.into_iter().map(|number| (number, "ENOMEM".to_owned())).collect();
        let mut kernel = FakeKernel {
            state: whole(before, 65_536), failures, crash_after: crash, ..FakeKernel::default()
        };
        run(kernel.apply(&plan(&desired, &kernel.state)));
        assert_safe(&kernel.state)?;

        (kernel.failures, kernel.crash_after) = (BTreeMap::new(), None);
        let errors = run(kernel.apply(&plan(&desired, &kernel.state)));
        prop_assert_eq!(errors, vec![]);
        prop_assert_eq!(&without_draining(kernel.state.clone(), &desired), &desired);
    }
}
