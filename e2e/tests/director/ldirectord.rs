// SPDX-License-Identifier: Apache-2.0

//! Debian's ldirectord and an import of its file: both make the same virtual servers.

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::programs::Unpacked;
use portolan_e2e::rig::Process;

use super::same::{Servers, import, package, servers, settled, wait_for_same};
use super::world::{World, serve};

/// The file. `A` stands for a real server that answers, `B` for one that refuses. No two virtual servers have the same one
/// that refuses: when ldirectord starts, it adds such a server to the last of them alone.
const FILE: &str = "\
checktimeout = 3
checkinterval = 1
autoreload = no
quiescent = yes
virtual = 192.0.2.60:80
        real = A:8080 masq 3 l:50 u:100
        real = B:8080 masq 2
        fallback = 10.0.0.99:8080 masq
        scheduler = wlc
        protocol = tcp
        checktype = connect
virtual = 192.0.2.61:443
        real = 10.0.0.21:443 gate 2
        real = 10.0.0.22->10.0.0.23:443 ipip
        scheduler = rr
        persistent = 600
        netmask = 255.255.255.0
        protocol = tcp
        checktype = on
virtual = 192.0.2.62:80
        real = B:8081 masq
        fallback = 10.0.0.99:8080 masq
        quiescent = no
        scheduler = wrr
        protocol = tcp
        checktype = connect
virtual = 192.0.2.63:53
        real = 10.0.0.41:53 masq
        ops = yes
        scheduler = mh
        schedflags = \"mh-port,mh-fallback\"
        protocol = udp
        checktype = on
virtual = 7
        real = 10.0.0.31 gate
        scheduler = wrr
        protocol = fwm
        checktype = on
virtual6 = [2001:db8::60]:80
        real6 = [fd00::11]:8080 masq 4
        scheduler = lc
        protocol = tcp
        checktype = on
";
/// Weights that ldirectord gives the real servers after its checks.
const WEIGHTS: [&str; 9] = [
    "TCP 192.0.2.60:80 A 3",
    "TCP 192.0.2.60:80 B 0",
    "TCP 192.0.2.61:443 10.0.0.21 2",
    "TCP 192.0.2.61:443 10.0.0.22 1",
    "TCP 192.0.2.61:443 10.0.0.23 1",
    "TCP 192.0.2.62:80 10.0.0.99 1",
    "UDP 192.0.2.63:53 10.0.0.41 1",
    "FWM 7 IPv4 10.0.0.31 1",
    "TCP [2001:db8::60]:80 fd00::11 4",
];

/// A text with the addresses of both real servers.
fn filled(text: &str, world: &World) -> String {
    let mut text = text.to_owned();
    for (letter, number) in [("A", 0), ("B", 1)] {
        let address = world.real(number).v4();
        for rest in [":", " "] {
            text = text.replace(&format!(" {letter}{rest}"), &format!(" {address}{rest}"));
        }
    }
    text
}

/// The virtual servers that ldirectord makes of a file and then removes, when its real servers have these weights.
fn of_ldirectord(world: &World, program: &Unpacked, text: &str, weights: &[String]) -> Servers {
    let directory = world.directory.path();
    let file = directory.join("ldirectord.cf");
    std::fs::write(&file, text).unwrap();
    // It stays in the foreground and writes no file of its process.
    let mut command = program.perl("usr/sbin/ldirectord");
    command.arg("-d").arg(file).arg("start");
    let namespace = world.director().namespace();
    let mut ldirectord = Process::spawn(namespace, "ldirectord", &mut command, directory).unwrap();
    let made = settled(world, &mut ldirectord, weights);
    ldirectord.stop(PATIENT).unwrap();
    assert_eq!(servers(world), Servers::new(), "ldirectord has ended");
    made
}

#[test]
fn an_import_makes_the_virtual_servers_that_ldirectord_makes() {
    const TEST: &str = "an_import_makes_the_virtual_servers_that_ldirectord_makes";
    let Some(ldirectord) = package(TEST, "ldirectord") else {
        return;
    };
    let world = World::new(2);
    let _serving = serve(world.real(0));
    let text = filled(FILE, &world);
    let weights = WEIGHTS.map(|line| filled(line, &world));
    let theirs = of_ldirectord(&world, &ldirectord, &text, &weights);
    let yaml = import(&world, "ldirectord", &text);
    world.write(&yaml);
    let _agent = world.start_agent();
    wait_for_same(&world, &theirs);
}

/// Nobody answers at the sample's real servers, so that its fallback serves.
#[test]
fn the_sample_file_of_ldirectord_makes_the_virtual_servers_that_it_makes() {
    const TEST: &str = "the_sample_file_of_ldirectord_makes_the_virtual_servers_that_it_makes";
    let Some(ldirectord) = package(TEST, "ldirectord") else {
        return;
    };
    let world = World::new(0);
    let sample = "usr/share/doc/ldirectord/examples/ldirectord.cf";
    let text = ldirectord.read(sample).unwrap();
    let weights = ["TCP 192.168.6.240:80 127.0.0.1 1".to_owned()];
    let theirs = of_ldirectord(&world, &ldirectord, &text, &weights);
    let yaml = import(&world, "ldirectord", &text);
    world.write(&yaml);
    let _agent = world.start_agent();
    wait_for_same(&world, &theirs);
}
