// SPDX-License-Identifier: Apache-2.0

//! Health checks by way of the service: they find what is wrong between the director and a backend.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::SocketAddr;

use portolan_e2e::ask::PROMPT;
use portolan_e2e::cluster::{PATIENT, agent_is_ready};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{Host, Protocol};
use portolan_e2e::wait::wait_for;

use super::world::{PORT, World, serve};

const DIRECT: &str = "192.0.2.50";
const TUNNEL: &str = "192.0.2.51";
const NAT: &str = "192.0.2.52";
const RANGES: &str = "192.0.2.53";
/// The frontend's port with NAT; the backends have another one.
const OTHER_PORT: u16 = 80;
const CHECKS: &str = "[{via: Service, interval: 500ms, fastInterval: 200ms, timeout: 1s, rise: 2, fall: 2, tcp: {}}]";

pub(super) fn run(host: &Host, command: &str) {
    host.exec(&command.split(' ').collect::<Vec<_>>()).unwrap();
}

/// Adds a load balancer of two backends to a file.
fn balancer(text: &mut String, name: &str, spec: &str, backends: [String; 2]) {
    let [a, b] = backends;
    let _ = write!(
        text,
        "---\napiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: {name}}}\nspec:\n  \
         {spec}\n  scheduler: rr\n  checks: {CHECKS}\n  backends: [{{address: {a}}}, {{address: {b}}}]\n"
    );
}

/// Answers of twelve requests by server; failures under an empty name.
fn count(world: &World, address: &str, port: u16) -> BTreeMap<String, usize> {
    let target = SocketAddr::new(address.parse().unwrap(), port);
    let mut counts = BTreeMap::new();
    for _ in 0..12 {
        let answer = world.client().request(Protocol::Tcp, target, PROMPT);
        *counts
            .entry(answer.map(|answer| answer.name).unwrap_or_default())
            .or_default() += 1;
    }
    counts
}

/// Waits until each request to a frontend is answered by one of these, and that stays so over many checks.
fn wait_for_answers(world: &World, (address, port): (&str, u16), expected: &[&str]) {
    let mut last = BTreeMap::new();
    let mut is_right = || {
        last = count(world, address, port);
        last.keys().map(String::as_str).eq(expected.iter().copied())
    };
    let waited = wait_for("the right servers", PATIENT, || is_right().then_some(()));
    // A probe that reached another backend now and then would change the answers.
    let stays = waited.is_ok() && (0..20).all(|_| is_right());
    assert!(
        stays,
        "{address}: {last:?}, expected {expected:?}: {}: {}",
        world.ipvsadm(),
        world.ask_agent(&["status"]).1
    );
}

/// A backend that a check without `via: Service` would find in order.
pub(super) fn answers_directly(world: &World, real: &Host, protocol: Protocol) {
    let target = SocketAddr::new(real.v4().into(), PORT);
    let answer = world.director().request(protocol, target, PROMPT);
    assert_eq!(answer.unwrap().name, real.name());
}

fn marks(world: &World) -> usize {
    world.ipvsadm().matches("-A -f").count()
}

/// Real servers for direct routing and for a tunnel.
fn prepare(world: &World, real: &Host) {
    let quiet = "for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done; \
                 echo 1 > /proc/sys/net/ipv4/conf/all/arp_ignore; \
                 echo 2 > /proc/sys/net/ipv4/conf/all/arp_announce";
    run(world.director(), "modprobe ipip");
    run(real, "ip link set tunl0 up");
    for address in [DIRECT, TUNNEL] {
        run(real, &format!("ip address add {address}/32 dev lo"));
    }
    real.exec(&["sh", "-c", quiet]).unwrap();
}

