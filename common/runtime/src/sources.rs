// SPDX-License-Identifier: Apache-2.0

//! A bounded number of connection slots, shared fairly between the sources of connections.
//!
//! A source is an IPv4 address or an IPv6 network of 64 bits. There is no I/O and no clock here: callers
//! pass the address and the time, and release a slot by dropping it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_util::sync::{
    CancellationToken, WaitForCancellationFuture, WaitForCancellationFutureOwned,
};

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

    /// Whether another connection has displaced this one.
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

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Holder {
    Own,
    Remote(Source),
}

impl Holder {
    fn new(peer: IpAddr, origin: Origin) -> Self {
        match origin {
            Origin::Own => Self::Own,
            Origin::Remote => Self::Remote(peer.into()),
        }
    }
}

/// Slots by number: the lowest is the oldest.
type Slots = BTreeMap<u64, CancellationToken>;

#[derive(Debug)]
struct SourceEntry {
    slots: Slots,
    /// Tokens at the time `at`.
    tokens: f64,
    at: Instant,
}

impl SourceEntry {
    /// The key in [`State::order`].
    fn rank(&self, source: Source) -> Option<Rank> {
        let (oldest, _) = self.slots.first_key_value()?;
        Some((self.slots.len(), Reverse(*oldest), source))
    }

    fn tokens(&self, rate: Rate, now: Instant) -> f64 {
        let passed = now.saturating_duration_since(self.at).as_secs_f64();
        (self.tokens + passed * f64::from(rate.per_second)).min(f64::from(rate.burst))
    }

    fn is_rested(&self, rate: Option<Rate>, now: Instant) -> bool {
        rate.is_none_or(|rate| self.tokens(rate, now) >= f64::from(rate.burst))
    }
}

type Rank = (usize, Reverse<u64>, Source);

#[derive(Debug, Default)]
struct State {
    own: Slots,
    /// All sources with a slot, and those that are remembered for their rate.
    sources: HashMap<Source, SourceEntry>,
    /// ConnectionSlots with a slot. The last one has the most, or the oldest of those with as many.
    order: BTreeSet<Rank>,
    remote: usize,
    /// The number of the next slot.
    next: u64,
}

impl State {
    fn taken(&self) -> usize {
        self.remote + self.own.len()
    }

    /// Checks that a slot is available. The error names the holder to displace, if any.
    fn check(
        &self,
        holder: Holder,
        limits: &SlotLimits,
    ) -> Result<(), (SlotError, Option<Holder>)> {
        let most = self
            .order
            .last()
            .map(|(_, _, source)| Holder::Remote(*source));
        let is_full = self.taken() >= limits.slots;
        match holder {
            Holder::Own if is_full => {
                let own = (!self.own.is_empty()).then_some(Holder::Own);
                Err((SlotError::Full, most.or(own)))
            }
            Holder::Own => Ok(()),
            Holder::Remote(source) => {
                let entry = self.sources.get(&source);
                let own = entry.map_or(0, |entry| entry.slots.len());
                let for_remote = limits.slots.saturating_sub(limits.reserve);
                if own >= limits.per_source {
                    Err((SlotError::Source, (own > 0).then_some(holder)))
                } else if is_full || self.remote >= for_remote {
                    Err((SlotError::Full, most))
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Displaces the oldest slot of a holder.
    fn displace(&mut self, holder: Holder) -> Option<()> {
        let slots = match holder {
            Holder::Own => &self.own,
            Holder::Remote(source) => &self.sources.get(&source)?.slots,
        };
        let (oldest, displaced) = slots.first_key_value()?;
        let (oldest, displaced) = (*oldest, displaced.clone());
        self.take_out(holder, oldest);
        displaced.cancel();
        Some(())
    }

    fn add(&mut self, holder: Holder, displaced: CancellationToken, now: Instant) -> u64 {
        let number = self.next;
        self.next += 1;
        let Holder::Remote(source) = holder else {
            self.own.insert(number, displaced);
            return number;
        };
        let entry = self.sources.entry(source).or_insert_with(|| SourceEntry {
            slots: Slots::new(),
            tokens: 0.0,
            at: now,
        });
        if let Some(rank) = entry.rank(source) {
            self.order.remove(&rank);
        }
        entry.slots.insert(number, displaced);
        self.order.extend(entry.rank(source));
        self.remote += 1;
        number
    }

    fn take_out(&mut self, holder: Holder, number: u64) {
        let Holder::Remote(source) = holder else {
            self.own.remove(&number);
            return;
        };
        let Some(entry) = self.sources.get_mut(&source) else {
            return;
        };
        let rank = entry.rank(source);
        if entry.slots.remove(&number).is_some() {
            self.remote -= 1;
            if let Some(rank) = rank {
                self.order.remove(&rank);
            }
            self.order.extend(entry.rank(source));
        }
    }

    /// Releases a slot.
    fn remove(&mut self, holder: Holder, number: u64, rate: Option<Rate>) {
        self.take_out(holder, number);
        let Holder::Remote(source) = holder else {
            return;
        };
        let entry = self.sources.get(&source);
        // A source without a rate is not remembered.
        if rate.is_none() && entry.is_some_and(|entry| entry.slots.is_empty()) {
            self.sources.remove(&source);
        }
    }

    fn spend(
        &mut self,
        source: Source,
        limits: &SlotLimits,
        now: Instant,
    ) -> Result<(), SlotError> {
        let Some(rate) = limits.rate else {
            return Ok(());
        };
        if !self.sources.contains_key(&source) {
            self.forget(limits, now);
        }
        let entry = self.sources.entry(source).or_insert_with(|| SourceEntry {
            slots: Slots::new(),
            tokens: f64::from(rate.burst),
            at: now,
        });
        entry.tokens = entry.tokens(rate, now);
        entry.at = entry.at.max(now);
        if entry.tokens < 1.0 {
            return Err(SlotError::Rate);
        }
        entry.tokens -= 1.0;
        Ok(())
    }

    /// Makes room to remember one more source: forgets sources without a slot that have all their tokens,
    /// and the older half of the others, so that this is rare.
    fn forget(&mut self, limits: &SlotLimits, now: Instant) {
        let idle = self.sources.len() - self.order.len();
        if idle < limits.remembered.max(1) {
            return;
        }
        let is_idle = |entry: &SourceEntry| entry.slots.is_empty();
        self.sources
            .retain(|_, entry| !is_idle(entry) || !entry.is_rested(limits.rate, now));
        let mut ages: Vec<_> = self
            .sources
            .values()
            .filter(|entry| is_idle(entry))
            .collect();
        if ages.len() <= limits.remembered / 2 {
            return;
        }
        ages.sort_by_key(|entry| entry.at);
        let Some(newest) = ages
            .get(ages.len() - limits.remembered / 2 - 1)
            .map(|e| e.at)
        else {
            return;
        };
        self.sources
            .retain(|_, entry| !is_idle(entry) || entry.at > newest);
    }
}

#[cfg(test)]
mod tests;
