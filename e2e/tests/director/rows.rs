// SPDX-License-Identifier: Apache-2.0

//! Every attribute of virtual and real servers from a file: programmed, read back equal, and mended.

use std::fmt::Write as _;

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::wait::wait_for;

use super::world::World;

/// Load balancers by name. Each has some attributes off their defaults.
const OBJECTS: [(&str, &str); 12] = [
    (
        "protocols",
        r#"
  frontends:
  - {addresses: [192.0.2.1, "2001:db8::1"], port: 80}
  - {addresses: [192.0.2.1, "2001:db8::1"], protocol: UDP, port: 80}
  - {addresses: [192.0.2.1, "2001:db8::1"], protocol: SCTP, port: 80}
  scheduler: wrr
  backends:
  - {address: 10.0.0.1, port: 8080, weight: 3}
  - {address: 10.0.0.2, port: 8080}
  - {address: "fd00::1", port: 8080}
"#,
    ),
    (
        "sh",
        r"
  frontends: [{addresses: [192.0.2.3], port: 80}]
  scheduler: sh
  schedulerFlags: [Port, Fallback]
  backends: [{address: 10.0.0.1}, {address: 10.0.0.2}]
",
    ),
    (
        "mh",
        r"
  frontends: [{addresses: [192.0.2.3], port: 81}]
  scheduler: mh
  schedulerFlags: []
  backends: [{address: 10.0.0.1}]
",
    ),
    (
        "flags",
        r"
  frontends: [{addresses: [192.0.2.3], port: 82}]
  schedulerFlags: [Flag1, Flag2, Flag3]
  backends: [{address: 10.0.0.1}]
",
    ),
    (
        "one-packet",
        r"
  frontends: [{addresses: [192.0.2.4], protocol: UDP, port: 53}]
  onePacket: true
  backends: [{address: 10.0.0.1}]
",
    ),
    (
        "networks",
        r#"
  frontends: [{addresses: [192.0.2.5, "2001:db8::5"], port: 80}]
  persistence: {timeout: 5m, ipv4PrefixLength: 24, ipv6PrefixLength: 64}
  backends: [{address: 10.0.0.1}, {address: "fd00::1"}]
"#,
    ),
    (
        "calls",
        r"
  frontends: [{addresses: [192.0.2.6], protocol: UDP, port: 5060}]
  persistence: {engine: Sip}
  backends: [{address: 10.0.0.1}]
",
    ),
    (
        "methods",
        r#"
  frontends: [{addresses: [192.0.2.7, "2001:db8::7"], port: 80}]
  backends:
  - {address: 10.0.0.1, weight: 3}
  - {address: 10.0.0.2, forwarding: {method: Direct}}
  - {address: 10.0.0.3, forwarding: {method: Tunnel}}
  - {address: 10.0.0.4, forwarding: {method: Tunnel, tunnel: {type: GUE, port: 6080}}}
  - {address: 10.0.0.5, forwarding: {method: Tunnel, tunnel: {type: GUE, port: 6080, checksum: Full}}}
  - {address: 10.0.0.6, forwarding: {method: Tunnel, tunnel: {type: GUE, port: 6080, checksum: Remote}}}
  - {address: 10.0.0.7, forwarding: {method: Tunnel, tunnel: {type: GRE, checksum: Full}}}
  - {address: 10.0.0.8, maxConnections: 100, resumeConnections: 50}
  - {address: 10.0.0.9, maxConnections: 100, resumeConnections: 50, weight: 65535}
  - {address: 10.0.0.10, weight: 0}
  - {address: "fd00::2", forwarding: {method: Direct}}
  - {address: "fd00::3", forwarding: {method: Tunnel}}
  - {address: "fd00::5", forwarding: {method: Tunnel, tunnel: {type: GUE, port: 6080, checksum: Full}}}
  - {address: "fd00::7", forwarding: {method: Tunnel, tunnel: {type: GRE}}}
"#,
    ),
    (
        "mixed-four",
        r#"
  frontends: [{addresses: [192.0.2.8], port: 80}]
  forwarding: {method: Tunnel}
  backends: [{address: "fd00::1"}, {address: 10.0.0.1}]
"#,
    ),
    (
        "mixed-six",
        r#"
  frontends: [{addresses: ["2001:db8::8"], port: 80}]
  forwarding: {method: Tunnel, tunnel: {type: GRE}}
  backends: [{address: 10.0.0.1}]
"#,
    ),
    (
        "all-ports",
        r"
  frontends: [{addresses: [192.0.2.9], port: 0}]
  persistence: {timeout: 10m}
  backends: [{address: 10.0.0.1}]
",
    ),
    (
        "marks",
        r#"
  frontends: [{mark: 7}, {name: four, mark: 8, family: IPv4}]
  forwarding: {method: Direct}
  backends: [{address: 10.0.0.1}, {address: "fd00::1"}]
"#,
    ),
];
/// The addresses of mixed families, which `ipvsadm` is not asked to program.
const MIXED: [&str; 2] = ["192.0.2.8:", "[2001:db8::8]:"];

