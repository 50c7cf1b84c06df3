// SPDX-License-Identifier: Apache-2.0

//! The demo of several clusters: one script, which `make demo-clusters` prints and a test runs.
//!
//! Three clusters of one node each, from files; the agents program nftables on this machine's own kernel.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, anyhow, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::cluster::{Cluster, EchoPod, PATIENT, program};
use crate::objects::{service, slices};
use crate::programs::Source;
use crate::rig::{Load, LoadConfig, Rig, RigConfig};
use crate::wait::wait_for;

const CLUSTERS: [&str; 3] = ["eu-1", "eu-2", "us-1"];
const WEIGHTS: [u32; 3] = [70, 20, 10];
/// Pods of each cluster.
const PODS: [usize; 3] = [3, 7, 11];
/// The cluster that is lost.
const LOST: usize = 1;
const CONNECTIONS: u64 = 2_000;
const WORKERS: u64 = 2;
const SERVICE_IPS: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];

/// Runs the demo, and passes on what it shows.
///
/// # Errors
/// If anything is not as it must be.
pub fn run(show: impl FnMut(&str) -> Result<()>) -> Result<()> {
    let files = TempDir::new()?;
    let rig = Rig::new(RigConfig {
        nodes: 3,
        clients: 2,
    })?;
    let source = Source::Clusters(files.path().join("policy.yaml"));
    let cluster = Cluster::without_agents(rig, source)?.programming("nftables");
    let visitor = cluster.add_pod(0, "visitor")?;
    let mut pods = Vec::new();
    for (node, (name, count)) in CLUSTERS.iter().zip(PODS).enumerate() {
        let of_cluster =
            (0..count).map(|number| cluster.add_pod(node, &format!("{name}-{number}")));
        pods.push(of_cluster.collect::<Result<Vec<_>>>()?);
    }
    let demo = Demo {
        cluster,
        files,
        visitor,
        pods,
        show,
    };
    demo.play()
}

struct Demo<F> {
    cluster: Cluster,
    files: TempDir,
    visitor: EchoPod,
    pods: Vec<Vec<EchoPod>>,
    show: F,
}

impl<F: FnMut(&str) -> Result<()>> Demo<F> {
    fn play(mut self) -> Result<()> {
        for node in 0..CLUSTERS.len() {
            self.write_objects(node)?;
        }
        self.write_policy()?;
        for (node, name) in CLUSTERS.iter().enumerate() {
            let flag = format!("--cluster={name}");
            self.cluster.start_agent_with(node, &[&flag])?;
        }
        (self.show)(
            "three clusters, one node each: eu-1 with 3 pods, eu-2 with 7, us-1 with 11; each exports default/web\n\
             TrafficPolicy web: eu-1 70, eu-2 20, us-1 10\n\n",
        )?;
        self.wait_for_shares([700, 200, 100])?;
        self.command(&["--cluster=eu-1", "explain-import", "default/web"])?;
        self.measure([70, 20, 10])?;

        (self.show)("\n# the objects of eu-2 are out of sight; its pods live on\n")?;
        let (there, away) = (self.directory(LOST), self.files.path().join("away"));
        std::fs::rename(&there, &away)?;
        self.wait_for_state("Stale")?;
        (self.show)("# 30 s later it is stale, and nothing changes\n")?;
        self.measure([70, 20, 10])?;
        self.wait_for_state("Lost")?;
        self.wait_for_shares([875, 0, 125])?;
        self.command(&["cluster", "list"])?;
        self.measure([87, 0, 13])?;

        (self.show)("\n# they are back, and the share of eu-2 rises step by step\n")?;
        std::fs::rename(&away, &there)?;
        self.wait_for_state("Ready")?;
        self.wait_for_shares([700, 200, 100])?;
        self.measure([70, 20, 10])
    }

    fn directory(&self, node: usize) -> PathBuf {
        self.files.path().join(CLUSTERS[node])
    }

    fn write_objects(&self, node: usize) -> Result<()> {
        let pods: Vec<_> = self.pods[node].iter().map(|pod| (pod, node)).collect();
        let mut items = vec![service("web", SERVICE_IPS, json!({}))];
        items.extend(slices("web", &pods));
        items.push(
            json!({"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
            "metadata": {"name": "web", "namespace": "default"}}),
        );
        let list = json!({"kind": "List", "items": items});
        let directory = self.directory(node);
        std::fs::create_dir(&directory)?;
        Ok(std::fs::write(
            directory.join("web.json"),
            list.to_string(),
        )?)
    }

