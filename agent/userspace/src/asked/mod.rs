// SPDX-License-Identifier: Apache-2.0

//! One port for SOCKS5 and HTTP CONNECT, at which clients ask for Services by name or address, and nothing else.

mod datagrams;
mod find;
mod request;

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use portolan_model::{NodeTable, Protocol};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use crate::limits::Place;
use crate::proxy::{Proxy, Serving};
use crate::shared::{Client, Shared};
use crate::tcp::{Dialled, Nowhere, dial, join};
use crate::way::Way;
use request::{Command, NO_AUTHENTICATION, Reply, SOCKS, Target};

/// Time for a request.
const PATIENCE: Duration = Duration::from_secs(10);

/// Pause after the kernel could not accept.
const AGAIN: Duration = Duration::from_millis(100);

/// The server of one port.
#[derive(Debug, Clone)]
pub struct Asked(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    serving: Serving,
    table: watch::Receiver<Arc<NodeTable>>,
    shared: Shared,
    zone: String,
    namespace: String,
}

impl Asked {
    /// Serves what a proxy serves. Names are those of a zone; bare names are in a namespace.
    #[must_use]
    pub fn new(proxy: &Proxy, zone: &str, namespace: &str) -> Self {
        Self(Arc::new(Inner {
            serving: Arc::clone(&proxy.serving),
            table: proxy.table.subscribe(),
            shared: proxy.shared.clone(),
            zone: find::plain(zone),
            namespace: namespace.to_owned(),
        }))
    }

    /// Serves for ever.
    pub async fn serve(self, listener: TcpListener) {
        let shared = &self.0.shared;
        loop {
            shared.limits.room().await;
            let Ok((stream, peer)) = listener.accept().await else {
                sleep(AGAIN).await;
                continue;
            };
            let Ok(local) = stream.local_addr() else {
                continue;
            };
            let Ok(place) = shared.limits.enter(peer.ip(), local.ip()) else {
                continue;
            };
            let (this, ending) = (self.clone(), shared.ending.clone());
            tokio::spawn(async move {
                let connection = this.connection(stream, Client::of(peer, local), place);
                // A client that breaks off gets no answer.
                ending.run_until_cancelled(connection).await
            });
        }
    }

    async fn connection(
        &self,
        mut stream: TcpStream,
        client: Client,
        place: Place,
    ) -> io::Result<()> {
        let first = timeout(PATIENCE, stream.read_u8()).await??;
        match first {
            SOCKS => self.socks(stream, client, place).await,
            _ => self.http(first, stream, client, place).await,
        }
    }

    /// The way that a target means, if it is served.
    fn find(&self, target: &Target, protocol: Protocol) -> Option<Arc<Way>> {
        let inner = &self.0;
        let table = Arc::clone(&inner.table.borrow());
        let keys = find::ways(&table, target, protocol, &inner.zone, &inner.namespace);
        let serving = inner.serving.read().unwrap_or_else(PoisonError::into_inner);
        keys.iter().find_map(|key| serving.get(key).cloned())
    }

    async fn socks(&self, mut stream: TcpStream, client: Client, place: Place) -> io::Result<()> {
        let local = stream.local_addr()?;
        let methods = timeout(PATIENCE, request::methods(&mut stream)).await??;
        if !methods.contains(&NO_AUTHENTICATION) {
            return stream.write_all(&[SOCKS, 0xff]).await;
        }
        stream.write_all(&[SOCKS, NO_AUTHENTICATION]).await?;
        let (command, target) = timeout(PATIENCE, request::request(&mut stream)).await??;
        let reply = match command {
            Command::Connect => match self.dial(&target, client).await {
                Ok(dialled) => {
                    stream.write_all(&Reply::Done.bytes(local)).await?;
                    self.join(stream, dialled, place).await;
                    return Ok(());
                }
                Err(reply) => reply,
            },
            Command::Associate => return datagrams::associate(self, stream, local, place).await,
            Command::Other => Reply::NoSuchCommand,
        };
        stream.write_all(&reply.bytes(local)).await
    }

    async fn http(
        &self,
        first: u8,
        mut stream: TcpStream,
        client: Client,
        place: Place,
    ) -> io::Result<()> {
        let target = timeout(PATIENCE, request::connect(first, &mut stream)).await??;
        let refused = match target {
            None => "405 Method Not Allowed\r\nAllow: CONNECT",
            Some(target) => match self.dial(&target, client).await {
                Ok(dialled) => {
                    stream.write_all(b"HTTP/1.1 200 Connected\r\n\r\n").await?;
                    self.join(stream, dialled, place).await;
                    return Ok(());
                }
                Err(Reply::Denied) => "403 Forbidden",
                Err(Reply::HostUnreachable) => "404 Not Found",
                Err(_) => "502 Bad Gateway",
            },
        };
        let answer =
            format!("HTTP/1.1 {refused}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
        stream.write_all(answer.as_bytes()).await
    }

    /// Connects to an endpoint of a target.
    async fn dial(&self, target: &Target, client: Client) -> Result<Dialled, Reply> {
        let way = self
            .find(target, Protocol::Tcp)
            .ok_or(Reply::HostUnreachable)?;
        match dial(client, &way, &self.0.shared).await {
            dialled @ Dialled::To(..) => Ok(dialled),
            Dialled::Nowhere(Nowhere::Drop) => Err(Reply::Denied),
            Dialled::Nowhere(Nowhere::Refuse | Nowhere::Unreachable) => Err(Reply::Refused),
        }
    }

    async fn join(&self, client: TcpStream, dialled: Dialled, place: Place) {
        if let Dialled::To(server, lease) = dialled {
            join(client, server, lease, &self.0.shared, place).await;
        }
    }

    /// A socket for datagrams beside a connection to `local`.
    async fn beside(local: SocketAddr) -> io::Result<tokio::net::UdpSocket> {
        tokio::net::UdpSocket::bind((local.ip(), 0)).await
    }
}
