// SPDX-License-Identifier: Apache-2.0

//! Bytes on the wire.

use std::net::Ipv4Addr;

use portolan_model::{Frontend, FrontendAddress, FrontendKind, Protocol, RecordKey};

use prost::bytes::Bytes;

use super::*;

#[test]
fn a_change_of_a_large_record_is_a_patch() {
    let (mut publisher, tables) = synced(Retention::default());
    let node = node(0, 0);
    publisher.publish(&delta(&put([1, 2], 2)));
    let mut agent = Agent::default();
    agent.connect(&tables, &node, None);
    let mut slow = agent.clone();
    publisher.publish(&delta(&put([1], 5)));
    let feed = tables.feed(&node.cluster);
    let Next::Deliver(delivery) = tables.next(&feed, &Scope::from(&node), 1) else {
        panic!("no transition");
    };
    let bytes: usize = all(delivery).iter().map(Bytes::len).sum();
    assert!(bytes < 300, "{bytes} bytes");
    agent.follow(&tables, &node);
    assert_eq!(agent.table, tables.table(&node));
    // An agent that missed a transition may not have the base of the next patch.
    publisher.publish(&delta(&put([1], 8)));
    slow.follow(&tables, &node);
    assert_eq!(slow.table, agent_after(agent, &tables, &node).table);
}

fn agent_after(mut agent: Agent, tables: &TableReader, node: &NodeKey) -> Agent {
    agent.follow(tables, node);
    agent
}

/// Services with ten destinations each, at random addresses, as pods have.
fn realistic(services: usize) -> TableDelta {
    let mut state = 7_u32;
    let mut random = move || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        state >> 8
    };
    let mut record = |service: usize| {
        let key = RecordKey {
            cluster: "c0".into(),
            namespace: format!("team-{}", service % 100).into(),
            service: format!("service-{service:05}").into(),
            port: "http".into(),
            protocol: Protocol::Tcp,
        };
        let mut address = |net: u32| Ipv4Addr::from_bits(net + random() % (1 << 17));
        let frontend = Frontend::new(
            FrontendKind::ClusterIp,
            FrontendAddress::Vip(address(0x0a60_0000).into()),
            80,
        );
        let mut addresses: Vec<_> = (0..10).map(|_| address(0x0af0_0000)).collect();
        addresses.sort_unstable();
        addresses.dedup();
        let to = |ip: Ipv4Addr| Destination::new((ip, 8080).into());
        let record = Record {
            frontends: vec![frontend],
            destinations: addresses.into_iter().map(to).collect(),
            ..Record::new(key.clone())
        };
        (key, Some(Arc::new(record)))
    };
    TableDelta {
        records: (0..services).map(&mut record).collect(),
        ..TableDelta::default()
    }
}

/// The bound is a fiftieth of the same Services' Kubernetes objects in a watch (32.05 MB).
#[test]
fn a_large_table_is_small_on_the_wire() {
    let (mut publisher, tables) = synced(Retention::default());
    publisher.publish(&realistic(10_000));
    let node = node(0, 0);
    let feed = tables.feed(&node.cluster);
    let chunks = all(tables.snapshot(&feed, &Scope::from(&node)));
    let bytes: usize = chunks.iter().map(Bytes::len).sum();
    assert!(bytes <= 641_000, "{bytes} bytes");
    assert!(
        chunks.len() <= bytes / 32_000 + 2,
        "{} chunks",
        chunks.len()
    );
    let mut agent = Agent::default();
    agent.connect(&tables, &node, None);
    assert_eq!(agent.table, tables.table(&node));
}
