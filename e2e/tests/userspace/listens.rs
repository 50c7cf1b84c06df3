// SPDX-License-Identifier: Apache-2.0

//! Clients without namespaces of their own: on the loopback device, and at the port for SOCKS and CONNECT.

use std::ffi::OsStr;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::process::Command;

use portolan_e2e::ask::PROMPT;
use portolan_e2e::cluster::PATIENT;
use portolan_e2e::rig::{Host, Process, Protocol, Rig};
use portolan_e2e::wait::wait_for;
use serde_json::json;
use tempfile::TempDir;

use crate::skip;
use crate::stage::{pods, rig, run, web, write};

/// Starts an agent on the first node in front of files, by a command that runs it.
fn start(rig: &Rig, files: &TempDir, by: &[&str], flags: &[&str]) -> Process {
    let run = run(files.path());
    let words: Vec<_> = by
        .iter()
        .map(OsStr::new)
        .chain([run.get_program()])
        .collect();
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).args(run.get_args()).args(flags);
    let namespace = rig.node(0).namespace();
    Process::spawn(namespace, "listens", &mut command, files.path()).unwrap()
}

/// Takes all rights away.
const WITHOUT_RIGHTS: [&str; 3] = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"];

/// The places of TCP port 80 in the list that the agent has printed last.
fn places(process: &Process) -> Option<Vec<SocketAddr>> {
    let log = process.log().ok()?;
    let (_, list) = log.rsplit_once("# Services are served here:")?;
    // The line of the address is the last one of a Service.
    let (items, _) = list.split_once("\n127.")?;
    let items = items.split([',', ' ']).collect::<Vec<_>>();
    let found = items.windows(3).filter_map(|words| match words {
        ["80/TCP", "at", place] => place.trim().parse().ok(),
        _ => None,
    });
    Some(found.collect())
}

#[test]
fn services_have_stable_addresses_on_the_loopback_device() {
    if skip("services_have_stable_addresses_on_the_loopback_device") {
        return;
    }
    let rig = rig();
    let [a, b] = pods(&rig);
    let files = tempfile::tempdir().unwrap();
    write(files.path(), &web(json!({}), &[(&a, 0)]));
    let node: &Host = rig.node(0);
    let ask = |to: SocketAddr, protocol| node.request(protocol, to, PROMPT).map(|a| a.name);
    let process = start(&rig, &files, &[], &[]);
    let find = |process: &Process| {
        let mut found = wait_for("the list of Services", PATIENT, || places(process)).unwrap();
        found.sort();
        (found[0], found[1])
    };
    let (v4, v6) = find(&process);
    assert!(
        v4.to_string().starts_with("127.") && v4.port() == 80,
        "{v4}"
    );
    assert_eq!(v6.ip().to_string(), "::1");
    for to in [v4, v6] {
        assert_eq!(ask(to, Protocol::Tcp), Ok("a".to_owned()));
    }
    assert_eq!(ask(v4, Protocol::Udp), Ok("a".to_owned()));
    write(files.path(), &web(json!({}), &[(&b, 1)]));
    wait_for("the other pod", PATIENT, || {
        (ask(v4, Protocol::Tcp) == Ok("b".to_owned())).then_some(())
    })
    .unwrap();

    // Another agent cannot have the same places, and says so; it gets them when they are free.
    let mut second = start(&rig, &files, &[], &[]);
    let said = second
        .wait_for_log("cannot listen at TCP 127.", PATIENT)
        .unwrap();
    assert!(said.contains("default/web:http/TCP"), "{said}");
    drop(process);
    wait_for("the second agent", PATIENT, || {
        (ask(v4, Protocol::Tcp) == Ok("b".to_owned())).then_some(())
    })
    .unwrap();
    drop(second);

    // Without a right, ports that need one are moved; addresses stay.
    std::fs::remove_file(files.path().join("listens.log")).unwrap();
    let process = start(&rig, &files, &WITHOUT_RIGHTS, &[]);
    let (moved, other) = find(&process);
    assert_eq!((moved.ip(), moved.port(), other), (v4.ip(), 10_080, v6));
    assert_eq!(ask(moved, Protocol::Tcp), Ok("b".to_owned()));
}

