// SPDX-License-Identifier: Apache-2.0

//! Two clusters with real API servers, and one controller that reaches each by a kubeconfig, or has an edge controller
//! there.

use std::fs::{self, File};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use portolan_e2e::cluster::http_get_from;
use portolan_e2e::mcs::permissions;
use portolan_e2e::ports;
use portolan_e2e::programs::program;
use portolan_e2e::servers::{Phases, Servers};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for a loaded machine; only a failure ever waits this long.
pub(crate) const PATIENT: Duration = Duration::from_secs(90);
/// The clusters, in the order in which they win ties.
pub(crate) const NAMES: [&str; 2] = ["alpha", "beta"];
/// The user whose permissions are those of the documentation.
const USER: &str = "portolan";

/// One cluster.
pub(crate) struct Member {
    pub(crate) servers: Servers,
    pub(crate) name: &'static str,
    pub(crate) kubeconfig: PathBuf,
    _phases: Phases,
}

pub(crate) struct World {
    pub(crate) controller: Controller,
    pub(crate) members: Vec<Member>,
    pub(crate) dir: TempDir,
    /// The port of agents and edges.
    port: u16,
    edges: Vec<Controller>,
}

impl World {
    /// All clusters are reached by kubeconfigs.
    pub(crate) fn start(test: &str) -> Option<Self> {
        Self::start_with(test, &[])
    }

    /// These clusters have edge controllers.
    pub(crate) fn start_with(test: &str, edges: &[&str]) -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let mut members = Vec::new();
        for (number, name) in NAMES.into_iter().enumerate() {
            let home = dir.path().join(name);
            fs::create_dir(&home).unwrap();
            let servers = Servers::start_for_workloads_or_skip(test, &home, &[USER])?;
            members.push(Member::new(servers, name, &home, number));
        }
        fs::write(dir.path().join("policy.yaml"), policy(&members, edges)).unwrap();
        let [port] = ports::reserve().unwrap();
        let controller = Controller::centre(dir.path(), port);
        let behind = members.iter().filter(|member| edges.contains(&member.name));
        let edges = behind.map(|member| Controller::edge(dir.path(), member, "1", port));
        Some(Self {
            controller,
            edges: edges.collect(),
            members,
            dir,
            port,
        })
    }

    /// Starts another edge of a cluster.
    pub(crate) fn second_edge(&mut self, cluster: &str) {
        let mut members = self.members.iter();
        let member = members.find(|member| member.name == cluster).unwrap();
        let edge = Controller::edge(self.dir.path(), member, "2", self.port);
        self.edges.push(edge);
    }

    /// Kills the edge that was started first.
    pub(crate) fn kill_first_edge(&mut self) {
        self.edges.remove(0).stop();
    }

    /// The number of writes of each edge.
    pub(crate) fn writes_of_edges(&self) -> Vec<u64> {
        let edges = self.edges.iter();
        edges.map(|edge| edge.writes("", "", "")).collect()
    }

    /// The number of writes of a kind into a cluster with a result; all clusters, kinds or results if empty.
    pub(crate) fn writes(&self, cluster: &str, kind: &str, result: &str) -> u64 {
        let controllers = self.edges.iter().chain([&self.controller]);
        let counts = controllers.map(|controller| controller.writes(cluster, kind, result));
        counts.sum()
    }

    pub(crate) fn alpha(&self) -> &Member {
        &self.members[0]
    }

    pub(crate) fn beta(&self) -> &Member {
        &self.members[1]
    }

    /// Creates a namespace in both clusters.
    pub(crate) fn namespace(&self, name: &str) {
        let object = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}});
        for member in &self.members {
            member.apply(&object);
        }
    }

    /// Ends the controller and starts it again, without anything that it knew.
    pub(crate) fn restart(&mut self) {
        self.controller.stop();
        self.controller = Controller::centre(self.dir.path(), self.port);
    }
}

