// SPDX-License-Identifier: Apache-2.0

//! The agent alone as a director: load balancers from a file, health checks, packets.

#![allow(clippy::unwrap_used, reason = "a test")]

mod commands;
mod families;
mod hashed;
mod hooks;
mod import;
mod keepalived;
mod ldirectord;
mod link;
mod marks;
mod packets;
mod policy;
mod refused;
mod rows;
mod rules;
mod same;
mod standby;
mod stopped;
mod via;
mod ways;
mod world;

use std::net::IpAddr;

use portolan_e2e::ask::{answers, sources};
use portolan_e2e::cluster::{PATIENT, agent_is_ready};
use portolan_e2e::director_demo;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::Protocol;
use portolan_e2e::wait::wait_for;

use rules::{conntrack, set_conntrack};
use world::{CHECKS, PORT, World, balancer, serve, vip};

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
    world.wait_for_saved(&[(a, "Down"), (b, "Up")]);
    // A restart begins where the last run ended, and changes nothing.
    let before = world.ipvsadm();
    agent.kill9().unwrap();
    let mut agent = world.start_agent();
    agent_is_ready(world.director(), PATIENT).unwrap();
    assert_eq!(world.ipvsadm(), before);
    assert_eq!(world.count(6), [(b.name().to_owned(), 6)].into());

    drop(serving_b);
    world.wait_for_answers(&[sorry.name()]);
    let _serving_a = serve(a);
    world.wait_for_answers(&[a.name()]);
    let _serving_b = serve(b);
    world.wait_for_answers(&[a.name(), b.name()]);
    // The sorry server stays at weight 0 for the time that its connections have.
    let address = format!("{}:{PORT}", sorry.v4());
    let is_gone = || (!world.ipvsadm().contains(&address)).then_some(());
    wait_for("the end of the sorry server", PATIENT, is_gone).unwrap();
    world.wait_for_saved(&[(a, "Up"), (b, "Up")]);

    // A bad file changes nothing, and says so.
    let before = world.ipvsadm();
    world.write(&text.replace("scheduler: rr", "scheduler: nosuch"));
    for text in ["not applied: 1 error", "7:14: spec.scheduler: \"nosuch\""] {
        agent.wait_for_log(text, PATIENT).unwrap();
    }
    assert_eq!(world.ipvsadm(), before);
    // Nor does one at the start, which says nothing about what there should be.
    agent.kill9().unwrap();
    let _agent = world.start_agent();
    let refused = || {
        let (code, answer) = world.ask_agent(&["reload"]);
        answer.contains("nosuch").then_some(code)
    };
    let code = wait_for("the agent's answer", PATIENT, refused).unwrap();
    assert_ne!(code, Some(0));
    assert_eq!(world.ipvsadm(), before);
    world.wait_for_answers(&[a.name(), b.name()]);
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
    set_conntrack(&world, "0");
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
    assert_eq!(conntrack(&world), "0", "packets pass by conntrack");
}
