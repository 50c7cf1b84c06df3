// SPDX-License-Identifier: Apache-2.0

//! Tests of agents that come from another controller.

use futures_util::future::{join, join_all};
use std::time::Duration;

use portolan_model::NodeTable;
use portolan_proto::buckets::bucket_hashes;
use portolan_proto::convert::encode_key;
use portolan_proto::reason::Reason;
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_proto::v1::frame::Frame;
use tonic::Code;

use crate::ServeConfig;
use portolan_tablelog::{Origin, Update};

use super::support::{Client, Server, hello, node, put, puts};

/// Enough records for a question about buckets to pay off.
const SERVICES: [&str; 20] = [
    "s0", "s1", "s2", "s3", "s4", "s5", "s6", "s7", "s8", "s9", "s10", "s11", "s12", "s13", "s14",
    "s15", "s16", "s17", "s18", "s19",
];
const DESTINATIONS: u8 = 20;

/// The Hello of an agent with a table from another controller.
fn with(table: &NodeTable) -> v1::Hello {
    v1::Hello {
        epoch: 1,
        revision: 1,
        records_hash: table.records_hash().to_bytes().into(),
        own_hash: table.own_hash().to_bytes().into(),
        ..hello("a")
    }
}

fn buckets(table: &NodeTable, count: u32) -> Message {
    let records: Vec<_> = table.records.values().collect();
    let keys: Vec<_> = records.iter().map(|r| encode_key(&r.key)).collect();
    let hashes = records.iter().map(|r| r.content_hash());
    Message::Buckets(v1::Buckets {
        hashes: bucket_hashes(keys.iter().zip(hashes), count),
    })
}

async fn asked(client: &mut Client) -> u32 {
    match client.next().await.unwrap() {
        Some(Frame::AskBuckets(ask)) => ask.count,
        other => panic!("{other:?}"),
    }
}

/// A server, and an older table that differs from the server's.
async fn moved(config: ServeConfig) -> (Server, NodeTable) {
    let mut server = Server::synced_with(config, &[puts(&SERVICES, 1, DESTINATIONS)]).await;
    let table = server.tables.table(&node("a"));
    server.publisher.publish(&put(&["g", "h"]));
    (server, table)
}

#[tokio::test]
async fn an_agent_that_reports_its_buckets_gets_those_that_differ() {
    let (mut server, table) = moved(ServeConfig::default()).await;
    let mut client = server.connect(with(&table)).await;
    let count = asked(&mut client).await;
    assert_eq!(count, 32);
    client.say(buckets(&table, count)).await;
    let batch = client.batch().await;
    assert!(!batch.commit.snapshot);
    assert!(batch.put.len() <= 8, "{:?}", batch.put);
    assert_eq!(server.registry.counters().resumed_buckets, 1);
    let now = server.tables.table(&node("a"));
    assert_eq!(batch.commit.records_hash, now.records_hash().to_bytes());
    server.publisher.publish(&put(&["i"]));
    assert_eq!(client.batch().await.put, ["i"]);
}

#[tokio::test]
async fn a_malformed_answer_ends_the_stream() {
    let (server, table) = moved(ServeConfig::default()).await;
    let mut client = server.connect(with(&table)).await;
    asked(&mut client).await;
    let hashes = vec![0; 7];
    client.say(Message::Buckets(v1::Buckets { hashes })).await;
    let status = client.next().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument);
    assert_eq!(server.registry.counters().violations, 1);
}

#[tokio::test]
async fn an_agent_that_does_not_answer_gets_a_snapshot() {
    let config = ServeConfig {
        buckets_timeout: Duration::from_millis(50),
        ..ServeConfig::default()
    };
    let (server, table) = moved(config).await;
    let mut client = server.connect(with(&table)).await;
    let count = asked(&mut client).await;
    let batch = client.batch().await;
    assert!(batch.commit.snapshot);
    assert_eq!(batch.put.len(), SERVICES.len() + 2);
    // A late answer is ignored; it is no violation.
    client.say(buckets(&table, count)).await;
    assert_eq!(server.registry.counters().violations, 0);
}

fn from(version: u64) -> Origin {
    Origin::versions(&"".into(), vec![version, 1, 1])
}

#[tokio::test]
async fn an_agent_that_knows_more_waits_until_we_have_caught_up() {
    let mut server = Server::synced(&[]).await;
    server
        .publisher
        .publish(Update::from(&put(&["x"])).from_origin(from(5)));
    let ahead = v1::Hello {
        source_versions: vec![6, 1, 1],
        ..with(&NodeTable::default())
    };
    let mut client = server.connect(ahead).await;
    // Still behind the agent's sources.
    server
        .publisher
        .publish(Update::from(&put(&["y"])).from_origin(from(5)));
    server.connect(hello("b")).await.batch().await;
    assert_eq!(server.registry.counters().commits, 1);
    // An update without changes that advances the sources.
    server
        .publisher
        .publish(Update::from(&put(&["y"])).from_origin(from(6)));
    let batch = client.batch().await;
    assert_eq!(batch.put, ["x", "y"]);
    assert_eq!(batch.commit.source_versions, [6, 1, 1]);
}

