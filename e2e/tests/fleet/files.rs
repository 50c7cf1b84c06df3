// SPDX-License-Identifier: Apache-2.0

//! A fleet whose objects are in the files of a controller: no etcd, and load balancers for some of the hosts.

use std::fs;
use std::process::Command;

use portolan_e2e::cluster::program;
use portolan_e2e::ports;
use portolan_e2e::wait::wait_for;

use super::etcd::{HOST, PATIENT, Running};
use super::text;

fn node(name: &str, role: &str) -> String {
    format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{role: {role}}}}}\n")
}

#[test]
fn labels_of_nodes_in_files_move_a_load_balancer() {
    let temporary = tempfile::tempdir().unwrap();
    let directory = temporary.path();
    let objects = directory.join("objects");
    fs::create_dir(&objects).unwrap();
    // Renamed into place, as the guide asks.
    let write = |name: &str, object: &str| {
        let new = directory.join(name);
        fs::write(&new, object).unwrap();
        fs::rename(new, objects.join(name)).unwrap();
    };
    let web = super::web(1) + "  nodeSelector: {role: edge}\n";
    write("web.yaml", &web);
    write("lb-1.yaml", &node("lb-1", "edge"));
    write("lb-2.yaml", &node("lb-2", "core"));

    let [streams] = ports::reserve().unwrap();
    let socket = format!("unix://{}", directory.join("controller.sock").display());
    let mut command = Command::new(program("portolan-controller").unwrap());
    command
        .args(["--source=file", "--file-poll=50ms", "--plaintext"])
        .args(["--admin-listen=127.0.0.1:0", "--file"])
        .arg(&objects)
        .arg(format!("--listen={HOST}:{streams}"))
        .arg(format!("--debug-listen={socket}"));
    let _controller = Running::start(directory, "controller", &mut command).unwrap();

    let table = |node: &str| {
        let mut command = Command::new(program("portolanctl").unwrap());
        let output = command
            .args(["--controller", &socket, "table", node])
            .output();
        let output = output.unwrap();
        output
            .status
            .success()
            .then(|| text(&output).contains("192.0.2.1:80"))
    };
    let await_tables = |expected: [bool; 2]| {
        let mut last = [None; 2];
        let arrived = wait_for("the tables", PATIENT, || {
            last = ["lb-1", "lb-2"].map(table);
            (last == expected.map(Some)).then_some(())
        });
        arrived.unwrap_or_else(|error| panic!("{error}: {expected:?}, not {last:?}"));
    };
    await_tables([true, false]);
    write("lb-2.yaml", &node("lb-2", "edge"));
    await_tables([true, true]);
    write("lb-1.yaml", &node("lb-1", "core"));
    await_tables([false, true]);
    write(
        "web.yaml",
        &web.replace("nodeSelector: {role: edge}", "nodeSelector: {role: core}"),
    );
    await_tables([true, false]);
}