#[test]
fn a_check_by_way_of_the_service_finds_a_missing_address_and_a_missing_tunnel() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let (a, b) = (world.real(0), world.real(1));
    prepare(&world, a);
    prepare(&world, b);
    let _serving = [serve(a), serve(b)];
    // The agent sets what lets the answers in.
    let strict = [
        ("ipv4/conf/all/rp_filter", "1"),
        ("ipv4/conf/all/accept_local", "0"),
    ];
    world.director().namespace().sysctl(&strict).unwrap();
    let mut text = String::new();
    for (name, address, method) in [("direct", DIRECT, "Direct"), ("tunnel", TUNNEL, "Tunnel")] {
        let spec = format!(
            "frontends: [{{addresses: [{address}], port: {PORT}}}]\n  forwarding: {{method: {method}}}"
        );
        let backends = [a, b].map(|real| real.v4().to_string());
        balancer(&mut text, name, &spec, backends);
    }
    world.write(&text);
    let mut agent = world.start_agent();
    for address in [DIRECT, TUNNEL] {
        wait_for_answers(&world, (address, PORT), &[a.name(), b.name()]);
    }
    assert_eq!(marks(&world), 4, "{}", world.ipvsadm());

    // Each break is of one backend and one method alone.
    let breaks = [
        (a, DIRECT, format!("ip address del {DIRECT}/32 dev lo")),
        (b, DIRECT, format!("ip address del {DIRECT}/32 dev lo")),
        (b, TUNNEL, "ip link set tunl0 down".to_owned()),
    ];
    for (broken, address, command) in &breaks {
        run(broken, command);
        let whole = if broken.name() == a.name() { b } else { a };
        answers_directly(&world, broken, Protocol::Tcp);
        wait_for_answers(&world, (address, PORT), &[whole.name()]);
        let other = if *address == DIRECT { TUNNEL } else { DIRECT };
        wait_for_answers(&world, (other, PORT), &[a.name(), b.name()]);
        let mend = command.replace(" del ", " add ").replace("down", "up");
        run(broken, &mend);
        wait_for_answers(&world, (address, PORT), &[a.name(), b.name()]);
    }

    // A restart keeps the marks.
    let before = world.ipvsadm();
    agent.kill9().unwrap();
    let _agent = world.start_agent();
    agent_is_ready(world.director(), PATIENT).unwrap();
    assert_eq!(world.ipvsadm(), before);
    // Without the virtual servers of the checks, which go with them, the backends stay.
    world.write(&text.replace("via: Service, ", ""));
    wait_for("the marks' end", PATIENT, || {
        (marks(&world) == 0).then_some(())
    })
    .unwrap();
    wait_for_answers(&world, (DIRECT, PORT), &[a.name(), b.name()]);
}

#[test]
fn a_check_by_way_of_the_service_reaches_its_own_backend_behind_nat() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let (a, b) = (world.real(0), world.real(1));
    let client = world.client().v4();
    let director = world.director();
    let quiet = [
        ("ipv4/conf/all/send_redirects", "0"),
        ("ipv4/conf/eth0/send_redirects", "0"),
    ];
    director.namespace().sysctl(&quiet).unwrap();
    for real in [a, b] {
        let quiet = [
            ("ipv4/conf/all/accept_redirects", "0"),
            ("ipv4/conf/eth0/accept_redirects", "0"),
        ];
        real.namespace().sysctl(&quiet).unwrap();
        real.add_route(&format!("{client}/32"), director.v4().into())
            .unwrap();
    }
    // Rules: source NAT, and source ranges without the director; then ranges of ports.
    let source_nat = format!(
        "frontends: [{{addresses: [{NAT}], port: {OTHER_PORT}, sourceRanges: [{client}/32]}}]\n  sourceNat: true"
    );
    let ranges = format!("frontends: [{{addresses: [{RANGES}], ports: \"{PORT}-8090\"}}]");
    let mut text =
        "---\napiVersion: portolan.dev/v1alpha1\nkind: Director\nmetadata: {name: node1}\n\
                    spec: {marks: 0x0ff00000}\n"
            .to_owned();
    let with_port = [a, b].map(|real| format!("{}, port: {PORT}", real.v4()));
    balancer(&mut text, "nat", &source_nat, with_port);
    let backends = [a, b].map(|real| real.v4().to_string());
    balancer(&mut text, "ranges", &ranges, backends);
    let (serving_a, _serving_b) = (serve(a), serve(b));
    world.write(&text);
    let _agent = world.start_agent();
    let both = [(NAT, OTHER_PORT), (RANGES, PORT)];
    for frontend in both {
        wait_for_answers(&world, frontend, &[a.name(), b.name()]);
    }
    // Two ways to each backend, and the ranges' own mark, all of the Director's bits.
    let servers = world.ipvsadm();
    let marks = servers
        .lines()
        .filter_map(|line| line.strip_prefix("-A -f "));
    let marks: Vec<u32> = marks
        .map(|rest| rest.split(' ').next().unwrap().parse().unwrap())
        .collect();
    assert_eq!(marks.len(), 5, "{servers}");
    assert!(
        marks.iter().all(|mark| mark & !0x0ff0_0000 == 0),
        "{marks:?}"
    );

    drop(serving_a);
    for frontend in both {
        wait_for_answers(&world, frontend, &[b.name()]);
    }
    let _serving_a = serve(a);
    for frontend in both {
        wait_for_answers(&world, frontend, &[a.name(), b.name()]);
    }
}
