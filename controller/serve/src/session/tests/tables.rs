// SPDX-License-Identifier: Apache-2.0

//! Tests of the tables that agents receive.

use portolan_proto::v1::agent_message::Message;

use super::support::{Client, Server, delete, hello, node, own, put};

#[tokio::test]
async fn two_nodes_get_the_shared_records_and_their_own_lists() {
    let deltas = [put(&["x", "y"]), own("a", "x", "east"), own("b", "y", "")];
    let server = Server::synced(&deltas).await;
    let a = server.connect(hello("a")).await.batch().await;
    assert_eq!(a.put, ["x", "y"]);
    assert_eq!(
        (a.own, a.node.as_ref().map(|node| node.zone.as_str())),
        (vec!["x".to_owned()], Some("east"))
    );
    assert_eq!((a.commit.revision, a.commit.snapshot), (3, true));
    let table = server.tables.table(&node("a"));
    assert_eq!(a.commit.records_hash, table.records_hash().to_bytes());
    assert_eq!(a.commit.own_hash, table.own_hash().to_bytes());
    let b = server.connect(hello("b")).await.batch().await;
    assert_eq!((b.put, b.own), (a.put, vec!["y".to_owned()]));
    assert_ne!(b.commit.own_hash, a.commit.own_hash);
}

#[tokio::test]
async fn an_empty_table_is_a_commit() {
    let server = Server::synced(&[]).await;
    let batch = server.connect(hello("a")).await.batch().await;
    assert!(batch.put.is_empty() && batch.own.is_empty());
    assert_eq!((batch.commit.revision, batch.commit.snapshot), (0, true));
}

#[tokio::test]
async fn changes_follow_and_each_revision_has_a_commit() {
    let mut server = Server::synced(&[put(&["x", "y"])]).await;
    let mut client = server.connect(hello("a")).await;
    client.batch().await;
    server.publisher.publish(&delete("x"));
    let batch = client.batch().await;
    assert_eq!((batch.deleted, batch.put.len()), (vec!["x".to_owned()], 0));
    assert_eq!((batch.commit.revision, batch.commit.snapshot), (2, false));
    // Another node's change: an empty transition, which the agent can acknowledge.
    server.publisher.publish(&own("b", "y", "west"));
    let batch = client.batch().await;
    assert!(batch.own.is_empty() && batch.node.is_none());
    assert_eq!((batch.commit.revision, batch.commit.snapshot), (3, false));
}

#[tokio::test]
async fn nothing_is_served_before_everything_is_synced() {
    let mut server = Server::start().await;
    let mut client = server.connect(hello("a")).await;
    server.publisher.publish(&put(&["x"]));
    // After a round trip the first client could have received something.
    server.connect(hello("b")).await;
    server.publisher.publish(&put(&["y"]));
    server.connect(hello("c")).await;
    assert_eq!(server.registry.counters().commits, 0);
    server.publisher.set_synced(&"".into());
    let batch = client.batch().await;
    assert_eq!((batch.put.len(), batch.commit.revision), (2, 2));
}

#[tokio::test]
async fn a_client_that_comes_back_gets_what_it_missed() {
    let mut server = Server::synced(&[put(&["x", "y", "z"]), own("a", "x", "east")]).await;
    let mut client = server.connect(hello("a")).await;
    let had = client.batch().await;
    let again = client.again("a", &had);
    drop(client);
    server.publisher.publish(&delete("x"));
    server.publisher.publish(&put(&["w"]));
    let mut client = server.connect(again).await;
    let got = client.batch().await;
    assert_eq!(
        (got.put, got.deleted),
        (vec!["w".to_owned()], vec!["x".to_owned()])
    );
    assert!(got.own.is_empty() && got.node.is_none());
    assert_eq!((got.commit.revision, got.commit.snapshot), (4, false));
    assert_eq!(server.registry.counters().resumed, 1);
}

#[tokio::test]
async fn a_client_that_missed_nothing_gets_a_commit() {
    let server = Server::synced(&[put(&["x"])]).await;
    let mut client = server.connect(hello("a")).await;
    let had = client.batch().await;
    let mut client = server.connect(client.again("a", &had)).await;
    let got = client.batch().await;
    assert!(got.put.is_empty());
    assert_eq!(got.commit, proto_commit_without_snapshot(&had.commit));
}

fn proto_commit_without_snapshot(
    commit: &portolan_proto::v1::Commit,
) -> portolan_proto::v1::Commit {
    portolan_proto::v1::Commit {
        snapshot: false,
        ..commit.clone()
    }
}

#[tokio::test]
async fn equal_content_of_another_controller_is_not_sent_again() {
    let first = Server::synced(&[put(&["x"]), own("a", "x", "east")]).await;
    let mut client = first.connect(hello("a")).await;
    let had = client.batch().await;
    let again = client.again("a", &had);
    drop(first);
    // The same content in one transition, for a different revision.
    let mut all = put(&["x"]);
    let own = own("a", "x", "east");
    (all.lists, all.nodes) = (own.lists, own.nodes);
    let mut second = Server::synced(&[all]).await;
    let mut client = second.connect(again).await;
    assert_ne!(client.epoch, 0);
    let got = client.batch().await;
    assert!(got.put.is_empty() && got.own.is_empty() && got.node.is_none());
    assert_eq!((got.commit.revision, got.commit.snapshot), (1, false));
    assert_eq!(second.registry.counters().resumed_equal, 1);
    second.publisher.publish(&put(&["y"]));
    assert_eq!(client.batch().await.put, ["y"]);
}

#[tokio::test]
async fn another_controllers_revision_means_nothing() {
    let first = Server::synced(&[put(&["x"])]).await;
    let mut client = first.connect(hello("a")).await;
    let had = client.batch().await;
    let second = Server::synced(&[put(&["x", "y"])]).await;
    let message = Message::Hello(client.again("a", &had));
    let mut client = Client::open(second.address, message).await.unwrap();
    let got = client.batch().await;
    assert_eq!((got.put.len(), got.commit.snapshot), (2, true));
}