    fn write_policy(&self) -> Result<()> {
        let object = |kind: &str, name: &str, spec: Value| {
            let metadata = json!({"name": name});
            json!({"apiVersion": "portolan.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
        };
        let clusters = CLUSTERS.iter().enumerate().map(|(number, name)| {
            let node = self.cluster.rig.node(number);
            let network = json!({
                "podCIDRs": [node.pod_range_v4(), node.pod_range_v6()],
                "clusterSetIPs": ["10.112.0.0/16"],
            });
            let access = json!({"files": [self.directory(number)]});
            object(
                "Cluster",
                name,
                json!({"access": access, "network": network}),
            )
        });
        let loss = json!({"staleTTL": "2s", "returnAfter": "2s", "rampUp": "4s"});
        let weights = CLUSTERS.iter().zip(WEIGHTS);
        let weights = weights.map(|(name, weight)| json!({"names": [name], "weight": weight}));
        let tier = json!({"clusters": weights.collect::<Vec<_>>()});
        let traffic = json!({"services": {"names": ["web"]}, "tiers": [tier]});
        let others = [
            object("ClusterSet", "demo", json!({"loss": loss})),
            object("TrafficPolicy", "web", traffic),
        ];
        let texts = clusters.chain(others).map(|one| one.to_string());
        let text = texts.collect::<Vec<_>>().join("\n---\n");
        let hidden = self.files.path().join(".policy");
        std::fs::write(&hidden, text)?;
        Ok(std::fs::rename(
            hidden,
            self.files.path().join("policy.yaml"),
        )?)
    }

    fn import(&self) -> Result<Value> {
        let path = "federation?cluster=eu-1&import=default/web";
        self.cluster.controller_debug(path)
    }

    /// Returns when the shares in permille are these, and programmed.
    fn wait_for_shares(&self, expected: [u64; 3]) -> Result<()> {
        wait_for(&format!("shares of {expected:?} permille"), PATIENT, || {
            let import = self.import().ok()?;
            let clusters = import["import"]["ports"][0]["clusters"].as_array()?.clone();
            let share = |name: &str| {
                let mut clusters = clusters.iter();
                let found = clusters.find(|one| one["cluster"] == name);
                found
                    .and_then(|one| one["sharePermille"].as_u64())
                    .unwrap_or(0)
            };
            let is_programmed = import["programmed"] == 1;
            (is_programmed && CLUSTERS.map(share) == expected).then_some(())
        })
    }

    fn wait_for_state(&self, state: &str) -> Result<()> {
        wait_for(&format!("eu-2 to be {state}"), PATIENT, || {
            let dump = self.cluster.controller_debug("clusters").ok()?;
            let mut all = dump["clusters"].as_array()?.iter();
            let found = all.find(|one| one["name"] == CLUSTERS[LOST])?;
            (found["state"] == state).then_some(())
        })
    }

    /// Shows what portolanctl says.
    fn command(&mut self, arguments: &[&str]) -> Result<()> {
        let path = program("portolanctl")?;
        let path = path.to_str().context("path is not UTF-8")?;
        let text = self
            .cluster
            .control()
            .exec(&[&[path], arguments].concat())?;
        (self.show)(&format!("$ portolanctl {}\n{text}", arguments.join(" ")))
    }

    /// Asks from a pod of eu-1, and shows who answered. Shares are drawn at random by the weights.
    fn measure(&mut self, expected: [u64; 3]) -> Result<()> {
        let import = self.import()?;
        let vip = import["import"]["vips"][0].as_str().context("no address")?;
        let vip = SocketAddr::new(vip.parse()?, 80);
        let config = LoadConfig {
            workers: WORKERS,
            limit: CONNECTIONS / WORKERS,
            pause: Duration::ZERO,
            ..LoadConfig::default()
        };
        let load = Load::start(&self.visitor.pod, &[vip], config)?;
        wait_for("all answers", PATIENT, || {
            (load.answered() >= CONNECTIONS || load.failed() > 0).then_some(())
        })?;
        let report = load.stop();
        if let Some(failure) = report.failures.first() {
            return Err(anyhow!("{vip}: {}", failure.error));
        }
        let mut counts = BTreeMap::new();
        for (pod, count) in &report.by_name {
            let cluster = CLUSTERS.iter().find(|name| pod.starts_with(*name));
            *counts
                .entry(*cluster.context("a stranger answered")?)
                .or_insert(0) += count;
        }
        let mut shares = Vec::new();
        for (name, expected) in CLUSTERS.iter().zip(expected) {
            let count: u64 = counts.get(name).copied().unwrap_or(0);
            let permille = count * 1000 / CONNECTIONS;
            let is_close = permille.abs_diff(expected * 10) <= 50;
            ensure!(
                is_close,
                "{name}: {permille} permille of {CONNECTIONS}, expected {expected} percent"
            );
            shares.push(format!("{name} {}.{} %", permille / 10, permille % 10));
        }
        (self.show)(&format!(
            "# {CONNECTIONS} connections from a pod of eu-1 to {vip}: {}\n",
            shares.join(", ")
        ))
    }
}
