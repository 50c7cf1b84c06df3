// SPDX-License-Identifier: Apache-2.0

//! Limits that unknown peers share until an agent is admitted: slots for first messages, turns for
//! handshakes, and slots for connections without an admitted stream.

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

/// Limit of connections that were displaced, or have a complete ClientHello, but whose task has not
/// run yet. Beyond it none are accepted, as the kernel's queue is cheaper.
const LATE: usize = 256;

/// The shared limits and their present use.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) limits: Limits,
    pub(crate) turns: Turns,
    /// Connections whose ClientHello is incomplete.
    hellos: ConnectionSlots,
    /// Room for as many connections and [`LATE`] more.
    arrivals: Arc<Semaphore>,
    /// Connections without an admitted stream.
    pub(crate) unadmitted: ConnectionSlots,
}

/// The slot of a connection while its first message is awaited.
#[derive(Debug)]
pub(crate) struct Arrival {
    slot: Slot,
    _room: OwnedSemaphorePermit,
}

/// Reason of a failed handshake.
#[derive(Debug)]
pub(crate) enum Failure {
    Io(io::Error),
    /// The handshake took too long.
    Late,
    /// The handshake took long, and others needed its slot or turn.
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
        // Half of all connections are reserved for admitted agents.
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

    /// Awaits room for a connection and then `next`. Returns the output of `next` with the permit
    /// of the room. Cancel safe if `next` is.
    pub(crate) async fn room_then<T>(
        &self,
        next: impl Future<Output = T>,
    ) -> (T, Option<OwnedSemaphorePermit>) {
        // The semaphore is never closed.
        let room = Arc::clone(&self.arrivals).acquire_owned().await.ok();
        (next.await, room)
    }

    /// Takes a slot for the first message of a peer.
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

    /// Waits for the first message, and releases its slot.
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

    /// Waits a little longer for a peer that has sent data not read yet: the delay is not its own.
    async fn late<T>(&self, peer: impl Future<Output = T>) -> Result<T, Failure> {
        let patience: Duration = self.limits.crowded_timeout;
        timeout(patience, peer)
            .await
            .map_err(|_| Failure::Displaced)
    }
}