/// A stream to the port for SOCKS and CONNECT, from the first node.
fn open(rig: &Rig) -> TcpStream {
    let connect = || TcpStream::connect("127.0.0.1:1080");
    let stream = wait_for("the port for SOCKS", PATIENT, || {
        rig.node(0).namespace().run(connect).unwrap().ok()
    })
    .unwrap();
    stream.set_read_timeout(Some(PATIENT)).unwrap();
    stream
}

/// Asks the echo server behind a stream for its name.
fn name_behind(stream: &mut TcpStream) -> String {
    stream.write_all(b"hello\n").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    line.split(' ').next().unwrap().to_owned()
}

/// Sends a request of SOCKS for a command and a target; the answer's code, and its port.
fn socks(stream: &mut TcpStream, command: u8, target: &[u8]) -> (u8, u16) {
    stream.write_all(&[5, 1, 0]).unwrap();
    let mut method = [0; 2];
    stream.read_exact(&mut method).unwrap();
    assert_eq!(method, [5, 0]);
    stream
        .write_all(&[&[5, command, 0], target].concat())
        .unwrap();
    let mut reply = [0; 10];
    stream.read_exact(&mut reply).unwrap();
    (reply[1], u16::from_be_bytes([reply[8], reply[9]]))
}

/// A name and port, as SOCKS has them.
fn named(name: &str, port: u16) -> Vec<u8> {
    let length = u8::try_from(name.len()).unwrap();
    [&[3, length][..], name.as_bytes(), &port.to_be_bytes()].concat()
}

#[test]
fn socks_and_connect_lead_to_services_and_nowhere_else() {
    if skip("socks_and_connect_lead_to_services_and_nowhere_else") {
        return;
    }
    let rig = rig();
    let [a, _] = pods(&rig);
    let files = tempfile::tempdir().unwrap();
    write(files.path(), &web(json!({}), &[(&a, 0)]));
    let flags = [
        "--userspace-listen=socks",
        "--userspace-socks=127.0.0.1:1080",
    ];
    let _process = start(&rig, &files, &WITHOUT_RIGHTS, &flags);
    let web = named("web.default.svc.cluster.local", 80);
    wait_for("the first table", PATIENT, || {
        (socks(&mut open(&rig), 1, &web).0 == 0).then_some(())
    })
    .unwrap();
    let ip = [&[1, 10, 96, 0, 10][..], &80_u16.to_be_bytes()].concat();
    for target in [&web, &named("web", 80), &ip] {
        let mut stream = open(&rig);
        assert_eq!(socks(&mut stream, 1, target).0, 0, "{target:?}");
        assert_eq!(name_behind(&mut stream), "a");
    }
    // No Service: a pod, another port, another name; and no command of the kind.
    let pod = [&[1][..], &a.pod.v4().octets(), &8080_u16.to_be_bytes()].concat();
    for target in [&pod, &named("web", 81), &named("example.org", 80)] {
        assert_eq!(socks(&mut open(&rig), 1, target).0, 4, "{target:?}");
    }
    assert_eq!(socks(&mut open(&rig), 2, &web).0, 7);

    for (host, expected) in [
        ("web.default:80", "HTTP/1.1 200"),
        ("[fd00:10:96::10]:80", "HTTP/1.1 200"),
        ("example.org:80", "HTTP/1.1 404"),
    ] {
        let mut stream = open(&rig);
        let head = format!("CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n");
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            answer.extend(byte);
        }
        let answer = String::from_utf8(answer).unwrap();
        assert!(answer.starts_with(expected), "{host}: {answer}");
        if expected.ends_with("200") {
            assert_eq!(name_behind(&mut stream), "a");
        }
    }

    // Datagrams, for as long as the connection stands.
    let mut stream = open(&rig);
    let (code, port) = socks(&mut stream, 3, &[1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(code, 0);
    let bind = || UdpSocket::bind("127.0.0.1:0").unwrap();
    let socket = rig.node(0).namespace().run(bind).unwrap();
    socket.set_read_timeout(Some(PATIENT)).unwrap();
    let head = [&[0, 0, 0][..], &ip].concat();
    let message = [&head[..], b"hello\n"].concat();
    socket.send_to(&message, ("127.0.0.1", port)).unwrap();
    let mut answer = [0; 512];
    let length = socket.recv(&mut answer).unwrap();
    let (got, content) = answer[..length].split_at(head.len());
    assert_eq!(got, head);
    assert!(content.starts_with(b"a "), "{content:?}");
}
