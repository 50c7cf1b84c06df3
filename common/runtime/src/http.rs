// SPDX-License-Identifier: Apache-2.0

//! HTTP/1.1 server for probes, scrapes and operators, on ports that hostile clients cannot exhaust.
//!
//! A connection carries one request and is closed after the answer, with deadlines for both, so that no
//! connection is idle. A new connection is never refused: if all slots are in use, the oldest connection
//! of the source with the most connections is closed. A source with many connections therefore displaces
//! its own, and a source with one loses it only after as many newer connections as there are slots, which
//! takes longer than the answer to a probe.

use std::future::Future;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::pin;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::task::yield_now;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt as _;

use crate::sources::{ConnectionSlots, Origin, Slot, SlotError, SlotLimits};

/// Default limit of connections of a port.
const CONNECTIONS: usize = 256;
/// Time limit for the head of a request. Clients have it ready when they connect.
const HEAD: Duration = Duration::from_secs(5);
/// Time limit of a connection. Large dumps take seconds.
const WHOLE: Duration = Duration::from_secs(60);
/// Time in which an answer must be ready. What is left of the connection's time is for the request before it and for
/// the way of the answer.
pub const ANSWER_WITHIN: Duration = WHOLE.saturating_sub(HEAD.saturating_mul(2));
/// Size of the request buffer in bytes.
const BUFFER: usize = 16 << 10;
/// Time that answers in progress have when the server ends.
const GRACE: Duration = Duration::from_secs(1);
/// Pause after an error of the listener, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// Number of connections accepted in a row before other tasks run. Far below the number of slots.
const BURST: usize = 32;

/// The connections of one port, or of several ports that share their slots.
#[derive(Debug, Clone)]
pub struct Connections(ConnectionSlots);

impl Default for Connections {
    /// Allows 256 connections.
    fn default() -> Self {
        Self::new(CONNECTIONS)
    }
}

impl Connections {
    /// Allows a number of connections, at least 1.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(ConnectionSlots::new(SlotLimits {
            slots: limit,
            reserve: 0,
            per_source: limit,
            rate: None,
            remembered: 0,
        }))
    }

    /// Admits a new connection, in place of another one if all slots are in use.
    fn enter(&self, peer: Peer) -> Result<Slot, SlotError> {
        let address = match peer {
            Peer::Tcp(address) => address.ip(),
            Peer::Unix(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        // Connections of this machine have no precedence: it also runs untrusted programs, and load
        // balancers must be answered regardless.
        self.0.displace(address, Origin::Remote, Instant::now())
    }
}

/// The client. An extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// A TCP client at this address.
    Tcp(SocketAddr),
    /// A client of the Unix socket, admitted by the permissions of the socket, with the number of its user if the
    /// kernel tells it.
    Unix(Option<u32>),
}

/// A listener.
pub trait Accept: Send + 'static {
    /// Connection type.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// Accepts the next connection.
    fn next(&self) -> impl Future<Output = io::Result<(Self::Io, Peer)>> + Send;
}

impl Accept for TcpListener {
    type Io = tokio::net::TcpStream;

    async fn next(&self) -> io::Result<(Self::Io, Peer)> {
        let (stream, address) = self.accept().await?;
        Ok((stream, Peer::Tcp(address)))
    }
}

impl Accept for UnixListener {
    type Io = tokio::net::UnixStream;

    async fn next(&self) -> io::Result<(Self::Io, Peer)> {
        let (stream, _) = self.accept().await?;
        let user = stream.peer_cred().ok().map(|peer| peer.uid());
        Ok((stream, Peer::Unix(user)))
    }
}

/// Serves until the token is cancelled. The listener is closed then, and answers in progress have one
/// more second.
pub async fn serve_http<L: Accept>(
    listener: L,
    router: Router,
    connections: Connections,
    ending: CancellationToken,
) {
    let mut accepted = 0_usize;
    loop {
        let Some(next) = ending.run_until_cancelled(listener.next()).await else {
            return;
        };
        match next {
            Ok((io, peer)) => {
                // Never fails: every source can be displaced.
                if let Ok(slot) = connections.enter(peer) {
                    let router = router.clone();
                    tokio::spawn(connection(io, peer, router, slot, ending.clone()));
                }
            }
            Err(error) if is_of_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(PAUSE).await;
            }
        }
        accepted += 1;
        if accepted.is_multiple_of(BURST) {
            // In a storm, connections with a complete request are answered before they are displaced.
            yield_now().await;
        }
    }
}

/// Returns `true` if an error concerns a connection that ended before it was accepted.
fn is_of_connection(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset, Interrupted};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset | Interrupted
    )
}

async fn connection<I: AsyncRead + AsyncWrite + Unpin + 'static>(
    io: I,
    peer: Peer,
    router: Router,
    slot: Slot,
    ending: CancellationToken,
) {
    let service = service_fn(move |request: Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(peer);
        router.clone().oneshot(request)
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD)
        .keep_alive(false)
        .max_buf_size(BUFFER)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = pin!(connection);
    tokio::select! {
        // Errors of the connection are the client's.
        _ = connection.as_mut() => {}
        () = slot.displaced() => {}
        () = sleep(WHOLE) => {}
        () = ending.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = timeout(GRACE, connection).await;
        }
    }
}

#[cfg(test)]
mod tests;
