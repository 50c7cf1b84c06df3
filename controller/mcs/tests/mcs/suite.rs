// SPDX-License-Identifier: Apache-2.0

//! A conformance suite of the MCS API as a program, as far as it needs API objects alone.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use portolan_e2e::mcs::{merged_kubeconfig, suite};

use crate::world::World;

/// Runs the suite against both clusters, the first of which is the exporting one. Its report stays in
/// `target/test/mcs`. Returns what it printed, and whether it passed.
pub(crate) fn run(world: &World, program: &OsStr) -> (String, bool) {
    let kubeconfig = world.dir.path().join("suite.kubeconfig");
    let clusters = world.members.iter();
    let clusters: Vec<_> = clusters
        .map(|member| (member.name, &member.servers))
        .collect();
    let merged = merged_kubeconfig(&clusters).unwrap();
    fs::write(&kubeconfig, merged.to_string()).unwrap();
    let report = report();
    fs::create_dir_all(&report).unwrap();
    let names: Vec<_> = clusters.iter().map(|(name, _)| *name).collect();
    let output = suite(Path::new(program), &kubeconfig, &names, &report)
        // What asks DNS or connects needs pods that run.
        .args([
            "--ginkgo.label-filter=!DNS && !Connectivity",
            "--ginkgo.skip=should be inaccessible",
        ])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    fs::write(report.join("suite.log"), &text).unwrap();
    (text, output.status.success())
}

fn report() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/test/mcs")
}
