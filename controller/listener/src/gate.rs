// SPDX-License-Identifier: Apache-2.0

//! Limits that unknown peers share until an agent is admitted: slots for first messages, turns for
//! handshakes, and slots for connections without an admitted stream.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use futures_util::poll;
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
/// run yet. Beyond it none leave the waiting room, which is cheaper.
const LATE: usize = 256;

/// Limit of connections whose task has not run for the first time. Tasks run in the order in which they began, so that
/// each connection more is work before that of an agent.
const FRESH: usize = 32;

/// The shared limits and their present use.
#[derive(Debug)]
pub(crate) struct Gate {
    pub(crate) limits: Limits,
    pub(crate) turns: Turns,
    /// Connections whose ClientHello is incomplete.
    hellos: ConnectionSlots,
    /// Room for as many connections and [`LATE`] more.
    arrivals: Arc<Semaphore>,
    /// Room for [`FRESH`] tasks.
    fresh: Arc<Semaphore>,
    /// Connections without an admitted stream.
    pub(crate) unadmitted: ConnectionSlots,
}

/// Room for the task of a connection.
#[derive(Debug)]
pub(crate) struct Room {
    _arrival: Option<OwnedSemaphorePermit>,
    /// Until the task has run for the first time.
    fresh: Option<OwnedSemaphorePermit>,
}

/// The slot of a connection while its first message is awaited.
#[derive(Debug)]
pub(crate) struct Arrival {
    slot: Slot,
    room: Room,
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

/// A sixteenth of all connections. Eight of them are for those without an admitted agent: four for those that wait for a
/// task, which is as many as agents come at once from one address, two for those that wait for a turn, and one each
/// for those before and after a handshake. The other half is reserved for admitted agents.
fn sixteenth_of(limits: &Limits) -> usize {
    (limits.connections / 16).max(1)
}

impl Gate {
    pub(crate) fn new(limits: Limits) -> Self {
        let sixteenth = sixteenth_of(&limits);
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
                waiting: 2 * sixteenth,
                patience: limits.crowded_timeout,
            }),
            arrivals: Arc::new(Semaphore::new(sixteenth + LATE)),
            fresh: Arc::new(Semaphore::new(FRESH)),
            hellos: ConnectionSlots::new(slots(sixteenth, limits.hellos_per_source.max(1))),
            unadmitted: ConnectionSlots::new(slots(sixteenth, usize::MAX)),
            limits,
        }
    }

    /// Limit of accepted connections that wait for a task.
    pub(crate) fn waiting_slots(&self) -> usize {
        4 * sixteenth_of(&self.limits)
    }

    /// Awaits room for a connection and then `next`. Returns the output of `next` with the room. Cancel safe if `next`
    /// is.
    pub(crate) async fn room_then<T>(&self, next: impl Future<Output = T>) -> (T, Room) {
        // The semaphores are never closed.
        let room = Room {
            _arrival: Arc::clone(&self.arrivals).acquire_owned().await.ok(),
            fresh: Arc::clone(&self.fresh).acquire_owned().await.ok(),
        };
        (next.await, room)
    }

    /// Takes a slot for the first message of a peer.
    pub(crate) fn enter(&self, address: SocketAddr, room: Room) -> Result<Arrival, SlotError> {
        let (hellos, now) = (&self.hellos, Instant::now());
        let slot = hellos.displace(address.ip(), Origin::Remote, now)?;
        Ok(Arrival { slot, room })
    }

    /// Waits for the first message, and releases its slot.
    pub(crate) async fn hello(
        &self,
        stream: &TcpStream,
        mut arrival: Arrival,
    ) -> Result<Hello, Failure> {
        let hello = timeout(self.limits.hello_timeout, client_hello(stream));
        let mut hello = std::pin::pin!(hello);
        if let Poll::Ready(read) = poll!(&mut hello) {
            return Ok(read.map_err(|_| Failure::Late)??);
        }
        drop(arrival.room.fresh.take());
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
