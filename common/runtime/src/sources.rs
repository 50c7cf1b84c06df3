//! A bounded number of places for connections, shared fairly between the sources they come from.
//!
//! A source is an IPv4 address or an IPv6 network of 64 bits. There is no I/O and no clock here:
//! callers say who comes and when, and give a place back by dropping it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use tokio_util::sync::{
    CancellationToken, WaitForCancellationFuture, WaitForCancellationFutureOwned,
};

/// How many places there are, and for whom.
#[derive(Debug, Clone)]
pub struct SourceLimits {
    /// Places in all.
    pub places: usize,
    /// How many of them only [`Origin::Own`] can have.
    pub reserve: usize,
    /// How many of them one remote source can have.
    pub per_source: usize,
    /// How often one remote source can come; without it, any number of times.
    pub rate: Option<Rate>,
    /// How many sources without a place are remembered for their rate. The ones that came last are
    /// kept.
    pub remembered: usize,
}

/// A token bucket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Tokens that a source gets each second.
    pub per_second: u32,
    /// Tokens that a source can save.
    pub burst: u32,
}

/// Whether a connection comes from this machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Origin {
    /// From this machine. Only the number of all places limits it.
    Own,
    /// From elsewhere.
    Remote,
}

impl Origin {
    /// The origin of a connection between two addresses. It is our own if the peer's address is
    /// loopback, or the address that it connected to: the kernel drops packets from elsewhere that
    /// claim either.
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

/// Why there is no place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum NoPlace {
    /// All places are taken.
    #[error("too many connections")]
    Full,
    /// The source has all the places that it can have.
    #[error("too many connections from this source")]
    Source,
    /// The source comes too often.
    #[error("connections from this source come too often")]
    Rate,
}

/// Places, and who has them. Clones share them.
#[derive(Debug, Clone)]
pub struct Sources(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    limits: SourceLimits,
    state: Mutex<State>,
}

/// A place. Dropping it gives it back.
#[derive(Debug)]
pub struct Place {
    sources: Sources,
    holder: Holder,
    number: u64,
    displaced: CancellationToken,
}

impl Sources {
    /// All places are free.
    #[must_use]
    pub fn new(limits: SourceLimits) -> Self {
        let state = Mutex::default();
        Self(Arc::new(Shared { limits, state }))
    }

    /// Takes a place.
    ///
    /// # Errors
    /// If there is none.
    pub fn enter(&self, peer: IpAddr, origin: Origin, now: Instant) -> Result<Place, NoPlace> {
        self.take(peer, origin, now, false)
    }

    /// Takes a place, also if that makes another connection [lose](Place::displaced) its own: the
    /// oldest of the same source if that has too many, else the oldest of the source with the most.
    /// Our own connections lose theirs only to each other.
    ///
    /// # Errors
    /// If the source comes too often, or a remote connection finds only our own.
    pub fn displace(&self, peer: IpAddr, origin: Origin, now: Instant) -> Result<Place, NoPlace> {
        self.take(peer, origin, now, true)
    }

    /// Takes a token of a source's rate, and no place: for work that has a cost of its own.
    ///
    /// # Errors
    /// If the source has no token left.
    pub fn spend(&self, peer: IpAddr, origin: Origin, now: Instant) -> Result<(), NoPlace> {
        match Holder::new(peer, origin) {
            Holder::Own => Ok(()),
            Holder::Remote(source) => self.state().spend(source, &self.0.limits, now),
        }
    }

    /// How many places are taken.
    #[must_use]
    pub fn taken(&self) -> usize {
        self.state().taken()
    }

