// SPDX-License-Identifier: Apache-2.0

//! The agent alone as a director: load balancers from a file, health checks, packets.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::process::Command;

use portolan_e2e::ask::{PROMPT, answers, sources};
use portolan_e2e::cluster::{PATIENT, program};
use portolan_e2e::director_demo;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{EchoServer, Host, Process, Protocol, Rig, RigConfig};
use portolan_e2e::wait::wait_for;

const VIP: &str = "192.0.2.10";
const PORT: u16 = 8080;
/// Checks that are quick enough for a test.
const CHECKS: &str =
    "[{interval: 500ms, fastInterval: 200ms, timeout: 2s, rise: 2, fall: 2, tcp: {}}]";

/// A director, a client and real servers, each a machine of its own on one LAN.
struct World {
    rig: Rig,
    directory: tempfile::TempDir,
}

impl World {
    fn new(real_servers: u8) -> Self {
        let config = RigConfig {
            nodes: 1,
            clients: 1 + real_servers,
        };
        let world = Self {
            rig: Rig::new(config).unwrap(),
            directory: tempfile::tempdir().unwrap(),
        };
        let director = world.director().v4();
        world
            .client()
            .add_route("192.0.2.0/24", director.into())
            .unwrap();
        world
    }

    fn director(&self) -> &Host {
        self.rig.node(0)
    }

    fn client(&self) -> &Host {
        &self.rig.clients()[0]
    }

    fn real(&self, number: usize) -> &Host {
        &self.rig.clients()[1 + number]
    }

    fn write(&self, text: &str) {
        // As an editor does: the agent never reads half a file.
        let new = self.directory.path().join("new");
        std::fs::write(&new, text).unwrap();
        std::fs::rename(new, self.directory.path().join("lb.yaml")).unwrap();
    }

    fn start_agent(&self) -> Process {
        let directory = self.directory.path();
        let mut command = Command::new(program("portolan-agent").unwrap());
        command.args(["--source=file", "--node-name=node1", "--file-poll=200ms"]);
        command.arg("--file").arg(directory.join("lb.yaml"));
        command.arg("--state-dir").arg(directory.join("state"));
        let namespace = self.director().namespace();
        Process::spawn(namespace, "agent", &mut command, directory).unwrap()
    }

    fn ipvsadm(&self) -> String {
        self.director().exec(&["ipvsadm", "-Sn"]).unwrap()
    }

    /// Waits until all requests are answered by these servers, and by each of them.
    fn wait_for_answers(&self, expected: &[&str]) {
        let mut last = BTreeMap::new();
        let all = || {
            last = self.count(12);
            let names: Vec<_> = last.keys().map(String::as_str).collect();
            (names == expected).then_some(())
        };
        let waited = wait_for("the right servers", PATIENT, all);
        assert!(
            waited.is_ok(),
            "{last:?}, expected {expected:?}: {}",
            self.ipvsadm()
        );
    }

    /// Answers by server; failures under an empty name.
    fn count(&self, requests: usize) -> BTreeMap<String, usize> {
        let mut counts = BTreeMap::new();
        for _ in 0..requests {
            let answer = self.client().request(Protocol::Tcp, vip(VIP), PROMPT);
            let name = answer.map(|answer| answer.name).unwrap_or_default();
            *counts.entry(name).or_default() += 1;
        }
        counts
    }
}

fn vip(address: &str) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), PORT)
}

fn serve(host: &Host) -> EchoServer {
    host.serve(Protocol::Tcp, PORT).unwrap()
}

/// A load balancer with source NAT, so that the real servers need no route to the client.
fn balancer(spec: &str, backends: &[(&Host, &str)]) -> String {
    let backend = |(host, rest): &(&Host, &str)| {
        format!("  - {{address: {}, port: {PORT}{rest}}}\n", host.v4())
    };
    let backends: String = backends.iter().map(backend).collect();
    format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: web}}\nspec:\n  \
         frontends: [{{addresses: [{VIP}], port: {PORT}}}]\n  sourceNat: true\n{spec}  backends:\n{backends}"
    )
}