/// Schedulers of every kernel that has IPVS; `twos` came later.
const SCHEDULERS: [&str; 13] = [
    "rr", "wrr", "lc", "wlc", "lblc", "lblcr", "dh", "sh", "sed", "nq", "fo", "ovf", "mh",
];

/// A change of one attribute by another program, and the beginning of the plan's line that mends it.
const DRIFT: [(&str, &str); 25] = [
    (
        "-E -t 192.0.2.2:1000 -s wlc",
        "~ -E -t 192.0.2.2:1000 -s rr",
    ),
    (
        "-E -t 192.0.2.3:80 -s sh -b flag-1",
        "~ -E -t 192.0.2.3:80 -s sh -b flag-1,flag-2",
    ),
    (
        "-E -u 192.0.2.4:53 -s wlc",
        "~ -E -u 192.0.2.4:53 -s wlc -o",
    ),
    (
        "-E -t 192.0.2.5:80 -s wlc -p 60 -M 255.255.255.0",
        "~ -E -t 192.0.2.5:80 -s wlc -p 300",
    ),
    (
        "-E -t [2001:db8::5]:80 -s wlc -p 300 -M 48",
        "~ -E -t [2001:db8::5]:80 -s wlc -p 300 -M 64",
    ),
    (
        "-E -u 192.0.2.6:5060 -s wlc -p 360",
        "~ -E -u 192.0.2.6:5060 -s wlc -p 360 --pe sip",
    ),
    (
        "-E -t 192.0.2.9:0 -s rr -p 600",
        "~ -E -t 192.0.2.9:0 -s wlc",
    ),
    ("-E -f 7 -s rr", "~ -E -f 7 -s wlc"),
    ("-E -f 7 -6 -s rr", "~ -E -f 7 -6 -s wlc"),
    ("-D -f 8", "+ -A -f 8 "),
    ("-D -t 192.0.2.1:80", "+ -A -t 192.0.2.1:80 "),
    (
        "-D --sctp-service [2001:db8::1]:80",
        "+ -A --sctp-service [2001:db8::1]:80 ",
    ),
    (
        "-e -t 192.0.2.7:80 -r 10.0.0.1:80 -m -w 7",
        "~ -e -t 192.0.2.7:80 -r 10.0.0.1:80 -m -w 3  # was 7",
    ),
    (
        "-e -t 192.0.2.7:80 -r 10.0.0.2:80 -m",
        "~ -e -t 192.0.2.7:80 -r 10.0.0.2:80 -g",
    ),
    (
        "-e -t 192.0.2.7:80 -r 10.0.0.3:80 -i --tun-type gre",
        "~ -e -t 192.0.2.7:80 -r 10.0.0.3:80 -i -w 1 --tun-type ipip",
    ),
    (
        "-e -t 192.0.2.7:80 -r 10.0.0.4:80 -i --tun-type gue --tun-port 6089",
        "~ -e -t 192.0.2.7:80 -r 10.0.0.4:80 -i -w 1 --tun-type gue --tun-port 6080 --tun-nocsum",
    ),
    (
        "-e -t 192.0.2.7:80 -r 10.0.0.5:80 -i --tun-type gue --tun-port 6080",
        "~ -e -t 192.0.2.7:80 -r 10.0.0.5:80 -i -w 1 --tun-type gue --tun-port 6080 --tun-csum",
    ),
    (
        "-e -t 192.0.2.7:80 -r 10.0.0.6:80 -i --tun-type gue --tun-port 6080 --tun-csum",
        "~ -e -t 192.0.2.7:80 -r 10.0.0.6:80 -i -w 1 --tun-type gue --tun-port 6080 --tun-remcsum",
    ),
    (
        "-e -t 192.0.2.7:80 -r 10.0.0.7:80 -i --tun-type gre",
        "~ -e -t 192.0.2.7:80 -r 10.0.0.7:80 -i -w 1 --tun-type gre --tun-csum",
    ),
    (
        "-e -t 192.0.2.7:80 -r 10.0.0.8:80 -m -x 90 -y 50",
        "~ -e -t 192.0.2.7:80 -r 10.0.0.8:80 -m -w 1 -x 100 -y 50  # was -a ",
    ),
    (
        "-e -t 192.0.2.7:80 -r 10.0.0.9:80 -m -w 65535 -x 100 -y 40",
        "~ -e -t 192.0.2.7:80 -r 10.0.0.9:80 -m -w 65535 -x 100 -y 50",
    ),
    (
        "-d -t 192.0.2.7:80 -r 10.0.0.10:80",
        "+ -a -t 192.0.2.7:80 -r 10.0.0.10:80 -m -w 0",
    ),
    (
        "-e -t [2001:db8::7]:80 -r [fd00::5]:80 -g",
        "~ -e -t [2001:db8::7]:80 -r [fd00::5]:80 -i",
    ),
    // Somebody else's real servers of ours.
    (
        "-a -u 192.0.2.1:80 -r 10.0.0.99:80 -m",
        "- -d -u 192.0.2.1:80 -r 10.0.0.99:80",
    ),
    (
        "-a -t 192.0.2.5:80 -r 10.0.0.99:80 -m",
        "~ -e -t 192.0.2.5:80 -r 10.0.0.99:80 -m -w 0  # drained",
    ),
];

