// SPDX-License-Identifier: Apache-2.0

//! The client side of TLS.

use std::net::SocketAddr;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::Status;
use tonic::transport::{Channel, Endpoint};
use tower::service_fn;

use super::support::patiently;

/// A TLS connection without HTTP/2.
pub(super) async fn stream(
    address: SocketAddr,
    config: Arc<ClientConfig>,
) -> std::io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(address).await?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(config).connect(name, tcp).await
}

pub(super) async fn channel(
    address: SocketAddr,
    config: Arc<ClientConfig>,
) -> Result<Channel, Status> {
    let connector = service_fn(move |_| {
        let config = Arc::clone(&config);
        async move { stream(address, config).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("https://localhost");
    let connected = patiently(endpoint.connect_with_connector(connector)).await;
    connected.map_err(|error| Status::from_error(Box::new(error)))
}
