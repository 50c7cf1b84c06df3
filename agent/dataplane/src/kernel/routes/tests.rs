// SPDX-License-Identifier: Apache-2.0

use super::*;

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

#[test]
fn vips_are_looked_for_where_they_are_bound() {
    let (vip, node, foreign) = (ip("10.96.0.1"), ip("192.0.2.1"), ip("10.96.0.9"));
    let mut observed = KernelState {
        foreign_routes: [foreign].into(),
        routes: [(vip, Some(node))].into(),
        ..KernelState::default()
    };
    let of_routes = ObservedRoutes {
        ours: observed.routes.clone(),
        foreign: [foreign].into(),
    };
    assert_eq!(difference(&observed, &of_routes, None), None);
    let without = ObservedRoutes {
        ours: BTreeMap::new(),
        foreign: [foreign].into(),
    };
    let said = difference(&observed, &without, None);
    assert_eq!(said.as_deref(), Some("1 local routes have changed"));

    observed.routes = [(vip, None)].into();
    let bound = BTreeSet::from([node, vip]);
    assert_eq!(difference(&observed, &without, Some(&bound)), None);
    let said = difference(&observed, &without, Some(&BTreeSet::from([node])));
    assert_eq!(said.as_deref(), Some("1 addresses of VIPs have changed"));
    // A route of an earlier run beside the address.
    assert!(difference(&observed, &of_routes, Some(&bound)).is_some());
    assert!(difference(&observed, &ObservedRoutes::default(), Some(&bound)).is_some());
}

/// An address on a link, as the kernel lists it.
fn on_link(index: u32, scope: AddressScope, address: &str) -> AddressMessage {
    let mut message = AddressMessage::default();
    message.header.index = index;
    message.header.scope = scope;
    message
        .attributes
        .push(AddressAttribute::Address(ip(address)));
    message
}

#[test]
fn a_link_of_a_pod_changes_no_facts() {
    let mut messages = vec![
        on_link(1, AddressScope::Host, "127.0.0.1"),
        on_link(2, AddressScope::Universe, "192.0.2.1"),
        on_link(2, AddressScope::Link, "192.0.2.9"),
        on_link(2, AddressScope::Universe, "2001:db8::1"),
        on_link(2, AddressScope::Link, "fe80::1"),
        on_link(3, AddressScope::Universe, "10.96.0.1"),
    ];
    let ignored = BTreeSet::from([3]);
    let before = facts_of(&messages, &ignored);
    let all = ["127.0.0.1", "192.0.2.1", "192.0.2.9", "2001:db8::1"];
    assert_eq!(before.addresses, all.map(ip).into());
    assert_eq!(
        before.node_port_addresses,
        ["192.0.2.1", "2001:db8::1"].map(ip).into()
    );
    messages.push(on_link(7, AddressScope::Link, "fe80::7"));
    assert_eq!(facts_of(&messages, &ignored), before);
}

#[tokio::test]
async fn ended_connection_is_replaced() {
    let mut routes = Routes::open().unwrap();
    let node_ports = NodePortAddresses::default();
    let before = routes.facts(&[], &node_ports).await.unwrap();
    assert!(!before.addresses.is_empty(), "loopback at least");
    routes.connection.abort();
    while !routes.connection.is_finished() {
        tokio::task::yield_now().await;
    }
    assert_eq!(routes.facts(&[], &node_ports).await.unwrap(), before);
}