#[tokio::test]
async fn an_agent_that_knows_more_is_sent_away_in_the_end() {
    let config = ServeConfig {
        catch_up_timeout: Duration::from_millis(50),
        ..ServeConfig::default()
    };
    let mut server = Server::synced_with(config, &[]).await;
    server
        .publisher
        .publish(Update::from(&put(&["x"])).from_origin(from(5)));
    let ahead = v1::Hello {
        source_versions: vec![6, 1, 1],
        ..with(&NodeTable::default())
    };
    let mut client = server.connect(ahead).await;
    let status = client.next().await.unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    assert_eq!(Reason::of(&status), Some(Reason::AgentAhead));
    // Agents that do not know reasons match the message.
    assert_eq!(status.message(), "source: behind the agent");
}

#[tokio::test]
async fn an_agent_of_a_restored_source_is_served_at_once() {
    let mut server = Server::synced(&[]).await;
    server
        .publisher
        .publish(Update::from(&put(&["x"])).from_origin(from(5)));
    let ahead = v1::Hello {
        source_versions: vec![6, 1, 1],
        ..with(&NodeTable::default())
    };
    let mut client = server.connect(ahead).await;
    let doubts = server.publisher.source_doubts(&"".into());
    doubts.doubted().await;
    doubts.stated(tokio::time::Instant::now(), vec![5, 5, 5]);
    let batch = client.batch().await;
    assert_eq!(batch.put, ["x"]);
    assert_eq!(batch.commit.source_versions, [5, 1, 1]);
}

#[tokio::test]
async fn a_relay_is_told_versions_that_were_read_after_its_question() {
    let server = Server::synced(&[]).await;
    let doubts = server.publisher.source_doubts(&"".into());
    let mut relay = server
        .connect(v1::Hello {
            want: v1::hello::Want::AllNodes.into(),
            ..hello("r")
        })
        .await;
    relay.batch().await;
    doubts.stated(tokio::time::Instant::now(), vec![4, 4]);
    relay.say(Message::AskVersions(v1::AskVersions {})).await;
    doubts.doubted().await;
    doubts.stated(tokio::time::Instant::now(), vec![5, 5]);
    match relay.next().await.unwrap() {
        Some(Frame::Versions(versions)) => assert_eq!(versions.newest, [5, 5]),
        other => panic!("{other:?}"),
    }

    let mut agent = server.connect(hello("a")).await;
    agent.batch().await;
    agent.say(Message::AskVersions(v1::AskVersions {})).await;
    let status = agent.next().await.unwrap_err();
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
}

#[tokio::test]
async fn one_answer_serves_all_agents_with_the_same_records() {
    let (server, table) = moved(ServeConfig::default()).await;
    let mut first = server.connect(with(&table)).await;
    let count = asked(&mut first).await;
    let others = ["b", "c"].map(|name| v1::Hello {
        node: name.to_owned(),
        ..with(&table)
    });
    // The others are sent nothing until the first one has answered.
    let others = join_all(others.map(|hello| server.connect(hello)));
    let first = async {
        server.until(|registry| registry.connected() == 3).await;
        first.say(buckets(&table, count)).await;
        first.batch().await
    };
    let (signals, others) = join(first, others).await;
    for mut other in others {
        let batch = other.batch().await;
        assert!(!batch.commit.snapshot);
        assert_eq!(batch.put, signals.put);
        assert_eq!(batch.commit.records_hash, signals.commit.records_hash);
    }
    assert_eq!(server.registry.counters().resumed_buckets, 3);
}

#[tokio::test]
async fn the_wait_for_the_answer_of_another_agent_is_short() {
    let (server, table) = moved(ServeConfig::default()).await;
    let mut silent = server.connect(with(&table)).await;
    asked(&mut silent).await;
    let others = ["b", "c", "d"].map(|name| v1::Hello {
        node: name.to_owned(),
        ..with(&table)
    });
    let others = others.map(|hello| async {
        let mut client = server.connect(hello).await;
        let Some(Frame::AskBuckets(ask)) = client.next().await.unwrap() else {
            // Served by another agent's answer.
            return false;
        };
        // The answer is late, but in time for the agents that are still waiting.
        server.until(|registry| registry.connected() == 4).await;
        client.say(buckets(&table, ask.count)).await;
        assert!(!client.batch().await.commit.snapshot);
        true
    });
    // One of the waiting agents is asked next, not all at once.
    let asked = join_all(others).await.into_iter().filter(|asked| *asked);
    assert_eq!(asked.count(), 1);
    server
        .until(|registry| registry.counters().resumed_buckets == 3)
        .await;
}
