// SPDX-License-Identifier: Apache-2.0

//! The settings of each host of a fleet, as its `Director` in etcd has them.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Command, Output};

use portolan_e2e::cluster::program;
use portolan_e2e::ports;
use portolan_e2e::saved_table::saved_table;
use portolan_e2e::wait::wait_for;

use super::etcd::PATIENT;
use super::health::{await_said, balancer, director};
use super::{Fleet, fleet_or_skip, text};

/// A host on standby that checks no backend then.
fn silent(host: &str) -> String {
    format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: Director\nmetadata: {{name: {host}}}\n\
         spec: {{checksOnStandby: false, vips: {{role: Command}}}}\n"
    )
}

/// A host that is active always.
fn active(host: &str) -> String {
    silent(host).replace("Command", "Always")
}

/// The role of a host, by its agent's word; an error without a Director.
fn role(fleet: &Fleet<'_>, host: &str) -> Output {
    let socket = format!("--address=unix://{}", fleet.socket(host));
    let mut command = Command::new(program("portolan-agent").unwrap());
    command
        .args(["director", "show", &socket])
        .output()
        .unwrap()
}

fn await_role(fleet: &Fleet<'_>, host: &str, expected: &str) {
    let mut last = String::new();
    let arrived = wait_for("the role", PATIENT, || {
        last = text(&role(fleet, host));
        last.contains(expected).then_some(())
    });
    arrived.unwrap_or_else(|error| panic!("{error}: {expected:?}, not {last:?}"));
}

/// Waits for a text in the table that the agent of a host keeps on its disk.
fn await_saved(fleet: &Fleet<'_>, host: &str, expected: &str) {
    let directory = fleet.directory.join(format!("state-{host}"));
    let saved = wait_for("the table on disk", PATIENT, || {
        let table = saved_table(&directory)?;
        let mut parts = table.windows(expected.len());
        parts.any(|part| part == expected.as_bytes()).then_some(())
    });
    saved.unwrap();
}

#[test]
fn checks_have_the_defaults_of_their_host() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(fleet) = fleet_or_skip(temporary.path()) else {
        return;
    };
    // While it is down, nobody else may listen at its port.
    let [port] = ports::reserve().unwrap();
    let backend = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let address = backend.local_addr().unwrap();
    // The timer that decides is left to the hosts.
    let undecided = balancer(address, "").replace(", fall: 2", "");
    assert!(!undecided.contains("fall"), "{undecided}");
    let patient = |host: &str| {
        format!(
            "apiVersion: portolan.dev/v1alpha1\nkind: Director\nmetadata: {{name: {host}}}\n\
             spec: {{announceTable: 199, checks: {{defaults: {{fall: 1000}}}}}}\n"
        )
    };
    let objects = [undecided, patient("lb-1")].join("---\n");
    let (code, said) = fleet.apply(&objects, &[]);
    assert_eq!(code, Some(0), "{said}");
    let _one = director(&fleet, "lb-1");
    let _two = director(&fleet, "lb-2");
    await_said(&fleet, 0, "lb-1=up lb-2=up");
    drop(backend);
    await_said(&fleet, 3, "lb-1=up lb-2=down");
    // Without the defaults its checks start anew with the built-in ones.
    let plain = patient("lb-1").replace(", checks: {defaults: {fall: 1000}}", "");
    assert_eq!(fleet.apply(&plain, &[]).0, Some(0));
    await_said(&fleet, 3, "lb-1=down lb-2=down");
}

#[test]
fn a_director_is_followed_by_its_host_alone() {
    let temporary = tempfile::tempdir().unwrap();
    let Some(mut fleet) = fleet_or_skip(temporary.path()) else {
        return;
    };
    // While it is down, nobody else may listen at its port.
    let [port] = ports::reserve().unwrap();
    let backend = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    let address = backend.local_addr().unwrap();
    assert_eq!(fleet.apply(&balancer(address, ""), &[]).0, Some(0));
    let one = director(&fleet, "lb-1");
    let _two = director(&fleet, "lb-2");
    await_said(&fleet, 0, "lb-1=up lb-2=up");
    assert!(!role(&fleet, "lb-1").status.success(), "no Director yet");

    // A change takes effect without a restart, on this host.
    assert_eq!(fleet.apply(&silent("lb-1"), &[]).0, Some(0));
    await_role(&fleet, "lb-1", "standby (by command)");
    assert!(!role(&fleet, "lb-2").status.success());
    drop(backend);
    await_said(&fleet, 3, "lb-1=up lb-2=down");

    // A host takes programs and paths from its own files alone.
    let forbidden = active("lb-1").replace("vips:", "maintenanceDirectory: /etc, vips:");
    let (code, said) = fleet.apply(&forbidden, &[]);
    assert_eq!(code, Some(2), "{said}");
    assert!(said.contains("spec.maintenanceDirectory"), "{said}");
    assert!(text(&role(&fleet, "lb-1")).contains("standby"));

    // The table on disk has it, too; it is written some seconds after a change.
    await_saved(&fleet, "lb-1", "checksOnStandby");
    fleet.controller = None;
    drop(one);
    let _one = director(&fleet, "lb-1");
    await_role(&fleet, "lb-1", "standby (by command)");
    fleet.controller = Some(fleet.controller((super::HOST, fleet.streams).into(), "controller"));

    assert_eq!(fleet.apply(&active("lb-1"), &[]).0, Some(0));
    await_role(&fleet, "lb-1", "active (always)");
    await_said(&fleet, 3, "lb-1=down lb-2=down");

    // Without its Director the host has the defaults, and the other one keeps its own.
    let both = [silent("lb-1"), silent("lb-2")].join("---\n");
    assert_eq!(fleet.apply(&both, &[]).0, Some(0));
    await_role(&fleet, "lb-1", "standby");
    await_role(&fleet, "lb-2", "standby");
    let deleted = fleet.with_etcd(&["delete", "director", "lb-1"]);
    assert!(deleted.status.success(), "{}", text(&deleted));
    await_role(&fleet, "lb-1", "active (always)");
    assert!(text(&role(&fleet, "lb-2")).contains("standby"));
}
