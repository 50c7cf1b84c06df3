// SPDX-License-Identifier: Apache-2.0

//! The order of the steps about the real servers of one virtual server.

use std::net::SocketAddr;

use proptest::collection::btree_map;
use proptest::prelude::*;

use super::*;

/// The steps from one list of real servers with weights to another.
fn between(before: &[(&str, u32)], after: &[(&str, u32)]) -> Vec<String> {
    let of = |weights| state(Protocol::Tcp, weights, true);
    steps(&of(after), &of(before))
}

#[test]
fn the_sorry_server_comes_before_the_last_backend_loses_its_weight() {
    let backend = "10.0.0.11:80";
    let sorry = "10.0.0.99:80";
    assert_eq!(
        between(&[(backend, 1)], &[(backend, 0), (sorry, 1)]),
        [
            "add real server 10.0.0.99:80 to TCP 10.96.0.1:80",
            "set real server 10.0.0.11:80 of TCP 10.96.0.1:80",
        ]
    );
    assert_eq!(
        between(&[(backend, 0), (sorry, 1)], &[(backend, 1)]),
        [
            "set real server 10.0.0.11:80 of TCP 10.96.0.1:80",
            "set real server 10.0.0.99:80 of TCP 10.96.0.1:80",
        ]
    );
}

#[test]
fn a_backend_is_enabled_before_one_at_a_lower_address_is_drained() {
    let (first, second) = ("10.0.0.1:80", "10.0.0.2:80");
    assert_eq!(
        between(&[(first, 1), (second, 0)], &[(first, 0), (second, 1)]),
        [
            "set real server 10.0.0.2:80 of TCP 10.96.0.1:80",
            "set real server 10.0.0.1:80 of TCP 10.96.0.1:80",
        ]
    );
}

/// A state whose virtual server has this scheduler.
fn scheduled(scheduler: &'static str, weights: &[(&str, u32)]) -> KernelState {
    let mut state = state(Protocol::Tcp, weights, true);
    for server in state.virtual_servers.values_mut() {
        Arc::make_mut(&mut server.config).scheduler = scheduler.into();
    }
    state
}

#[test]
fn a_real_server_of_a_scheduler_that_refuses_its_clients_is_deleted_at_once() {
    let (first, second) = ("10.0.0.1:80", "10.0.0.2:80");
    let goes = |scheduler, weight| {
        let before = scheduled(scheduler, &[(first, 1), (second, weight)]);
        steps(&scheduled(scheduler, &[(first, 1)]), &before)
    };
    let deleted = ["delete real server 10.0.0.2:80 of TCP 10.96.0.1:80"];
    assert_eq!(goes("dh", 1), deleted);
    assert_eq!(goes("dh", 0), deleted, "drained by an earlier version");
    for scheduler in ["sh", "mh"] {
        let drained = ["set real server 10.0.0.2:80 of TCP 10.96.0.1:80"];
        assert_eq!(goes(scheduler, 1), drained, "{scheduler}");
    }
}

/// Weights of real servers by the last part of their addresses, of which one is more than 0.
fn weights() -> impl Strategy<Value = BTreeMap<u8, u32>> {
    let all = btree_map(0..6_u8, 0..3_u32, 1..6);
    all.prop_filter("no weight", |all| all.values().any(|weight| *weight > 0))
}

fn state_of(protocol: Protocol, weights: &BTreeMap<u8, u32>) -> KernelState {
    let real = |(host, weight): (&u8, &u32)| {
        let address = SocketAddr::from(([10, 0, 0, *host], 80));
        (address, RealServerConfig::masquerade(*weight))
    };
    let mut state = state(protocol, &[], true);
    for server in state.virtual_servers.values_mut() {
        server.real_servers = Arc::new(weights.iter().map(real).collect());
    }
    state
}

proptest! {
    #[test]
    fn a_virtual_server_that_serves_before_and_after_serves_after_each_step(
        before in weights(),
        after in weights(),
    ) {
        for protocol in [Protocol::Tcp, Protocol::Udp] {
            let mut now = state_of(protocol, &before);
            let desired = Desired {
                state: state_of(protocol, &after),
                ..Desired::default()
            };
            let steps = plan(&desired, &now, &Config::default());
            for (number, step) in steps.iter().enumerate() {
                now.advance(step);
                let server = &now.virtual_servers[&key(protocol)];
                let serves = server.real_servers.values().any(|real| real.weight > 0);
                prop_assert!(serves, "{number} of {steps:?}");
            }
        }
    }
}
