// SPDX-License-Identifier: Apache-2.0

//! Settings that the kernel refuses: a plan tells them first. Sync daemons, which exclude some.

use portolan_e2e::lane::{self, Need};

use super::rows::{apply, document};
use super::world::World;

/// Objects that the kernel would refuse, or take and not serve, and the words for each.
const REFUSED: [(&str, &str); 16] = [
    (
        "frontends: [{addresses: [192.0.2.1], port: 80}]\n  scheduler: none",
        "\"none\"",
    ),
    (
        "frontends: [{addresses: [192.0.2.2], port: 0}]",
        "0 stands for all ports: expected with persistence only",
    ),
    (
        "frontends: [{addresses: [192.0.2.3], port: 0}]\n  persistence: {}\n  \
         backends: [{address: 10.0.0.1, port: 80}]",
        "has all ports: expected 0",
    ),
    (
        "frontends: [{addresses: [192.0.2.4], port: 80}]\n  persistence: {ipv6PrefixLength: 0}",
        "ipv6PrefixLength: 0",
    ),
    (
        "frontends: [{addresses: [192.0.2.5], port: 80}]\n  persistence: {engine: Sip}",
        "Sip reads UDP",
    ),
    (
        "frontends: [{addresses: [192.0.2.6], port: 80}]\n  backends: [{address: 10.0.0.1, weight: 2147483648}]",
        "weight: 2147483648",
    ),
    (
        "frontends: [{addresses: [192.0.2.7], port: 80}]\n  \
         backends: [{address: 10.0.0.1, maxConnections: 2, resumeConnections: 3}]",
        "3 is more than maxConnections 2",
    ),
    (
        "frontends: [{addresses: [192.0.2.8], port: 80}]\n  \
         backends: [{address: 10.0.0.1, maxConnections: 2147483648}]",
        "maxConnections: 2147483648",
    ),
    (
        "frontends: [{addresses: [192.0.2.9], port: 80}]\n  forwarding: {method: Tunnel, tunnel: {type: GUE}}",
        "type GUE needs the server's UDP port",
    ),
    (
        "frontends: [{addresses: [192.0.2.10], port: 80}]\n  \
         forwarding: {method: Tunnel, tunnel: {type: GRE, checksum: Remote}}",
        "type GRE has no remote checksum",
    ),
    (
        "frontends: [{addresses: [192.0.2.11], port: 80}]\n  backends: [{address: \"fd00::1\"}]",
        "IPv6 behind an IPv4 frontend: only method Tunnel can",
    ),
    (
        "frontends: [{addresses: [\"2001:db8::12\"], port: 80}]\n  forwarding: {method: Direct}\n  \
         backends: [{address: 10.0.0.1}]",
        "IPv4 behind an IPv6 frontend: only method Tunnel can",
    ),
    (
        "frontends: [{addresses: [192.0.2.13], port: 80}]\n  forwarding: {method: Direct}\n  \
         backends: [{address: 10.0.0.1, port: 8080}]",
        "method Direct does not translate ports",
    ),
    (
        "frontends: [{addresses: [192.0.2.14], port: 80}]\n  backends: [{address: 10.0.0.1}, {address: 10.0.0.1}]",
        "expected each address and port once",
    ),
    (
        "frontends: [{addresses: [192.0.2.15], port: 80}]\n  backends: [{address: 224.0.0.1}]",
        "224.0.0.1 is a multicast address",
    ),
    (
        "frontends: [{addresses: [\"2001:db8::16\"], port: 80}]\n  backends: [{address: \"fe80::1\"}]",
        "fe80::1 is a link-local address",
    ),
];

