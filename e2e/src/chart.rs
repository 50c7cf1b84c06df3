// SPDX-License-Identifier: Apache-2.0

//! The chart of this repository, as Helm installs, changes and removes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::{POD_RANGES, control};
use crate::kubelets::{Kubelets, VERSION};

/// The release's name, and the prefix of its objects.
const NAME: &str = "portolan";

/// The chart, and the Helm that installs it into `kube-system`.
#[derive(Debug)]
pub struct Chart {
    helm: PathBuf,
    chart: PathBuf,
}

impl Chart {
    /// The chart, if Helm is among the programs.
    #[must_use]
    pub fn find(kubelets: &Kubelets) -> Option<Self> {
        let helm = kubelets.files().join("bin/helm");
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/portolan");
        (helm.is_file() && chart.is_dir()).then_some(Self { helm, chart })
    }

    /// Helm.
    #[must_use]
    pub fn program(&self) -> &Path {
        &self.helm
    }

    /// Installs it, and waits until its pods are ready.
    pub fn install(&self, kubelets: &Kubelets, values: &Value) -> Result<()> {
        let file = kubelets.directory().join("values.json");
        fs::write(&file, values.to_string())?;
        let values = format!("--values={}", file.display());
        self.deploy(kubelets, "install", &[&values, "--wait", "--timeout=10m"])
    }

    /// Runs the chart's own tests.
    pub fn test(&self, kubelets: &Kubelets) -> Result<()> {
        self.run(kubelets, &["test", NAME, "--timeout=3m"])
    }

    /// Changes values; the roll-out begins.
    pub fn upgrade(&self, kubelets: &Kubelets, set: &[&str]) -> Result<()> {
        let set = format!("--set-string={}", set.join(","));
        self.deploy(kubelets, "upgrade", &["--reuse-values", &set])
    }

    /// The release before the last upgrade.
    pub fn roll_back(&self, kubelets: &Kubelets) -> Result<()> {
        self.run(kubelets, &["rollback", NAME])
    }

    /// Removes it, and waits for the end of its pods.
    pub fn uninstall(&self, kubelets: &Kubelets) -> Result<()> {
        self.run(kubelets, &["uninstall", NAME, "--wait", "--timeout=3m"])
    }

    fn deploy(&self, kubelets: &Kubelets, verb: &str, flags: &[&str]) -> Result<()> {
        let chart = self.chart.display().to_string();
        self.run(kubelets, &[&[verb, NAME, &chart], flags].concat())
    }

    fn run(&self, kubelets: &Kubelets, args: &[&str]) -> Result<()> {
        let home = kubelets.directory().join("helm");
        let mut command = Command::new(&self.helm);
        command
            .args(args)
            .args(["--namespace=kube-system", "--kubeconfig"])
            .arg(kubelets.kubeconfig())
            .env("HELM_CACHE_HOME", home.join("cache"))
            .env("HELM_CONFIG_HOME", home.join("config"))
            .env("HELM_DATA_HOME", home.join("data"));
        let run = || command.output();
        let output = control(&kubelets.rig).namespace().run(run)?;
        let output = output.with_context(|| self.helm.display().to_string())?;
        ensure!(
            output.status.success(),
            "helm {}: {}{}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr),
            kubelets.describe("kube-system")
        );
        Ok(())
    }
}

/// Returns the values that a user of this cluster has to set, and those for parts that the guest cannot have: limits of
/// the whole kernel, and images of a registry. The tests of the chart connect to `connect`, as no DNS is expected.
#[must_use]
pub fn values(kubelets: &Kubelets, connect: &str) -> Value {
    let (host, port) = kubelets.api();
    json!({
        "mode": "replacement",
        "image": { "registry": "localhost", "pullPolicy": "Never", "pause": "localhost/pod:e2e" },
        "apiServer": { "host": host, "port": port },
        "test": { "connect": connect },
        "controller": { "image": { "tag": VERSION } },
        "agent": {
            "image": { "tag": VERSION },
            "kernel": {
                "clusterCIDRs": POD_RANGES.split(',').collect::<Vec<_>>(),
                "conntrack": { "maxPerCore": 0, "min": 0 },
            },
        },
    })
}
