// SPDX-License-Identifier: Apache-2.0

//! Real etcd, kube-apiserver and kube-controller-manager on loopback, for tests and benches.
//! There is no kubelet and no scheduler: a test binds its pods to nodes and writes their status
//! itself, and the real endpointslice controller makes the slices of that.

mod config;
mod kube_proxy;
mod phases;
mod process;
mod programs;
mod proxy;

use std::io::{self, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

use self::config::{Nodes, api_args, etcd_args, manager_args, write_credentials};
pub use self::kube_proxy::{ApiOnLan, KubeProxies};
pub use self::phases::Phases;
use self::process::Process;
pub use self::programs::{Binaries, Missing};
pub use self::proxy::{ApiProxy, slice_path};
use crate::cluster::control;
use crate::lane::{self, Need};
use crate::ports;
use crate::rig::{Family, Rig, RigConfig};
use crate::wait::pause;

/// The pause between two checks through kubectl, each of which takes processor time from the
/// server.
const LOOK: Duration = Duration::from_millis(100);

/// A Service that requires an address of each of these families.
fn probe(families: &[Family]) -> String {
    let policy = match families {
        [_] => "SingleStack",
        _ => "RequireDualStack",
    };
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "probe"},
        "spec": {"ipFamilyPolicy": policy, "ports": [{"port": 1}]}});
    service.to_string()
}

/// kubectl as administrator of the servers.
#[derive(Debug)]
struct Kubectl {
    program: PathBuf,
    kubeconfig: PathBuf,
    cache: PathBuf,
}

impl Kubectl {
    fn run(&self, args: &[&str], input: &str) -> Result<String> {
        let mut child = Command::new(&self.program)
            .arg("--kubeconfig")
            .arg(&self.kubeconfig)
            .arg("--cache-dir")
            .arg(&self.cache)
            // A server that hangs must fail the test, not hang it. Callers may say otherwise.
            .arg("--request-timeout=60s")
            .args(args)
            // A user's own kubectl preferences are no part of a test.
            .env("KUBECTL_KUBERC", "false")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .with_context(|| format!("start {}", self.program.display()))?;
        let pipe = child.stdin.take().context("kubectl's stdin")?;
        let written = { pipe }.write_all(input.as_bytes());
        let output = child.wait_with_output().context("kubectl")?;
        if !output.status.success() {
            bail!(
                "kubectl {}: {}",
                args.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            );
        }
        written.context("write to kubectl")?;
        String::from_utf8(output.stdout).context("kubectl's stdout")
    }

    /// Checks a condition once, and pauses if it does not hold.
    fn succeeds(&self, args: &[&str], input: &str) -> bool {
        let begin = Instant::now();
        let found = self.run(args, input).is_ok();
        if !found {
            // On a busy machine kubectl itself takes seconds of the processor, which the server needs to start.
            pause(LOOK.max(2 * begin.elapsed()));
        }
        found
    }
}

/// A running control plane; dropping it stops every process.
#[derive(Debug)]
pub struct Servers {
    // Fields drop in this order: clients before the servers they use.
    manager: Process,
    api: Process,
    etcd: Process,
    kubectl: Kubectl,
    url: String,
    directory: PathBuf,
    etcd_program: PathBuf,
    etcd_args: Vec<String>,
    etcd_port: u16,
    api_program: PathBuf,
    api_args: Vec<String>,
    api_port: u16,
}

const API: &str = "kube-apiserver";
const API_ATTEMPTS: u32 = 4;

impl Servers {
    /// Finds the programs: in `KUBEBUILDER_ASSETS`, else in `PORTOLAN_TOOLS_BIN`, else in the
    /// directory of `e2e/tools/build`, which the first call runs for minutes. The error is
    /// [`Missing`] if this machine cannot have them.
    pub fn binaries() -> Result<Binaries> {
        Binaries::find()
    }

    /// Starts the servers for `test`, or prints that it is skipped, and the reason.
    ///
    /// # Panics
    /// If the servers are available but do not start, and in CI if they are missing.
    pub fn start_or_skip(test: &str, dir: &Path) -> Option<Self> {
        Self::or_skip(test, Self::start(dir))
    }

