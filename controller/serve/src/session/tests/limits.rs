// SPDX-License-Identifier: Apache-2.0

//! Tests of stalled agents and of the limit on concurrent snapshots.

use std::time::Duration;

use portolan_model::{Destination, Record};
use portolan_select::TableDelta;

use crate::ServeConfig;

use super::support::{Server, hello, put, puts};

/// About a megabyte that does not compress: more than a connection takes without a reader.
fn much() -> TableDelta {
    let names: Vec<String> = (0..30).map(|i| format!("s{i}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let mut delta = puts(&names, 80, 1);
    let mut state = 1_u32;
    for record in delta.records.values_mut().flatten() {
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Destination::new((std::net::Ipv4Addr::from_bits(state), 80).into())
        };
        let mut destinations: Vec<_> = (0..10_000).map(|_| random()).collect();
        destinations.sort_by_key(|destination| destination.address);
        *record = std::sync::Arc::new(Record {
            destinations,
            ..Record::clone(record)
        });
    }
    delta
}

#[tokio::test]
async fn an_agent_that_takes_nothing_is_cut_off_and_disturbs_no_other() {
    let config = ServeConfig {
        // A busy machine may stop all of this for a while.
        stall_timeout: Duration::from_secs(1),
        ..ServeConfig::default()
    };
    let mut server = Server::synced_with(config, &[much()]).await;
    let mut quick = server.connect(hello("quick")).await;
    quick.batch().await;
    let _silent = server.connect(hello("silent")).await;
    server
        .until(|registry| registry.counters().stalled == 1)
        .await;
    server
        .until(|registry| registry.snapshot().iter().any(|node| !node.connected))
        .await;
    // The quick agent has nothing pending, so silence is no stall.
    server.publisher.publish(&put(&["y"]));
    assert_eq!(quick.batch().await.put, ["y"]);
    assert_eq!(server.registry.counters().stalled, 1);
}

#[tokio::test]
async fn only_so_many_get_a_snapshot_at_a_time() {
    let config = ServeConfig {
        snapshots: 1,
        ..ServeConfig::default()
    };
    let mut server = Server::synced_with(config, &[much()]).await;
    let slow = server.connect(hello("slow")).await;
    server
        .until(|registry| registry.counters().snapshots == 1)
        .await;
    let mut next = server.connect(hello("next")).await;
    // An agent with an equal table needs no turn.
    let table = server.tables.table(&super::support::node("c"));
    let has = portolan_proto::v1::Hello {
        records_hash: table.records_hash().to_bytes().into(),
        own_hash: table.own_hash().to_bytes().into(),
        ..hello("c")
    };
    let mut has = server.connect(has).await;
    assert!(!has.batch().await.commit.snapshot);
    server.publisher.publish(&put(&["y"]));
    assert_eq!(has.batch().await.put, ["y"]);
    assert_eq!(server.registry.counters().snapshots, 1);
    drop(slow);
    let batch = next.batch().await;
    assert!(batch.commit.snapshot);
    assert_eq!(batch.put.len(), 31);
}
