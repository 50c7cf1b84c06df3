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

#[cfg(test)]
mod tests {
    use portolan_model::{
        Frontend, FrontendAddress, FrontendKind, NodeTable, Protocol, Record, RecordKey,
    };
    use portolan_nftables::Ways;
    use portolan_plan::NodeFacts;

    use super::*;
    use crate::shared::Client;

    /// The way of a load balancer's address.
    fn way(address: &str, ranges: &[&str]) -> Way {
        let key = RecordKey {
            cluster: "".into(),
            namespace: "default".into(),
            service: "web".into(),
            port: "".into(),
            protocol: Protocol::Tcp,
        };
        let address = FrontendAddress::Vip(address.parse().unwrap());
        let source_ranges = ranges.iter().map(|range| range.parse().unwrap());
        let frontend = Frontend {
            source_ranges: source_ranges.collect(),
            ..Frontend::new(FrontendKind::LoadBalancer, address, 80)
        };
        let record = Record {
            frontends: vec![frontend],
            ..Record::new(key.clone())
        };
        let mut table = NodeTable::default();
        table.records.insert(key.clone(), Arc::new(record));
        let ways = Ways::new(&table, &NodeFacts::default());
        let desired = ways.ways.values().next().unwrap();
        Way::new(&Arc::new(Service::new(key)), desired)
    }

    /// Returns `true` if a way permits the client of a connection between two sockets.
    fn permits(way: &Way, peer: &str, local: &str) -> bool {
        let [peer, local] = [peer, local].map(|text| text.parse::<SocketAddr>().unwrap());
        way.permits(&Client::of(peer, local).addresses())
    }

    #[test]
    fn only_clients_in_the_source_ranges_are_permitted() {
        let ranges = ["192.0.2.0/24", "203.0.113.8/32", "2001:db8::/48"];
        let (v4, v6) = (way("10.96.0.1", &ranges), way("fd00::1", &ranges));
        for (source, expected) in [
            ("192.0.2.0", true),
            ("192.0.2.255", true),
            ("203.0.113.8", true),
            ("192.0.3.0", false),
            ("203.0.113.9", false),
        ] {
            let peer = format!("{source}:4000");
            assert_eq!(permits(&v4, &peer, "10.96.0.1:80"), expected, "{source}");
        }
        for (source, expected) in [
            ("2001:db8::7", true),
            ("2001:db8:0:ffff::1", true),
            ("2001:db8:1::7", false),
            ("fd00::2", false),
        ] {
            let peer = format!("[{source}]:4000");
            assert_eq!(permits(&v6, &peer, "[fd00::1]:80"), expected, "{source}");
        }
    }

    #[test]
    fn a_way_without_source_ranges_permits_everybody() {
        let open: [&[&str]; 2] = [&[], &["10.0.0.0/8", "0.0.0.0/0"]];
        for ranges in open {
            let way = way("10.96.0.1", ranges);
            assert!(permits(&way, "192.0.2.7:4000", "10.96.0.1:80"));
        }
        let way = way("fd00::1", &[]);
        assert!(permits(&way, "[2001:db8::7]:4000", "[fd00::1]:80"));
    }

    #[test]
    fn source_ranges_of_ipv4_hold_for_clients_of_a_socket_of_both_families() {
        // The listener of the proxy for SOCKS and HTTP may be such a socket.
        let way = way("10.96.0.1", &["192.0.2.0/24"]);
        let local = "[::ffff:10.0.0.9]:1080";
        assert!(permits(&way, "[::ffff:192.0.2.7]:4000", local));
        assert!(!permits(&way, "[::ffff:198.51.100.7]:4000", local));
    }

    #[test]
    fn a_client_of_this_machine_is_permitted_by_its_loopback_address() {
        let way = way("10.96.0.1", &["127.0.0.0/8"]);
        assert!(permits(&way, "10.96.0.1:4000", "10.96.0.1:80"));
        assert!(!permits(&way, "192.0.2.7:4000", "10.96.0.1:80"));
    }
}