impl Member {
    fn new(servers: Servers, name: &'static str, home: &Path, number: usize) -> Self {
        let tools = Command::new(concat!(
            env!("CARGO_MANIFEST_DIR"),
            "/../../e2e/tools/build"
        ))
        .arg("mcs")
        .output()
        .unwrap();
        assert!(tools.status.success(), "{tools:?}");
        let tools = String::from_utf8(tools.stdout).unwrap();
        let printer = Path::new(tools.trim().lines().last().unwrap()).join("mcs");
        let crds = Command::new(printer).output().unwrap().stdout;
        let apply = ["apply", "--server-side", "-f", "-"];
        let crds = String::from_utf8(crds).unwrap();
        servers.kubectl_with_input(&apply, &crds).unwrap();
        servers.kubectl_with_input(&apply, role()).unwrap();
        let bind = [
            "create",
            "clusterrolebinding",
            USER,
            "--clusterrole=portolan-member",
        ];
        let user = format!("--user={USER}");
        servers.kubectl(&[&bind[..], &[&user]].concat()).unwrap();
        let second = u8::try_from(number + 1).unwrap();
        let first = Ipv4Addr::new(10, second, 0, 1);
        let node = format!("{name}-node");
        let phases = Phases::start(&servers, home, &node, first).unwrap();
        // The permissions of the user count, not those of its creator.
        let kubeconfig = home.join("member.kubeconfig");
        fs::copy(home.join(format!("{USER}.kubeconfig")), &kubeconfig).unwrap();
        Self {
            servers,
            name,
            kubeconfig,
            _phases: phases,
        }
    }

    pub(crate) fn apply(&self, object: &Value) {
        let args = ["apply", "-f", "-"];
        let text = object.to_string();
        self.servers.kubectl_with_input(&args, &text).unwrap();
    }

    pub(crate) fn delete(&self, kind: &str, namespace: &str, name: &str) {
        let args = ["delete", kind, name, "--namespace", namespace];
        self.servers.kubectl(&args).unwrap();
    }

    /// An object; `None` if there is none.
    pub(crate) fn get(&self, kind: &str, namespace: &str, name: &str) -> Option<Value> {
        let args = [
            "get",
            kind,
            name,
            "--ignore-not-found",
            "-o",
            "json",
            "--namespace",
        ];
        let text = self
            .servers
            .kubectl(&[&args[..], &[namespace]].concat())
            .unwrap();
        (!text.trim().is_empty()).then(|| serde_json::from_str(&text).unwrap())
    }

    pub(crate) fn import(&self, namespace: &str) -> Option<Value> {
        self.get("serviceimport", namespace, "hello")
    }

    /// Waits for an import of which something is so.
    pub(crate) fn await_import(
        &self,
        namespace: &str,
        what: &str,
        is_so: impl Fn(&Value) -> bool,
    ) -> Value {
        let mut last = None;
        let found = wait_for(what, PATIENT, || {
            last = self.import(namespace);
            last.clone().filter(|import| is_so(import))
        });
        found.unwrap_or_else(|error| panic!("{}: {error}: {last:#?}", self.name))
    }

    pub(crate) fn await_no_import(&self, namespace: &str) {
        wait_for("no import", PATIENT, || {
            self.import(namespace).is_none().then_some(())
        })
        .unwrap();
    }

    /// Waits for a condition of the export to have a status and a reason.
    pub(crate) fn await_condition(&self, namespace: &str, kind: &str, expected: [&str; 2]) {
        let mut last = None;
        let found = wait_for(kind, PATIENT, || {
            last = self.get("serviceexport", namespace, "hello");
            let export = last.as_ref()?;
            let conditions = export["status"]["conditions"].as_array()?;
            let condition = conditions
                .iter()
                .find(|condition| condition["type"] == kind)?;
            let generation = &export["metadata"]["generation"];
            let is_so = [&condition["status"], &condition["reason"]] == expected
                && condition["observedGeneration"] == *generation;
            is_so.then_some(())
        });
        found.unwrap_or_else(|error| {
            panic!("{} {kind} {expected:?}: {error}: {last:#?}", self.name)
        });
    }
}

/// The ClusterRole of the documentation.
fn role() -> &'static str {
    let is_role = |document: &&str| document.contains("kind: ClusterRole\n");
    permissions().split("---\n").find(is_role).unwrap()
}

