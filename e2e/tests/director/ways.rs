// SPDX-License-Identifier: Apache-2.0

//! Checks by way of the service over UDP, DNS, IPv6 and each tunnel. Real servers are prepared by the commands that
//! `config explain` prints.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use portolan_e2e::ask::PROMPT;
use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{EchoServer, Host, Protocol};
use portolan_e2e::wait::wait_for;

use super::via::{answers_directly, run};
use super::world::{PORT, World, serve};

const DNS_PORT: u16 = 53;
/// A DNS header is this long; a question for `example.org`, type SOA, follows.
const DNS_HEADER: usize = 12;
const QUESTION: &[u8] = b"\x07example\x03org\x00\x00\x06\x00\x01";

/// Service of a frontend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Service {
    Tcp,
    Udp,
    Dns,
}

impl Service {
    fn protocol(self) -> Protocol {
        match self {
            Self::Tcp => Protocol::Tcp,
            Self::Udp | Self::Dns => Protocol::Udp,
        }
    }

    fn port(self) -> u16 {
        match self {
            Self::Tcp | Self::Udp => PORT,
            Self::Dns => DNS_PORT,
        }
    }

    fn check(self) -> &'static str {
        match self {
            Self::Tcp => "tcp: {}",
            Self::Udp => "udp: {payloadHex: \"686f\", requireReply: true}",
            Self::Dns => "dns: {name: example.org}",
        }
    }

    /// The name of the server that answers a client.
    fn ask(self, client: &Host, to: SocketAddr) -> Option<String> {
        if self != Self::Dns {
            let answer = client.request(self.protocol(), to, PROMPT);
            return Some(answer.ok()?.name);
        }
        let asked = client.namespace().run(|| -> std::io::Result<String> {
            let socket = UdpSocket::bind((IpAddr::from([0; 4]), 0))?;
            socket.set_read_timeout(Some(PROMPT))?;
            socket.connect(to)?;
            let header = [1, 2, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
            socket.send(&[&header, QUESTION].concat())?;
            let mut buffer = [0; 512];
            let length = socket.recv(&mut buffer)?;
            // The name is the end of the only answer, a TXT record.
            let text = &buffer[DNS_HEADER + QUESTION.len() + 13..length];
            Ok(String::from_utf8_lossy(text).into_owned())
        });
        asked.unwrap().ok()
    }
}

/// A server for datagrams to a virtual address.
struct Datagrams {
    stopped: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Datagrams {
    fn start(host: &Host, at: SocketAddr, service: Service) -> Self {
        let socket = host.namespace().run(|| UdpSocket::bind(at)).unwrap();
        let socket = socket.unwrap();
        let patience = Duration::from_millis(100);
        socket.set_read_timeout(Some(patience)).unwrap();
        let stopped = Arc::new(AtomicBool::new(false));
        let (ends, name) = (Arc::clone(&stopped), host.name().to_owned());
        let thread = std::thread::spawn(move || {
            let mut buffer = [0; 512];
            while !ends.load(Ordering::Acquire) {
                let Ok((length, from)) = socket.recv_from(&mut buffer) else {
                    continue;
                };
                let answer = match service {
                    Service::Dns => dns_answer(&buffer[..length], &name),
                    Service::Tcp | Service::Udp => format!("{name} {}\n", from.ip()).into_bytes(),
                };
                let _ = socket.send_to(&answer, from);
            }
        });
        Self {
            stopped,
            thread: Some(thread),
        }
    }
}

impl Drop for Datagrams {
    fn drop(&mut self) {
        self.stopped.store(true, Ordering::Release);
        let _ = self.thread.take().unwrap().join();
    }
}

/// The answer to a question: the same one, without error, and a TXT record with a name.
fn dns_answer(question: &[u8], name: &str) -> Vec<u8> {
    let mut answer = question.to_vec();
    answer[2] |= 0x80;
    answer[7] = 1;
    // The question's name, TXT, IN, no time to live, length of the data, and the text.
    answer.extend([0xc0, 12, 0, 16, 0, 1, 0, 0, 0, 0, 0]);
    let length = u8::try_from(name.len()).unwrap();
    answer.extend([length + 1, length]);
    answer.extend(name.as_bytes());
    answer
}

/// A load balancer of two backends.
struct Case {
    name: &'static str,
    address: &'static str,
    service: Service,
    forwarding: &'static str,
    /// Command that breaks a real server for this load balancer alone, and command that mends it.
    breaks: (String, String),
}

impl Case {
    fn to(&self) -> SocketAddr {
        SocketAddr::new(self.address.parse().unwrap(), self.service.port())
    }

