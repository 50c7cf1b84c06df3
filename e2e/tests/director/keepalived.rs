// SPDX-License-Identifier: Apache-2.0

//! Debian's keepalived and an import of its file: both make the same virtual servers.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::programs::{Unpacked, unpacked};
use portolan_e2e::rig::{Host, Process};
use portolan_model::Protocol;
use portolan_model::ipvs::{RealServerConfig, VirtualServerKey};

use super::same::{
    Difference, Servers, apply, assert_same, import, servers, settled, wait_for_same,
    with_differences,
};
use super::world::{PORT, World, serve};

/// Port of the HTTP server.
const WEB: u16 = 8000;

/// Virtual servers that checks change in nothing. `A` stands for a real server that answers.
const STEADY: &str = include_str!("keepalived/steady.conf");
/// Weights that keepalived gives the real servers of `STEADY`.
const STEADY_WEIGHTS: [&str; 28] = [
    "TCP 192.0.2.10:80 A 3",
    "TCP 192.0.2.10:80 A 1",
    "TCP 192.0.2.10:80 10.0.0.13 0",
    "TCP 192.0.2.11:80 10.0.0.21 2",
    "TCP 192.0.2.11:80 10.0.0.22 1",
    "UDP 192.0.2.12:53 10.0.0.31 1",
    "UDP 192.0.2.12:53 10.0.0.32 5",
    "UDP 192.0.2.13:5060 10.0.0.41 1",
    "TCP 192.0.2.14:443 10.0.0.51 1",
    "TCP 192.0.2.14:443 10.0.0.52 1",
    "TCP 192.0.2.15:0 10.0.0.61 1",
    "SCTP 192.0.2.16:7 10.0.0.62 1",
    "TCP 192.0.2.17:443 10.0.0.53 1",
    "TCP 192.0.2.20:80 10.0.0.81 1",
    "TCP 192.0.2.20:80 10.0.0.82 9",
    "TCP 192.0.2.21:80 10.0.0.81 1",
    "TCP 192.0.2.21:80 10.0.0.82 9",
    "TCP 192.0.2.22:80 10.0.0.81 1",
    "TCP 192.0.2.22:80 10.0.0.82 9",
    "TCP 192.0.2.23:443 10.0.0.81 1",
    "TCP 192.0.2.23:443 10.0.0.82 9",
    "FWM 8 IPv4 10.0.0.81 1",
    "FWM 8 IPv4 10.0.0.82 9",
    "TCP 192.0.2.30:80 10.0.0.91 1",
    "FWM 7 IPv4 10.0.0.71 1",
    "FWM 9 IPv6 fd00::71 4",
    "FWM 10 IPv6 fd00::72 1",
    "TCP [2001:db8::10]:80 fd00::11 1",
];
/// Differences of `STEADY`.
const STEADY_DIFFERENCES: [Difference; 1] = [Difference {
    reason: "keepalived forgets the granularity of groups: it writes the mask of one client for each entry \
             (ipvs_group_range_cmd)",
    change: |servers| {
        let key = VirtualServerKey::new(Protocol::Tcp, IpAddr::from([192, 0, 2, 30]), 80);
        let server = servers.get_mut(&key).unwrap();
        Arc::make_mut(&mut server.config).netmask = Some(0xffff_0000);
    },
}];

/// Virtual servers that checks change. `B` stands for a real server that refuses.
const CHECKED: &str = include_str!("keepalived/checked.conf");
/// Weights that keepalived gives the real servers of `CHECKED` after its checks.
const CHECKED_WEIGHTS: [&str; 12] = [
    "TCP 192.0.2.40:80 A 2",
    "TCP 192.0.2.40:80 B 0",
    "TCP 192.0.2.41:80 A 2",
    "TCP 192.0.2.42:80 10.0.0.99 1",
    "TCP 192.0.2.43:80 A 1",
    "TCP 192.0.2.44:80 10.0.0.99 1",
    "TCP 192.0.2.45:80 B 0",
    "TCP 192.0.2.45:80 10.0.0.99 1",
    "TCP 192.0.2.46:80 A 1",
    "TCP 192.0.2.46:80 B 0",
    "TCP 192.0.2.47:80 A 1",
    "TCP 192.0.2.47:80 10.0.0.99 0",
];

