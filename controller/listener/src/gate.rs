//! What strangers share until an agent is let in: room for first messages, turns to shake hands,
//! and time for a request.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_runtime::{ConnectionSlots, Origin, Slot, SlotError, SlotLimits};
use rustls::server::Accepted as Hello;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tokio_rustls::server::{Accept, TlsStream};

use crate::hello::{client_hello, is_unread};
use crate::limits::Limits;
use crate::turns::{Turn, TurnLimits, Turns};

/// How many connections that were displaced, or have a whole ClientHello, can be there because
/// nobody has had time to look at them. Then no more are accepted: the system's queue is cheaper.
const LATE: usize = 256;

/// The room that there is.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) limits: Limits,
    pub(crate) turns: Turns,
    /// Connections whose ClientHello is not whole.
    hellos: ConnectionSlots,
    /// As many, and those that nobody has had time to look at.
    arrivals: Arc<Semaphore>,
    /// Connections that wait for a request of an agent that is let in.
    pub(crate) unadmitted: ConnectionSlots,
}

/// Room for the first message of a peer.
#[derive(Debug)]
pub(crate) struct Arrival {
    slot: Slot,
    _room: OwnedSemaphorePermit,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) enum Failure {
    Io(io::Error),
    /// It took too long.
    Late,
    /// It took long, and others needed its slot.
    Displaced,
    /// Too many others wait for a turn.
    Crowded,
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

impl Gate {
    pub(crate) fn new(limits: Limits) -> Self {
        // Half of all connections are for agents that were let in, whatever strangers do.
        let eighth = (limits.connections / 8).max(1);
        let slots = |slots, per_source| SlotLimits {
            slots,
            reserve: 0,
            per_source,
            rate: None,
            remembered: 0,
        };
        Self {
            turns: Turns::new(TurnLimits {
                turns: limits.handshakes.max(1),
                waiting: 2 * eighth,
                patience: limits.crowded_timeout,
            }),
            arrivals: Arc::new(Semaphore::new(eighth + LATE)),
            hellos: ConnectionSlots::new(slots(eighth, limits.hellos_per_source.max(1))),
            unadmitted: ConnectionSlots::new(slots(eighth, usize::MAX)),
            limits,
        }
    }

    /// What `next` gives, which is asked while there is room for it. Nothing is lost when this is
    /// dropped, if nothing is lost when `next` is.
    pub(crate) async fn room_then<T>(
        &self,
        next: impl Future<Output = T>,
    ) -> (T, Option<OwnedSemaphorePermit>) {
        // Nobody closes it.
        let room = Arc::clone(&self.arrivals).acquire_owned().await.ok();
        (next.await, room)
    }

    /// Takes room for the first message of a peer.
    pub(crate) fn enter(
        &self,
        address: SocketAddr,
        room: Option<OwnedSemaphorePermit>,
    ) -> Result<Arrival, SlotError> {
        let (hellos, now) = (&self.hellos, Instant::now());
        let slot = hellos.displace(address.ip(), Origin::Remote, now)?;
        let room = room.ok_or(SlotError::Full)?;
        Ok(Arrival { slot, _room: room })
    }

    /// Waits for the first message, and gives its room back.
    pub(crate) async fn hello(
        &self,
        stream: &TcpStream,
        arrival: Arrival,
    ) -> Result<Hello, Failure> {
        let hello = timeout(self.limits.hello_timeout, client_hello(stream));
        let mut hello = std::pin::pin!(hello);
        let read = tokio::select! {
            biased;
            read = &mut hello => read,
            () = arrival.slot.displaced() => {
                if !is_unread(stream) {
                    return Err(Failure::Displaced);
                }
                self.late(hello).await?
            }
        };
        Ok(read.map_err(|_| Failure::Late)??)
    }

    /// Waits for the end of a handshake.
    pub(crate) async fn finish(
        &self,
        handshake: Accept<TcpStream>,
        turn: Turn,
    ) -> Result<TlsStream<TcpStream>, Failure> {
        let handshake = timeout(self.limits.handshake_timeout, handshake);
        let mut handshake = std::pin::pin!(handshake);
        let done = tokio::select! {
            biased;
            done = &mut handshake => done,
            () = turn.lost() => {
                let stream = handshake.as_ref().get_ref().get_ref().get_ref();
                if !stream.is_some_and(is_unread) {
                    return Err(Failure::Displaced);
                }
                self.late(handshake).await?
            }
        };
        Ok(done.map_err(|_| Failure::Late)??)
    }

    /// Waits a little longer for a peer that has said more than we have read: it is us who are late.
    async fn late<T>(&self, peer: impl Future<Output = T>) -> Result<T, Failure> {
        let patience: Duration = self.limits.crowded_timeout;
        timeout(patience, peer)
            .await
            .map_err(|_| Failure::Displaced)
    }
}
