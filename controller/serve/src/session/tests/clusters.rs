// SPDX-License-Identifier: Apache-2.0

//! Tests of several clusters behind one controller.

use std::time::Duration;

use portolan_model::NodeKey;
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_select::TableDelta;
use portolan_tablelog::{Origin, Update};
use tokio::time::timeout;
use tonic::Code;

use super::support::{Client, Server, hello, patiently, put};
use crate::{ServeConfig, ServedClusters};

/// Sets records of a cluster.
fn put_in(cluster: &str, services: &[&str]) -> TableDelta {
    let records = put(services).records.into_iter().map(|(mut key, record)| {
        key.cluster = cluster.into();
        let record = record.map(|record| {
            let mut record = (*record).clone();
            record.key = key.clone();
            record.into()
        });
        (key, record)
    });
    TableDelta {
        records: records.collect(),
        ..TableDelta::default()
    }
}

fn hello_in(cluster: &str, node: &str) -> v1::Hello {
    v1::Hello {
        cluster: cluster.to_owned(),
        ..hello(node)
    }
}

fn node_in(cluster: &str, name: &str) -> NodeKey {
    NodeKey {
        cluster: cluster.into(),
        name: name.into(),
    }
}

async fn server(clusters: &ServedClusters) -> Server {
    let config = ServeConfig {
        clusters: clusters.clone(),
        ..ServeConfig::default()
    };
    Server::with(config, None, Default::default()).await
}

#[tokio::test]
async fn a_cluster_is_served_while_another_has_not_synced() {
    let (eu, us) = ("eu".into(), "us".into());
    let clusters = ServedClusters::new(["eu".into(), "us".into()]);
    let mut server = server(&clusters).await;
    server.publisher.identity(&eu).set(Some("id-eu")).unwrap();
    server.publisher.identity(&us).awaited();
    server.publisher.publish(&put_in("eu", &["x"]));
    server.publisher.publish(&put_in("us", &["y"]));
    server.publisher.set_synced(&eu);
    let mut here = server.connect(hello_in("eu", "a")).await;
    assert_eq!(here.cluster_id, "id-eu");
    assert_eq!(here.batch().await.put, ["x"]);
    let mut there = server.connect(hello_in("us", "a")).await;
    assert_eq!(there.cluster_id, "");
    let early = timeout(Duration::from_millis(300), there.next()).await;
    assert!(
        early.is_err(),
        "served before its source has synced: {early:?}"
    );
    server.publisher.set_synced(&us);
    let early = timeout(Duration::from_millis(300), there.next()).await;
    assert!(
        early.is_err(),
        "served before its cluster is known: {early:?}"
    );
    server.publisher.identity(&us).set(None).unwrap();
    assert_eq!(there.batch().await.put, ["y"]);
}

#[tokio::test]
async fn versions_of_one_source_turn_no_agent_of_another_cluster_away() {
    let (eu, us) = ("eu".into(), "us".into());
    let mut server = server(&ServedClusters::new(["eu".into(), "us".into()])).await;
    let publish = |server: &mut Server, cluster: &str, version| {
        let origin = Origin::versions(&cluster.into(), vec![version, 1, 1]);
        let update = Update::from(&put_in(cluster, &["x"])).from_origin(origin);
        server.publisher.publish(update);
    };
    publish(&mut server, "eu", 5);
    server.publisher.set_synced(&eu);
    let mut first = server.connect(hello_in("eu", "a")).await;
    let batch = first.batch().await;
    assert_eq!(batch.commit.source_versions, [5, 1, 1]);
    // A cluster that joins changes neither number nor order of the other's versions.
    publish(&mut server, "us", 9);
    server.publisher.set_synced(&us);
    let mut late = v1::Hello {
        source_versions: vec![6, 1, 1],
        records_hash: batch.commit.records_hash.clone(),
        ..hello_in("eu", "b")
    };
    let mut behind = server.connect(late.clone()).await;
    let early = timeout(Duration::from_millis(300), behind.next()).await;
    assert!(early.is_err(), "this controller is late: {early:?}");
    late.cluster = "us".to_owned();
    let mut ahead = server.connect(late).await;
    assert_eq!(ahead.batch().await.commit.source_versions, [9, 1, 1]);
}

#[tokio::test]
async fn clusters_come_and_go_and_their_nodes_are_known_one_by_one() {
    let clusters = ServedClusters::new([]);
    let mut server = server(&clusters).await;
    let open = |cluster: &str, address| {
        let hello = hello_in(cluster, "a");
        Client::open(address, Message::Hello(hello))
    };
    let status = open("eu", server.address).await.err().unwrap();
    assert_eq!(status.code(), Code::NotFound, "{status}");
    for cluster in ["eu", "us"] {
        clusters.insert(cluster.into());
        server.publisher.publish(&put_in(cluster, &["x"]));
        server.publisher.set_synced(&cluster.into());
    }
    // The source of one cluster has reported all its nodes: agents of the other are still served.
    server.registry.refuse_unknown_nodes(&"eu".into());
    let status = open("eu", server.address).await.err().unwrap();
    assert_eq!(status.code(), Code::FailedPrecondition, "{status}");
    let mut us = open("us", server.address).await.unwrap();
    assert_eq!(us.batch().await.put, ["x"]);
    server.registry.node_present(&node_in("eu", "a"));
    let mut eu = open("eu", server.address).await.unwrap();
    assert_eq!(eu.batch().await.put, ["x"]);
    clusters.remove("us");
    server.publisher.withhold(&"us".into());
    server.registry.cluster_withdrawn("us");
    // Its tables may be emptied now: the agent is sent nothing, and keeps what it has.
    let mut gone = put_in("us", &["x"]);
    gone.records.values_mut().for_each(|record| *record = None);
    server.publisher.publish(&gone);
    let status = us.next().await.unwrap_err();
    assert_eq!(status.code(), Code::NotFound, "{status}");
    let status = open("us", server.address).await.err().unwrap();
    assert_eq!(status.code(), Code::NotFound, "{status}");
    // It returns.
    server.publisher.publish(&put_in("us", &["y"]));
    clusters.insert("us".into());
    server.publisher.set_synced(&"us".into());
    let mut us = open("us", server.address).await.unwrap();
    assert_eq!(us.batch().await.put, ["y"]);
}

/// The node is awaited between the look at the clusters and the begin of the session.
#[tokio::test]
async fn a_cluster_that_goes_while_a_node_is_awaited_is_not_served() {
    let clusters = ServedClusters::new(["eu".into(), "us".into()]);
    let mut server = server(&clusters).await;
    server.registry.refuse_unknown_nodes(&"eu".into());
    let hello = Message::Hello(hello_in("eu", "a"));
    let mut opening = tokio::spawn(Client::open(server.address, hello));
    let early = timeout(Duration::from_millis(300), &mut opening).await;
    assert!(early.is_err(), "admitted without a Node");
    clusters.remove("eu");
    server.publisher.withhold(&"eu".into());
    server.registry.cluster_withdrawn("eu");
    // The next Node of any cluster ends the wait.
    server.registry.node_present(&node_in("us", "b"));
    let status = patiently(opening).await.unwrap().err().unwrap();
    assert_eq!(status.code(), Code::NotFound, "{status}");
    assert_eq!(server.registry.connected(), 0);
}
