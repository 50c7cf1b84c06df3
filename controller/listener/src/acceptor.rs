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
use tokio::time::{MissedTickBehavior, interval, sleep};
use tokio_rustls::server::StartHandshake;
use tokio_util::sync::CancellationToken;

use crate::connection::{Connection, Io, certified};
use crate::gate::{Arrival, Failure, Gate};
use crate::limits::Limits;
use crate::peer::Peer;
use crate::relief::Relief;
use crate::waiting_room::WaitingRoom;

/// Pause after a failed accept. A process that has run out of descriptors gets no event when one is
/// free again.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Length of the kernel's accept queue, in connections. The kernel drops new connections when it is
/// full, and an agent would only try again after a second. [`Relief`] keeps it short.
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
        let entrance = Entrance {
            connections: Arc::new(Semaphore::new(self.limits.connections)),
            room: Arc::new(WaitingRoom::new(gate.waiting_slots())),
            refusals: Arc::clone(&self.refusals),
        };
        let _relief = entrance.relieve(&listener).inspect_err(|error| {
            tracing::error!(%error, "a flood of connections may keep agents out");
        });
        let mut tick = std::pin::pin!(tick());
        let mut turns = std::pin::pin!(gate.turns.watch());
        loop {
            let (arrived, room) = tokio::select! {
                () = self.shutdown.cancelled() => return,
                never = &mut tick => match never {},
                never = &mut turns => match never {},
                arrived = gate.room_then(entrance.next(&listener)) => arrived,
            };
            let Arrived {
                stream,
                address,
                permit,
            } = arrived;
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
                    let reason = reason.to_string();
                    self.refusals
                        .refuse(address.ip(), RefusalReason::Limit, &reason);
                }
            }
        }
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
}

/// The way of new connections to the runtime: from the kernel's queue, or by way of the room if the runtime had no time.
#[derive(Debug, Clone)]
struct Entrance {
    connections: Arc<Semaphore>,
    room: Arc<WaitingRoom<Arrived<std::net::TcpStream>>>,
    refusals: Arc<Refusals>,
}

impl Entrance {
    /// Starts the thread that moves connections to the room.
    fn relieve(&self, listener: &TcpListener) -> io::Result<Relief> {
        // Another descriptor of the same socket.
        let listener = SockRef::from(listener).try_clone()?;
        let entrance = self.clone();
        Relief::start(listener.into(), move |accepted| {
            let Some(arrived) = entrance.admit(accepted) else {
                return;
            };
            let source = arrived.address.ip().into();
            if let Some(refused) = entrance.room.put(source, arrived) {
                entrance.refuse(refused.address.ip(), "too many wait to be read");
            }
        })
    }

    /// The next connection: one of the room, otherwise of the kernel's queue. Cancel safe.
    async fn next(&self, listener: &TcpListener) -> Arrived<TcpStream> {
        loop {
            let accepted = tokio::select! {
                biased;
                arrived = self.room.take() => match arrived.served() {
                    Ok(arrived) => return arrived,
                    Err(error) => Err(error),
                },
                accepted = listener.accept() => accepted,
            };
            let has_failed = accepted.is_err();
            if let Some(arrived) = self.admit(accepted) {
                return arrived;
            }
            if has_failed {
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }

    /// Counts a connection; `None` if there are too many, or for an error.
    fn admit<T>(&self, accepted: io::Result<(T, SocketAddr)>) -> Option<Arrived<T>> {
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
                self.refusals
                    .refuse(nobody, RefusalReason::Accept, &error.to_string());
                return None;
            }
        };
        let Ok(permit) = Arc::clone(&self.connections).try_acquire_owned() else {
            self.refuse(address.ip(), "too many connections");
            return None;
        };
        Some(Arrived {
            stream,
            address,
            permit,
        })
    }

    fn refuse(&self, ip: IpAddr, message: &str) {
        self.refusals.refuse(ip, RefusalReason::Limit, message);
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

/// A counted connection.
#[derive(Debug)]
struct Arrived<T> {
    stream: T,
    address: SocketAddr,
    permit: OwnedSemaphorePermit,
}

impl Arrived<std::net::TcpStream> {
    /// The connection as one of this runtime.
    fn served(self) -> io::Result<Arrived<TcpStream>> {
        Ok(Arrived {
            stream: TcpStream::from_std(self.stream)?,
            address: self.address,
            permit: self.permit,
        })
    }
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
