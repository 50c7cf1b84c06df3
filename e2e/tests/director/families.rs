// SPDX-License-Identifier: Apache-2.0

//! Direct routing and tunnels with either family within either family. The real servers are prepared by the commands
//! that `config explain` prints.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use portolan_e2e::ask::{answers, sources};
use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{Family, Host, Protocol};

use super::via::run;
use super::world::{PORT, World, serve, vip};

/// Virtual address, number of the real server, family of its address, and forwarding. Each GUE port is used once. A
/// device takes packets of GRE with a checksum or without one, so those are of different real servers.
const CASES: [(&str, usize, Family, &str); 14] = [
    (
        "192.0.2.70",
        0,
        Family::V4,
        "{method: Tunnel, tunnel: {type: GUE, port: 6070, checksum: Remote}}",
    ),
    (
        "192.0.2.71",
        1,
        Family::V4,
        "{method: Tunnel, tunnel: {type: GRE, checksum: Full}}",
    ),
    ("2001:db8::70", 0, Family::V6, "{method: Direct}"),
    ("2001:db8::71", 0, Family::V6, "{method: Tunnel}"),
    (
        "2001:db8::72",
        0,
        Family::V6,
        "{method: Tunnel, tunnel: {type: GUE, port: 6072}}",
    ),
    (
        "2001:db8::73",
        0,
        Family::V6,
        "{method: Tunnel, tunnel: {type: GUE, port: 6073, checksum: Remote}}",
    ),
    (
        "2001:db8::74",
        0,
        Family::V6,
        "{method: Tunnel, tunnel: {type: GRE}}",
    ),
    (
        "2001:db8::75",
        1,
        Family::V6,
        "{method: Tunnel, tunnel: {type: GRE, checksum: Full}}",
    ),
    // IPv4 within IPv6.
    ("192.0.2.72", 1, Family::V6, "{method: Tunnel}"),
    (
        "192.0.2.73",
        1,
        Family::V6,
        "{method: Tunnel, tunnel: {type: GUE, port: 6075, checksum: Full}}",
    ),
    (
        "192.0.2.74",
        0,
        Family::V6,
        "{method: Tunnel, tunnel: {type: GRE}}",
    ),
    // IPv6 within IPv4.
    ("2001:db8::76", 0, Family::V4, "{method: Tunnel}"),
    (
        "2001:db8::77",
        0,
        Family::V4,
        "{method: Tunnel, tunnel: {type: GUE, port: 6077}}",
    ),
    (
        "2001:db8::78",
        0,
        Family::V4,
        "{method: Tunnel, tunnel: {type: GRE}}",
    ),
];

fn file(reals: [&Host; 2]) -> String {
    let mut text = String::new();
    for (number, (address, real, family, forwarding)) in CASES.iter().enumerate() {
        let real = reals[*real];
        let _ = write!(
            text,
            "---\napiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: m{number}}}\n\
             spec:\n  frontends: [{{addresses: [\"{address}\"], port: {PORT}}}]\n  forwarding: {forwarding}\n  \
             backends: [{{name: {}, address: \"{}\"}}]\n",
            real.name(),
            real.address(*family)
        );
    }
    text
}

/// Runs what `config explain` prints, each command once on a real server. Devices are named by their types, since a
/// real server has several.
fn prepare(world: &World, reals: [&Host; 2]) {
    let file = world.directory.path().join("lb.yaml");
    let (code, text) = world.agent(&["config", "explain", file.to_str().unwrap()]);
    assert_eq!(code, Some(0), "{text}");
    let (mut real, mut device, mut done) = (reals[0], String::new(), BTreeSet::new());
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("# ") {
            let (_, name) = heading.split_once(": ").unwrap();
            real = reals.into_iter().find(|each| each.name() == name).unwrap();
            continue;
        }
        if let Some(rest) = line.strip_prefix("ip link add ptl0 type ") {
            device = format!("p{}", rest.split(' ').next().unwrap());
        }
        let command = line.replace("ptl0", &device);
        if done.insert((real.name(), command.clone())) {
            run(real, &command);
        }
    }
}

#[test]
fn either_family_is_carried_by_either_family() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let reals = [world.real(0), world.real(1)];
    let client = world.client();
    client
        .add_route("2001:db8::/64", world.director().v6().into())
        .unwrap();
    world.write(&file(reals));
    prepare(&world, reals);
    let _serving = reals.map(serve);
    let mut agent = world.start_agent();
    agent.wait_for_log("programmed", PATIENT).unwrap();
    for (address, real, family, forwarding) in CASES {
        println!("{address} by {family:?}: {forwarding}");
        let (name, to) = (reals[real].name(), vip(address));
        let seen = answers(client, Protocol::Tcp, to, &[name]);
        // The real server sees the client itself.
        let source: IpAddr = match to.is_ipv4() {
            true => client.v4().into(),
            false => client.v6().into(),
        };
        assert_eq!(sources(&seen, name), [source].into(), "{forwarding}");
    }
}
