// SPDX-License-Identifier: Apache-2.0

//! Tests of the start and end of streams and of agents' messages.

use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_proto::v1::frame::Frame;
use portolan_proto::v1::tables_client::TablesClient;
use tonic::Code;

use std::time::Duration;

use crate::session::spread;
use portolan_auth::RefusalReason;

use super::support::{Client, Server, channel, hello, node, put};

async fn refused(server: &Server, first: Message) -> Code {
    match Client::open(server.address, first).await {
        Ok(_) => panic!("accepted"),
        Err(status) => status.code(),
    }
}

#[tokio::test]
async fn a_stream_must_begin_with_a_hello_of_a_node() {
    let server = Server::synced(&[]).await;
    let received = Message::Received(v1::Received::default());
    assert_eq!(refused(&server, received).await, Code::InvalidArgument);
    let nameless = Message::Hello(hello(""));
    assert_eq!(refused(&server, nameless).await, Code::InvalidArgument);
    let large = Message::Hello(hello(&"n".repeat(70_000)));
    assert_eq!(refused(&server, large).await, Code::OutOfRange);
    let refused = server.registry.refusals();
    assert!(refused.contains(&(RefusalReason::Hello, 3)), "{refused:?}");
    assert!(server.registry.snapshot().is_empty());
}

#[tokio::test]
async fn a_stream_without_a_hello_ends() {
    let server = Server::synced(&[]).await;
    let mut client = TablesClient::new(channel(server.address).await);
    let silence = tokio_stream::pending();
    let status = client.sync(silence).await.unwrap_err();
    assert_eq!(status.code(), Code::DeadlineExceeded);
}

#[tokio::test]
async fn breaking_the_protocol_ends_the_stream() {
    let server = Server::synced(&[]).await;
    let never_sent = v1::Received {
        revision: 7,
        ..v1::Received::default()
    };
    for bad in [Message::Hello(hello("a")), Message::Received(never_sent)] {
        let mut client = server.connect(hello("a")).await;
        client.batch().await;
        client.say(bad).await;
        let status = client.next().await.unwrap_err();
        assert_eq!(status.code(), Code::InvalidArgument);
    }
    assert_eq!(server.registry.counters().violations, 2);
}

#[tokio::test]
async fn a_newer_stream_of_a_node_ends_the_older() {
    let mut server = Server::synced(&[put(&["x"])]).await;
    let mut old = server.connect(hello("a")).await;
    old.batch().await;
    let mut new = server.connect(hello("a")).await;
    new.batch().await;
    assert_eq!(old.next().await.unwrap_err().code(), Code::Aborted);
    server.publisher.publish(&put(&["y"]));
    assert_eq!(new.batch().await.put, ["y"]);
    let status = server.registry.snapshot().remove(0);
    assert!(status.connected);
    assert_eq!((status.sessions, status.sent), (2, Some(2)));
}

#[tokio::test]
async fn a_stream_that_is_gone_is_disconnected() {
    let server = Server::synced(&[]).await;
    let client = server.connect(hello("a")).await;
    server
        .until(|registry| registry.snapshot()[0].connected)
        .await;
    drop(client);
    server
        .until(|registry| !registry.snapshot()[0].connected)
        .await;
}

#[tokio::test]
async fn shutdown_says_goaway_and_ends_the_streams() {
    let server = Server::synced(&[]).await;
    let mut waiting = server.connect(hello("a")).await;
    waiting.batch().await;
    server.shutdown.cancel();
    match waiting.next().await.unwrap() {
        Some(Frame::Goaway(goaway)) => assert_eq!(goaway.spread_ms, 2),
        other => panic!("{other:?}"),
    }
    assert_eq!(waiting.next().await.unwrap(), None);
}

#[test]
fn few_agents_leave_sooner_than_many() {
    let most = Duration::from_secs(10);
    for (connected, millis) in [(0, 0), (1, 2), (3, 6), (4_999, 9_998), (20_000, 10_000)] {
        assert_eq!(spread(connected, most), Duration::from_millis(millis));
    }
    assert_eq!(spread(usize::MAX, most), most);
}

#[tokio::test]
async fn shutdown_reaches_those_who_wait_for_the_first_table() {
    let server = Server::start().await;
    let mut waiting = server.connect(hello("a")).await;
    server.shutdown.cancel();
    let frame = waiting.next().await.unwrap();
    assert!(matches!(frame, Some(Frame::Goaway(_))));
}

#[tokio::test]
async fn reports_of_agents_can_be_seen() {
    let server = Server::synced(&[put(&["x"])]).await;
    let mut client = server.connect(hello("a")).await;
    let batch = client.batch().await;
    let received = v1::Received {
        revision: batch.commit.revision,
        refused: vec![v1::Refusal {
            key: None,
            reason: "no key".to_owned(),
        }],
        refused_total: 3,
        ..v1::Received::default()
    };
    client.say(Message::Received(received)).await;
    let programmed = v1::Programmed {
        revision: batch.commit.revision,
        records_hash: batch.commit.records_hash,
        own_hash: batch.commit.own_hash,
        duration_us: 1_234,
        ..v1::Programmed::default()
    };
    client.say(Message::Programmed(programmed)).await;
    server
        .until(|registry| registry.snapshot()[0].programmed == Some(1))
        .await;
    let status = server.registry.snapshot().remove(0);
    assert_eq!((status.sent, status.received), (Some(1), Some(1)));
    assert_eq!(status.programmed_duration_us, Some(1_234));
    assert_eq!((status.refused.len(), status.refused_total), (1, 3));
    assert!(
        status
            .peer
            .is_some_and(|peer| peer.starts_with("127.0.0.1:"))
    );
}

#[tokio::test]
async fn a_confirmed_table_is_confirmed_to_its_agent() {
    let server = Server::synced(&[put(&["x"])]).await;
    let mut client = server.connect(hello("a")).await;
    let batch = client.batch().await;
    let received = v1::Received {
        revision: batch.commit.revision,
        held: Some(v1::Held::default()),
        ..v1::Received::default()
    };
    client.say(Message::Received(received)).await;
    server
        .until(|registry| registry.snapshot()[0].received == Some(1))
        .await;
    assert_eq!(server.registry.confirm(&node("a")), Ok(1));
    match client.next().await.unwrap() {
        Some(Frame::Confirm(confirm)) => assert_eq!(confirm.revision, 1),
        other => panic!("{other:?}"),
    }
}
