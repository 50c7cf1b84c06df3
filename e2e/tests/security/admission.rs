// SPDX-License-Identifier: Apache-2.0

//! Certificates, good and bad.

use std::time::{Duration, SystemTime};

use portolan_e2e::wait::wait_for;
use portolan_tls::NodeName;
use portolan_tls::issue::Authority;
use tonic::Code;

use crate::client::{Client, PATIENCE, config, config_of};
use crate::server::{Server, valid};

#[tokio::test]
async fn an_agent_gets_the_table_of_its_own_node_and_no_other() {
    let server = Server::start();
    let certificate = |node: &str| config(&server.certs().join("nodes").join(node));
    let mut a = Client::connect(server.agents, certificate("a"), "a")
        .await
        .unwrap();
    a.until(1).await;
    let other = Client::connect(server.agents, certificate("a"), "b").await;
    assert_eq!(other.err().unwrap().code(), Code::PermissionDenied);
    assert_eq!(server.refused("wrong_node"), 1.0);
    // The attempt affects neither the node that it named nor its own stream.
    let mut b = Client::connect(server.agents, certificate("b"), "b")
        .await
        .unwrap();
    b.until(1).await;
    server.publish(2);
    a.until(2).await;
    b.until(2).await;
    let nodes = server.nodes();
    let sessions = |node: &str| {
        let mut nodes = nodes["nodes"].as_array().unwrap().iter();
        nodes.find(|status| status["node"] == node).unwrap()["sessions"].clone()
    };
    assert_eq!((sessions("a"), sessions("b")), (1.into(), 1.into()));
}

#[tokio::test]
async fn without_a_good_certificate_there_is_no_stream() {
    let server = Server::start();
    let ca = std::fs::read_to_string(server.certs().join("ca/tls.crt")).unwrap();
    let (foreign, _) = Authority::create("portolan", valid()).unwrap();
    let name = NodeName::new("", "a").unwrap();
    let foreign = foreign.node(&name, valid()).unwrap();
    let now = SystemTime::now();
    let hours = |count: u64| Duration::from_secs(3600 * count);
    let expired = server.issue("a", now - hours(2)..now - hours(1));
    let future = server.issue("a", now + hours(1)..now + hours(2));
    for (what, issued) in [
        ("none", None),
        ("of another authority", Some(&foreign)),
        ("expired", Some(&expired)),
        ("not yet valid", Some(&future)),
    ] {
        let before = server.refused("handshake");
        let refused = Client::connect(server.agents, config_of(&ca, issued), "a").await;
        assert!(refused.is_err(), "a certificate: {what}");
        // In TLS 1.3 a client may notice the refusal before the server has counted it, and may try
        // again.
        wait_for(what, PATIENCE, || {
            (server.refused("handshake") > before).then_some(())
        })
        .unwrap();
    }
    let good = server.issue("a", valid());
    let mut client = Client::connect(server.agents, config_of(&ca, Some(&good)), "a")
        .await
        .unwrap();
    client.until(1).await;
}
