// SPDX-License-Identifier: Apache-2.0

//! Bounds: how many connections and flows there are at once, in total and of one client.

use std::net::IpAddr;

use portolan_runtime::{ConnectionSlots, Origin, Slot, SlotError, SlotLimits};
use rustix::process::{Resource, getrlimit};
use tokio::sync::watch;
use tokio::time::Instant;

/// Descriptors of a connection: its own, and that of its endpoint.
const EACH: u64 = 2;

/// The limit of descriptors that is assumed where there is none.
const MANY: u64 = 1 << 20;

/// Places for connections and flows. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    slots: ConnectionSlots,
    total: usize,
    /// Changes whenever a place becomes free.
    freed: watch::Sender<()>,
}

/// A place in use.
#[derive(Debug)]
pub(crate) struct Place {
    /// Released first.
    _slot: Released,
    freed: watch::Sender<()>,
}

#[derive(Debug)]
struct Released(Option<Slot>);

impl Drop for Place {
    fn drop(&mut self) {
        self._slot.0 = None;
        self.freed.send_replace(());
    }
}

impl Limits {
    /// Places for 90 % of the descriptors that this process may have.
    pub(crate) fn of_process() -> Self {
        let descriptors = getrlimit(Resource::Nofile)
            .current
            .unwrap_or(MANY)
            .min(MANY);
        Self::new(descriptors)
    }

    fn new(descriptors: u64) -> Self {
        let total = usize::try_from(descriptors * 9 / 10 / EACH)
            .unwrap_or(usize::MAX)
            .max(1);
        let limits = SlotLimits {
            slots: total,
            reserve: 0,
            // One client elsewhere leaves room for another.
            per_source: (total / 4).max(1),
            rate: None,
            remembered: 0,
        };
        Self {
            slots: ConnectionSlots::new(limits),
            total,
            freed: watch::Sender::default(),
        }
    }

    /// Waits until there is room for one more: connections stay in the kernel's queue meanwhile.
    pub(crate) async fn room(&self) {
        let mut freed = self.freed.subscribe();
        while self.slots.taken() >= self.total {
            if freed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Takes a place for a client that has connected to `local`.
    pub(crate) fn enter(&self, client: IpAddr, local: IpAddr) -> Result<Place, SlotError> {
        let origin = Origin::of(client, local);
        let slot = self
            .slots
            .enter(client, origin, Instant::now().into_std())?;
        Ok(Place {
            _slot: Released(Some(slot)),
            freed: self.freed.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn accepting_waits_for_a_place_and_one_client_leaves_room() {
        // Nine of ten descriptors, two for each connection.
        let limits = Limits::new(20);
        assert_eq!(limits.total, 9);
        let [here, there, other] =
            ["127.0.0.1", "192.0.2.1", "192.0.2.2"].map(|ip| ip.parse::<IpAddr>().unwrap());
        let local = "10.96.0.1".parse().unwrap();
        let held: Vec<_> = (0..2)
            .map(|_| limits.enter(there, local).unwrap())
            .collect();
        assert_eq!(limits.enter(there, local).unwrap_err(), SlotError::Source);
        let more = limits.enter(other, local).unwrap();
        let mut own: Vec<_> = (0..6).map(|_| limits.enter(here, local).unwrap()).collect();
        assert_eq!(limits.enter(here, local).unwrap_err(), SlotError::Full);
        let second = Duration::from_secs(1);
        assert!(tokio::time::timeout(second, limits.room()).await.is_err());
        let waiting = tokio::spawn({
            let limits = limits.clone();
            async move { limits.room().await }
        });
        tokio::task::yield_now().await;
        own.pop();
        waiting.await.unwrap();
        drop((held, more));
    }
}
