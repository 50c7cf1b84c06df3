// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent run -- COMMAND`: the real agent with files, real pods, and clients in the namespaces of its command.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod conformance;
mod listens;
mod stage;
mod throughput;

use std::collections::BTreeMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;
use std::thread;
use std::time::Duration;

use portolan_e2e::ask::{PROMPT, address, ways};
use portolan_e2e::cluster::{EchoPod, PATIENT, program};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{Family, Load, LoadConfig, Protocol, RequestError};
use portolan_e2e::wait::wait_for;
use serde_json::json;

use stage::{Stage, WEB, output, pods, rig, run, web, with_dead, write};

fn skip(test: &str) -> bool {
    !lane::provides(test, &[Need::Root])
}

/// Affinity of ten minutes.
fn sticky() -> serde_json::Value {
    json!({ "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 600 } } })
}

#[test]
fn the_command_reaches_services_by_their_addresses_and_only_those() {
    if skip("the_command_reaches_services_by_their_addresses_and_only_those") {
        return;
    }
    let rig = rig();
    let [a, b] = pods(&rig);
    let objects = web(json!({}), &[(&a, 0), (&b, 1)]);
    let stage = Stage::new(rig, &objects, &[]);
    stage.until_answered_by(WEB, 80, &["a", "b"]);
    let bytes = stage.metric("portolan_agent_proxy_bytes_total");
    assert!(bytes > 0.0, "{bytes}");
    assert!(stage.metric("portolan_agent_proxy_connections_total") >= 8.0);
    for (family, protocol) in ways() {
        // Another port is refused, and no other host is there, pods included.
        let port = address(WEB, family, 81);
        let refused = stage.inside.request(protocol, port, PROMPT);
        assert_eq!(
            refused,
            Err(RequestError::Refused),
            "{family:?} {protocol:?}"
        );
        let direct = a.pod.socket(family, EchoPod::PORT);
        let unreachable = stage.inside.request(protocol, direct, PROMPT);
        assert_eq!(
            unreachable,
            Err(RequestError::Unreachable),
            "{family:?} {protocol:?}"
        );
    }
    // Without an endpoint, connections are refused by the kernel.
    stage.put(&web(json!({}), &[]));
    for (family, protocol) in ways() {
        let web = address(WEB, family, 80);
        wait_for("a refusal", PATIENT, || {
            let asked = stage.inside.request(protocol, web, PROMPT);
            (asked == Err(RequestError::Refused)).then_some(())
        })
        .unwrap();
    }
    stage.put(&web(json!({}), &[(&b, 1)]));
    stage.until_answered_by(WEB, 80, &["b"]);
    stage.stop();
}

/// An orderly end would look like an empty answer to a client that waits for the server's first words.
#[test]
fn a_connection_that_leads_nowhere_is_reset() {
    if skip("a_connection_that_leads_nowhere_is_reset") {
        return;
    }
    let rig = rig();
    let [_, b] = pods(&rig);
    let here_only = json!({ "internalTrafficPolicy": "Local" });
    let stage = Stage::new(rig, &web(here_only, &[(&b, 1)]), &[]);
    let inside = stage.inside.namespace();
    for family in Family::ALL {
        let listen = || {
            let mut stream = TcpStream::connect(address(WEB, family, 80))?;
            stream.set_read_timeout(Some(PATIENT))?;
            stream.read(&mut [0; 1])
        };
        let heard = inside.run(listen).unwrap().unwrap_err();
        assert_eq!(heard.kind(), ErrorKind::ConnectionReset, "{family:?}");
    }
    stage.stop();
}

#[test]
fn shares_follow_weights_and_clients_stay() {
    if skip("shares_follow_weights_and_clients_stay") {
        return;
    }
    let rig = rig();
    let [a, b] = pods(&rig);
    let both = [(&a, 0), (&b, 1)];
    let stage = Stage::new(rig, &web(json!({}), &both), &[]);
    for (family, protocol) in ways() {
        let web = address(WEB, family, 80);
        let mut seen = BTreeMap::new();
        // A port that the kernel chose twice would have the endpoint of its first flow.
        for port in 30_000..30_040 {
            let name = stage.ask_from(port, protocol, web);
            *seen.entry(name).or_insert(0) += 1;
        }
        // Pods of the second node weigh three.
        let expected = BTreeMap::from([("a".to_owned(), 10), ("b".to_owned(), 30)]);
        assert_eq!(seen, expected, "{family:?} {protocol:?}");
    }
    stage.put(&web(sticky(), &both));
    let tcp = address(WEB, Family::V4, 80);
    wait_for("affinity", PATIENT, || {
        let first = stage.ask(Protocol::Tcp, tcp);
        (0..12)
            .all(|_| stage.ask(Protocol::Tcp, tcp) == first)
            .then_some(())
    })
    .unwrap();
    // The client of an endpoint that leaves gets another one, and stays with that.
    let first = stage.ask(Protocol::Tcp, tcp);
    let other = if first == "a" { (&b, 1) } else { (&a, 0) };
    stage.put(&web(sticky(), &[other]));
    let second = wait_for("another pod", PATIENT, || {
        Some(stage.ask(Protocol::Tcp, tcp)).filter(|name| *name != first)
    });
    stage.put(&web(sticky(), &both));
    for _ in 0..12 {
        assert_eq!(stage.ask(Protocol::Tcp, tcp), *second.as_ref().unwrap());
    }
    stage.stop();
}

#[test]
fn half_of_a_connection_may_end() {
    if skip("half_of_a_connection_may_end") {
        return;
    }
    let rig = rig();
    let [a, _] = pods(&rig);
    let objects = web(
        json!({ "ports": [{ "name": "http", "port": 80, "targetPort": 9000 }] }),
        &[],
    );
    let slice = json!({ "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": { "name": "web-1", "namespace": "default",
            "labels": { "kubernetes.io/service-name": "web" } },
        "addressType": "IPv4", "ports": [{ "name": "http", "port": 9000 }],
        "endpoints": [{ "addresses": [a.pod.v4().to_string()] }] });
    // The server answers only when the client has said that there is no more.
    let listen = || TcpListener::bind((a.pod.v4(), 9000)).unwrap();
    let listener = a.pod.namespace().run(listen).unwrap();
    let server = thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut all = Vec::new();
        stream.read_to_end(&mut all).unwrap();
        let answer = format!("{} bytes", all.len());
        stream.write_all(answer.as_bytes()).unwrap();
    });
    let stage = Stage::new(rig, &[objects, vec![slice]].concat(), &[]);
    let asked = stage.inside.namespace().run(|| {
        let mut stream = TcpStream::connect(address(WEB, Family::V4, 80)).unwrap();
        stream.set_read_timeout(Some(PATIENT)).unwrap();
        stream.write_all(&vec![7; 100_000]).unwrap();
        stream.shutdown(Shutdown::Write).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    });
    assert_eq!(asked.unwrap(), "100000 bytes");
    server.join().unwrap();
    stage.stop();
}

