// SPDX-License-Identifier: Apache-2.0

//! A cluster of real nodes: on each node of a rig containerd and a kubelet, which run the pods that
//! a real scheduler gives them. Portolan comes in images, as users install it.

use std::fs;
use std::net::Ipv4Addr;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::{Cluster, control};
use crate::lane::{self, Need};
use crate::rig::{Family, Host, Node, Process, Rig, RigConfig};
use crate::servers::Servers;
use crate::wait::wait_with_pauses;

/// The deadline of everything that a cluster does on one emulated processor.
pub const LIMIT: Duration = Duration::from_secs(600);
/// The pause between two looks through kubectl, which takes a second of the guest's processor.
const LOOK: Duration = Duration::from_secs(2);
/// The number of lines of each log in errors.
const TAIL: usize = 20;
/// Names the directory that `e2e/nodes/files` made.
const FILES: &str = "PORTOLAN_NODE_FILES";
/// The version of Portolan's images.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The cluster. Dropping it ends every pod, kubelet and server.
#[derive(Debug)]
pub struct Kubelets {
    // Fields drop in this order: clients before the servers they use.
    nodes: Vec<Option<Process>>,
    _scheduler: Process,
    servers: Servers,
    files: PathBuf,
    images: &'static [&'static str],
    directory: TempDir,
    /// The number in the rig of the cluster's first node.
    first: usize,
    /// The machines, which several clusters may share.
    pub rig: Arc<Rig>,
}

impl Kubelets {
    /// Starts a cluster of two nodes named `node1` and `node2` and waits until both are ready; or
    /// prints that the test is skipped, and the reason.
    ///
    /// # Panics
    /// If the cluster does not start.
    pub fn start_or_skip(test: &str) -> Option<Self> {
        Self::start_with_or_skip(test, RigConfig::CLUSTER.nodes, &["images"])
    }