#[test]
fn a_plan_tells_what_the_kernel_would_refuse() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(0);
    for (number, (spec, words)) in REFUSED.iter().enumerate() {
        world.write(&document(&format!("bad-{number}"), &format!("  {spec}")));
        let (code, text) = world.once(&["plan"]);
        assert_eq!(code, Some(1), "{spec}: {text}");
        assert!(text.contains(words), "{spec}: no {words:?} in {text}");
    }
    assert_eq!(world.ipvsadm(), "");
    // The latest scheduler, which not every kernel has.
    let spec = "  frontends: [{addresses: [192.0.2.17], port: 80}]\n  scheduler: twos\n  \
                backends: [{address: 10.0.0.1}]";
    world.write(&document("new", spec));
    let added = ["ipvsadm", "-A", "-t", "203.0.113.7:80", "-s", "twos"];
    let has_it = world.director().exec(&added).is_ok();
    if has_it {
        world.run("ipvsadm -C");
    }
    let (code, plan) = world.once(&["plan"]);
    assert_eq!(code, Some(2), "{plan}");
    let words = "scheduler: the kernel has no twos, and no module ip_vs_twos";
    assert_eq!(plan.contains(words), !has_it, "{plan}");
    let (code, text) = world.once(&["apply", "--once"]);
    assert_eq!(code == Some(0), has_it, "{text}");
    assert_eq!(world.ipvsadm().contains("twos"), has_it);
}

/// A load balancer, and a Director with these fields.
fn with_director(fields: &str) -> String {
    let balancer =
        "  frontends: [{addresses: [192.0.2.1], port: 80}]\n  backends: [{address: 10.0.0.1}]";
    let director =
        "---\napiVersion: portolan.dev/v1alpha1\nkind: Director\nmetadata: {name: node1}\nspec:\n";
    format!("{}{director}{fields}\n", document("web", balancer))
}

#[test]
fn sync_daemons_and_timeouts_are_programmed_read_back_and_mended() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(0);
    // One of somebody else's stays while the file asks for none.
    let theirs = "ipvsadm --start-daemon backup --mcast-interface eth0 --syncid 9";
    world.run(theirs);
    world.write(&with_director("  timeouts: {udp: 200s}"));
    apply(&world);
    let daemons = world.run("ipvsadm --list --daemon");
    assert!(daemons.contains("syncid=9"), "{daemons}");
    world.run("ipvsadm --stop-daemon backup");

    let sync = "  sync: {interface: eth0, id: 7, group: 224.0.0.82, port: 9000, ttl: 3, maxLength: 1400}\n  \
                timeouts: {tcp: 800s, tcpFin: 100s, udp: 200s}";
    world.write(&with_director(sync));
    apply(&world);
    let state = || world.run("ipvsadm --list --daemon") + &world.run("ipvsadm --list --timeout");
    let before = state();
    assert_eq!(before.matches("syncid=7").count(), 2, "{before}");
    assert!(before.contains("800 100 200"), "{before}");
    for command in [
        "ipvsadm --stop-daemon master",
        "ipvsadm --stop-daemon backup",
        "ipvsadm --start-daemon backup --mcast-interface eth0 --syncid 8",
        "ipvsadm --set 900 120 300",
    ] {
        world.run(command);
    }
    let (code, plan) = world.once(&["plan"]);
    assert_eq!(code, Some(2), "{plan}");
    for line in [
        "- ipvsadm --stop-daemon backup",
        "+ ipvsadm --start-daemon master",
        "+ ipvsadm --start-daemon backup",
        "~ ipvsadm --set 800 100 200  # was ipvsadm --set 900 120 300",
    ] {
        assert!(plan.contains(line), "{line}: {plan}");
    }
    apply(&world);
    assert_eq!(state(), before);

    // The kernel refuses a daemon and mixed families together.
    let mixed = with_director(sync).replace("address: 10.0.0.1", "address: \"fd00::1\"");
    let mixed = mixed.replace("  backends", "  forwarding: {method: Tunnel}\n  backends");
    world.write(&mixed);
    let (code, text) = world.once(&["plan"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("excludes the sync daemon"), "{text}");
    assert_eq!(state(), before);
}