#[test]
fn an_endpoint_that_is_dead_costs_no_request() {
    if skip("an_endpoint_that_is_dead_costs_no_request") {
        return;
    }
    let rig = rig();
    let [a, b] = pods(&rig);
    // A pod that is there without a server refuses; an address that nobody has is silent.
    let empty = rig.node(0).add_pod("empty").unwrap();
    let refusing = [empty.v4().to_string(), empty.v6().to_string()];
    let refusing = [refusing[0].as_str(), refusing[1].as_str()];
    let objects = with_dead(json!({}), &[(&a, 0), (&b, 1)], refusing);
    let stage = Stage::new(rig, &objects, &[]);
    for family in Family::ALL {
        let web = address(WEB, family, 80);
        for _ in 0..30 {
            let name = stage.ask(Protocol::Tcp, web);
            assert!(["a", "b"].contains(&name.as_str()), "{name}");
        }
    }
    // After three failures in a row it comes last: each family has tried it three times.
    let failures = stage.metric("portolan_agent_proxy_dial_failures_total");
    assert!((6.0..=12.0).contains(&failures), "{failures}");
    stage.put(&with_dead(
        json!({}),
        &[(&a, 0), (&b, 1)],
        ["10.244.1.250", "fd00:244:1::fa"],
    ));
    for _ in 0..10 {
        stage.ask(Protocol::Tcp, address(WEB, Family::V4, 80));
    }
    stage.stop();
}

