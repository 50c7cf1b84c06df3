// SPDX-License-Identifier: Apache-2.0

//! Certificates that are replaced while streams are open.

use rustls::pki_types::CertificateDer;

use crate::client::{Client, PATIENCE, config, tls};
use crate::server::Server;

async fn shown(server: &Server) -> CertificateDer<'static> {
    let config = config(&server.certs().join("nodes/b"));
    let stream = tls(server.agents, config).await.unwrap();
    let certificates = stream.get_ref().1.peer_certificates().unwrap();
    certificates[0].clone().into_owned()
}

#[tokio::test]
async fn a_rotation_ends_no_stream_and_loses_no_change() {
    let server = Server::start();
    let directory = server.certs().join("nodes/a");
    let old = config(&directory);
    let mut a = Client::connect(server.agents, old, "a").await.unwrap();
    a.until(1).await;
    let before = shown(&server).await;
    server.renew_certificates();
    let reloads = "portolan_controller_credential_reloads_total{what=\"tls\"}";
    let reloaded = || server.metric(reloads).is_some_and(|count| count >= 1.0);
    portolan_e2e::wait::wait_for("the new certificate", PATIENCE, || reloaded().then_some(()))
        .unwrap();
    assert_ne!(shown(&server).await, before);
    // The stream opened with the old certificates continues.
    server.publish(2);
    a.until(2).await;
    // After a reconnect with a new certificate, only the changes since then are sent.
    let staging = a.staging;
    let snapshots = "portolan_controller_snapshots_sent_total";
    let sent = server.metric(snapshots);
    server.publish(3);
    let new = config(&directory);
    let mut a = Client::begin(server.agents, new, "a", None, staging)
        .await
        .unwrap();
    a.until(3).await;
    assert_eq!(server.metric(snapshots), sent);
}
