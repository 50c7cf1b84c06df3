// SPDX-License-Identifier: Apache-2.0

//! A controller of several clusters whose policy is at an API server.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use portolan_e2e::cluster::http_get_from;
use portolan_e2e::programs::program;
use portolan_e2e::servers::Servers;
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

use crate::{PATIENT, apply, get};

pub(crate) struct Centre {
    child: Child,
    admin: u16,
    log: PathBuf,
    /// A directory with the objects of a cluster.
    files: PathBuf,
}

impl Centre {
    pub(crate) fn start(dir: &Path, user: &str) -> Self {
        let files = dir.join("objects");
        fs::create_dir(&files).unwrap();
        let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
                       spec: {clusterIP: 10.96.0.10, ports: [{port: 80}]}\n";
        fs::write(files.join("web.yaml"), service).unwrap();
        let (ports, log) = (dir.join("ports"), dir.join("controller.log"));
        let child = Command::new(program("portolan-controller").unwrap())
            .args([
                "--source=clusters",
                "--policy-kubernetes",
                "--plaintext",
                "--debug-listen=",
            ])
            .args([
                "--listen=127.0.0.1:0",
                "--admin-listen=127.0.0.1:0",
                "--file-poll=200ms",
            ])
            .arg("--kubeconfig")
            .arg(dir.join(format!("{user}.kubeconfig")))
            .arg("--port-file")
            .arg(&ports)
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let admin = wait_for("the controller's ports", PATIENT, || {
            let text = fs::read_to_string(&ports).ok()?;
            text.trim().split_once("admin=")?.1.parse().ok()
        });
        Self {
            child,
            admin: admin.unwrap(),
            log,
            files,
        }
    }

    fn get(&self, path: &str) -> Option<String> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.admin));
        http_get_from(address, path).ok()
    }

    /// The names of the clusters that are served.
    fn clusters(&self) -> Option<Vec<String>> {
        let all: Value = serde_json::from_str(&self.get("/debug/clusters")?).ok()?;
        let all = all["clusters"].as_array()?.iter();
        all.map(|one| Some(one["name"].as_str()?.to_owned()))
            .collect()
    }

    fn await_clusters(&self, expected: &[&str]) {
        let found = wait_for("these clusters", PATIENT, || {
            self.clusters().filter(|found| found == expected)
        });
        found.unwrap_or_else(|error| panic!("{error}: {:?}", self.clusters()));
    }

    fn cluster(&self, name: &str, pods: &str) -> String {
        json!({
            "apiVersion": "portolan.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
            "spec": {"access": {"files": [self.files]}, "network": {"podCIDRs": [pods]}},
        })
        .to_string()
    }
}

impl Drop for Centre {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(60)..].join("\n");
            eprintln!("--- {}:\n{tail}", self.log.display());
        }
    }
}

/// The status of a Cluster of which something is so.
fn await_status(servers: &Servers, name: &str, is_so: impl Fn(&Value) -> bool) -> Value {
    let mut last = Value::Null;
    let found = wait_for("a status", PATIENT, || {
        last = get(servers, "clusters.portolan.dev", name)["status"].clone();
        is_so(&last).then(|| last.clone())
    });
    found.unwrap_or_else(|error| panic!("{name}: {error}: {last:#?}"))
}

fn has(status: &Value, kind: &str, expected: [&str; 2]) -> bool {
    let conditions = status["conditions"].as_array();
    let mut conditions = conditions.into_iter().flatten();
    conditions.any(|one| one["type"] == kind && [&one["status"], &one["reason"]] == expected)
}

/// Objects come and go, a bad change is named and changes nothing, and each Cluster has its status.
pub(crate) fn follows(servers: &Servers, centre: Centre) {
    apply(servers, &[], &centre.cluster("eu-1", "10.1.0.0/16")).unwrap();
    apply(servers, &[], &centre.cluster("us-1", "10.2.0.0/16")).unwrap();
    centre.await_clusters(&["eu-1", "us-1"]);
    let status = await_status(servers, "eu-1", |status| status["phase"] == "Ready");
    assert_eq!(status["step"], 20);
    assert!(
        has(&status, "Connected", ["True", "Watching"]),
        "{status:#?}"
    );
    let columns = servers.kubectl(&["get", "clusters.portolan.dev"]).unwrap();
    let header: Vec<_> = columns.lines().next().unwrap().split_whitespace().collect();
    assert_eq!(header, ["NAME", "PHASE", "STEP", "CONTACT", "AGE"]);

    await_status(servers, "us-1", |status| status["phase"] == "Ready");
    // Bits of a host: no schema says that.
    apply(servers, &[], &centre.cluster("us-1", "10.2.0.1/16")).unwrap();
    let refused = ["False", "InvalidNetwork"];
    let status = await_status(servers, "us-1", |status| has(status, "Accepted", refused));
    assert_eq!(status["phase"], "Ready");
    // The status and the problems have ways of their own.
    let problem = "Cluster us-1: spec.network.podCIDRs[0]";
    wait_for(problem, PATIENT, || {
        centre
            .get("/debug/problems")?
            .contains(problem)
            .then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {:?}", centre.get("/debug/problems")));
    centre.await_clusters(&["eu-1", "us-1"]);

    servers
        .kubectl(&["delete", "clusters.portolan.dev", "us-1"])
        .unwrap();
    centre.await_clusters(&["eu-1"]);
    // The last one too: who deletes it means it.
    servers
        .kubectl(&["delete", "clusters.portolan.dev", "eu-1"])
        .unwrap();
    centre.await_clusters(&[]);
}
