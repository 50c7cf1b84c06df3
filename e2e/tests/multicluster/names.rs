// SPDX-License-Identifier: Apache-2.0

//! Names of a Service, looked up and connected to by a pod at once: its resolver is the C library's, with a
//! `resolv.conf` that leads to a CoreDNS.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;

use anyhow::Result;
use portolan_e2e::cluster::{EchoPod, PATIENT};
use portolan_e2e::programs::{Source, controller, coredns_or_skip};
use portolan_e2e::rig::{Family, Process};
use portolan_e2e::wait::wait_for;
use serde_json::json;

use super::world::{CLUSTERS, WEB, World, shares, skip};

/// The port at which the cluster's own controller would serve agents.
const OWN: u16 = 9600;
/// The name that every cluster has an answer to.
const IMPORTED: &str = "web.default.svc.clusterset.local";
/// The name of the cluster's own Service.
const LOCAL: &str = "web.default.svc.cluster.local";
/// Connections to the local name.
const TRIES: usize = 20;
/// The most connections until a pod of each cluster has answered. One of ten comes to the least of them.
const DRAWS: usize = 400;

/// Runs a script with its arguments, in a mount namespace of its own where names are resolved as in a pod.
const IN_A_POD: &str = r#"
    mount --bind "$0/resolv.conf" /etc/resolv.conf
    [ ! -e /etc/nsswitch.conf ] || mount --bind "$0/nsswitch.conf" /etc/nsswitch.conf
    eval "$1"
"#;
/// Prints the IPv4 address of a name.
const LOOK_UP: &str = r#"getent ahostsv4 "$2" | head -n 1"#;
/// Connects to port 80 of a name by a protocol, and prints the answer of the echo server.
const CONNECT: &str = r#"exec 3<>"/dev/$2/$3/80"; echo >&3; timeout 10 head -n 1 <&3"#;

fn in_pod(pod: &EchoPod, directory: &Path, script: &[&str]) -> Result<String> {
    let directory = directory.to_str().unwrap();
    let run = [
        "unshare", "--mount", "bash", "-e", "-c", IN_A_POD, directory,
    ];
    pod.pod.exec(&[&run[..], script].concat())
}

/// The name of the pod that answers at a name.
fn answers(pod: &EchoPod, directory: &Path, protocol: &str, name: &str) -> String {
    let answer = in_pod(pod, directory, &[CONNECT, protocol, name]);
    let answer = answer.unwrap_or_else(|error| panic!("{protocol} {name}: {error:#}"));
    answer.split(' ').next().unwrap_or_default().to_owned()
}

/// Starts the name server of a pod, which asks the controllers at these sockets.
fn name_server(coredns: &Path, world: &World, [local, imported]: [&str; 2]) -> Process {
    let directory = world.files.path();
    let zone = |zone: &str, socket: &str| {
        format!("{zone}:53 {{\n bind 127.0.0.1\n errors\n grpc . {socket}\n}}\n")
    };
    let text = zone("cluster.local", local) + &zone("clusterset.local", imported);
    let corefile = directory.join("Corefile");
    std::fs::write(&corefile, text).unwrap();
    std::fs::write(directory.join("resolv.conf"), "nameserver 127.0.0.1\n").unwrap();
    std::fs::write(directory.join("nsswitch.conf"), "hosts: files dns\n").unwrap();
    let mut command = Command::new(coredns);
    command.arg("-conf").arg(corefile);
    let namespace = world.visitor.pod.namespace();
    Process::spawn(
        namespace,
        "coredns",
        &mut command,
        world.cluster.directory(),
    )
    .unwrap()
}

/// Starts a controller of the first cluster alone, which answers names of `cluster.local` at a socket.
fn own_controller(world: &World, socket: &str) -> Process {
    let mut command = controller(&Source::Files(world.directory(0)), OWN).unwrap();
    command.args(["--plaintext", "--dns-zone=cluster.local"]);
    command.arg(format!("--dns-bind-address={socket}"));
    let namespace = world.cluster.control().namespace();
    Process::spawn(namespace, "own", &mut command, world.cluster.directory()).unwrap()
}

/// The requirements C2 and D3 of the table in `docs/conformance.md`.
#[test]
fn the_imported_name_leads_to_all_clusters_and_the_local_one_to_the_own() {
    let test = "the_imported_name_leads_to_all_clusters_and_the_local_one_to_the_own";
    if skip(test) {
        return;
    }
    let Some(coredns) = coredns_or_skip(test) else {
        return;
    };
    let mut world = World::new([1, 1, 1], shares(), json!({}));
    let directory = world.files.path().to_owned();
    let socket = |name: &str| format!("unix://{}", directory.join(name).display());
    let (local, imported) = (socket("local.sock"), socket("imported.sock"));
    world.cluster.controller().unwrap().kill9().unwrap();
    let listen = format!("--dns-clusterset-listen=eu-1={imported}");
    let flags = ["--dns-clusterset-zone=clusterset.local", listen.as_str()];
    world.cluster.start_controller_with(&flags).unwrap();
    world.wait_for_shares([700, 200, 100]);
    let _own = own_controller(&world, &local);
    let _coredns = name_server(&coredns, &world, [&local, &imported]);

    let vip = world.vip("eu-1", Family::V4).ip().to_string();
    let visitor = &world.visitor;
    for (name, expected) in [(LOCAL, WEB[0]), (IMPORTED, vip.as_str())] {
        let found = wait_for(name, PATIENT, || {
            let line = in_pod(visitor, &directory, &[LOOK_UP, name]).ok()?;
            line.split_whitespace().next().map(str::to_owned)
        });
        assert_eq!(found.unwrap(), expected, "{name}");
    }
    for protocol in ["tcp", "udp"] {
        let mut seen = BTreeSet::new();
        for _ in 0..DRAWS {
            seen.insert(answers(visitor, &directory, protocol, IMPORTED));
            if seen.len() == CLUSTERS.len() {
                break;
            }
        }
        let all = CLUSTERS.map(|name| format!("{name}-0"));
        assert_eq!(seen, BTreeSet::from(all), "{protocol}");
        for _ in 0..TRIES {
            let name = answers(visitor, &directory, protocol, LOCAL);
            assert_eq!(name, "eu-1-0", "{protocol}");
        }
    }
}
