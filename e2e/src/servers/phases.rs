// SPDX-License-Identifier: Apache-2.0

//! In place of scheduler and kubelet: pods are bound to a node, run at once, and end at once. They have addresses
//! and no process.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::{Value, json};

use super::Servers;
use super::process::Process;
use super::programs::Binaries;
use crate::wait::{pause, wait_for};

/// The pause between two looks at all pods.
const LOOK: Duration = Duration::from_millis(200);
/// The deadline of a request, sufficient for a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);
const PODS: &str = "/api/v1/pods";

/// Writes the phases of a cluster's pods until it is dropped.
#[derive(Debug)]
pub struct Phases {
    stop: Arc<AtomicBool>,
    writer: Option<JoinHandle<()>>,
    _proxy: Process,
}

impl Phases {
    /// Creates a Node and gives each pod the next address from `first` on. The log of a proxy goes to `dir`.
    pub fn start(servers: &Servers, dir: &Path, node: &str, first: Ipv4Addr) -> Result<Self> {
        let object = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}});
        servers.kubectl_with_input(&["apply", "-f", "-"], &object.to_string())?;
        let args = ["proxy", "--port=0", "--kubeconfig"].map(str::to_owned);
        let kubeconfig = servers.kubeconfig().display().to_string();
        let args = [args.as_slice(), &[kubeconfig]].concat();
        let kubectl = Binaries::find()?.program("kubectl");
        let proxy = Process::spawn(dir, "phases", &kubectl, &args)?;
        let log = dir.join("phases.log");
        let port = wait_for("the proxy's port", PATIENCE, || {
            let text = std::fs::read_to_string(&log).ok()?;
            let line = text
                .lines()
                .find(|line| line.starts_with("Starting to serve on"))?;
            line.rsplit(':').next()?.trim().parse().ok()
        })?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut writer = Writer {
            port,
            node: node.to_owned(),
            next: first,
            given: BTreeMap::new(),
        };
        let stopped = Arc::clone(&stop);
        let writer = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                // A pod that another one deletes meanwhile is no failure: the next look tells.
                let _ = writer.look();
                pause(LOOK);
            }
        });
        Ok(Self {
            stop,
            writer: Some(writer),
            _proxy: proxy,
        })
    }
}

impl Drop for Phases {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
    }
}

/// The writer of one cluster.
struct Writer {
    port: u16,
    node: String,
    next: Ipv4Addr,
    /// Addresses by UID, so that a write that failed half-way gives no other one.
    given: BTreeMap<String, IpAddr>,
}

impl Writer {
    fn look(&mut self) -> Result<()> {
        let pods = self.request("GET", PODS, "", &Value::Null)?;
        for pod in pods["items"].as_array().into_iter().flatten() {
            let result = self.settle(pod);
            if let Err(error) = result {
                let _ = writeln!(std::io::stderr(), "phases: {error:#}");
            }
        }
        Ok(())
    }

    fn settle(&mut self, pod: &Value) -> Result<()> {
        let metadata = &pod["metadata"];
        let text = |field: &str| metadata[field].as_str().unwrap_or_default();
        let path = format!(
            "/api/v1/namespaces/{}/pods/{}",
            text("namespace"),
            text("name")
        );
        if metadata["deletionTimestamp"].is_string() {
            let now = json!({"gracePeriodSeconds": 0});
            self.request("DELETE", &path, "application/json", &now)?;
            return Ok(());
        }
        if pod["status"]["phase"] != "Pending" {
            return Ok(());
        }
        if pod["spec"]["nodeName"].is_null() {
            let binding = json!({
                "apiVersion": "v1", "kind": "Binding", "metadata": {"name": text("name")},
                "target": {"apiVersion": "v1", "kind": "Node", "name": self.node},
            });
            self.request(
                "POST",
                &format!("{path}/binding"),
                "application/json",
                &binding,
            )?;
        }
        let address = self.address(text("uid"));
        let conditions = ["Initialized", "PodScheduled", "ContainersReady", "Ready"];
        let conditions = conditions.map(|kind| json!({"type": kind, "status": "True"}));
        let status = json!({"status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions,
        }});
        self.request(
            "PATCH",
            &format!("{path}/status"),
            "application/merge-patch+json",
            &status,
        )?;
        Ok(())
    }

    fn address(&mut self, uid: &str) -> IpAddr {
        if let Some(address) = self.given.get(uid) {
            return *address;
        }
        let address = IpAddr::V4(self.next);
        self.next = Ipv4Addr::from(u32::from(self.next) + 1);
        self.given.insert(uid.to_owned(), address);
        address
    }

    /// One request to the proxy; the answer's body as JSON.
    fn request(&self, verb: &str, path: &str, kind: &str, body: &Value) -> Result<Value> {
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let head = format!(
            "{verb} {path} HTTP/1.0\r\nHost: localhost\r\nContent-Type: {kind}\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all((head + &body).as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).context("no answer")?;
        let Some((head, body)) = answer.split_once("\r\n\r\n") else {
            bail!("{verb} {path}: half an answer");
        };
        let is_good = head
            .split(' ')
            .nth(1)
            .is_some_and(|code| code.starts_with('2'));
        ensure!(is_good, "{verb} {path}: {head}: {body}");
        serde_json::from_str(body).with_context(|| format!("{verb} {path}: {body}"))
    }
}
