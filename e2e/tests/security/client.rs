// SPDX-License-Identifier: Apache-2.0

//! A scripted client of the agents' stream that checks tables as an agent does.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use portolan_agent::subscribe::{Committed, Staging, Taken};
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_proto::v1::tables_client::TablesClient;
use portolan_tls::ClientFiles;
use portolan_tls::issue::Issued;
use rustls::ClientConfig;
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Request, Status, Streaming};
use tower::service_fn;

/// The deadline of a test's wait.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) async fn patiently<F: Future>(future: F) -> F::Output {
    timeout(PATIENCE, future).await.expect("in time")
}

/// A client's certificate and authorities, from a directory of `certs`.
pub(crate) fn config(dir: &Path) -> Arc<ClientConfig> {
    let at = |name: &str| dir.join(name);
    let identity = at("tls.crt").exists();
    let files = ClientFiles {
        ca: at("ca.crt"),
        identity: identity.then(|| (at("tls.crt"), at("tls.key"))),
    };
    let config = files.open("test").unwrap().subscribe();
    Arc::clone(&config.borrow())
}

/// The same from a certificate in memory, or without one.
pub(crate) fn config_of(ca: &str, issued: Option<&Issued>) -> Arc<ClientConfig> {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("ca.crt"), ca).unwrap();
    if let Some(issued) = issued {
        fs::write(dir.path().join("tls.crt"), &issued.cert).unwrap();
        fs::write(dir.path().join("tls.key"), &issued.key).unwrap();
    }
    config(dir.path())
}

pub(crate) async fn tls(
    address: SocketAddr,
    config: Arc<ClientConfig>,
) -> io::Result<TlsStream<TcpStream>> {
    let tcp = TcpStream::connect(address).await?;
    tcp.set_nodelay(true)?;
    let name = ServerName::try_from("localhost").unwrap();
    TlsConnector::from(config).connect(name, tcp).await
}

async fn channel(
    address: SocketAddr,
    config: Arc<ClientConfig>,
    window: u32,
) -> Result<Channel, Status> {
    let connector = service_fn(move |_| {
        let config = Arc::clone(&config);
        async move { tls(address, config).await.map(TokioIo::new) }
    });
    let endpoint = Endpoint::from_static("https://localhost").initial_stream_window_size(window);
    let connected = patiently(endpoint.connect_with_connector(connector)).await;
    connected.map_err(|error| Status::from_error(Box::new(error)))
}

/// Begins a stream with an arbitrary first message.
pub(crate) async fn open(
    address: SocketAddr,
    config: Arc<ClientConfig>,
    first: Message,
) -> Result<Streaming<v1::Frame>, Status> {
    let mut client = TablesClient::new(channel(address, config, 64 << 10).await?);
    let message = Some(first);
    let messages = tokio_stream::iter([v1::AgentMessage { message }]);
    let response = patiently(client.sync(Request::new(messages))).await?;
    Ok(response.into_inner())
}

/// An open stream.
pub(crate) struct Client {
    pub(crate) staging: Staging,
    messages: mpsc::Sender<v1::AgentMessage>,
    frames: Streaming<v1::Frame>,
}

impl Client {
    /// Connects as a node without a table.
    pub(crate) async fn connect(
        address: SocketAddr,
        config: Arc<ClientConfig>,
        node: &str,
    ) -> Result<Self, Status> {
        Self::begin(address, config, node, None, Staging::new("", "node-1")).await
    }

    /// Connects with the table of an earlier stream.
    pub(crate) async fn begin(
        address: SocketAddr,
        config: Arc<ClientConfig>,
        node: &str,
        token: Option<&str>,
        mut staging: Staging,
    ) -> Result<Self, Status> {
        let mut client = TablesClient::new(channel(address, config, 64 << 10).await?);
        let hello = staging.begin(v1::Hello {
            version: 1,
            node: node.to_owned(),
            ..v1::Hello::default()
        });
        let (messages, receiver) = mpsc::channel(4);
        let message = Some(Message::Hello(hello));
        messages.send(v1::AgentMessage { message }).await.unwrap();
        let mut request = Request::new(ReceiverStream::new(receiver));
        if let Some(token) = token {
            let value = format!("Bearer {token}").parse().unwrap();
            request.metadata_mut().insert("authorization", value);
        }
        let response = patiently(client.sync(request)).await?;
        Ok(Self {
            staging,
            messages,
            frames: response.into_inner(),
        })
    }

    pub(crate) async fn say(&self, message: Message) {
        let message = Some(message);
        self.messages
            .send(v1::AgentMessage { message })
            .await
            .unwrap();
    }

    /// The next table that is whole, or how the stream ended.
    pub(crate) async fn table(&mut self) -> Result<Committed, Status> {
        loop {
            let frame = patiently(self.frames.message()).await?;
            let frame = frame.ok_or_else(|| Status::ok("ended"))?;
            match self.staging.take_frame(frame).expect("a table that fits") {
                Taken::Committed(committed) => return Ok(committed),
                Taken::Goaway(_) => return Err(Status::ok("goaway")),
                _ => {}
            }
        }
    }

    /// Reads on until an operator's word comes; the revision that it is about.
    pub(crate) async fn confirmed(&mut self) -> u64 {
        loop {
            let frame = self.frames.message().await.unwrap().expect("a frame");
            if let Taken::Confirmed(confirm) =
                self.staging.take_frame(frame).expect("a table that fits")
            {
                return confirm.revision;
            }
        }
    }

    /// Reads until the table has `services` Services, of two ports each.
    pub(crate) async fn until(&mut self, services: usize) {
        while self.table().await.unwrap().table.records.len() != 2 * services {}
    }
}