#[test]
fn a_service_that_changes_fails_no_request() {
    if skip("a_service_that_changes_fails_no_request") {
        return;
    }
    let rig = rig();
    let [a, b] = pods(&rig);
    let c = EchoPod::new(rig.node(0), "c").unwrap();
    let lists: [&[(&EchoPod, usize)]; 4] = [
        &[(&a, 0), (&b, 1)],
        &[(&b, 1)],
        &[(&c, 0)],
        &[(&c, 0), (&a, 0)],
    ];
    let stage = Stage::new(rig, &web(json!({}), lists[0]), &[]);
    let targets = Family::ALL.map(|family| address(WEB, family, 80));
    let load = Load::start(&stage.inside, &targets, LoadConfig::default()).unwrap();
    let mut open = stage
        .inside
        .connect(Protocol::Tcp, targets[0], PATIENT)
        .unwrap();
    let first = open.ask().unwrap().name;
    for round in 1..=12_usize {
        let (list, before) = (lists[round % lists.len()], load.answered());
        // Addresses come and go too.
        let more = portolan_e2e::objects::service(
            "more",
            [
                &format!("10.96.1.{round}"),
                &format!("fd00:10:96:1::{round}"),
            ],
            json!({}),
        );
        stage.put(&[web(json!({}), list), vec![more]].concat());
        wait_for("requests after the change", PATIENT, || {
            (load.answered() > before + 50).then_some(())
        })
        .unwrap();
    }
    // Open connections outlive all changes, with the endpoint that they have.
    assert_eq!(open.ask().unwrap().name, first);
    let report = load.stop();
    println!("{} requests, slowest {}", report.requests, report.slowest);
    assert!(report.failures.is_empty(), "{:?}", report.failures);
    assert_eq!(report.by_name.len(), 3, "{:?}", report.by_name);
    stage.stop();
}

#[test]
fn connections_of_a_removed_endpoint_end_at_the_drain_deadline() {
    if skip("connections_of_a_removed_endpoint_end_at_the_drain_deadline") {
        return;
    }
    let rig = rig();
    let [a, b] = pods(&rig);
    let stage = Stage::new(rig, &web(json!({}), &[(&a, 0)]), &["--drain-timeout=1s"]);
    let to = address(WEB, Family::V4, 80);
    let mut open = stage.inside.connect(Protocol::Tcp, to, PATIENT).unwrap();
    assert_eq!(open.ask().unwrap().name, "a");
    stage.put(&web(json!({}), &[(&b, 1)]));
    stage.until_answered_by(WEB, 80, &["b"]);
    wait_for("the connection to be reset", PATIENT, || open.ask().err()).unwrap();
    wait_for("no open connection", PATIENT, || {
        let open = stage.metric("portolan_agent_proxy_connections_open{protocol=\"TCP\"}");
        (open == 0.0).then_some(())
    })
    .unwrap();
    stage.stop();
}

/// Everything that a user without any right does.
#[test]
fn an_unprivileged_user_runs_a_command_with_names_and_its_exit_code() {
    if skip("an_unprivileged_user_runs_a_command_with_names_and_its_exit_code") {
        return;
    }
    let rig = rig();
    let [a, _] = pods(&rig);
    let files = tempfile::tempdir().unwrap();
    std::fs::set_permissions(files.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    write(files.path(), &web(json!({}), &[(&a, 0)]));
    // Nobody may not read the build directory.
    let own = files.path().join("portolan-agent");
    std::fs::copy(program("portolan-agent").unwrap(), &own).unwrap();
    std::fs::set_permissions(&own, std::fs::Permissions::from_mode(0o755)).unwrap();
    let as_nobody = |script: &str| {
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
            .arg(&own)
            .args(run(files.path()).get_args())
            .args(["--", "bash", "-c", script]);
        let output = output(&rig, &mut command);
        let text = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (text, output.status.code(), said)
    };
    let ask = "id -u; exec 3<>/dev/tcp/web/80; echo hello >&3; read -r name rest <&3; echo $name";
    let (text, code, said) = as_nobody(ask);
    assert_eq!((text.as_str(), code), ("65534\na", Some(0)), "{said}");
    let (text, ..) = as_nobody("getent hosts web.default.svc.cluster.local | tr -s ' '");
    let names: Vec<_> = text.split(' ').collect();
    assert!(WEB.contains(&names[0]), "{text}");
    let (_, code, said) = as_nobody("getent hosts other; test $? = 2 && exit 7");
    assert_eq!(code, Some(7), "{said}");
    // The command has no rights in its namespaces, and cannot change what it sees.
    let (text, code, said) = as_nobody("grep CapEff /proc/self/status; ip link set lo down 2>&1");
    assert!(text.contains("CapEff:\t0000000000000000"), "{text} {said}");
    assert_ne!(code, Some(0));
    let (_, code, said) = as_nobody("exec /no/such/program");
    assert_eq!(code, Some(127), "{said}");
    let gone = wait_for("the end of all", Duration::from_secs(20), || {
        let left = std::fs::read_dir("/tmp").unwrap().flatten().any(|entry| {
            use std::os::unix::fs::MetadataExt as _;
            let is_own = entry.file_name().to_string_lossy().starts_with("portolan-");
            is_own
                && entry
                    .metadata()
                    .is_ok_and(|metadata| metadata.uid() == 65534)
        });
        (!left).then_some(())
    });
    gone.unwrap();
}
