// SPDX-License-Identifier: Apache-2.0

//! The real programs with TLS, in the rig: an agent programs only the table of the node that its credentials
//! name, and its credentials are replaced while it runs.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod certificates;
mod tokens;

use std::collections::BTreeSet;

use portolan_e2e::rig::Host;

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];

/// The value of a metric without labels, or with all labels written; 0 if there is none.
fn metric(metrics: &str, name: &str) -> f64 {
    let mut lines = metrics.lines();
    let value = lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    value.map_or(0.0, |value| value.parse().unwrap())
}

/// All virtual and real servers.
fn kernel(node: &Host) -> BTreeSet<String> {
    let servers = node.exec(&["ipvsadm", "-Sn"]).unwrap();
    servers.lines().map(str::to_owned).collect()
}
