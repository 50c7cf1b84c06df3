// SPDX-License-Identifier: Apache-2.0

//! Holders of slots, by source.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::time::Instant;

use tokio_util::sync::CancellationToken;

use super::{Origin, Rate, SlotError, SlotLimits, Source};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Holder {
    Own,
    Remote(Source),
}

impl Holder {
    pub(super) fn new(peer: IpAddr, origin: Origin) -> Self {
        match origin {
            Origin::Own => Self::Own,
            Origin::Remote => Self::Remote(peer.into()),
        }
    }
}

/// Slots by number: the lowest is the oldest.
type Slots = BTreeMap<u64, CancellationToken>;

#[derive(Debug)]
pub(super) struct SourceEntry {
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

pub(super) type Rank = (usize, Reverse<u64>, Source);

#[derive(Debug, Default)]
pub(super) struct State {
    own: Slots,
    /// All sources with a slot, and those that are remembered for their rate.
    pub(super) sources: HashMap<Source, SourceEntry>,
    /// ConnectionSlots with a slot. The last one has the most, or the oldest of those with as many.
    pub(super) order: BTreeSet<Rank>,
    remote: usize,
    /// The number of the next slot.
    next: u64,
}

impl State {
    pub(super) fn taken(&self) -> usize {
        self.remote + self.own.len()
    }

    /// Checks that a slot is available. The error names the holder to displace, if any.
    pub(super) fn check(
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
    pub(super) fn displace(&mut self, holder: Holder) -> Option<()> {
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

    pub(super) fn add(
        &mut self,
        holder: Holder,
        displaced: CancellationToken,
        now: Instant,
    ) -> u64 {
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
    pub(super) fn remove(&mut self, holder: Holder, number: u64, rate: Option<Rate>) {
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

    pub(super) fn spend(
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
