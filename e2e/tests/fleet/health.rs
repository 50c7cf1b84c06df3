// SPDX-License-Identifier: Apache-2.0

//! Two directors that check the backends of a fleet's load balancers, what `portolanctl health` says of them, and
//! load balancers that are for some of them.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Command;

use portolan_e2e::cluster::program;
use portolan_e2e::ports;
use portolan_e2e::wait::wait_for;
use serde_json::Value;

use super::etcd::{HOST, PATIENT, Running};
use super::{Fleet, fleet_or_skip};

/// Agents that serve by sockets, so that the test needs no right: they check backends all the same.
pub(super) fn director(fleet: &Fleet<'_>, name: &str) -> Running {
    let directory = fleet.directory.join(format!("state-{name}"));
    let socket = fleet.directory.join(format!("{name}.sock"));
    let mut command = Command::new(program("portolan-agent").unwrap());
    command
        .args(["--dataplane=userspace", "--plaintext", "--log-level=info"])
        .args(["--admin-listen=127.0.0.1:0", "--healthz-listen=127.0.0.1:0"])
        .arg(format!("--node-name={name}"))
        .arg(format!("--controller={HOST}:{}", fleet.streams))
        .arg(format!("--state-dir={}", directory.display()))
        .arg(format!("--debug-listen=unix://{}", socket.display()));
    Running::start(fleet.directory, name, &mut command).unwrap()
}

fn node(name: &str, role: &str) -> String {
    format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{role: {role}}}}}\n")
}

/// A load balancer whose backend is checked often.
pub(super) fn balancer(backend: SocketAddr, selector: &str) -> String {
    format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: web}}\nspec:\n  \
         frontends: [{{addresses: [192.0.2.1], port: 80}}]\n  \
         backends: [{{address: {}, port: {}}}]\n  \
         checks: [{{interval: 200ms, timeout: 5s, fall: 2, rise: 1, tcp: {{}}}}]\n{selector}",
        backend.ip(),
        backend.port()
    )
}

/// Returns each director's state of the one backend, with the exit code: `lb-1=up lb-2=down`.
fn said(fleet: &Fleet<'_>) -> (Option<i32>, String) {
    let output = fleet.asked(&["health", "-o", "json"]);
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    let nodes = answer[0]["backends"][0]["nodes"].as_array().cloned();
    let states = nodes.unwrap_or_default().into_iter().map(|node| {
        let text = |field: &str| node[field].as_str().unwrap_or_default().to_owned();
        format!("{}={}", text("node"), text("state"))
    });
    let states = states.collect::<Vec<_>>().join(" ");
    (output.status.code(), states)
}

pub(super) fn await_said(fleet: &Fleet<'_>, code: i32, states: &str) {
    let mut last = (None, String::new());
    let expected = (Some(code), states.to_owned());
    let arrived = wait_for("the directors' word", PATIENT, || {
        last = said(fleet);
        (last == expected).then_some(())
    });
    arrived.unwrap_or_else(|error| panic!("{error}: {expected:?}, not {last:?}"));
}

#[test]
fn directors_tell_the_health_of_backends() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(fleet) = fleet_or_skip(temporary.path()) else {
        return;
    };
    // While it is down, nobody else may listen at its port.
    let [port] = ports::reserve().unwrap();
    let backend = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let address = backend.local_addr().unwrap();
    let objects = [
        &*node("lb-1", "edge"),
        &node("lb-2", "core"),
        &balancer(address, ""),
    ];
    assert_eq!(fleet.apply(&objects.join("---\n"), &[]).0, Some(0));
    // The controller may still be starting.
    await_said(&fleet, 0, "");
    let _one = director(&fleet, "lb-1");
    await_said(&fleet, 0, "lb-1=up");
    let two = director(&fleet, "lb-2");
    await_said(&fleet, 0, "lb-1=up lb-2=up");

    drop(backend);
    await_said(&fleet, 3, "lb-1=down lb-2=down");
    let shown = fleet.ask(&["health", "web", "-o", "wide"]);
    for word in ["lb-2", "down", "no quorum", "refused"] {
        assert!(shown.contains(word), "{word}: {shown}");
    }
    let backend = TcpListener::bind(address).unwrap();
    await_said(&fleet, 0, "lb-1=up lb-2=up");

    // The node's labels choose what it serves.
    let selecting = balancer(address, "  nodeSelector: {role: core}\n");
    assert_eq!(fleet.apply(&selecting, &[]).0, Some(0));
    await_said(&fleet, 0, "lb-2=up");
    fleet.await_table("");
    assert!(fleet.ask(&["table", "lb-2"]).contains("192.0.2.1:80"));
    assert_eq!(fleet.apply(&node("lb-1", "core"), &[]).0, Some(0));
    await_said(&fleet, 0, "lb-1=up lb-2=up");
    fleet.await_table("web=1");
    assert_eq!(fleet.apply(&node("lb-2", "edge"), &[]).0, Some(0));
    await_said(&fleet, 0, "lb-1=up");

    // A director that is gone has no say.
    assert_eq!(fleet.apply(&balancer(address, ""), &[]).0, Some(0));
    await_said(&fleet, 0, "lb-1=up lb-2=up");
    drop(two);
    drop(backend);
    await_said(&fleet, 3, "lb-1=down lb-2=up");
    fleet.await_said("0/1  agree", &["health"]);
}
