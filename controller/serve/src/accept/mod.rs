//! From a listening socket to connections that HTTP/2 may be spoken on.
//!
//! Whoever reaches the port can open connections and say nothing. That must not keep agents out,
//! so everything that an unknown peer can hold is bounded in number and in time.

mod connection;
mod handshakes;

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use rustls::ServerConfig as TlsConfig;
use socket2::SockRef;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::Registry;
use crate::identity::Certified;
use crate::registry::RefusalReason;
pub(crate) use connection::{Admission, Connection, Peer};
use connection::{Io, certified};
use handshakes::{Handshakes, Life};

/// How long to wait after the system would not accept a connection: there is nothing to wait for
/// when it has run out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How many connections may wait in the system's queue. When it is full the system drops what
/// comes, and an agent would only try again after a second.
const BACKLOG: i32 = 4_096;

/// How much the kernel keeps of what it cannot send yet, in bytes. More would only be old tables
/// in memory that all connections share: a peer that stops reading could have megabytes.
const UNSENT_BYTES: u32 = 16 * 1024;

/// How much is encrypted ahead of what the kernel takes, in bytes. It is a copy for each agent, where
/// what is not encrypted yet is shared by all.
const TLS_BUFFER_BYTES: usize = 16 * 1024;

/// How long a peer may not acknowledge what was sent, before its connection is closed.
const ACKNOWLEDGED_WITHIN: Duration = Duration::from_secs(30);

/// How often the timers are looked at anyway. A connection begins with some timers, each of them
/// later than this: one that is the next of all interrupts the thread that waits for all, with a
/// system call for each agent.
const TICK: Duration = Duration::from_secs(1);

/// How much unknown peers may hold.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections in all.
    pub connections: usize,
    /// Connections whose handshake is not finished.
    pub handshakes: usize,
    /// How long a handshake may take.
    pub handshake_timeout: Duration,
    /// How long a peer may say nothing when there are [`handshakes`](Self::handshakes) of them and
    /// another one is waiting; one that has said something may take eight times as long. Agents that
    /// all come at once wait for their turn; peers that say nothing make room.
    pub crowded_timeout: Duration,
    /// How long a connection may exist without an agent that was let in.
    pub admission_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 20_000,
            handshakes: 256,
            handshake_timeout: Duration::from_secs(5),
            crowded_timeout: Duration::from_millis(250),
            admission_timeout: Duration::from_secs(15),
        }
    }
}

/// What the acceptor needs.
#[derive(Debug)]
pub(crate) struct Acceptor {
    pub(crate) tls: Option<watch::Receiver<Arc<TlsConfig>>>,
    pub(crate) limits: Limits,
    pub(crate) registry: Arc<Registry>,
    pub(crate) shutdown: CancellationToken,
}

impl Acceptor {
    /// Takes connections of a listener until the shutdown, and serves each that may be spoken on.
    pub(crate) async fn run(
        self,
        listener: TcpListener,
        serve: impl Fn(Connection) + Clone + Send + 'static,
    ) {
        if let Err(error) = tune(&listener) {
            tracing::warn!(%error, "connections are not set up as they should be");
        }
        let mut handshakes = Handshakes::new(self.limits.handshakes, self.limits.crowded_timeout);
        let room = Arc::new(Semaphore::new(self.limits.connections));
        let mut tick = std::pin::pin!(tick());
        loop {
            let accepted = tokio::select! {
                () = self.shutdown.cancelled() => return,
                never = &mut tick => match never {},
                // Does not accept while there is no room: the system's queue keeps the order.
                accepted = handshakes.room_then(listener.accept()) => accepted,
            };
            let (stream, address) = match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    let nobody = IpAddr::V4(Ipv4Addr::UNSPECIFIED);
                    self.refuse(nobody, RefusalReason::Accept, &error.to_string());
                    sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            };
            let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
                self.refuse(address.ip(), RefusalReason::Limit, "too many connections");
                continue;
            };
            let accepted = Accepted {
                admission_timeout: self.limits.admission_timeout,
                address,
                permit,
            };
            let Some(tls) = &self.tls else {
                serve(accepted.plain(stream));
                continue;
            };
            let config = Arc::clone(&tls.borrow());
            let handshake = |life| accepted.handshake(stream, config, life);
            let within = self.limits.handshake_timeout;
            let (registry, serve) = (Arc::clone(&self.registry), serve.clone());
            handshakes.spawn(
                async move |life| match timeout(within, handshake(life)).await {
                    Ok(Ok(connection)) => serve(connection),
                    Ok(Err(error)) => failed(&registry, address, &error),
                    Err(_) => {
                        let reason = RefusalReason::HandshakeTimeout;
                        registry.refuse(address.ip(), reason, "no handshake in time");
                    }
                },
            );
            let evicted = handshakes.evicted();
            self.registry
                .count_refusals(RefusalReason::HandshakeTimeout, evicted);
        }
    }

    fn refuse(&self, ip: IpAddr, reason: RefusalReason, message: &str) {
        self.registry.refuse(ip, reason, message);
    }
}

/// Sets up a listening socket; its connections inherit what is set here, which saves them three
/// system calls each.
fn tune(listener: &TcpListener) -> io::Result<()> {
    let socket = SockRef::from(listener);
    // Without nodelay each Commit would wait for a delayed ACK.
    socket.set_tcp_nodelay(true)?;
    socket.set_tcp_notsent_lowat(UNSENT_BYTES)?;
    socket.set_tcp_user_timeout(Some(ACKNOWLEDGED_WITHIN))?;
    // On a listening socket this only changes the length of the queue.
    Ok(rustix::net::listen(listener, BACKLOG)?)
}

/// Never completes.
async fn tick() -> Infallible {
    let mut tick = interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
    }
}

/// Who opens a connection and closes it again is most often a health check.
fn failed(registry: &Registry, address: SocketAddr, error: &io::Error) {
    if error.kind() == io::ErrorKind::UnexpectedEof {
        registry.count_refusals(RefusalReason::Handshake, 1);
        tracing::debug!(%address, "closed before the handshake");
        return;
    }
    registry.refuse(address.ip(), RefusalReason::Handshake, &error.to_string());
}

/// A connection before it may be spoken on.
struct Accepted {
    admission_timeout: Duration,
    address: SocketAddr,
    permit: OwnedSemaphorePermit,
}

impl Accepted {
    fn plain(self, stream: TcpStream) -> Connection {
        self.connection(Io::Plain(stream), None)
    }

    async fn handshake(
        self,
        stream: TcpStream,
        config: Arc<TlsConfig>,
        life: Arc<Life>,
    ) -> io::Result<Connection> {
        stream.readable().await?;
        life.has_spoken();
        let mut stream = TlsAcceptor::from(config).accept(stream).await?;
        stream.get_mut().1.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        let certificate = certified(&stream);
        Ok(self.connection(Io::Tls(Box::new(stream)), certificate))
    }

    fn connection(self, io: Io, certificate: Option<Result<Certified, String>>) -> Connection {
        let peer = Peer::new(self.address, certificate);
        Connection::new(io, peer, self.permit, self.admission_timeout)
    }
}

#[cfg(test)]
mod tests;
