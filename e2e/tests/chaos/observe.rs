// SPDX-License-Identifier: Apache-2.0

//! Continuous observation of each node's kernel: a removed endpoint never returns.
//!
//! Read by netlink, one virtual server after the other. `/proc/net/ip_vs` leaves some out: where a
//! read ended the kernel counts the virtual servers of all network namespaces, and the next read
//! skips as many of its own.

use std::collections::{BTreeMap, BTreeSet};
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use portolan_e2e::rig::Namespace;
use portolan_model::Protocol;
use portolan_model::ipvs::{VirtualServer, VirtualServerKey};
use portolan_netlink::ipvs::Ipvs;

/// The interval of reads of the kernels.
const INTERVAL: Duration = Duration::from_millis(200);

/// A running observation.
pub(crate) struct Observer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    key: VirtualServerKey,
    stopped: AtomicBool,
    seen: Mutex<Vec<Seen>>,
}

/// A node's kernel and its observed history.
struct Seen {
    ipvs: Ipvs,
    history: History,
}

/// The observed history of one node.
#[derive(Clone, Default)]
struct History {
    looks: u64,
    present: BTreeSet<Ipv4Addr>,
    gone: BTreeSet<Ipv4Addr>,
    back: BTreeMap<Ipv4Addr, u64>,
}

impl History {
    fn look(&mut self, now: BTreeSet<Ipv4Addr>) {
        self.looks += 1;
        self.gone.extend(self.present.difference(&now));
        for again in now.intersection(&self.gone) {
            self.back.entry(*again).or_insert(self.looks);
        }
        self.present = now;
    }
}

impl Observer {
    /// Observes the virtual server of an address on TCP port 80.
    pub(crate) fn start(nodes: &[Namespace], vip: Ipv4Addr) -> Self {
        let seen = nodes.iter().map(|node| Seen {
            ipvs: node.run(Ipvs::open).unwrap().unwrap(),
            history: History::default(),
        });
        let shared = Arc::new(Shared {
            key: VirtualServerKey::new(Protocol::Tcp, vip.into(), 80),
            stopped: AtomicBool::new(false),
            seen: Mutex::new(seen.collect()),
        });
        let thread = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                while !shared.stopped.load(Ordering::Relaxed) {
                    shared.look();
                    thread::park_timeout(INTERVAL);
                }
            }
        });
        Self {
            shared,
            thread: Some(thread),
        }
    }

    /// The endpoints of a node's new connections now.
    pub(crate) fn present(&self, node: usize) -> BTreeSet<Ipv4Addr> {
        self.shared.look();
        self.shared.seen.lock().unwrap()[node]
            .history
            .present
            .clone()
    }

    /// Stops, and returns the number of observations.
    pub(crate) fn stop(&mut self) -> u64 {
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        let seen = self.shared.seen.lock().unwrap();
        for (number, Seen { history, .. }) in seen.iter().enumerate() {
            let (looks, gone, back) = (history.looks, history.gone.len(), &history.back);
            println!("node {number}: {looks} looks, {gone} endpoints went");
            assert!(back.is_empty(), "node {number} went back in time: {back:?}");
        }
        seen.iter().map(|seen| seen.history.looks).min().unwrap()
    }
}

impl Shared {
    fn look(&self) {
        for Seen { ipvs, history } in self.seen.lock().unwrap().iter_mut() {
            let state = ipvs.dump().unwrap();
            let server = state.virtual_servers.get(&self.key);
            history.look(server.map(weighted).unwrap_or_default());
        }
    }
}

/// The real servers that get new connections.
fn weighted(server: &VirtualServer) -> BTreeSet<Ipv4Addr> {
    let servers = server.real_servers.iter();
    let weighted = servers.filter(|(_, config)| config.weight > 0);
    let ips = weighted.filter_map(|(address, _)| match address.ip() {
        std::net::IpAddr::V4(ip) => Some(ip),
        std::net::IpAddr::V6(_) => None,
    });
    ips.collect()
}

#[test]
fn a_removed_endpoint_that_returns_is_reported() {
    let [stays, goes] = [2, 3].map(|host| Ipv4Addr::new(10, 244, 1, host));
    let mut history = History::default();
    for now in [[stays, goes].into(), [stays].into()] {
        history.look(now);
    }
    assert!(history.back.is_empty());
    history.look([stays, goes].into());
    assert_eq!(history.back, [(goes, 3)].into());
}