    fn or_skip(test: &str, started: Result<Self>) -> Option<Self> {
        let error = match started {
            Ok(servers) => return Some(servers),
            Err(error) => error,
        };
        let Some(reason) = error.downcast_ref::<Missing>() else {
            panic!("{test}: the servers did not start: {error:?}");
        };
        lane::missing(test, &reason.to_string());
        None
    }

    /// Builds a rig, [`RigConfig::CLUSTER`], and starts the servers on the machine for controllers;
    /// or prints that the test is skipped, and the reason.
    ///
    /// # Panics
    /// As [`Self::start_or_skip`], and if the rig cannot be built.
    pub fn in_rig_or_skip(test: &str, dir: &Path) -> Option<(Rig, Self)> {
        Self::in_rig_for_or_skip(test, Need::Ipvs, dir)
    }

    /// The same for a test of another dataplane, which needs that of the kernel.
    pub fn in_rig_for_or_skip(test: &str, need: Need, dir: &Path) -> Option<(Rig, Self)> {
        if !lane::provides(test, &[Need::Root, need]) {
            return None;
        }
        let rig = Rig::new(RigConfig::CLUSTER).expect("a rig");
        let start = || Self::start_or_skip(test, dir);
        let servers = control(&rig).namespace().run(start).expect("a namespace")?;
        Some((rig, servers))
    }

    /// Starts the servers, and waits until the API and the controllers answer. Their logs, keys and
    /// the kubeconfig go to `dir`.
    pub fn start(dir: &Path) -> Result<Self> {
        Self::start_for(dir, Nodes::Written, &[])
    }

    /// The same for real kubelets: with RBAC and all controllers, reached by nodes of these names
    /// at `address`. `NAME.kubeconfig` in `dir` is for each of them. Services have addresses of `families`.
    pub fn start_for_kubelets(
        dir: &Path,
        address: Ipv4Addr,
        names: &[String],
        families: &'static [Family],
    ) -> Result<Self> {
        Self::start_for(dir, Nodes::Kubelets(address, families), names)
    }

    /// Starts the servers with RBAC and the controllers of Deployments and StatefulSets, for `test`, or prints that
    /// it is skipped. Users with a token get a kubeconfig `NAME.kubeconfig` in `dir`; what they may do is up to the
    /// test.
    ///
    /// # Panics
    /// As [`Self::start_or_skip`].
    pub fn start_for_workloads_or_skip(test: &str, dir: &Path, users: &[&str]) -> Option<Self> {
        let users: Vec<String> = users.iter().map(|user| (*user).to_owned()).collect();
        Self::or_skip(test, Self::start_for(dir, Nodes::Workloads, &users))
    }

    fn start_for(dir: &Path, nodes: Nodes, names: &[String]) -> Result<Self> {
        let binaries = Self::binaries()?;
        let program = |name| binaries.program(name);
        let [etcd_port, peer_port, port] = ports::reserve()?;
        let url = format!("https://{}:{port}", nodes.api_address());
        let kubeconfig = write_credentials(dir, &url, names, nodes)?;
        let cache = dir.join("kubectl-cache");
        let kubectl = Kubectl {
            program: program("kubectl"),
            kubeconfig,
            cache,
        };

        let (etcd_program, etcd_args) = (program("etcd"), etcd_args(dir, etcd_port, peer_port));
        let mut etcd = Process::spawn(dir, "etcd", &etcd_program, &etcd_args)?;
        etcd.wait_for("its port", || accepts(etcd_port))?;

        let (api_program, api_args) = (program(API), api_args(dir, etcd_port, port, nodes));
        let mut api = run_api(dir, &api_program, &api_args, port, &kubectl)?;

        // The manager exits if the API is not ready within 10 s, which a slow guest needs.
        let name = "kube-controller-manager";
        let args = manager_args(dir, &kubectl.kubeconfig, nodes);
        let mut manager = Process::spawn(dir, name, &program(name), &args)?;
        // The account is made by a controller: the first sign that they work.
        let account = ["get", "serviceaccount", "default", "--namespace", "default"];
        manager.wait_for("default service account", || kubectl.succeeds(&account, ""))?;
        // The address ranges are not part of /readyz: Services created at once could be refused.
        let create = ["create", "--dry-run=server", "-f", "-"];
        let service = probe(nodes.families());
        api.wait_for("addresses for Services", || {
            kubectl.succeeds(&create, &service)
        })?;

        Ok(Self {
            manager,
            api,
            etcd,
            kubectl,
            url,
            directory: dir.to_owned(),
            etcd_program,
            etcd_args,
            etcd_port,
            api_program,
            api_args,
            api_port: port,
        })
    }