    fn take(
        &self,
        peer: IpAddr,
        origin: Origin,
        now: Instant,
        displace: bool,
    ) -> Result<Place, NoPlace> {
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
        Ok(Place {
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

impl Place {
    /// Completes when the place is lost to another connection. The holder then ends soon: its place
    /// is no longer counted.
    pub fn displaced(&self) -> WaitForCancellationFuture<'_> {
        self.displaced.cancelled()
    }

    /// The same, for a holder that keeps the future beside the place.
    pub fn displaced_owned(&self) -> WaitForCancellationFutureOwned {
        self.displaced.clone().cancelled_owned()
    }

    /// Whether the place is lost to another connection.
    #[must_use]
    pub fn is_displaced(&self) -> bool {
        self.displaced.is_cancelled()
    }
}

impl Drop for Place {
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

/// Places by number: the lowest is the oldest.
type Places = BTreeMap<u64, CancellationToken>;

#[derive(Debug)]
struct Entry {
    places: Places,
    /// Tokens at a time.
    tokens: f64,
    at: Instant,
}

impl Entry {
    /// Its key in [`State::order`].
    fn rank(&self, source: Source) -> Option<Rank> {
        let (oldest, _) = self.places.first_key_value()?;
        Some((self.places.len(), Reverse(*oldest), source))
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
    own: Places,
    /// All sources with a place, and those that are remembered for their rate.
    sources: HashMap<Source, Entry>,
    /// Sources with a place. The last one has the most, or the oldest of those with as many.
    order: BTreeSet<Rank>,
    remote: usize,
    /// The number of the next place.
    next: u64,
}

impl State {
    fn taken(&self) -> usize {
        self.remote + self.own.len()
    }

    /// Why there is no place, and who could make room.
    fn check(
        &self,
        holder: Holder,
        limits: &SourceLimits,
    ) -> Result<(), (NoPlace, Option<Holder>)> {
        let most = self
            .order
            .last()
            .map(|(_, _, source)| Holder::Remote(*source));
        let is_full = self.taken() >= limits.places;
        match holder {
            Holder::Own if is_full => {
                let own = (!self.own.is_empty()).then_some(Holder::Own);
                Err((NoPlace::Full, most.or(own)))
            }
            Holder::Own => Ok(()),
            Holder::Remote(source) => {
                let entry = self.sources.get(&source);
                let own = entry.map_or(0, |entry| entry.places.len());
                let for_remote = limits.places.saturating_sub(limits.reserve);
                if own >= limits.per_source {
                    Err((NoPlace::Source, (own > 0).then_some(holder)))
                } else if is_full || self.remote >= for_remote {
                    Err((NoPlace::Full, most))
                } else {
                    Ok(())
                }
            }
        }
    }

    /// Takes a holder's oldest place away.
    fn displace(&mut self, holder: Holder) -> Option<()> {
        let places = match holder {
            Holder::Own => &self.own,
            Holder::Remote(source) => &self.sources.get(&source)?.places,
        };
        let (oldest, displaced) = places.first_key_value()?;
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
        let entry = self.sources.entry(source).or_insert_with(|| Entry {
            places: Places::new(),
            tokens: 0.0,
            at: now,
        });
        if let Some(rank) = entry.rank(source) {
            self.order.remove(&rank);
        }
        entry.places.insert(number, displaced);
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
        if entry.places.remove(&number).is_some() {
            self.remote -= 1;
            if let Some(rank) = rank {
                self.order.remove(&rank);
            }
            self.order.extend(entry.rank(source));
        }
    }

    /// A place is given back.
    fn remove(&mut self, holder: Holder, number: u64, rate: Option<Rate>) {
        self.take_out(holder, number);
        let Holder::Remote(source) = holder else {
            return;
        };
        let entry = self.sources.get(&source);
        // A source without a rate is not remembered.
        if rate.is_none() && entry.is_some_and(|entry| entry.places.is_empty()) {
            self.sources.remove(&source);
        }
    }

    fn spend(
        &mut self,
        source: Source,
        limits: &SourceLimits,
        now: Instant,
    ) -> Result<(), NoPlace> {
        let Some(rate) = limits.rate else {
            return Ok(());
        };
        if !self.sources.contains_key(&source) {
            self.forget(limits, now);
        }
        let entry = self.sources.entry(source).or_insert_with(|| Entry {
            places: Places::new(),
            tokens: f64::from(rate.burst),
            at: now,
        });
        entry.tokens = entry.tokens(rate, now);
        entry.at = entry.at.max(now);
        if entry.tokens < 1.0 {
            return Err(NoPlace::Rate);
        }
        entry.tokens -= 1.0;
        Ok(())
    }

    /// Makes room for one more source: forgets those without a place whose rate is of no account,
    /// and the older half of the others, so that this is not needed again soon.
    fn forget(&mut self, limits: &SourceLimits, now: Instant) {
        let idle = self.sources.len() - self.order.len();
        if idle < limits.remembered.max(1) {
            return;
        }
        let is_idle = |entry: &Entry| entry.places.is_empty();
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
