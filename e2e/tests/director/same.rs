// SPDX-License-Identifier: Apache-2.0

//! IPVS of the director with all its fields, as another program makes it and as the agent makes it of an import.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;
use std::time::Duration;

use portolan_e2e::cluster::program;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::programs::{Unpacked, unpacked};
use portolan_e2e::rig::Process;
use portolan_e2e::wait::wait_for;
use portolan_model::ipvs::{VirtualServer, VirtualServerKey};
use portolan_netlink::ipvs::{Ipvs, IpvsError, State};

use super::world::World;

/// Time for a program's first checks.
const SETTLING: Duration = Duration::from_secs(60);

pub(super) type Servers = BTreeMap<VirtualServerKey, VirtualServer>;

/// An intended difference.
pub(super) struct Difference {
    pub(super) reason: &'static str,
    /// Makes ours of another program's virtual servers.
    pub(super) change: fn(&mut Servers),
}

/// All virtual servers of the director.
pub(super) fn servers(world: &World) -> Servers {
    let read = || -> Result<State, IpvsError> { Ipvs::open()?.dump() };
    let state = world.director().namespace().run(read).unwrap().unwrap();
    assert_eq!(state.skipped, 0, "{}", world.ipvsadm());
    state.virtual_servers
}

/// A line for each virtual and each real server, with all fields.
fn lines(servers: &Servers) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for (key, server) in servers {
        lines.insert(format!("{key}: {:?}", server.config));
        for (address, config) in server.real_servers.iter() {
            lines.insert(format!("{key} -> {address}: {config:?}"));
        }
    }
    lines
}

/// Weights of the real servers, by virtual server and address.
fn weights(servers: &Servers) -> BTreeSet<String> {
    let mut weights = BTreeSet::new();
    for (key, server) in servers {
        for (address, config) in server.real_servers.iter() {
            weights.insert(format!("{key} {} {}", address.ip(), config.weight));
        }
    }
    weights
}

/// The unpacked package of another program; `None` where a test must go without, which is printed.
pub(super) fn package(test: &str, name: &str) -> Option<Unpacked> {
    if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
        return None;
    }
    let found = unpacked(name, &format!("usr/sbin/{name}"));
    if found.is_none() {
        lane::missing(test, &format!("needs {name} (e2e/lanes/unpack {name})"));
    }
    found
}

/// Waits until another program has given its real servers these weights. A line has the virtual server, the address and
/// the weight.
pub(super) fn settled(world: &World, process: &mut Process, expected: &[String]) -> Servers {
    let expected: BTreeSet<String> = expected.iter().cloned().collect();
    let mut last = Servers::new();
    let is_there = || {
        last = servers(world);
        (weights(&last) == expected).then_some(())
    };
    let waited = wait_for("the program's real servers", SETTLING, is_there);
    let found = weights(&last);
    let log = process.log().unwrap();
    assert!(waited.is_ok(), "{found:#?}, not {expected:#?}: {log}");
    last
}

/// Applies the differences. Each must be one.
pub(super) fn with_differences<'a>(
    mut servers: Servers,
    differences: impl IntoIterator<Item = &'a Difference>,
) -> Servers {
    for Difference { reason, change } in differences {
        let before = servers.clone();
        change(&mut servers);
        assert_ne!(servers, before, "no difference: {reason}");
    }
    servers
}

/// Waits until the director has these virtual servers with all their fields.
pub(super) fn wait_for_same(world: &World, expected: &Servers) {
    let _ = wait_for("the same virtual servers", SETTLING, || {
        (servers(world) == *expected).then_some(())
    });
    assert_same(world, expected);
}

/// Asserts that the director has these virtual servers with all their fields.
pub(super) fn assert_same(world: &World, expected: &Servers) {
    let (found, expected) = (lines(&servers(world)), lines(expected));
    let missing: Vec<_> = expected.difference(&found).collect();
    let others: Vec<_> = found.difference(&expected).collect();
    assert!(
        missing.is_empty() && others.is_empty(),
        "missing: {missing:#?}, in their place: {others:#?}"
    );
}

/// Imports a file of a program. Warnings are no failure.
pub(super) fn import(world: &World, of: &str, text: &str) -> String {
    let file = world.directory.path().join("import.conf");
    std::fs::write(&file, text).unwrap();
    let mut command = Command::new(program("portolan-agent").unwrap());
    command.args(["config", "import", of]).arg(file);
    let output = command.arg("--director=node1").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(matches!(output.status.code(), Some(0 | 2)), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

/// Makes the kernel equal to a file, without an agent that goes on running.
pub(super) fn apply(world: &World, text: &str) {
    world.write(text);
    let path = |name: &str| world.directory.path().join(name).display().to_string();
    let file = format!("--file={}", path("lb.yaml"));
    let state = format!("--state-dir={}", path("state"));
    let (code, said) = world.agent(&["apply", "--once", "--node-name=node1", &file, &state]);
    assert_eq!(code, Some(0), "{said}\n{text}");
}