    /// Kills the API server; etcd and the controllers stay.
    pub fn kill_api(&mut self) -> Result<()> {
        self.api.kill()
    }

    /// Starts the API server again, and waits until it answers. Must be called in the namespace in
    /// which the servers were started.
    pub fn start_api(&mut self) -> Result<()> {
        let (program, args) = (&self.api_program, &self.api_args);
        self.api = run_api(&self.directory, program, args, self.api_port, &self.kubectl)?;
        Ok(())
    }

    /// Stops the API server and its storage, calls `work` with the data directory, and starts both
    /// again, as a cluster is backed up and restored. Must be called in the namespace in which the
    /// servers were started.
    pub fn with_storage(&mut self, work: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        self.api.kill()?;
        self.etcd.kill()?;
        work(&self.directory.join("etcd"))?;
        self.etcd = Process::spawn(&self.directory, "etcd", &self.etcd_program, &self.etcd_args)?;
        let port = self.etcd_port;
        self.etcd.wait_for("its port", || accepts(port))?;
        self.start_api()
    }

    /// Requests of users with a token that were refused for want of a permission: verb and URI of each. Only servers for
    /// workloads have the log.
    pub fn refused_requests(&self) -> Result<Vec<String>> {
        let log = std::fs::read_to_string(self.directory.join(config::AUDIT_LOG))?;
        // The last line may be half written.
        let events = log
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        let refused = events.filter(|event: &Value| event["responseStatus"]["code"] == 403);
        Ok(refused
            .map(|event| format!("{} {}", event["verb"], event["requestURI"]))
            .collect())
    }

    /// The kubeconfig of a cluster administrator.
    pub fn kubeconfig(&self) -> &Path {
        &self.kubectl.kubeconfig
    }

    /// The API's URL, on loopback.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Runs kubectl as administrator. Returns its stdout, or an error with its stderr.
    pub fn kubectl(&self, args: &[&str]) -> Result<String> {
        self.kubectl.run(args, "")
    }

    /// The same with `input` on stdin, for `apply -f -`.
    pub fn kubectl_with_input(&self, args: &[&str], input: &str) -> Result<String> {
        self.kubectl.run(args, input)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        if std::thread::panicking() {
            for process in [&self.etcd, &self.api, &self.manager] {
                let _ = writeln!(io::stderr(), "{}", process.tail());
            }
        }
        // Both at once; etcd, which the API server writes to until its end, follows by its drop.
        self.manager.signal_stop();
        self.api.signal_stop();
    }
}

/// Starts the API server and waits until it answers. On a machine that is too busy it ends itself after a minute
/// without having started; it is restarted then, as a kubelet would do.
fn run_api(
    dir: &Path,
    program: &Path,
    args: &[String],
    port: u16,
    kubectl: &Kubectl,
) -> Result<Process> {
    let readyz = ["get", "--raw", "/readyz"];
    let mut attempt = 1;
    loop {
        let mut api = Process::spawn(dir, API, program, args)?;
        let mut waited = api.wait_for("its port", || accepts(port));
        if waited.is_ok() {
            waited = api.wait_for("/readyz", || kubectl.succeeds(&readyz, ""));
        }
        match waited {
            Ok(()) => return Ok(api),
            Err(_) if api.has_ended() && attempt < API_ATTEMPTS => attempt += 1,
            Err(error) => return Err(error),
        }
    }
}

fn accepts(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}
