// SPDX-License-Identifier: Apache-2.0

//! The conformance suite of the Multi-Cluster Services API, and what it needs of clusters.

use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::servers::Servers;

/// Returns the command of the suite's program on clusters, by the contexts of a kubeconfig, the first of which exports.
/// Its own report goes to `directory`.
#[must_use]
pub fn suite(program: &Path, kubeconfig: &Path, contexts: &[&str], directory: &Path) -> Command {
    let mut command = Command::new(program);
    command
        .arg("-kubeconfig")
        .arg(kubeconfig)
        .arg(format!("-contexts={}", contexts.join(",")))
        .args(["-organization=Portolan", "-project=Portolan"])
        .args(["-version=development", "-url=https://portolan.dev"])
        .args(["-test.v", "--ginkgo.no-color"])
        .current_dir(directory);
    command
}

/// Returns the objects of the documentation that give a controller its permissions in a cluster: a ClusterRole and its
/// binding.
///
/// # Panics
/// If `docs/clusters.md` has none.
#[must_use]
pub fn permissions() -> &'static str {
    let page = include_str!("../../docs/clusters.md");
    let blocks = page.split("```yaml\n").skip(1);
    let mut blocks = blocks.filter_map(|rest| Some(rest.split_once("```")?.0));
    let role = blocks.find(|block| block.contains("kind: ClusterRole\n"));
    role.expect("a ClusterRole in docs/clusters.md")
}

/// The administrators' kubeconfigs of clusters as one, with a context of each cluster's name. The first is the current
/// one.
pub fn merged_kubeconfig(clusters: &[(&str, &Servers)]) -> Result<Value> {
    let mut merged =
        json!({"apiVersion": "v1", "kind": "Config", "clusters": [], "users": [], "contexts": []});
    merged["current-context"] = clusters.first().map(|(name, _)| *name).into();
    for (name, servers) in clusters {
        let text = std::fs::read_to_string(servers.kubeconfig())?;
        let one: Value = serde_json::from_str(&text)?;
        let entries = [
            (
                "clusters",
                json!({"name": name, "cluster": one["clusters"][0]["cluster"]}),
            ),
            (
                "users",
                json!({"name": name, "user": one["users"][0]["user"]}),
            ),
            (
                "contexts",
                json!({"name": name, "context": {"cluster": name, "user": name}}),
            ),
        ];
        for (list, entry) in entries {
            merged[list].as_array_mut().context(list)?.push(entry);
        }
    }
    Ok(merged)
}
