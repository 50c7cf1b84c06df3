// SPDX-License-Identifier: Apache-2.0

//! Tests of agents that fall behind.

use std::collections::BTreeSet;

use super::support::{Server, hello, node, puts};

const REVISIONS: u16 = 200;

/// About 200 KiB in five records.
const SERVICES: [&str; 5] = ["a", "b", "c", "d", "e"];
const DESTINATIONS: u8 = 100;

/// One agent reads nothing while another takes every revision. The records encoded for the slow one
/// stay bounded by the buffers of its connection.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slow_agent_costs_no_memory_and_gets_each_record_once() {
    let mut server = Server::synced(&[puts(&SERVICES, 1, DESTINATIONS)]).await;
    let mut slow = server.connect(hello("slow")).await;
    let mut quick = server.connect(hello("quick")).await;
    let mut quick_items = quick.batch().await.put.len();
    for version in 2..=REVISIONS {
        server
            .publisher
            .publish(&puts(&SERVICES, version, DESTINATIONS));
        quick_items += quick.batch().await.put.len();
    }
    assert_eq!(quick_items, usize::from(REVISIONS) * SERVICES.len());
    let all_items = usize::try_from(server.registry.counters().items).unwrap();
    let made_for_slow = all_items - quick_items;
    // 400 KiB in the connection's buffers and one pending batch are about 20 records.
    assert!(made_for_slow <= 30, "{made_for_slow} records");
    let mut batches = 0;
    loop {
        let batch = slow.batch().await;
        let services: BTreeSet<_> = batch.put.iter().collect();
        assert_eq!(services.len(), batch.put.len());
        batches += 1;
        if batch.commit.revision == u64::from(REVISIONS) {
            let table = server.tables.table(&node("slow"));
            assert_eq!(batch.commit.records_hash, table.records_hash().to_bytes());
            break;
        }
    }
    assert!((2..10).contains(&batches), "{batches} batches");
}
