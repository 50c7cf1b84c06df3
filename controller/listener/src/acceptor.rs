// SPDX-License-Identifier: Apache-2.0

//! The acceptor: turns a listening socket into connections that are ready for HTTP/2.
//!
//! Any peer that reaches the port can open connections and stay silent. That must not keep agents
//! out, so everything that an unknown peer can hold is bounded in number and in time.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use portolan_auth::{Certified, CertifiedError, RefusalReason, Refusals};
use rustls::ServerConfig as TlsConfig;
use rustls::server::Accepted as Hello;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval};
use tokio_rustls::server::StartHandshake;
use tokio_util::sync::CancellationToken;

use crate::accept;
use crate::connection::{Connection, Io, certified};
use crate::gate::{Arrival, Failure, Gate};
use crate::limits::Limits;
use crate::peer::Peer;
use crate::waiting_room::WaitingRoom;

/// Length of the kernel's accept queue, in connections. The kernel drops new connections when it is
/// full, and an agent would only try again after a second. [`WaitingRoom`] keeps it short.
const BACKLOG: i32 = 4_096;

/// Limit of unsent data in a socket's buffer, in bytes (`TCP_NOTSENT_LOWAT`). More would only be
/// old tables in memory that all connections share: a peer that stops reading could hold megabytes.
const UNSENT_BYTES: u32 = 16 * 1024;

/// Limit of encrypted data that waits for the kernel, in bytes per connection. Encrypted data is a
/// copy for each agent; plain data is shared by all.
const TLS_BUFFER_BYTES: usize = 16 * 1024;

/// Time without an acknowledgement of sent data after which a connection is closed
/// (`TCP_USER_TIMEOUT`).
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(30);

/// Interval of a timer without a task of its own. A new connection sets timers, all of them later
/// than this one. A timer that becomes the earliest interrupts the thread that waits for timers,
/// which would cost a system call for each agent.
const TICK: Duration = Duration::from_secs(1);

/// Accepts connections and shakes hands, within limits for unknown peers.
#[derive(Debug)]
pub struct Acceptor {
    /// The newest TLS configuration; `None` for plain connections.
    pub tls: Option<watch::Receiver<Arc<TlsConfig>>>,
    /// Limits for unknown peers.
    pub limits: Limits,
    /// The counter of refused connections.
    pub refusals: Arc<Refusals>,
    /// Ends accepting, and handshakes under way.
    pub shutdown: CancellationToken,
}

impl Acceptor {
    /// Accepts connections until the shutdown, and passes each to `serve` after its handshake.
    pub async fn run(
        self,
        listener: TcpListener,
        serve: impl Fn(Connection) + Clone + Send + 'static,
    ) {
        if let Err(error) = tune(&listener) {
            tracing::warn!(%error, "connections are not set up as they should be");
        }
        let gate = Arc::new(Gate::new(self.limits.clone()));
        let waiting = match self.accept(listener, gate.waiting_slots()) {
            Ok(waiting) => waiting,
            Err(error) => {
                tracing::error!(%error, "connections cannot be accepted");
                return;
            }
        };
        let mut tick = std::pin::pin!(tick());
        let mut turns = std::pin::pin!(gate.turns.watch());
        loop {
            let (arrived, room) = tokio::select! {
                () = self.shutdown.cancelled() => return,
                never = &mut tick => match never {},
                never = &mut turns => match never {},
                arrived = gate.room_then(waiting.take()) => arrived,
            };
            let Arrived {
                stream,
                address,
                permit,
            } = arrived;
            let stream = match TcpStream::from_std(stream) {
                Ok(stream) => stream,
                Err(error) => {
                    self.refuse(address.ip(), RefusalReason::Accept, &error.to_string());
                    continue;
                }
            };
            let accepted = Accepted {
                gate: Arc::clone(&gate),
                address,
                permit,
            };
            let Some(tls) = &self.tls else {
                serve(accepted.plain(stream));
                continue;
            };
            match gate.enter(address, room) {
                Ok(arrival) => {
                    self.shake_hands(accepted.tls(stream, arrival, tls.clone()), &serve);
                }
                Err(reason) => {
                    self.refuse(address.ip(), RefusalReason::Limit, &reason.to_string());
                }
            }
        }
    }