pub(super) fn document(name: &str, spec: &str) -> String {
    let spec = spec.trim_matches('\n');
    format!(
        "---\napiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: {name}}}\nspec:\n{spec}\n"
    )
}

/// All objects, and one for each scheduler, at a port of its own from 1000 on.
fn file() -> String {
    let mut text: String = OBJECTS
        .iter()
        .map(|(name, spec)| document(name, spec))
        .collect();
    for (number, scheduler) in SCHEDULERS.iter().enumerate() {
        // It refuses the clients of weight 0.
        let health = match *scheduler {
            "dh" => "  health: {onFailure: Remove}\n",
            _ => "",
        };
        let port = 1000 + number;
        let spec = format!(
            "  frontends: [{{addresses: [192.0.2.2], port: {port}}}]\n  scheduler: {scheduler}\n{health}  \
             backends: [{{address: 10.0.0.1}}, {{address: 10.0.0.2}}]\n"
        );
        let _ = write!(text, "{}", document(&format!("by-{scheduler}"), &spec));
    }
    text
}

/// Returns what `ipvsadm` shows, in its own order of lines made a fixed one.
fn shown(world: &World) -> Vec<String> {
    let text = world.ipvsadm() + &world.run("ipvsadm -Ln --thresholds");
    let mut lines: Vec<_> = text.lines().map(|line| line.trim().to_owned()).collect();
    lines.sort();
    lines
}

/// Lines of a plan that tell a change.
fn changes(plan: &str) -> Vec<&str> {
    let is_change = |line: &&str| ["+ ", "~ ", "- "].iter().any(|sign| line.starts_with(sign));
    plan.lines().filter(is_change).collect()
}

pub(super) fn apply(world: &World) {
    let (code, text) = world.once(&["apply", "--once", "--drain-timeout=0s"]);
    assert_eq!(code, Some(0), "{text}");
    let (code, plan) = world.once(&["plan"]);
    assert_eq!(code, Some(0), "the second plan is empty: {plan}");
}

fn drift(world: &World) {
    for (command, _) in DRIFT {
        world.run(&format!("ipvsadm {command}"));
    }
}

/// `ipvsadm` makes the same of the export, as far as it can.
fn ipvsadm_makes_the_same(world: &World) {
    let (code, exported) = world.once(&["export", "ipvsadm"]);
    assert_eq!(code, Some(0), "{exported}");
    let is_mixed = |line: &&str| MIXED.iter().any(|address| line.contains(address));
    let lines = exported.lines().filter(|line| !is_mixed(line));
    let commands: String = lines.map(|line| format!("{line}\n")).collect();
    world.run("ipvsadm -C");
    let director = world.director().namespace();
    director
        .exec_with_input(&["ipvsadm", "-R"], &commands)
        .unwrap();
    let (_, plan) = world.once(&["plan"]);
    let left: Vec<_> = changes(&plan)
        .into_iter()
        .filter(|line| !is_mixed(line))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn every_attribute_is_programmed_read_back_and_mended() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(0);
    world.write(&file());
    let (code, plan) = world.once(&["plan"]);
    assert_eq!(code, Some(2), "{plan}");
    assert!(!plan.contains("the kernel has no"), "{plan}");
    assert_eq!(world.ipvsadm(), "", "a plan changes nothing");
    apply(&world);
    let programmed = shown(&world);
    ipvsadm_makes_the_same(&world);
    apply(&world);
    assert_eq!(shown(&world), programmed);

    // Virtual servers of others stay as they are.
    for command in [
        "-A -t 203.0.113.7:80 -s rr",
        "-a -t 203.0.113.7:80 -r 10.0.0.1:80 -m",
        "-A -f 9 -s wlc",
    ] {
        world.run(&format!("ipvsadm {command}"));
    }
    let before = shown(&world);
    drift(&world);
    let (code, plan) = world.once(&["plan"]);
    assert_eq!(code, Some(2), "{plan}");
    let changes = changes(&plan);
    for (command, line) in DRIFT {
        let is_there = changes.iter().any(|change| change.starts_with(line));
        assert!(is_there, "{command}: no {line:?} in {plan}");
    }
    let of_others = ["203.0.113.7", "-f 9"];
    let touched = changes
        .iter()
        .any(|line| of_others.iter().any(|it| line.contains(it)));
    assert!(!touched, "{plan}");
    apply(&world);
    assert_eq!(shown(&world), before);

    // A running agent does the same by itself.
    let mut agent = world.start_agent_by(|command| {
        command.arg("--sync-period=1s");
    });
    // It has nothing to program.
    agent.wait_for_log("files changed", PATIENT).unwrap();
    assert_eq!(shown(&world), before);
    drift(&world);
    let mended = wait_for("the repair", PATIENT, || {
        (shown(&world) == before).then_some(())
    });
    assert!(mended.is_ok(), "{:#?}, expected {before:#?}", shown(&world));
}