    /// The same with this number of nodes, and the image archives of these directories of the files of nodes.
    ///
    /// # Panics
    /// If the cluster does not start.
    pub fn start_with_or_skip(
        test: &str,
        nodes: u8,
        images: &'static [&'static str],
    ) -> Option<Self> {
        let files = files_or_skip(test, images)?;
        let rig = rig(nodes).expect("a rig");
        let cluster = Self::start(files, rig, 0..nodes.into(), &Family::ALL, images);
        Some(cluster.expect("a cluster of real nodes"))
    }

    /// Starts clusters of one node each in one rig: `node1` is that of the first cluster. Each knows the ways to the pods
    /// of the others. Services have addresses of these families.
    ///
    /// # Panics
    /// If a cluster does not start.
    pub fn start_clusters_or_skip(
        test: &str,
        clusters: u8,
        families: &'static [Family],
        images: &'static [&'static str],
    ) -> Option<Vec<Self>> {
        let files = files_or_skip(test, images)?;
        let rig = rig(clusters).expect("a rig");
        let start = |number| {
            let nodes = number..number + 1;
            Self::start(files.clone(), Arc::clone(&rig), nodes, families, images)
        };
        let clusters: Result<_> = (0..clusters.into()).map(start).collect();
        Some(clusters.expect("clusters of a real node each"))
    }

    fn start(
        files: PathBuf,
        rig: Arc<Rig>,
        nodes: Range<usize>,
        families: &'static [Family],
        images: &'static [&'static str],
    ) -> Result<Self> {
        let directory = TempDir::new()?;
        let names: Vec<String> = nodes.clone().map(Cluster::node_name).collect();
        let control = control(&rig);
        for node in &rig.nodes()[nodes.clone()] {
            control.add_route(&node.pod_range_v4(), node.v4().into())?;
            control.add_route(&node.pod_range_v6(), node.v6().into())?;
        }
        let start =
            || Servers::start_for_kubelets(directory.path(), control.v4(), &names, families);
        let servers = control.namespace().run(start)??;
        let mut command = Command::new(files.join("bin/kube-scheduler"));
        command
            .args(["--leader-elect=false", "--secure-port=0", "--kubeconfig"])
            .arg(servers.kubeconfig());
        let name = "kube-scheduler";
        let scheduler = Process::spawn(control.namespace(), name, &mut command, directory.path())?;
        let mut kubelets = Self {
            nodes: names.iter().map(|_| None).collect(),
            _scheduler: scheduler,
            servers,
            files,
            images,
            directory,
            first: nodes.start,
            rig,
        };
        for number in 0..names.len() {
            kubelets.start_node(number)?;
        }
        kubelets.wait_until_ready()?;
        Ok(kubelets)
    }

    /// The name of a node, by its number in the cluster.
    #[must_use]
    pub fn node_name(&self, number: usize) -> String {
        Cluster::node_name(self.first + number)
    }

    /// A node, by its number in the cluster.
    ///
    /// # Panics
    /// If the cluster has no such node.
    #[must_use]
    pub fn node(&self, number: usize) -> &Node {
        self.rig.node(self.first + number)
    }

    /// Starts containerd and the kubelet of a node.
    pub fn start_node(&mut self, number: usize) -> Result<()> {
        let name = self.node_name(number);
        let node = self.node(number);
        let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("nodes/node"));
        command
            .arg(&name)
            .arg(format!("{},{}", node.v4(), node.v6()))
            .args([node.pod_range_v4(), node.pod_range_v6()])
            .arg(&self.files)
            .arg(self.directory.path())
            .args(self.images);
        let process = Process::spawn(node.namespace(), &name, &mut command, self.directory.path());
        self.nodes[number] = Some(process?);
        Ok(())
    }

    /// Kills everything that runs on a node, and its pods; its kernel's other objects and the agent's
    /// directory stay.
    pub fn kill_node(&mut self, number: usize) -> Result<()> {
        self.nodes[number] = None;
        // A test that has entered a pod keeps its network alive.
        let node = self.node(number);
        let links = node.exec(&["ip", "-brief", "link", "show", "type", "veth"])?;
        for link in links
            .lines()
            .filter_map(|line| line.split(['@', ' ']).next())
        {
            if link.starts_with("veth") {
                // The end of the pod's last process may remove it first.
                let _ = node.exec(&["ip", "link", "del", link]);
            }
        }
        Ok(())
    }

    /// Waits until all nodes are ready.
    pub fn wait_until_ready(&mut self) -> Result<()> {
        for number in 0..self.nodes.len() {
            let condition = "--for=condition=Ready";
            let name = self.node_name(number);
            let waited = wait_with_pauses(&format!("{name} to be ready"), LIMIT, LOOK, || {
                let running = self.nodes[number].as_mut().is_some_and(Process::is_running);
                if !running {
                    return Some(false);
                }
                // It is started when the images are in, for which kubectl would leave less of the processor.
                let log = self.directory.path().join(format!("{name}.kubelet.log"));
                if !log.exists() {
                    return None;
                }
                self.kubectl(&["wait", condition, "node", &name, "--timeout=30s"])
                    .is_ok()
                    .then_some(true)
            });
            ensure!(
                waited.with_context(|| self.log(&name))?,
                "{name} ended: {}",
                self.log(&name)
            );
        }
        Ok(())
    }

    /// The ends of a node's logs.
    fn log(&self, node: &str) -> String {
        let tail = |suffix: &str| {
            let file = self.directory.path().join(format!("{node}{suffix}"));
            let log = fs::read(file).unwrap_or_default();
            let log = String::from_utf8_lossy(&log);
            let lines: Vec<&str> = log.lines().collect();
            lines[lines.len().saturating_sub(TAIL)..].join("\n")
        };
        [".log", ".containerd.log", ".kubelet.log"]
            .map(tail)
            .join("\n")
    }

    /// Runs kubectl as administrator.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl_with_input(args, "")
    }

    /// The same with `input` on stdin.
    pub fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String> {
        let run = || self.servers.kubectl_with_input(args, input);
        control(&self.rig).namespace().run(run)?
    }

    /// Waits for the end of a roll-out, such as `daemonset/portolan-agent`.
    pub fn rolled_out(&self, namespace: &str, object: &str) -> Result<()> {
        let ready = wait_with_pauses(&format!("the roll-out of {object}"), LIMIT, LOOK, || {
            let status = [
                "rollout",
                "status",
                "--timeout=30s",
                "--namespace",
                namespace,
                object,
            ];
            self.kubectl(&status).ok()
        });
        ready.map(drop).with_context(|| self.describe(namespace))
    }

    /// Returns the pods, events and logs of a namespace, which an operator would look at when pods are not ready.
    pub fn describe(&self, namespace: &str) -> String {
        let show = |args: &[&str]| {
            let args = [args, &["--namespace", namespace]].concat();
            self.kubectl(&args)
                .unwrap_or_else(|error| error.to_string())
        };
        let mut text = show(&["get", "pods", "--output=wide"]);
        text += &show(&["get", "events", "--sort-by=lastTimestamp"]);
        let pods = show(&["get", "pods", "--output=name"]);
        for pod in pods.lines() {
            text += &format!("--- {pod}\n");
            text += &show(&["logs", pod, "--tail=15", "--all-containers"]);
        }
        text
    }

    /// A running pod as a host, whose programs run in its network namespace.
    pub fn pod(&self, namespace: &str, name: &str) -> Result<Host> {
        let get = [
            "get",
            "pod",
            name,
            "--namespace",
            namespace,
            "--output=json",
        ];
        let pod: Value = serde_json::from_str(&self.kubectl(&get)?)?;
        let address = pod["status"]["podIP"].as_str().context("no pod IP")?;
        let address: Ipv4Addr = address.parse()?;
        let process = process_of(name)?.with_context(|| format!("pod {name} has no process"))?;
        Host::of_process(name, process, address)
    }

    /// The names of the pods with a label.
    pub fn pods(&self, namespace: &str, label: &str) -> Result<Vec<String>> {
        let get = ["get", "pods", "--namespace", namespace, "--selector", label];
        let names = self.kubectl(&[&get[..], &["--output=name"]].concat())?;
        let names = names.lines().filter_map(|line| line.strip_prefix("pod/"));
        Ok(names.map(Into::into).collect())
    }

    /// The API server's address and port, as nodes reach it.
    #[must_use]
    pub fn api(&self) -> (Ipv4Addr, u16) {
        let port = self.servers.url().rsplit(':').next();
        let port = port.and_then(|port| port.parse().ok());
        (control(&self.rig).v4(), port.unwrap_or(443))
    }

    /// The control plane.
    #[must_use]
    pub fn servers(&self) -> &Servers {
        &self.servers
    }

    /// The kubeconfig of a cluster administrator.
    #[must_use]
    pub fn kubeconfig(&self) -> &Path {
        self.servers.kubeconfig()
    }

    /// The directory that `e2e/nodes/files` made.
    #[must_use]
    pub fn files(&self) -> &Path {
        &self.files
    }

    /// The directory of keys and logs.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }
}

