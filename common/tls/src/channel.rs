// SPDX-License-Identifier: Apache-2.0

//! gRPC channels of a client whose credentials rotate.

use std::io;
use std::sync::Arc;

use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tower::service_fn;

/// A URI that names no server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}: expected https://HOST:PORT")]
pub struct ChannelError(Uri);

/// A channel to `https://HOST:PORT`. It connects when it is used, and each connection uses the credentials of its time.
/// `settings` adds timeouts and the like.
///
/// # Errors
/// If the URI has no port, or its host can be in no certificate.
pub fn secure_channel(
    uri: &Uri,
    credentials: watch::Receiver<Arc<ClientConfig>>,
    settings: impl FnOnce(Endpoint) -> Endpoint,
) -> Result<Channel, ChannelError> {
    let error = || ChannelError(uri.clone());
    let authority = uri.authority().filter(|it| it.port().is_some());
    let authority = authority.ok_or_else(error)?.to_string();
    let host = uri.host().unwrap_or_default().trim_matches(['[', ']']);
    let name = ServerName::try_from(host.to_owned()).map_err(|_| error())?;
    // The connector does TLS itself; tonic refuses https without its own.
    let plain: Uri = format!("http://{authority}").parse().map_err(|_| error())?;
    let connector =
        service_fn(move |_: Uri| connect(authority.clone(), name.clone(), credentials.clone()));
    Ok(settings(Endpoint::from(plain)).connect_with_connector_lazy(connector))
}

async fn connect(
    authority: String,
    name: ServerName<'static>,
    credentials: watch::Receiver<Arc<ClientConfig>>,
) -> io::Result<TokioIo<TlsStream<TcpStream>>> {
    let stream = TcpStream::connect(authority).await?;
    stream.set_nodelay(true)?;
    let config = Arc::clone(&credentials.borrow());
    let stream = TlsConnector::from(config).connect(name, stream).await?;
    Ok(TokioIo::new(stream))
}