fn policy(members: &[Member], edges: &[&str]) -> String {
    let set = json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "ClusterSet", "metadata": {"name": "test"},
        "spec": {"endpointSlices": "All"}});
    let cluster = |(number, member): (usize, &Member)| {
        let access = match edges.contains(&member.name) {
            true => json!({"edge": {}}),
            false => json!({"kubeconfigFile": member.kubeconfig}),
        };
        json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": member.name},
        "spec": {
            "access": access,
            "network": {
                "podCIDRs": [format!("10.{}.0.0/16", number + 1)],
                "clusterSetIPs": [format!("10.112.{number}.0/24")],
            },
        }})
    };
    let clusters = members.iter().enumerate().map(cluster);
    let all: Vec<String> = std::iter::once(set)
        .chain(clusters)
        .map(|one| one.to_string())
        .collect();
    all.join("\n---\n")
}

/// A controller of the policy, or of an edge.
pub(crate) struct Controller {
    child: Child,
    admin: u16,
    log: PathBuf,
}

impl Controller {
    fn centre(dir: &Path, port: u16) -> Self {
        let policy = format!("--policy-file={}", dir.join("policy.yaml").display());
        let listen = format!("--listen=127.0.0.1:{port}");
        let source = ["--source=clusters", "--file-poll=200ms"];
        let args = [&source[..], &[&policy, &listen]].concat();
        Self::start(dir, "controller", &args)
    }

    /// The edge of a cluster, with the permissions of the documentation.
    fn edge(dir: &Path, member: &Member, replica: &str, port: u16) -> Self {
        let kubeconfig = format!("--kubeconfig={}", member.kubeconfig.display());
        let names = ["cluster", "cluster-id", "edge-name"];
        let names = names.map(|flag| format!("--{flag}={}", member.name));
        let upstream = format!("--federation-upstream=127.0.0.1:{port}");
        let mut args = vec![
            "--source=kubernetes",
            "--federation-plaintext",
            "--listen=127.0.0.1:0",
            &kubeconfig,
            &upstream,
        ];
        args.extend(names.iter().map(String::as_str));
        Self::start(dir, &format!("edge-{}-{replica}", member.name), &args)
    }

    fn start(dir: &Path, name: &str, args: &[&str]) -> Self {
        let ports = dir.join(format!("{name}.ports"));
        let log = dir.join(format!("{name}.log"));
        let _ = fs::remove_file(&ports);
        let mut command = Command::new(program("portolan-controller").unwrap());
        command
            .args(["--plaintext", "--admin-listen=127.0.0.1:0"])
            .arg("--debug-listen=")
            .args(args)
            .arg("--port-file")
            .arg(&ports)
            .stderr(
                File::options()
                    .create(true)
                    .append(true)
                    .open(&log)
                    .unwrap(),
            );
        let child = command.spawn().unwrap();
        let admin = wait_for("the controller's ports", PATIENT, || {
            let text = fs::read_to_string(&ports).ok()?;
            text.trim().split_once("admin=")?.1.parse().ok()
        });
        let admin = admin.unwrap_or_else(|error| {
            panic!("{error}: {}", fs::read_to_string(&log).unwrap_or_default())
        });
        Self { child, admin, log }
    }

    fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    fn get(&self, path: &str) -> String {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.admin));
        http_get_from(address, path).unwrap()
    }

    pub(crate) fn problems(&self) -> String {
        self.get("/debug/problems")
    }

    /// The state of a cluster.
    pub(crate) fn state(&self, cluster: &str) -> Value {
        let all: Value = serde_json::from_str(&self.get("/debug/clusters")).unwrap();
        let mut all = all["clusters"].as_array().unwrap().iter();
        all.find(|one| one["name"] == cluster)
            .cloned()
            .unwrap_or_default()
    }

    fn writes(&self, cluster: &str, kind: &str, result: &str) -> u64 {
        let metrics = self.get("/metrics");
        let has = |line: &str, label: &str, value: &str| {
            value.is_empty() || line.contains(&format!("{label}=\"{value}\""))
        };
        let lines = metrics.lines().filter(|line| {
            line.starts_with("portolan_controller_mcs_writes_total{")
                && has(line, "cluster", cluster)
                && has(line, "kind", kind)
                && has(line, "result", result)
        });
        lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        self.stop();
        if std::thread::panicking() {
            let text = fs::read_to_string(&self.log).unwrap_or_default();
            let lines: Vec<_> = text.lines().collect();
            let tail = lines[lines.len().saturating_sub(60)..].join("\n");
            println!("--- {}:\n{tail}", self.log.display());
        }
    }
}
