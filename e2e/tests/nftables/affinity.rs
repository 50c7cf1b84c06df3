// SPDX-License-Identifier: Apache-2.0

//! Clients with affinity: packets that are sent again after their pod has gone, and clients whose time is over.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use portolan_e2e::ask::{BRIEF, PROMPT, address};
use portolan_e2e::cluster::{EchoPod, PATIENT};
use portolan_e2e::rig::{Family, Host, Protocol};
use portolan_e2e::wait::{wait_for, wait_with_pauses};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, socket_with};
use serde_json::{Value, json};

use crate::{WEB, put, skip, web};

/// The pause of a client that sends all the time.
const FAST: Duration = Duration::from_micros(500);

fn affinity(seconds: u64) -> Value {
    json!({ "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": seconds } } })
}

/// A pod that has died for one family and protocol: its packets are dropped, and nobody is told.
struct Dead<'a> {
    pod: &'a Host,
    family: &'static str,
}

impl<'a> Dead<'a> {
    fn new(pod: &'a EchoPod, family: Family, protocol: Protocol) -> Self {
        let pod = &pod.pod;
        let family = match family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        let protocol = match protocol {
            Protocol::Tcp => "tcp",
            Protocol::Udp => "udp",
            Protocol::Sctp => "sctp",
        };
        let (table, port) = (format!("{family} dead"), EchoPod::PORT);
        let rules = format!(
            "add table {table}; \
             add chain {table} arrived {{ type filter hook input priority 0; }}; \
             add rule {table} arrived {protocol} dport {port} counter drop"
        );
        pod.exec(&["nft", &rules]).unwrap();
        Self { pod, family }
    }

    /// The packets that it has dropped.
    fn packets(&self) -> u64 {
        let list = ["nft", "list", "table", self.family, "dead"];
        let rules = self.pod.exec(&list).unwrap();
        let (_, counter) = rules.split_once("counter packets ").unwrap();
        counter.split(' ').next().unwrap().parse().unwrap()
    }

    /// Waits until it has dropped more packets.
    fn wait_for_more(&self, count: u64) {
        let before = self.packets();
        let has_more = || (self.packets() >= before + count).then_some(());
        wait_for("packets to a dead pod", PATIENT, has_more).unwrap();
    }
}

impl Drop for Dead<'_> {
    fn drop(&mut self) {
        let delete = ["nft", "delete", "table", self.family, "dead"];
        let _ = self.pod.exec(&delete);
    }
}

/// Begins a TCP connection. The kernel repeats its first packet until there is an answer.
fn begin(from: &Host, to: SocketAddr) -> OwnedFd {
    let family = match to {
        SocketAddr::V4(_) => AddressFamily::INET,
        SocketAddr::V6(_) => AddressFamily::INET6,
    };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let begin = || {
        let socket = socket_with(family, SocketType::STREAM, flags, None).unwrap();
        assert_eq!(connect(&socket, &to), Err(Errno::INPROGRESS));
        socket
    };
    from.namespace().run(begin).unwrap()
}

