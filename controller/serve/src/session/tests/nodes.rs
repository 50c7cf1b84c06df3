// SPDX-License-Identifier: Apache-2.0

//! Tests of admission by node and by cluster.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_proto::CLUSTER_ID;
use portolan_proto::v1::agent_message::Message;
use portolan_proto::v1::frame::Frame;
use tokio::time::timeout;
use tonic::Code;

use super::secure::Secure;
use super::support::{Client, Server, hello, node, patiently, put};
use crate::Registry;
use portolan_auth::RefusalReason;

fn refused(registry: &Registry, reason: RefusalReason) -> u64 {
    let refusals = registry.refusals();
    refusals.iter().find(|(r, _)| *r == reason).unwrap().1
}

/// Also covers a node deleted while no controller ran.
#[tokio::test]
async fn a_certificate_without_a_node_is_of_no_use() {
    let secure = Secure::new().await;
    let registry = &secure.server.registry;
    registry.node_present(&node("b"));
    registry.refuse_unknown_nodes(&"".into());
    let status = secure.connect("a").await.err().unwrap();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert!(status.message().contains("no Node"), "{status}");
    assert_eq!(refused(registry, RefusalReason::NodeUnknown), 1);
    secure.connect("b").await.unwrap().batch().await;
}

#[tokio::test]
async fn a_node_that_joins_is_served_as_soon_as_it_is_known() {
    let secure = Arc::new(Secure::new().await);
    let registry = Arc::clone(&secure.server.registry);
    registry.refuse_unknown_nodes(&"".into());
    let mut times = Vec::new();
    for name in ["a", "b", "c"] {
        let mut joining = {
            let secure = Arc::clone(&secure);
            tokio::spawn(async move { secure.connect(name).await.map(|_| Instant::now()) })
        };
        let early = timeout(Duration::from_millis(300), &mut joining).await;
        assert!(early.is_err(), "let in without a Node");
        let arrived = Instant::now();
        registry.node_present(&node(name));
        let connected = patiently(joining).await.unwrap().unwrap();
        times.push(connected.saturating_duration_since(arrived));
    }
    // A machine that does other things too may delay any single one.
    assert!(
        times.iter().min() < Some(&Duration::from_secs(1)),
        "{times:?}"
    );
}

#[tokio::test]
async fn streams_of_unknown_nodes_end_when_all_nodes_are_known() {
    let mut server = Server::start().await;
    let mut a = server.connect(hello("a")).await;
    let mut b = server.connect(hello("b")).await;
    server.registry.node_present(&node("b"));
    server.publisher.publish(&put(&["x"]));
    server.registry.refuse_unknown_nodes(&"".into());
    server.publisher.set_synced(&"".into());
    let status = a.next().await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    assert_eq!(b.batch().await.put, ["x"]);
    // Unknown nodes are refused, so a deleted node ends its stream even without authentication.
    server.registry.node_deleted(&node("b"));
    let status = b.next().await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied, "{status}");
}

#[tokio::test]
async fn an_agent_of_another_cluster_is_told_which_one_this_is() {
    let server = Server::synced(&[put(&["x"])]).await;
    server
        .publisher
        .identity(&"".into())
        .set(Some("ours"))
        .unwrap();
    let of = |cluster_id: &str| {
        let mut hello = hello("a");
        hello.cluster_id = cluster_id.to_owned();
        Client::open(server.address, Message::Hello(hello))
    };
    for good in ["", "ours"] {
        let mut client = of(good).await.unwrap();
        assert_eq!(client.cluster_id, "ours");
        client.batch().await;
    }
    let status = of("theirs").await.err().unwrap();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(status.metadata().get(CLUSTER_ID).unwrap(), "ours");
    assert_eq!(refused(&server.registry, RefusalReason::WrongCluster), 1);
    assert!(
        server
            .publisher
            .identity(&"".into())
            .set(Some("theirs"))
            .is_err()
    );
}

#[tokio::test]
async fn nothing_is_served_before_the_cluster_is_known_if_it_will_be() {
    let mut server = Server::start().await;
    server.publisher.identity(&"".into()).awaited();
    server.publisher.publish(&put(&["x"]));
    server.publisher.set_synced(&"".into());
    let mut client = server.connect(hello("a")).await;
    assert_eq!(client.cluster_id, "");
    server
        .publisher
        .identity(&"".into())
        .set(Some("ours"))
        .unwrap();
    let Some(Frame::Welcome(welcome)) = client.next().await.unwrap() else {
        panic!("no second Welcome");
    };
    assert_eq!(welcome.cluster_id, "ours");
    assert_eq!(client.batch().await.put, ["x"]);
}
