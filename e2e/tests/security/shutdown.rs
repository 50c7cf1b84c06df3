// SPDX-License-Identifier: Apache-2.0

//! A controller that is told to stop.

use crate::client::{Client, config};
use crate::server::Server;

#[tokio::test]
async fn agents_are_notified_before_their_streams_end() {
    let mut server = Server::with(&[]);
    let mut clients = Vec::new();
    for node in ["a", "b"] {
        let of_node = config(&server.certs().join("nodes").join(node));
        let mut client = Client::connect(server.agents, of_node, node).await.unwrap();
        client.until(1).await;
        clients.push(client);
    }
    server.terminate();
    for client in &mut clients {
        let goaway = client.table().await.unwrap_err();
        assert_eq!(goaway.message(), "goaway");
        let end = client.table().await.unwrap_err();
        assert_eq!(end.message(), "ended", "{end:?}");
    }
    assert!(server.wait().success());
}
