// SPDX-License-Identifier: Apache-2.0

//! Debian's keepalived and an import of its file: both make the same virtual servers.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread;

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::programs::Unpacked;
use portolan_e2e::rig::{Host, Process};
use portolan_e2e::wait::wait_for;
use portolan_model::Protocol;
use portolan_model::ipvs::{RealServerConfig, VirtualServerKey};

use super::same::{
    Difference, Servers, apply, assert_same, import, package, servers, settled, wait_for_same,
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

/// keepalived's own sample files (`keepalived.conf.NAME`), each with the numbers of virtual and of real servers that
/// keepalived makes of it. Those without any are about VRRP.
const SAMPLES: [(&str, [usize; 2]); 25] = [
    ("HTTP_GET.port", [1, 1]),
    ("IPv6", [1, 1]),
    ("PING_CHECK", [1, 1]),
    ("SMTP_CHECK", [1, 3]),
    ("SSL_GET", [2, 2]),
    ("UDP_CHECK", [1, 1]),
    ("conditional_conf", [0, 0]),
    ("fwmark", [1, 2]),
    ("inhibit", [1, 1]),
    ("misc_check", [1, 1]),
    ("misc_check_arg", [1, 1]),
    // Its servers wait for their first checks.
    ("quorum", [1, 0]),
    ("sample", [1, 1]),
    ("status_code", [1, 1]),
    ("track_interface", [0, 0]),
    ("virtual_server_group", [13, 26]),
    ("virtualhost", [1, 1]),
    ("vrrp", [0, 0]),
    ("vrrp.localcheck", [0, 0]),
    ("vrrp.lvs_syncd", [1, 1]),
    ("vrrp.routes", [0, 0]),
    ("vrrp.rules", [0, 0]),
    ("vrrp.scripts", [0, 0]),
    ("vrrp.static_ipaddress", [0, 0]),
    ("vrrp.sync", [0, 0]),
];
/// Differences of samples.
const SAMPLE_DIFFERENCES: [(&str, Difference); 2] = [
    (
        "quorum",
        Difference {
            reason: "a real server without a verdict has weight 0, keepalived adds it with its first one",
            change: |servers| {
                let key = VirtualServerKey::new(Protocol::Tcp, IpAddr::from([10, 0, 1, 1]), 80);
                let addresses = (1..=10).map(|last| SocketAddr::from(([10, 0, 0, last], 8080)));
                let all = addresses.map(|address| (address, RealServerConfig::masquerade(0)));
                servers.get_mut(&key).unwrap().real_servers = Arc::new(all.collect());
            },
        },
    ),
    (
        "virtual_server_group",
        Difference {
            reason: "IPVS ignores ports by mark with persistence, and keepalived writes them",
            change: without_ignored_ports,
        },
    ),
];
/// Directory of the samples in the package.
const SAMPLES_DIRECTORY: &str = "usr/share/doc/keepalived/samples";

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

/// The virtual servers that keepalived makes of a file and then removes, when its real servers have these weights.
fn of_keepalived(world: &World, program: &Unpacked, text: &str, weights: &[String]) -> Servers {
    let mut keepalived = start(world, program, text);
    let made = settled(world, &mut keepalived, weights);
    keepalived.stop(PATIENT).unwrap();
    assert_eq!(servers(world), Servers::new(), "keepalived has ended");
    made
}

#[test]
fn an_import_makes_the_virtual_servers_that_keepalived_makes() {
    const TEST: &str = "an_import_makes_the_virtual_servers_that_keepalived_makes";
    let Some(program) = package(TEST, "keepalived") else {
        return;
    };
    let world = World::new(1);
    let _serving = serve(world.real(0));
    serve_web(world.real(0));
    let text = filled(STEADY, &world, 1);
    let weights = STEADY_WEIGHTS.map(|line| filled(line, &world, 1));
    let theirs = of_keepalived(&world, &program, &text, &weights);
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
    let Some(program) = package(TEST, "keepalived") else {
        return;
    };
    let world = World::new(2);
    let _serving = serve(world.real(0));
    serve_web(world.real(0));
    let text = filled(CHECKED, &world, 2);
    let weights = CHECKED_WEIGHTS.map(|line| filled(line, &world, 2));
    let mut expected = of_keepalived(&world, &program, &text, &weights);
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

/// Numbers of virtual and of real servers.
fn counts(servers: &Servers) -> [usize; 2] {
    let real_servers = servers.values().map(|server| server.real_servers.len());
    [servers.len(), real_servers.sum()]
}

fn without_ignored_ports(servers: &mut Servers) {
    for (key, server) in servers {
        if matches!(key, VirtualServerKey::Mark { .. }) {
            let real_servers = server.real_servers.iter();
            let without =
                real_servers.map(|(address, config)| (SocketAddr::new(address.ip(), 0), *config));
            server.real_servers = Arc::new(without.collect());
        }
    }
}

/// Before any check has failed: nobody answers at their addresses.
#[test]
fn each_sample_file_of_keepalived_makes_the_virtual_servers_that_it_makes() {
    const TEST: &str = "each_sample_file_of_keepalived_makes_the_virtual_servers_that_it_makes";
    let Some(program) = package(TEST, "keepalived") else {
        return;
    };
    for (name, expected) in SAMPLES {
        println!("{name}");
        let path = format!("{SAMPLES_DIRECTORY}/keepalived.conf.{name}");
        let text = program.read(&path).unwrap();
        let world = World::new(0);
        let yaml = import(&world, "keepalived", &text);
        if expected == [0, 0] {
            assert!(!yaml.contains("kind: LoadBalancer"), "{name}: {yaml}");
            continue;
        }
        let mut keepalived = start(&world, &program, &text);
        let theirs = wait_for("keepalived's virtual servers", PATIENT, || {
            Some(servers(&world)).filter(|found| counts(found) == expected)
        })
        .unwrap_or_else(|error| panic!("{name}: {error}: {}", keepalived.log().unwrap()));
        keepalived.stop(PATIENT).unwrap();
        assert_eq!(servers(&world), Servers::new(), "keepalived has ended");
        apply(&world, &yaml);
        let differences = SAMPLE_DIFFERENCES.iter().filter(|(of, _)| *of == name);
        let expected = with_differences(theirs, differences.map(|(_, difference)| difference));
        assert_same(&world, &expected);
    }
}
