// SPDX-License-Identifier: Apache-2.0

//! Bounds: how many connections and flows there are at once, in total and of one client.
//!
//! Connections wait for a place. A datagram cannot wait: its flow takes the place of the one that was silent for
//! longest. Flows have places of their own, so that a burst of them leaves those of connections.

use std::net::IpAddr;
use std::time::Duration;

use portolan_runtime::{ConnectionSlots, Origin, Slot, SlotError, SlotLimits};
use rustix::process::{Resource, getrlimit};
use tokio::sync::watch;
use tokio::time::Instant;

/// Descriptors of a connection: its own, and that of its endpoint.
const EACH: u64 = 2;

/// Of the descriptors, one in this many is for a flow, which has only the socket of its endpoint.
const FLOWS: u64 = 4;

/// The most flows: each has a local port, of which kernels give 28,232 by default.
const MOST_FLOWS: u64 = 16_384;

/// The use of a flow is noted no more often.
const NOTED: Duration = Duration::from_secs(1);

/// The limit of descriptors that is assumed where there is none.
const MANY: u64 = 1 << 20;

/// Places for connections and flows. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Limits {
    connections: ConnectionSlots,
    total: usize,
    flows: ConnectionSlots,
    /// Changes whenever a place becomes free.
    freed: watch::Sender<()>,
}

/// A connection's place.
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

    pub(crate) fn new(descriptors: u64) -> Self {
        let usable = descriptors * 9 / 10;
        let flows = (usable / FLOWS).min(MOST_FLOWS);
        let [total, flows] = [(usable - flows) / EACH, flows]
            .map(|places| usize::try_from(places).unwrap_or(usize::MAX).max(1));
        Self {
            connections: slots(total),
            total,
            flows: slots(flows),
            freed: watch::Sender::default(),
        }
    }

    /// Waits until there is room for one more: connections stay in the kernel's queue meanwhile.
    pub(crate) async fn room(&self) {
        let mut freed = self.freed.subscribe();
        while self.connections.taken() >= self.total {
            if freed.changed().await.is_err() {
                return;
            }
        }
    }

    /// Takes a place for a client that has connected to `local`.
    pub(crate) fn enter(&self, client: IpAddr, local: IpAddr) -> Result<Place, SlotError> {
        let origin = Origin::of(client, local);
        let slot = self
            .connections
            .enter(client, origin, Instant::now().into_std())?;
        Ok(Place {
            _slot: Released(Some(slot)),
            freed: self.freed.clone(),
        })
    }

    /// Takes a place for a flow of a client that has sent to `local`, if necessary that of another flow.
    pub(crate) fn enter_flow(&self, client: IpAddr, local: IpAddr) -> Result<FlowPlace, SlotError> {
        let (origin, now) = (Origin::of(client, local), Instant::now());
        let slot = self.flows.displace(client, origin, now.into_std())?;
        Ok(FlowPlace {
            slots: self.flows.clone(),
            client,
            origin,
            slot: Some(slot),
            noted: now,
        })
    }
}

fn slots(total: usize) -> ConnectionSlots {
    ConnectionSlots::new(SlotLimits {
        slots: total,
        reserve: 0,
        // One client elsewhere leaves room for another.
        per_source: (total / 4).max(1),
        rate: None,
        remembered: 0,
    })
}

/// A flow's place.
#[derive(Debug)]
pub(crate) struct FlowPlace {
    slots: ConnectionSlots,
    client: IpAddr,
    origin: Origin,
    /// `None` once another flow has it.
    slot: Option<Slot>,
    noted: Instant,
}

impl FlowPlace {
    /// Completes when another flow has the place: this one should end.
    pub(crate) async fn displaced(&self) {
        if let Some(slot) = &self.slot {
            slot.displaced().await;
        }
    }

    /// Notes that the flow is in use: others are displaced first.
    pub(crate) fn used(&mut self) {
        let now = Instant::now();
        let is_displaced = self.slot.as_ref().is_none_or(Slot::is_displaced);
        if is_displaced || now < self.noted + NOTED {
            return;
        }
        // The oldest is displaced first. It becomes the youngest, in the room that it leaves itself.
        self.slot = None;
        let again = self
            .slots
            .displace(self.client, self.origin, now.into_std());
        (self.slot, self.noted) = (again.ok(), now);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn accepting_waits_for_a_place_and_one_client_leaves_room() {
        // Nine of ten descriptors, a quarter of them for flows, two for each connection.
        let limits = Limits::new(27);
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

    #[tokio::test(start_paused = true)]
    async fn the_flow_that_was_silent_for_longest_gives_its_place() {
        // A quarter of nine descriptors is two.
        let limits = Limits::new(10);
        let local = "10.96.0.10".parse().unwrap();
        let enter = || limits.enter_flow(local, local).unwrap();
        let (mut first, second) = (enter(), enter());
        tokio::time::advance(NOTED).await;
        first.used();
        let third = enter();
        second.displaced().await;
        let lasts = async |place: &FlowPlace| {
            let displaced = tokio::time::timeout(NOTED, place.displaced());
            assert!(displaced.await.is_err());
        };
        lasts(&first).await;
        lasts(&third).await;
        // Its place is lost for ever.
        let mut second = second;
        second.used();
        second.displaced().await;
        lasts(&first).await;
        // Connections have places of their own.
        limits.enter(local, local).unwrap();
    }

    #[test]
    fn flows_are_bounded_by_local_ports() {
        for (descriptors, flows) in [(0, 1), (1024, 230), (MANY, 16_384)] {
            let limits = Limits::new(descriptors);
            let entered = (0..flows + 1).map(|n: u32| {
                let client = IpAddr::V4(n.into());
                limits
                    .flows
                    .enter(client, Origin::Remote, std::time::Instant::now())
            });
            let entered: Vec<_> = entered.filter_map(Result::ok).collect();
            assert_eq!(
                entered.len(),
                usize::try_from(flows).unwrap(),
                "{descriptors}"
            );
        }
    }
}