    /// Starts a thread that accepts connections into a room, until the shutdown.
    fn accept(&self, listener: TcpListener, slots: usize) -> io::Result<Arc<WaitingRoom<Arrived>>> {
        let room = Arc::new(WaitingRoom::new(slots));
        let waiting = Arc::clone(&room);
        let connections = Arc::new(Semaphore::new(self.limits.connections));
        let refusals = Arc::clone(&self.refusals);
        let accepted = move |accepted: io::Result<(std::net::TcpStream, SocketAddr)>| {
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
                    refusals.refuse(nobody, RefusalReason::Accept, &error.to_string());
                    return;
                }
            };
            let Ok(permit) = Arc::clone(&connections).try_acquire_owned() else {
                refusals.refuse(address.ip(), RefusalReason::Limit, "too many connections");
                return;
            };
            let arrived = Arrived {
                stream,
                address,
                permit,
            };
            if let Some(refused) = waiting.put(address.ip().into(), arrived) {
                let ip = refused.address.ip();
                refusals.refuse(ip, RefusalReason::Limit, "too many wait to be read");
            }
        };
        accept::start(listener.into_std()?, self.shutdown.clone(), accepted)?;
        Ok(room)
    }

    /// Runs a handshake in a task of its own, and serves the resulting connection.
    fn shake_hands(
        &self,
        handshake: impl Future<Output = (SocketAddr, Result<Connection, Failure>)> + Send + 'static,
        serve: &(impl Fn(Connection) + Clone + Send + 'static),
    ) {
        let (refusals, serve) = (Arc::clone(&self.refusals), serve.clone());
        let done = async move {
            match handshake.await {
                (_, Ok(connection)) => serve(connection),
                (address, Err(failure)) => failed(&refusals, address, failure),
            }
        };
        tokio::spawn(self.shutdown.clone().run_until_cancelled_owned(done));
    }

    fn refuse(&self, ip: IpAddr, reason: RefusalReason, message: &str) {
        self.refusals.refuse(ip, reason, message);
    }
}

/// Sets options of a listening socket. Accepted connections inherit them, which saves three system
/// calls for each.
fn tune(listener: &TcpListener) -> io::Result<()> {
    let socket = SockRef::from(listener);
    // Without nodelay each Commit would wait for a delayed ACK.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_notsent_lowat(UNSENT_BYTES)?;
    socket.set_tcp_user_timeout(Some(ACKNOWLEDGED_WITHIN))?;
    // On a listening socket this only changes the length of the queue.
    Ok(rustix::net::listen(listener, BACKLOG)?)
}

/// Keeps a timer of [`TICK`] running. Never completes.
async fn tick() -> Infallible {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
    }
}

fn failed(refusals: &Refusals, address: SocketAddr, failure: Failure) {
    let ip = address.ip();
    match failure {
        // A connection that is closed without a byte is most often a health check.
        Failure::Io(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            refusals.count(RefusalReason::Handshake, 1);
            tracing::debug!(%address, "closed before the handshake");
        }
        Failure::Io(error) => refusals.refuse(ip, RefusalReason::Handshake, &error.to_string()),
        Failure::Late => {
            refusals.refuse(ip, RefusalReason::HandshakeTimeout, "no handshake in time");
        }
        Failure::Displaced => refusals.count(RefusalReason::HandshakeTimeout, 1),
        Failure::Crowded => {
            refusals.refuse(ip, RefusalReason::Limit, "too many wait for a handshake");
        }
    }
}

/// A connection that waits for a task.
#[derive(Debug)]
struct Arrived {
    stream: std::net::TcpStream,
    address: SocketAddr,
    permit: OwnedSemaphorePermit,
}

/// An accepted connection before its handshake.
struct Accepted {
    gate: Arc<Gate>,
    address: SocketAddr,
    permit: OwnedSemaphorePermit,
}

impl Accepted {
    fn plain(self, stream: TcpStream) -> Connection {
        self.connection(Io::Plain(stream), None)
    }

    async fn tls(
        self,
        stream: TcpStream,
        arrival: Arrival,
        config: watch::Receiver<Arc<TlsConfig>>,
    ) -> (SocketAddr, Result<Connection, Failure>) {
        let address = self.address;
        (address, self.handshake(stream, arrival, config).await)
    }

    async fn handshake(
        self,
        stream: TcpStream,
        arrival: Arrival,
        config: watch::Receiver<Arc<TlsConfig>>,
    ) -> Result<Connection, Failure> {
        let hello = self.gate.hello(&stream, arrival).await?;
        // Boxed: the rest of the handshake is large, and most peers of a flood do not get that far.
        Box::pin(self.go_on(stream, hello, config)).await
    }

    /// Continues a handshake after a complete ClientHello.
    async fn go_on(
        self,
        stream: TcpStream,
        hello: Hello,
        config: watch::Receiver<Arc<TlsConfig>>,
    ) -> Result<Connection, Failure> {
        let turn = self.gate.turns.turn(self.address.ip().into()).await;
        let turn = turn.ok_or(Failure::Crowded)?;
        let config = Arc::clone(&config.borrow());
        let handshake = StartHandshake::from_parts(hello, stream).into_stream(config);
        let mut stream = Box::pin(self.gate.finish(handshake, turn)).await?;
        stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        let certificate = certified(&stream);
        Ok(self.connection(Io::Tls(Box::new(stream)), certificate))
    }

    fn connection(
        self,
        io: Io,
        certificate: Option<Result<Certified, CertifiedError>>,
    ) -> Connection {
        let peer = Peer::new(self.address, certificate);
        Connection::new(io, peer, self.permit, self.gate)
    }
}

#[cfg(test)]
mod tests;
