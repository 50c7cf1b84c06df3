// SPDX-License-Identifier: Apache-2.0

//! Relays: the same program, between a controller and its agents.

use std::net::SocketAddr;

use portolan_e2e::wait::wait_for;
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use serde_json::Value;
use tonic::Code;

use crate::client::{Client, PATIENCE, config, open};
use crate::server::Server;

fn table_of(server: &Server, node: &str) -> Option<Value> {
    let text = server.get(&format!("/debug/table/{node}"))?;
    serde_json::from_str(&text).ok()
}

/// Asserts that an agent of the relay has the controller's table.
fn same(client: &portolan_agent::subscribe::Committed, root: &Server, node: &str) {
    let ours = serde_json::to_value(&*client.table).unwrap();
    assert_eq!(Some(ours), table_of(root, node));
}

#[tokio::test]
async fn agents_of_relays_have_the_controllers_tables_also_when_it_is_gone() {
    let mut root = Server::start();
    root.publish_nodes();
    wait_for("the nodes", PATIENCE, || {
        let tables = ["a", "b"].map(|node| table_of(&root, node));
        tables.iter().all(Option::is_some).then_some(())
    })
    .unwrap();
    let own = &table_of(&root, "a").unwrap()["lists"];
    assert_ne!(own, &serde_json::json!([]), "it has something of its own");
    let certs = root.certs();
    let first = Server::relay(&certs, root.agents, "r1");
    let second = Server::relay(&certs, first.agents, "r2");
    second.until_ready();
    let certificate = |node: &str| config(&certs.join("nodes").join(node));
    let connect = async |to: SocketAddr, node: &str| {
        let client = Client::connect(to, certificate(node), node).await;
        client.unwrap()
    };
    let mut a = connect(first.agents, "a").await;
    let mut b = connect(second.agents, "b").await;
    same(&a.table().await.unwrap(), &root, "a");
    same(&b.table().await.unwrap(), &root, "b");

    root.publish(20);
    a.until(20).await;
    b.until(20).await;
    // Both relays serve the same table.
    let wanted = table_of(&root, "a").unwrap();
    for relay in [&first, &second] {
        assert_eq!(table_of(relay, "a").as_ref(), Some(&wanted));
    }
    let connected = |node: &str| {
        let nodes = root.nodes();
        let mut nodes = nodes["nodes"].as_array().unwrap().iter();
        nodes.any(|status| status["node"] == node && status["connected"] == true)
    };
    assert!(connected("relay/r1") && !connected("a"));

    root.kill();
    let metric = "portolan_controller_upstream_connected";
    wait_for("the relay is alone", PATIENCE, || {
        (first.metric(metric) == Some(0.0)).then_some(())
    })
    .unwrap();
    let mut late = connect(first.agents, "b").await;
    late.until(20).await;
    let mut late = connect(second.agents, "a").await;
    late.until(20).await;
    assert_eq!(table_of(&first, "a"), Some(wanted));
}

#[tokio::test]
async fn only_relays_are_sent_the_lists_of_all_nodes() {
    let root = Server::start();
    let all = |node: &str| v1::Hello {
        version: 1,
        node: node.to_owned(),
        want: v1::hello::Want::AllNodes.into(),
        ..v1::Hello::default()
    };
    let agent = config(&root.certs().join("nodes/a"));
    let refused = open(root.agents, agent, Message::Hello(all("a"))).await;
    assert_eq!(refused.err().unwrap().code(), Code::PermissionDenied);
    assert_eq!(root.refused("not_relay"), 1.0);
    let relay = config(&root.certs().join("relays/r1"));
    open(root.agents, relay, Message::Hello(all("r1")))
        .await
        .unwrap();
    // A relay with a node's certificate is refused, and the refusal is counted.
    let fake = root.certs().join("relays/fake");
    std::fs::create_dir(&fake).unwrap();
    for file in ["ca.crt", "tls.crt", "tls.key"] {
        std::fs::copy(root.certs().join("nodes/a").join(file), fake.join(file)).unwrap();
    }
    let _fake = Server::relay(&root.certs(), root.agents, "fake");
    wait_for("the refusal", PATIENCE, || {
        (root.refused("not_relay") > 1.0).then_some(())
    })
    .unwrap();
}
