//! What is in the kernel of each node, all the time: an endpoint that went never comes back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use portolan_e2e::rig::Namespace;

/// How often the kernels are read.
const INTERVAL: Duration = Duration::from_millis(400);

/// A running observation.
pub(crate) struct Observer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    nodes: Vec<Namespace>,
    vip: Ipv4Addr,
    stopped: AtomicBool,
    seen: Mutex<Vec<History>>,
}

/// What one node had.
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
    /// Observes the virtual server of an address on port 80.
    pub(crate) fn start(nodes: Vec<Namespace>, vip: Ipv4Addr) -> Self {
        let seen = vec![History::default(); nodes.len()];
        let shared = Arc::new(Shared {
            nodes,
            vip,
            stopped: AtomicBool::new(false),
            seen: Mutex::new(seen),
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

    /// Where new connections of a node go now.
    pub(crate) fn present(&self, node: usize) -> BTreeSet<Ipv4Addr> {
        self.shared.look();
        self.shared.seen.lock().unwrap()[node].present.clone()
    }

    /// Stops, and says how often it looked.
    pub(crate) fn stop(&mut self) -> u64 {
        self.shared.stopped.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        let seen = self.shared.seen.lock().unwrap();
        for (number, history) in seen.iter().enumerate() {
            let (gone, back) = (history.gone.len(), &history.back);
            println!(
                "node {number}: {} looks, {gone} endpoints went",
                history.looks
            );
            assert!(back.is_empty(), "node {number} went back in time: {back:?}");
        }
        seen.iter().map(|history| history.looks).min().unwrap()
    }
}

impl Shared {
    fn look(&self) {
        let mut seen = self.seen.lock().unwrap();
        for (namespace, history) in self.nodes.iter().zip(seen.iter_mut()) {
            let text = namespace.run(|| fs::read_to_string("/proc/thread-self/net/ip_vs"));
            let text = text.unwrap().unwrap();
            history.look(weighted(&text, self.vip));
        }
    }
}

/// The real servers of a TCP virtual server on port 80 that get new connections.
fn weighted(text: &str, vip: Ipv4Addr) -> BTreeSet<Ipv4Addr> {
    let head = format!("TCP  {:08X}:0050 ", vip.to_bits());
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&head));
    let servers = lines.by_ref().skip(1);
    let servers = servers.take_while(|line| line.starts_with("  -> "));
    servers.filter_map(server).collect()
}

fn server(line: &str) -> Option<Ipv4Addr> {
    let mut words = line.split_whitespace().skip(1);
    let (address, _) = words.next()?.split_once(':')?;
    let weight: u32 = words.nth(1)?.parse().ok()?;
    let address = u32::from_str_radix(address, 16).ok()?;
    (weight > 0).then(|| Ipv4Addr::from_bits(address))
}

#[test]
fn only_those_with_a_weight_count_and_none_comes_back() {
    let text = "IP Virtual Server version 1.2.1 (size=4096)\n\
        Prot LocalAddress:Port Scheduler Flags\n\
        \x20 -> RemoteAddress:Port Forward Weight ActiveConn InActConn\n\
        TCP  0A60000A:0050 rr \n\
        \x20 -> 0AF40102:1F90      Masq    1      0          0         \n\
        \x20 -> 0AF40103:1F90      Masq    0      1          0         \n\
        TCP  0A60000B:0050 rr \n\
        \x20 -> 0AF40104:1F90      Masq    1      0          0         \n";
    let found = weighted(text, Ipv4Addr::new(10, 96, 0, 10));
    let one = Ipv4Addr::new(10, 244, 1, 2);
    assert_eq!(found, [one].into());
    let mut history = History::default();
    for now in [[one].into(), BTreeSet::new()] {
        history.look(now);
    }
    assert!(history.back.is_empty());
    history.look([one].into());
    assert_eq!(history.back, [(one, 3)].into());
}