/// A client that sends datagrams from one port all the time, whether they are answered or not.
struct Sender {
    socket: Arc<UdpSocket>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Sender {
    fn start(from: &Host, to: SocketAddr) -> Self {
        let any: SocketAddr = match to {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        };
        let open = || {
            let socket = UdpSocket::bind(any).unwrap();
            socket.connect(to).unwrap();
            socket.set_read_timeout(Some(BRIEF)).unwrap();
            socket
        };
        let socket = Arc::new(from.namespace().run(open).unwrap());
        let is_over = Arc::new(AtomicBool::new(false));
        let (sends, ends) = (Arc::clone(&socket), Arc::clone(&is_over));
        let thread = thread::spawn(move || {
            while !ends.load(Ordering::Relaxed) {
                let _ = sends.send(b"?\n");
                thread::park_timeout(FAST);
            }
        });
        Self {
            socket,
            is_over,
            thread: Some(thread),
        }
    }

    /// The name of the pod that has answered, if any has for a while.
    fn answer(&self) -> Option<String> {
        let mut buffer = [0; 512];
        let length = self.socket.recv(&mut buffer).ok()?;
        let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
        text.split(' ').next().map(str::to_owned)
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Asserts that a client is served by one pod.
fn assert_served(visitor: &EchoPod, protocol: Protocol, to: SocketAddr) {
    let ask = |timeout| visitor.pod.request(protocol, to, timeout);
    let name = |timeout| ask(timeout).ok().map(|answer| answer.name);
    let first = wait_for("another pod to answer", PATIENT, || name(BRIEF)).unwrap();
    for _ in 0..5 {
        assert_eq!(ask(PROMPT).unwrap().name, first, "{protocol:?} {to}");
    }
}

#[test]
fn a_repeated_syn_leads_no_client_back_to_a_pod_that_is_gone() {
    if skip("a_repeated_syn_leads_no_client_back_to_a_pod_that_is_gone") {
        return;
    }
    let spec = affinity(600);
    let (cluster, pods) = web(&spec);
    for family in Family::ALL {
        put(&cluster, &spec, &[(&pods[0], 0)]);
        let visitor = cluster.add_pod(0, &format!("v{family:?}")).unwrap();
        let to = address(WEB, family, 80);
        let dead = Dead::new(&pods[0], family, Protocol::Tcp);
        let _connecting = begin(&visitor.pod, to);
        wait_for("the first packet", PATIENT, || {
            (dead.packets() > 0).then_some(())
        })
        .unwrap();
        put(&cluster, &spec, &[(&pods[1], 1), (&pods[2], 0)]);
        dead.wait_for_more(2);
        assert_served(&visitor, Protocol::Tcp, to);
    }
}

#[test]
fn a_sender_without_answers_leads_no_client_back_to_a_pod_that_is_gone() {
    if skip("a_sender_without_answers_leads_no_client_back_to_a_pod_that_is_gone") {
        return;
    }
    let spec = affinity(600);
    let (cluster, pods) = web(&spec);
    for family in Family::ALL {
        put(&cluster, &spec, &[(&pods[0], 0)]);
        let visitor = cluster.add_pod(0, &format!("v{family:?}")).unwrap();
        let to = address(WEB, family, 80);
        let dead = Dead::new(&pods[0], family, Protocol::Udp);
        let sender = Sender::start(&visitor.pod, to);
        dead.wait_for_more(10);
        put(&cluster, &spec, &[(&pods[1], 1), (&pods[2], 0)]);
        wait_for("another pod to answer the sender", PATIENT, || {
            sender.answer()
        })
        .unwrap();
        assert_served(&visitor, Protocol::Udp, to);
    }
}

#[test]
fn a_client_draws_anew_after_its_time_and_stays_while_it_returns_before() {
    if skip("a_client_draws_anew_after_its_time_and_stays_while_it_returns_before") {
        return;
    }
    let time = Duration::from_secs(2);
    let (cluster, _pods) = web(&affinity(time.as_secs()));
    let visitor = cluster.add_pod(0, "v").unwrap();
    for (family, protocol) in Family::ALL.into_iter().zip(Protocol::ALL) {
        let to = address(WEB, family, 80);
        let ask = || visitor.pod.request(protocol, to, PROMPT).unwrap().name;
        let first = ask();
        // One of three pods answers: the same one will not be drawn each time.
        wait_with_pauses("a new draw", PATIENT, time * 3 / 2, || {
            (ask() != first).then_some(())
        })
        .unwrap();

        // Each request renews the time, so that the client stays for longer than that.
        let (mut since, mut last) = (Instant::now(), Instant::now());
        let mut name = ask();
        wait_with_pauses("a client that stays", PATIENT, time / 8, || {
            let now = Instant::now();
            let next = ask();
            if last.elapsed() < time * 3 / 4 {
                assert_eq!(next, name, "{protocol:?} {to}: {:?}", last.elapsed());
            } else {
                // This machine was too busy to ask in time.
                (since, name) = (now, next);
            }
            last = now;
            (since.elapsed() > time * 2).then_some(())
        })
        .unwrap();
    }
}
