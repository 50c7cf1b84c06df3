// SPDX-License-Identifier: Apache-2.0

//! One way with its present lists, as its listener and its connections see it.

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ipnet::IpNet;
use portolan_nftables::{List, Way as Desired};
use tokio::time::Instant;

use crate::choose::Chooser;
use crate::service::{Lease, Service};

/// One way. Its lists are replaced while its listener goes on.
#[derive(Debug)]
pub(crate) struct Way(Mutex<State>);

#[derive(Debug)]
struct State {
    service: Arc<Service>,
    list: List,
    ranges: Vec<IpNet>,
    affinity: Option<Duration>,
    chooser: Chooser,
}

/// Choice for a connection.
#[derive(Debug)]
pub(crate) enum Choice {
    /// It goes to this endpoint.
    To(SocketAddr, Lease),
    /// It is closed: other nodes have endpoints.
    Drop,
    /// It is refused: nobody has one.
    Refuse,
}

impl Way {
    pub(crate) fn new(service: &Arc<Service>, desired: &Desired) -> Self {
        let this = Self(Mutex::new(State {
            service: Arc::clone(service),
            list: List::Refuse,
            ranges: Vec::new(),
            affinity: None,
            chooser: Chooser::default(),
        }));
        this.set(service, desired);
        this
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Replaces everything at once; returns whether anything differs. All clients are of this machine, so that the list
    /// for those is the one that counts.
    pub(crate) fn set(&self, service: &Arc<Service>, desired: &Desired) -> bool {
        let affinity = desired.affinity.map(|s| Duration::from_secs(s.into()));
        let state = &mut *self.state();
        let same = Arc::ptr_eq(service, &state.service)
            && (&desired.inside, &desired.ranges) == (&state.list, &state.ranges)
            && affinity == state.affinity;
        if same {
            return false;
        }
        if desired.inside != state.list {
            let destinations = match &desired.inside {
                List::To(destinations) => &destinations[..],
                List::Drop | List::Refuse => &[],
            };
            let first = fastrand::usize(..);
            state.chooser.replace(destinations, first);
            state.list = desired.inside.clone();
        }
        state.service = Arc::clone(service);
        state.ranges.clone_from(&desired.ranges);
        state.affinity = affinity;
        true
    }

    /// Returns `true` if one of a client's addresses is in the permitted ranges.
    pub(crate) fn permits(&self, addresses: &[IpAddr]) -> bool {
        let ranges = &self.state().ranges;
        let contains = |ip: &IpAddr| ranges.iter().any(|range| range.contains(ip));
        ranges.is_empty() || addresses.iter().any(contains)
    }

    /// Chooses an endpoint for a client. A remembered one that was tried without success is forgotten.
    pub(crate) fn choose(&self, client: IpAddr, tried: &[SocketAddr]) -> Choice {
        let (state, now) = (&mut *self.state(), Instant::now());
        match &state.list {
            List::Drop => return Choice::Drop,
            List::Refuse => return Choice::Refuse,
            List::To(_) => {}
        }
        let remembered = state
            .affinity
            .and_then(|_| state.service.remembered(client, now));
        let remembered = remembered.filter(|e| state.chooser.has(*e) && !tried.contains(e));
        let chosen = remembered.or_else(|| state.chooser.next(tried, now.into_std()));
        let Some(endpoint) = chosen else {
            return Choice::Refuse;
        };
        if let Some(timeout) = state.affinity {
            state.service.remember(client, endpoint, timeout, now);
        }
        Choice::To(endpoint, state.service.lease(endpoint))
    }

    /// Notes that an endpoint was not reached for a client.
    pub(crate) fn failed(&self, client: IpAddr, endpoint: SocketAddr) {
        let state = &mut *self.state();
        state.chooser.failed(endpoint, Instant::now().into_std());
        if state.service.remembered(client, Instant::now()) == Some(endpoint) {
            state.service.forget(client);
        }
    }

    /// Notes that an endpoint was reached.
    pub(crate) fn reached(&self, endpoint: SocketAddr) {
        self.state().chooser.reached(endpoint);
    }

    /// The number of its endpoints.
    pub(crate) fn endpoints(&self) -> usize {
        match &self.state().list {
            List::To(list) => list.len(),
            List::Drop | List::Refuse => 0,
        }
    }

    /// The record, as its key is written.
    pub(crate) fn name(&self) -> String {
        self.state().service.key.to_string()
    }
}