/// A file or its weights, with addresses in place of letters.
fn filled(text: &str, world: &World, hosts: usize) -> String {
    let mut text = text.to_owned();
    for (letter, number) in ["A", "B"].iter().zip(0..hosts) {
        let address = world.real(number).v4().to_string();
        text = text.replace(&format!(" {letter} "), &format!(" {address} "));
    }
    text
}

/// Starts keepalived for its virtual servers alone.
fn start(world: &World, program: &Unpacked, text: &str) -> Process {
    let directory = world.directory.path();
    let file = directory.join("keepalived.conf");
    std::fs::write(&file, text).unwrap();
    let mut command = program.command("usr/sbin/keepalived");
    let quiet = [
        "--dont-fork",
        "--log-console",
        "--log-detail",
        "--no-syslog",
    ];
    command.args(quiet).arg("--check");
    command.arg("--use-file").arg(file);
    command.arg("--pid").arg(directory.join("keepalived.pid"));
    let checkers = directory.join("checkers.pid");
    command.arg("--checkers_pid").arg(checkers);
    let namespace = world.director().namespace();
    Process::spawn(namespace, "keepalived", &mut command, directory).unwrap()
}

/// Answers each request of HTTP on a host with success, until the tests end.
fn serve_web(host: &Host) {
    let address = (host.v4(), WEB);
    let bound = host.namespace().run(|| TcpListener::bind(address));
    let listener = bound.unwrap().unwrap();
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let _ = answer(stream);
        }
    });
}

fn answer(mut stream: TcpStream) -> std::io::Result<()> {
    let mut request = BufReader::new(&stream);
    let mut line = String::new();
    // An empty line has two characters.
    while request.read_line(&mut line)? > 2 {
        line.clear();
    }
    stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
}

/// The virtual servers that keepalived makes of a file and then removes; `None` without keepalived.
fn of_keepalived(world: &World, test: &str, text: &str, weights: &[String]) -> Option<Servers> {
    let Some(program) = unpacked("keepalived", "usr/sbin/keepalived") else {
        lane::missing(test, "needs keepalived (e2e/lanes/unpack keepalived)");
        return None;
    };
    let mut keepalived = start(world, &program, text);
    let made = settled(world, &mut keepalived, weights);
    keepalived.stop(PATIENT).unwrap();
    assert_eq!(servers(world), Servers::new(), "keepalived has ended");
    Some(made)
}

#[test]
fn an_import_makes_the_virtual_servers_that_keepalived_makes() {
    const TEST: &str = "an_import_makes_the_virtual_servers_that_keepalived_makes";
    if !lane::provides(TEST, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(1);
    let _serving = serve(world.real(0));
    serve_web(world.real(0));
    let text = filled(STEADY, &world, 1);
    let weights = STEADY_WEIGHTS.map(|line| filled(line, &world, 1));
    let Some(theirs) = of_keepalived(&world, TEST, &text, &weights) else {
        return;
    };
    let yaml = import(&world, "keepalived", &text);
    apply(&world, &yaml);
    assert_same(&world, &with_differences(theirs, &STEADY_DIFFERENCES));
    // keepalived has given up its own at its end.
    let command = ["ipvsadm", "-L", "--timeout"];
    let timeouts = world.director().exec(&command).unwrap();
    assert!(timeouts.contains("950 110 310"), "{timeouts}");
}

#[test]
fn failing_servers_of_an_import_fare_as_with_keepalived() {
    const TEST: &str = "failing_servers_of_an_import_fare_as_with_keepalived";
    if !lane::provides(TEST, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let _serving = serve(world.real(0));
    serve_web(world.real(0));
    let text = filled(CHECKED, &world, 2);
    let weights = CHECKED_WEIGHTS.map(|line| filled(line, &world, 2));
    let Some(mut expected) = of_keepalived(&world, TEST, &text, &weights) else {
        return;
    };
    // While the sorry server serves, keepalived removes servers that are up; ours keep their connections at weight 0.
    let key = VirtualServerKey::new(Protocol::Tcp, IpAddr::from([192, 0, 2, 44]), 80);
    let server = expected.get_mut(&key).unwrap();
    let up = SocketAddr::new(world.real(0).v4().into(), PORT);
    let before =
        Arc::make_mut(&mut server.real_servers).insert(up, RealServerConfig::masquerade(0));
    assert_eq!(before, None, "no difference");
    let yaml = import(&world, "keepalived", &text);
    world.write(&yaml);
    let _agent = world.start_agent();
    wait_for_same(&world, &expected);
}