    fn is_v6(&self) -> bool {
        self.to().is_ipv6()
    }

    fn without_address(mut self) -> Self {
        let command = |verb| {
            let length = if self.is_v6() { 128 } else { 32 };
            let flag = if self.is_v6() { " nodad" } else { "" };
            format!(
                "ip address {verb} {}/{length} dev lo{}",
                self.address,
                if verb == "add" { flag } else { "" }
            )
        };
        self.breaks = (command("del"), command("add"));
        self
    }

    fn document(&self, reals: [&Host; 2]) -> String {
        let address = |real: &Host| match self.is_v6() {
            true => IpAddr::from(real.v6()),
            false => real.v4().into(),
        };
        let mut text = format!(
            "---\napiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: {}}}\nspec:\n  \
             frontends: [{{addresses: [\"{}\"], protocol: {}, port: {}}}]\n  scheduler: rr\n  {}\
             forwarding: {}\n  checks: [{{via: Service, interval: 500ms, fastInterval: 200ms, timeout: 1s, rise: 2, \
             fall: 2, {}}}]\n  backends:\n",
            self.name,
            self.address,
            format!("{:?}", self.service.protocol()).to_uppercase(),
            self.service.port(),
            match self.service {
                Service::Tcp => "",
                // A client that gets an earlier port again is a new one.
                Service::Udp | Service::Dns => "onePacket: true\n  ",
            },
            self.forwarding,
            self.service.check(),
        );
        for real in reals {
            let _ = writeln!(
                text,
                "  - {{name: {}, address: \"{}\"}}",
                real.name(),
                address(real)
            );
        }
        text
    }
}

/// Runs on each real server what `config explain` prints for it.
fn prepare(world: &World, reals: [&Host; 2]) {
    let file = world.directory.path().join("lb.yaml");
    let (code, text) = world.agent(&["config", "explain", file.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{text}");
    let mut names = Vec::new();
    for line in text.lines() {
        match line.strip_prefix("# ") {
            Some(heading) => {
                let (_, backends) = heading.split_once(": ").unwrap();
                names = backends.split(", ").collect();
            }
            None => {
                for real in reals.iter().filter(|real| names.contains(&real.name())) {
                    run(real, line);
                }
            }
        }
    }
    for real in reals {
        // Packets of a tunnel come with an address of another interface.
        let all = "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done";
        real.exec(&["sh", "-c", all]).unwrap();
    }
}

fn serve_all(cases: &[Case], real: &Host) -> (Vec<EchoServer>, Vec<Datagrams>) {
    let streams = vec![serve(real), real.serve(Protocol::Udp, PORT).unwrap()];
    let datagrams = cases
        .iter()
        .filter(|case| case.service != Service::Tcp)
        .map(|case| Datagrams::start(real, case.to(), case.service));
    (streams, datagrams.collect())
}

/// Waits until clients are answered by these servers alone, over many checks.
fn wait_for_answers(world: &World, case: &Case, expected: &[&str]) {
    let mut last = BTreeMap::new();
    let mut is_right = || {
        last.clear();
        for _ in 0..12 {
            let name = case.service.ask(world.client(), case.to());
            *last.entry(name.unwrap_or_default()).or_insert(0) += 1;
        }
        last.keys().map(String::as_str).eq(expected.iter().copied())
    };
    let waited = wait_for("the right servers", PATIENT, || is_right().then_some(()));
    let stays = waited.is_ok() && (0..4).all(|_| is_right());
    assert!(
        stays,
        "{}: {last:?}, expected {expected:?}: {}: {}",
        case.name,
        world.ipvsadm(),
        world.ask_agent(&["status"]).1
    );
}

/// Breaks each real server for one load balancer after the other.
fn breaks_are_found(cases: &[Case]) {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let (a, b) = (world.real(0), world.real(1));
    let client = world.client();
    client
        .add_route("2001:db8::/64", world.director().v6().into())
        .unwrap();
    let documents = cases.iter().map(|case| case.document([a, b]));
    world.write(&documents.collect::<String>());
    prepare(&world, [a, b]);
    let _servers = [a, b].map(|real| serve_all(cases, real));
    let mut agent = world.start_agent();
    agent.wait_for_log("programmed", PATIENT).unwrap();
    let both = [a.name(), b.name()];
    for case in cases {
        wait_for_answers(&world, case, &both);
    }
    for case in cases {
        for (broken, whole) in [(a, b), (b, a)] {
            run(broken, &case.breaks.0);
            // A check of its own address finds it in order.
            answers_directly(&world, broken, case.service.protocol());
            wait_for_answers(&world, case, &[whole.name()]);
            for other in cases.iter().filter(|other| other.name != case.name) {
                wait_for_answers(&world, other, &both);
            }
            run(broken, &case.breaks.1);
            wait_for_answers(&world, case, &both);
        }
    }
}

fn case(
    name: &'static str,
    address: &'static str,
    service: Service,
    forwarding: &'static str,
) -> Case {
    Case {
        name,
        address,
        service,
        forwarding,
        breaks: (String::new(), String::new()),
    }
}

fn device(name: &'static str, address: &'static str, forwarding: &'static str) -> Case {
    Case {
        breaks: (
            "ip link set ptl0 down".to_owned(),
            "ip link set ptl0 up".to_owned(),
        ),
        ..case(name, address, Service::Tcp, forwarding)
    }
}

#[test]
fn checks_by_way_of_the_service_over_udp_and_dns() {
    let direct = "{method: Direct}";
    breaks_are_found(&[
        case("udp", "192.0.2.60", Service::Udp, direct).without_address(),
        case("dns", "192.0.2.61", Service::Dns, direct).without_address(),
    ]);
}

#[test]
fn checks_by_way_of_gue_and_gre() {
    let gue = "{method: Tunnel, tunnel: {type: GUE, port: 6080, checksum: Full}}";
    let port = |verb, gue| format!("ip fou {verb} port 6080{gue}");
    breaks_are_found(&[
        Case {
            breaks: (port("del", ""), port("add", " gue")),
            ..case("gue", "192.0.2.62", Service::Tcp, gue)
        },
        device("gre", "192.0.2.63", "{method: Tunnel, tunnel: {type: GRE}}"),
    ]);
}

#[test]
fn checks_by_way_of_gue_over_ipv6() {
    let gue = "{method: Tunnel, tunnel: {type: GUE, port: 6080, checksum: Full}}";
    let port = |verb, gue| format!("ip -6 fou {verb} port 6080{gue}");
    breaks_are_found(&[Case {
        breaks: (port("del", ""), port("add", " gue")),
        ..case("gue", "2001:db8::63", Service::Tcp, gue)
    }]);
}

#[test]
fn checks_by_way_of_the_service_over_ipv6() {
    breaks_are_found(&[
        case("direct", "2001:db8::60", Service::Tcp, "{method: Direct}").without_address(),
        case("udp", "2001:db8::61", Service::Udp, "{method: Direct}").without_address(),
        device("ipip", "2001:db8::62", "{method: Tunnel}"),
    ]);
}
