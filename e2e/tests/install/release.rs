// SPDX-License-Identifier: Apache-2.0

//! The chart, as Helm installs, changes and removes it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use portolan_e2e::cluster::control;
use portolan_e2e::kubelets::{Kubelets, VERSION};
use serde_json::json;

use crate::world::KUBERNETES;

/// The release's name, and the prefix of its objects.
const NAME: &str = "portolan";

/// The chart of this repository, and the Helm that installs it.
pub(crate) struct Chart {
    helm: PathBuf,
    chart: PathBuf,
}

impl Chart {
    /// The chart, if Helm is among the programs.
    pub(crate) fn find(kubelets: &Kubelets) -> Option<Self> {
        let helm = kubelets.files().join("bin/helm");
        let chart = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts/portolan");
        (helm.is_file() && chart.is_dir()).then_some(Self { helm, chart })
    }

    pub(crate) fn install(&self, kubelets: &Kubelets) {
        let file = kubelets.directory().join("values.json");
        fs::write(&file, values(kubelets)).unwrap();
        let values = format!("--values={}", file.display());
        self.deploy(kubelets, "install", &[&values, "--wait", "--timeout=5m"]);
    }

    /// Runs the chart's own tests.
    pub(crate) fn test(&self, kubelets: &Kubelets) {
        self.run(kubelets, &["test", NAME, "--timeout=3m"]);
    }

    /// Changes values; the roll-out begins.
    pub(crate) fn upgrade(&self, kubelets: &Kubelets, set: &[&str]) {
        let set = format!("--set-string={}", set.join(","));
        self.deploy(kubelets, "upgrade", &["--reuse-values", &set]);
    }

    /// The release before the last upgrade.
    pub(crate) fn roll_back(&self, kubelets: &Kubelets) {
        self.run(kubelets, &["rollback", NAME]);
    }

    pub(crate) fn uninstall(&self, kubelets: &Kubelets) {
        self.run(kubelets, &["uninstall", NAME, "--wait", "--timeout=3m"]);
    }

    fn deploy(&self, kubelets: &Kubelets, verb: &str, flags: &[&str]) {
        let chart = self.chart.display().to_string();
        self.run(kubelets, &[&[verb, NAME, &chart], flags].concat());
    }

    fn run(&self, kubelets: &Kubelets, args: &[&str]) {
        let home = kubelets.directory().join("helm");
        let mut command = Command::new(&self.helm);
        command
            .args(args)
            .args(["--namespace=kube-system", "--kubeconfig"])
            .arg(kubelets.kubeconfig())
            .env("HELM_CACHE_HOME", home.join("cache"))
            .env("HELM_CONFIG_HOME", home.join("config"))
            .env("HELM_DATA_HOME", home.join("data"));
        let run = || command.output().unwrap();
        let output = control(&kubelets.rig).namespace().run(run).unwrap();
        assert!(
            output.status.success(),
            "helm {}: {}{}",
            args.join(" "),
            String::from_utf8_lossy(&output.stderr),
            kubelets.describe("kube-system")
        );
    }
}

/// What a user of this cluster has to set, and what the guest cannot have: limits of the whole
/// kernel, and images of a registry.
fn values(kubelets: &Kubelets) -> String {
    let (host, port) = kubelets.api();
    json!({
        "mode": "replacement",
        "image": { "registry": "localhost", "pullPolicy": "Never", "pause": "localhost/pod:e2e" },
        "apiServer": { "host": host, "port": port },
        // No DNS runs here.
        "test": { "connect": KUBERNETES.to_string() },
        "controller": { "image": { "tag": VERSION } },
        "agent": {
            "image": { "tag": VERSION },
            "kernel": {
                "clusterCIDRs": ["10.244.0.0/16"],
                "conntrack": { "maxPerCore": 0, "min": 0 },
            },
        },
    })
    .to_string()
}