/// A rig with so many nodes.
fn rig(nodes: u8) -> Result<Arc<Rig>> {
    let rig = Rig::new(RigConfig {
        nodes,
        ..RigConfig::CLUSTER
    });
    rig.map(Arc::new)
}

/// The directory that `e2e/nodes/files` made, if it has these directories of images; otherwise prints that the test is
/// skipped, and the reason.
fn files_or_skip(test: &str, images: &[&str]) -> Option<PathBuf> {
    if !lane::provides(test, &[Need::Root, Need::Ipvs, Need::Guest]) {
        return None;
    }
    let Some(files) = std::env::var_os(FILES).map(PathBuf::from) else {
        lane::missing(
            test,
            "needs images and programs of nodes (e2e/test makes them)",
        );
        return None;
    };
    if let Some(absent) = images.iter().find(|images| !files.join(images).is_dir()) {
        lane::missing(test, &format!("needs {absent} (e2e/nodes/{absent})"));
        return None;
    }
    Some(files)
}

/// A process of a container of the pod with this name. The runtime writes the pod's name into each
/// container as its host name.
fn process_of(pod: &str) -> Result<Option<u32>> {
    for entry in fs::read_dir("/proc")? {
        let Ok(Ok(process)) = entry?.file_name().into_string().map(|name| name.parse()) else {
            continue;
        };
        // Processes come and go while the directory is read.
        let name = fs::read_to_string(format!("/proc/{process}/root/etc/hostname"));
        if name.is_ok_and(|name| name.trim() == pod) {
            return Ok(Some(process));
        }
    }
    Ok(None)
}
