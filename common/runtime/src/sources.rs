// SPDX-License-Identifier: Apache-2.0

//! A bounded number of connection slots, shared fairly between the sources of connections.
//!
//! A source is an IPv4 address or an IPv6 network of 64 bits. There is no I/O and no clock here: callers
//! pass the address and the time, and release a slot by dropping it.

mod state;

use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_util::sync::{
    CancellationToken, WaitForCancellationFuture, WaitForCancellationFutureOwned,
};

use state::{Holder, State};

/// Limits of slots.
#[derive(Debug, Clone)]
pub struct SlotLimits {
    /// Number of slots.
    pub slots: usize,
    /// Number of slots reserved for [`Origin::Own`].
    pub reserve: usize,
    /// Limit of slots of one remote source.
    pub per_source: usize,
    /// Rate limit of one remote source, if any.
    pub rate: Option<Rate>,
    /// Number of sources without a slot whose rate is remembered. The most recent ones are kept.
    pub remembered: usize,
}

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Tokens added each second.
    pub per_second: u32,
    /// Limit of saved tokens.
    pub burst: u32,
}

/// Whether a connection comes from this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// From this machine: limited by the number of all slots only.
    Own,
    /// From elsewhere.
    Remote,
}

impl Origin {
    /// The origin of a connection between two addresses. It is this machine if the peer's address is
    /// loopback, or the address that it connected to: the kernel drops packets from the network with
    /// such a source.
    #[must_use]
    pub fn of(peer: IpAddr, local: IpAddr) -> Self {
        let (peer, local) = (peer.to_canonical(), local.to_canonical());
        if peer.is_loopback() || peer == local {
            Self::Own
        } else {
            Self::Remote
        }
    }
}

/// The reason why no slot is available.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SlotError {
    /// All slots are in use.
    #[error("too many connections")]
    Full,
    /// The source uses all slots that it may have.
    #[error("too many connections from this source")]
    Source,
    /// The source exceeds its rate.
    #[error("connections from this source are too frequent")]
    Rate,
}

/// Slots and their holders. Clones share them.
#[derive(Debug, Clone)]
pub struct ConnectionSlots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: SlotLimits,
    state: Mutex<State>,
}

/// A slot in use. Dropping it releases it.
#[derive(Debug)]
pub struct Slot {
    sources: ConnectionSlots,
    holder: Holder,
    number: u64,
    displaced: CancellationToken,
}

impl ConnectionSlots {
    /// Creates slots, all of them free.
    #[must_use]
    pub fn new(limits: SlotLimits) -> Self {
        let state = Mutex::default();
        Self(Arc::new(Shared { limits, state }))
    }

    /// Acquires a slot.
    ///
    /// # Errors
    /// If none is available.
    pub fn enter(&self, peer: IpAddr, origin: Origin, now: Instant) -> Result<Slot, SlotError> {
        self.acquire(peer, origin, now, false)
    }

    /// Acquires a slot, if necessary by [displacing](Slot::displaced) another connection: the oldest of
    /// the same source if that has too many, else the oldest of the source with the most. Connections of
    /// this machine are displaced only by each other.
    ///
    /// # Errors
    /// If the source exceeds its rate, or if a remote connection would displace one of this machine.
    pub fn displace(&self, peer: IpAddr, origin: Origin, now: Instant) -> Result<Slot, SlotError> {
        self.acquire(peer, origin, now, true)
    }

    /// Takes a token of a source's rate without a slot, for work that has a cost of its own.
    ///
    /// # Errors
    /// If the source has no token left.
    pub fn spend(&self, peer: IpAddr, origin: Origin, now: Instant) -> Result<(), SlotError> {
        match Holder::new(peer, origin) {
            Holder::Own => Ok(()),
            Holder::Remote(source) => self.state().spend(source, &self.0.limits, now),
        }
    }

    /// The number of slots in use.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.state().taken()
    }

    fn acquire(
        &self,
        peer: IpAddr,
        origin: Origin,
        now: Instant,
        displace: bool,
    ) -> Result<Slot, SlotError> {
        let (limits, mut state) = (&self.0.limits, self.state());
        let holder = Holder::new(peer, origin);
        if let Holder::Remote(source) = holder {
            state.spend(source, limits, now)?;
        }
        while let Err((reason, victim)) = state.check(holder, limits) {
            let victim = victim.filter(|_| displace).ok_or(reason)?;
            state.displace(victim).ok_or(reason)?;
        }
        let displaced = CancellationToken::new();
        let number = state.add(holder, displaced.clone(), now);
        drop(state);
        Ok(Slot {
            sources: self.clone(),
            holder,
            number,
            displaced,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let state = self.0.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    /// Completes when another connection has displaced this one, which should then end: its slot is no
    /// longer counted.
    pub fn displaced(&self) -> WaitForCancellationFuture<'_> {
        self.displaced.cancelled()
    }

    /// As [`displaced`](Self::displaced), without borrowing the slot.
    pub fn displaced_owned(&self) -> WaitForCancellationFutureOwned {
        self.displaced.clone().cancelled_owned()
    }

    /// Returns `true` if another connection has displaced this one.
    #[must_use]
    pub fn is_displaced(&self) -> bool {
        self.displaced.is_cancelled()
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let rate = self.sources.0.limits.rate;
        self.sources.state().remove(self.holder, self.number, rate);
    }
}

/// An IPv4 address, or an IPv6 network of 64 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Source(IpAddr);

impl From<IpAddr> for Source {
    fn from(ip: IpAddr) -> Self {
        match ip.to_canonical() {
            IpAddr::V6(ip) => Self(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64).into()),
            ip => Self(ip),
        }
    }
}

#[cfg(test)]
mod tests;
