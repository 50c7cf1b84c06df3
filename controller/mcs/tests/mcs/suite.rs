// SPDX-License-Identifier: Apache-2.0

//! A conformance suite of the MCS API as a program, as far as it needs API objects alone.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::world::World;

/// Runs the suite against both clusters, the first of which is the exporting one. Its report stays in
/// `target/test/mcs`. Returns what it printed, and whether it passed.
pub(crate) fn run(world: &World, suite: &OsStr) -> (String, bool) {
    let kubeconfig = world.dir.path().join("suite.kubeconfig");
    fs::write(&kubeconfig, merged(world).to_string()).unwrap();
    let report = report();
    fs::create_dir_all(&report).unwrap();
    let output = Command::new(suite)
        .current_dir(&report)
        .arg("-kubeconfig")
        .arg(&kubeconfig)
        .args(["-contexts=alpha,beta", "-dns-domain=clusterset.local"])
        .args([
            "-organization=Portolan",
            "-project=Portolan",
            "-version=development",
        ])
        .args(["-url=https://portolan.dev", "-test.v", "--ginkgo.no-color"])
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

/// The administrators' kubeconfigs as one, with a context of each cluster's name.
fn merged(world: &World) -> Value {
    let read = |path: &Path| -> Value {
        serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    };
    let all: Vec<(&str, Value)> = world
        .members
        .iter()
        .map(|member| (member.name, read(member.servers.kubeconfig())))
        .collect();
    let clusters = all
        .iter()
        .map(|(name, config)| json!({"name": name, "cluster": config["clusters"][0]["cluster"]}));
    let users = all
        .iter()
        .map(|(name, config)| json!({"name": name, "user": config["users"][0]["user"]}));
    let contexts = all
        .iter()
        .map(|(name, _)| json!({"name": name, "context": {"cluster": name, "user": name}}));
    json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "alpha",
        "clusters": clusters.collect::<Vec<_>>(),
        "users": users.collect::<Vec<_>>(),
        "contexts": contexts.collect::<Vec<_>>(),
    })
}
