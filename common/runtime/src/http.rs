//! HTTP/1.1 for probes, scrapes and operators, on ports that strangers cannot use up.
//!
//! A connection has one request, is closed after the answer, and has deadlines for both: there are
//! no idle ones. A new connection is never refused. If there is no place for it, the oldest
//! connection of the source with the most of them is closed. So a source with many takes places
//! from itself, and a source with one loses it only when as many newer connections have come as
//! there are places, which takes longer than the answer to a probe.

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

use crate::sources::{NoPlace, Origin, Place, SourceLimits, Sources};

/// How many connections a port has by default.
const CONNECTIONS: usize = 256;
/// How long the head of a request may take. Whoever asks has it ready.
const HEAD: Duration = Duration::from_secs(5);
/// How long a connection may last: a large dump takes a while.
const WHOLE: Duration = Duration::from_secs(60);
/// How much of a request is buffered, in bytes.
const BUFFER: usize = 16 << 10;
/// How long an answer that has begun may take when the server ends.
const GRACE: Duration = Duration::from_secs(1);
/// How long to wait after an error of the listener, such as a lack of descriptors.
const PAUSE: Duration = Duration::from_millis(50);
/// How many connections are accepted before requests that have arrived are read: far fewer than
/// there are places.
const BURST: usize = 32;

/// The connections of one port, or of several that share their places.
#[derive(Debug, Clone)]
pub struct Connections(Sources);

impl Default for Connections {
    /// At most 256.
    fn default() -> Self {
        Self::new(CONNECTIONS)
    }
}

impl Connections {
    /// At most so many, at least 1.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self(Sources::new(SourceLimits {
            places: limit,
            reserve: 0,
            per_source: limit,
            rate: None,
            remembered: 0,
        }))
    }

    /// Takes a new connection in, in place of another one if there are too many.
    fn enter(&self, peer: Peer) -> Result<Place, NoPlace> {
        let address = match peer {
            Peer::Tcp(address) => address.ip(),
            Peer::Unix => IpAddr::V4(Ipv4Addr::LOCALHOST),
        };
        // Those of this machine have no precedence: it may run strangers' programs too, and a
        // balancer has to be answered beside them.
        self.0.displace(address, Origin::Remote, Instant::now())
    }
}

/// Who asks. An extension of every request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Peer {
    /// Over TCP, from this address.
    Tcp(SocketAddr),
    /// Over a Unix socket: somebody whom its mode lets in.
    Unix,
}

/// Where connections come from.
pub trait Accept: Send + 'static {
    /// A connection.
    type Io: AsyncRead + AsyncWrite + Unpin + Send + 'static;

    /// The next connection.
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
        Ok((stream, Peer::Unix))
    }
}

/// Serves until the token is cancelled; then the listener is closed. Answers that have begun have
/// one more second.
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
                // There is always one: every source may lose its places to others.
                if let Ok(place) = connections.enter(peer) {
                    let router = router.clone();
                    tokio::spawn(connection(io, peer, router, place, ending.clone()));
                }
            }
            Err(error) if is_of_a_connection(&error) => {}
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection");
                sleep(PAUSE).await;
            }
        }
        accepted += 1;
        if accepted.is_multiple_of(BURST) {
            // A storm of connections must not take the places of those that could be answered.
            yield_now().await;
        }
    }
}

/// A connection that ended before it was accepted.
fn is_of_a_connection(error: &io::Error) -> bool {
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
    place: Place,
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
        // Its errors are the other side's.
        _ = connection.as_mut() => {}
        () = place.displaced() => {}
        () = sleep(WHOLE) => {}
        () = ending.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let _ = timeout(GRACE, connection).await;
        }
    }
}

#[cfg(test)]
mod tests;
