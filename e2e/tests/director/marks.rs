// SPDX-License-Identifier: Apache-2.0

//! Frontends with ranges of ports, and with marks of an operator.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::SocketAddr;

use portolan_e2e::ask::PROMPT;
use portolan_e2e::cluster::{PATIENT, agent_is_ready};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{Host, Protocol, RequestError};
use portolan_e2e::wait::wait_for;

use super::world::World;

/// The ports of the servers; the last one is outside of the ranges.
const PORTS: [u16; 4] = [21, 2000, 2010, 2011];
const RANGES: &str = "2000-2010,21";
/// Addresses of the frontends with ranges, by forwarding method, and that of the operator's mark.
const BY_NAT: &str = "192.0.2.40";
const DIRECT: &str = "192.0.2.41";
const OPERATORS: &str = "192.0.2.42";

/// Answers of a real server behind NAT go back through the director; one for direct routing has the addresses.
fn prepare(world: &World, real: &Host, is_nat: bool) {
    let quiet = [
        ("ipv4/conf/all/accept_redirects", "0"),
        ("ipv4/conf/eth0/accept_redirects", "0"),
        ("ipv4/conf/all/arp_ignore", "1"),
        ("ipv4/conf/all/arp_announce", "2"),
    ];
    real.namespace().sysctl(&quiet).unwrap();
    if is_nat {
        let client = format!("{}/32", world.client().v4());
        let director = world.director().v4();
        real.add_route(&client, director.into()).unwrap();
        return;
    }
    for address in [DIRECT, OPERATORS] {
        let address = format!("{address}/32");
        real.exec(&["ip", "address", "add", &address, "dev", "lo"])
            .unwrap();
    }
}

fn file(world: &World) -> String {
    let ranges = |address: &str| format!("addresses: [{address}], ports: \"{RANGES}\"");
    let balancers = [
        ("nat", ranges(BY_NAT), "Masquerade", [0, 1]),
        ("direct", ranges(DIRECT), "Direct", [2, 3]),
        ("mark", "mark: 7, family: IPv4".to_owned(), "Direct", [2, 3]),
    ];
    let mut text = String::new();
    for (name, frontend, method, reals) in balancers {
        let [a, b] = reals.map(|number| world.real(number).v4());
        let _ = write!(
            text,
            "---\napiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: {name}}}\nspec:\n  \
             frontends: [{{{frontend}}}]\n  scheduler: rr\n  persistence: {{timeout: 10m}}\n  \
             forwarding: {{method: {method}}}\n  backends: [{{address: {a}}}, {{address: {b}}}]\n"
        );
    }
    text
}

fn ask(world: &World, address: &str, port: u16) -> Result<String, RequestError> {
    let target = SocketAddr::new(address.parse().unwrap(), port);
    let answer = world.client().request(Protocol::Tcp, target, PROMPT)?;
    Ok(answer.name)
}

#[test]
fn ports_of_ranges_and_packets_with_a_mark_go_to_one_server_of_a_client() {
    if !lane::provides("marks", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(4);
    let mut servers = Vec::new();
    for number in 0..4 {
        let real = world.real(number);
        prepare(&world, real, number < 2);
        servers.extend(PORTS.map(|port| real.serve(Protocol::Tcp, port).unwrap()));
    }
    let director = world.director();
    director
        .namespace()
        .sysctl(&[
            ("ipv4/conf/all/send_redirects", "0"),
            ("ipv4/conf/eth0/send_redirects", "0"),
        ])
        .unwrap();
    for command in [
        format!("ip route add local {OPERATORS}/32 dev lo"),
        format!(
            "iptables -t mangle -A PREROUTING -d {OPERATORS} -p tcp --dport 2011 -j MARK --set-mark 7"
        ),
    ] {
        director
            .exec(&command.split(' ').collect::<Vec<_>>())
            .unwrap();
    }
    world.write(&file(&world));
    let mut agent = world.start_agent();
    agent.wait_for_log("programmed", PATIENT).unwrap();

    for address in [BY_NAT, DIRECT] {
        let inside = &PORTS[..3];
        let names = inside.iter().map(|port| ask(&world, address, *port));
        let names: Result<BTreeSet<_>, _> = names.collect();
        // A client stays with its real server over all ports.
        assert_eq!(
            names.as_ref().map(BTreeSet::len),
            Ok(1),
            "{address}: {names:?}: {}",
            world.ipvsadm()
        );
        let outside = ask(&world, address, 2011);
        assert!(outside.is_err(), "{address}: {outside:?}");
    }
    let by_mark = ask(&world, OPERATORS, 2011);
    assert!(by_mark.is_ok(), "{by_mark:?}: {}", world.ipvsadm());
    let without = ask(&world, OPERATORS, 21);
    assert!(without.is_err(), "{without:?}");
    let (_, status) = world.ask_agent(&["status"]);
    for place in ["192.0.2.40:21,2000-2010", "FWM 7 IPv4"] {
        assert!(status.contains(place), "{status}");
    }

    // A restart keeps the marks, and so the connections of clients.
    let before = world.ipvsadm();
    agent.kill9().unwrap();
    let _agent = world.start_agent();
    agent_is_ready(world.director(), PATIENT).unwrap();
    assert_eq!(world.ipvsadm(), before);
    // What the file no longer has goes, with the entries that set the marks.
    let only_mark = file(&world).split("---\n").last().unwrap().to_owned();
    world.write(&only_mark);
    wait_for("the ranges' end", PATIENT, || {
        let servers = world.ipvsadm();
        (servers.matches("-A -f").count() == 1).then_some(())
    })
    .unwrap();
    let sets = director
        .exec(&["ipset", "save", "KUBE-BALANCED-MARK"])
        .unwrap();
    assert!(!sets.contains("add "), "{sets}");
}