#[test]
fn requests_follow_the_health_of_the_backends() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(3);
    let (a, b, sorry) = (world.real(0), world.real(1), world.real(2));
    let spec = format!(
        "  scheduler: rr\n  checks: {CHECKS}\n  sorryServer: {{address: {}, port: {PORT}}}\n",
        sorry.v4()
    );
    let text = balancer(&spec, &[(a, ""), (b, "")]);
    world.write(&text);
    let (serving_a, serving_b, _sorry) = (serve(a), serve(b), serve(sorry));
    let mut agent = world.start_agent();
    world.wait_for_answers(&[a.name(), b.name()]);

    drop(serving_a);
    world.wait_for_answers(&[b.name()]);
    assert!(world.ipvsadm().contains("-w 0"), "{}", world.ipvsadm());
    // A restart begins where the last run ended, and changes nothing.
    let before = world.ipvsadm();
    agent.kill9().unwrap();
    let mut agent = world.start_agent();
    agent.wait_for_log("programmed", PATIENT).unwrap();
    assert_eq!(world.ipvsadm(), before);
    assert_eq!(world.count(6), [(b.name().to_owned(), 6)].into());

    drop(serving_b);
    world.wait_for_answers(&[sorry.name()]);
    let _serving_a = serve(a);
    world.wait_for_answers(&[a.name()]);
    let _serving_b = serve(b);
    world.wait_for_answers(&[a.name(), b.name()]);

    // A bad file changes nothing, and says so.
    let before = world.ipvsadm();
    world.write(&text.replace("scheduler: rr", "scheduler: nosuch"));
    for text in ["not applied: 1 error", "7:14: spec.scheduler: \"nosuch\""] {
        agent.wait_for_log(text, PATIENT).unwrap();
    }
    assert_eq!(world.ipvsadm(), before);
    world.write(&text.replace("scheduler: rr", "scheduler: wrr"));
    let is_changed = || world.ipvsadm().contains("-s wrr").then_some(());
    wait_for("the next good file", PATIENT, is_changed).unwrap();
    world.wait_for_answers(&[a.name(), b.name()]);
}

#[test]
fn the_demo_shows_what_it_promises() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let file = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../examples/director/demo.yaml"
    );
    let mut shown = String::new();
    let demo = director_demo::run(file.as_ref(), |text| {
        shown.push_str(text);
        Ok(())
    });
    println!("{shown}");
    demo.unwrap();
    assert!(shown.contains("TCP 192.0.2.10:80"), "{shown}");
    // Rates are measured at once.
    let lines = shown
        .lines()
        .filter(|line| line.contains("TCP 192.0.2.10:80"));
    for line in lines {
        assert!(!line.contains(" - "), "{line}");
    }
}

#[test]
fn connections_are_shared_by_weight() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let (a, b) = (world.real(0), world.real(1));
    let _serving = [serve(a), serve(b)];
    let text = balancer("  scheduler: wrr\n", &[(a, ""), (b, ", weight: 3")]);
    world.write(&text);
    let _agent = world.start_agent();
    world.wait_for_answers(&[a.name(), b.name()]);
    let counts = world.count(400);
    let (of_a, of_b) = (counts[a.name()], counts[b.name()]);
    assert_eq!(of_a + of_b, 400, "{counts:?}");
    assert!((95..=105).contains(&of_a), "{counts:?}");
    world.write(&text.replace("weight: 3", "weight: 3, administrativeState: Drain"));
    world.wait_for_answers(&[a.name()]);
}

/// Each method with an address of its own, and what the real server needs for it.
const METHODS: [(&str, &str, &[&str]); 5] = [
    ("192.0.2.20", "{method: Direct}", &[]),
    ("192.0.2.21", "{method: Tunnel}", &["ip link set tunl0 up"]),
    (
        "192.0.2.22",
        "{method: Tunnel, tunnel: {type: GUE, port: 6080}}",
        &["ip fou add port 6080 gue"],
    ),
    (
        "192.0.2.23",
        "{method: Tunnel, tunnel: {type: GUE, port: 6081, checksum: Full}}",
        &["ip fou add port 6081 gue"],
    ),
    (
        "192.0.2.24",
        "{method: Tunnel, tunnel: {type: GRE}}",
        &["ip link set gre0 up"],
    ),
];

#[test]
fn real_servers_are_reached_directly_and_by_tunnels() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(1);
    let (director, real) = (world.director(), world.real(0));
    let modules = ["modprobe", "--all", "ipip", "fou", "ip_gre"];
    director.exec(&modules).unwrap();
    let mut text = String::new();
    for (number, (address, forwarding, commands)) in METHODS.iter().enumerate() {
        let _ = std::fmt::Write::write_fmt(
            &mut text,
            format_args!(
                "---\napiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: m{number}}}\n\
                 spec:\n  frontends: [{{addresses: [{address}], port: {PORT}}}]\n  \
                 forwarding: {forwarding}\n  backends: [{{address: {}}}]\n",
                real.v4()
            ),
        );
        for command in *commands {
            let words: Vec<_> = command.split(' ').collect();
            real.exec(&words).unwrap();
        }
        let on_lo = format!("ip address add {address}/32 dev lo");
        real.exec(&on_lo.split(' ').collect::<Vec<_>>()).unwrap();
    }
    let settings = "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done; \
                    echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore; \
                    echo 2 > /proc/sys/net/ipv4/conf/all/arp_announce";
    real.exec(&["sh", "-c", settings]).unwrap();
    let _serving = serve(real);
    world.write(&text);
    let mut agent = world.start_agent();
    agent.wait_for_log("programmed", PATIENT).unwrap();
    for (address, forwarding, _) in METHODS {
        println!("{forwarding}");
        let seen = answers(world.client(), Protocol::Tcp, vip(address), &[real.name()]);
        // The real server sees the client itself.
        let client: IpAddr = world.client().v4().into();
        assert_eq!(sources(&seen, real.name()), [client].into(), "{forwarding}");
    }
    let rules = director.exec(&["iptables-save"]).unwrap();
    assert!(!rules.contains("192.0.2."), "{rules}");
}
