// SPDX-License-Identifier: Apache-2.0

//! A cluster of real nodes whose kube-proxy runs as a DaemonSet, and the shell of an operator.

use std::env;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, ensure};
use portolan_e2e::chart::{Chart, values};
use portolan_e2e::clients::Clients;
use portolan_e2e::cluster::{Cluster, control, http_get};
use portolan_e2e::kubelets::{self, Kubelets};
use portolan_e2e::programs::{AGENT_ADMIN, program};
use portolan_e2e::rig::{Family, Host, Protocol};
use portolan_e2e::servers::Servers;
use portolan_e2e::wait::{wait_for, wait_with_pauses};
use serde_json::{Value, json};

pub(crate) const AGENT: &str = "daemonset/portolan-agent";
pub(crate) const CLEANUP: &str = "daemonset/portolan-cleanup";
pub(crate) const CONTROLLER: &str = "deployment/portolan-controller";
pub(crate) const KUBE_PROXY: &str = "daemonset/kube-proxy";
/// The networks of the Services.
const SERVICES: [&str; 2] = ["10.96.0.0/16", "fd00:10:96::/112"];
const IMAGE: &str = "localhost/kube-proxy:e2e";
const NODE_PORT: u16 = 30080;
/// Pause between two looks at a node: each takes the processor from all else.
pub(crate) const LOOK: Duration = Duration::from_secs(1);

pub(crate) struct World {
    kubelets: Kubelets,
    /// The operator's working directory.
    desk: PathBuf,
}

impl World {
    /// Starts a cluster whose kube-proxy has this mode. The operator's chart has `more` values that only the rig
    /// needs.
    pub(crate) fn start_or_skip(test: &str, mode: &str, more: Value) -> Option<Self> {
        let kubelets = Kubelets::start_with_or_skip(test, 2, &["images", "kube-proxy"])?;
        let desk = kubelets.directory().join("desk");
        let this = Self { kubelets, desk };
        this.furnish_desk(more);
        this.add_routes();
        let (host, port) = this.kubelets.api();
        let kube_proxy = include_str!("kube-proxy.yaml")
            .replace("MODE", mode)
            .replace("https://API", &format!("https://{host}:{port}"))
            .replace("IMAGE", IMAGE);
        this.apply(&kube_proxy);
        this.rolled_out(KUBE_PROXY);
        this.apply(include_str!("services.yaml"));
        for object in ["daemonset/web", "daemonset/client"] {
            this.kubelets.rolled_out("default", object).unwrap();
        }
        Some(this)
    }

    /// Routes on the nodes to all Services, which only IPVS brings itself: a real node has a default route.
    fn add_routes(&self) {
        let gateway = self.kubelets.rig.client();
        for node in self.kubelets.rig.nodes() {
            for (range, family) in SERVICES.into_iter().zip(Family::ALL) {
                node.add_route(range, gateway.address(family)).unwrap();
            }
        }
    }

    fn apply(&self, objects: &str) {
        // On the server's side: kubectl itself confuses ports of the same number.
        let apply = ["apply", "--server-side", "--filename=-"];
        self.kubelets.kubectl_with_input(&apply, objects).unwrap();
    }

    /// A directory with the chart, and programs by their names. The `helm` there adds values that a user of a
    /// registry does not need.
    fn furnish_desk(&self, more: Value) {
        let (desk, bin) = (&self.desk, self.desk.join("bin"));
        fs::create_dir_all(&bin).unwrap();
        let repository = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        symlink(repository.join("charts"), desk.join("charts")).unwrap();
        let kubectl = Servers::binaries().unwrap().program("kubectl");
        symlink(kubectl, bin.join("kubectl")).unwrap();
        let portolanctl = program("portolanctl").unwrap();
        symlink(portolanctl, bin.join("portolanctl")).unwrap();

        let all = values(&self.kubelets, "10.96.0.1:443");
        let mut rig = json!({
            "image": all["image"],
            "test": all["test"],
            "controller": all["controller"],
            "agent": { "image": all["agent"]["image"] },
        });
        // The guide names the registry.
        rig["image"].as_object_mut().unwrap().remove("registry");
        portolan_e2e::objects::merge(&mut rig, more);
        let rig_values = desk.join("rig.json");
        fs::write(&rig_values, rig.to_string()).unwrap();
        let helm = Chart::find(&self.kubelets).expect("Helm and the chart");
        let script = format!(
            "#!/bin/sh\ncase $1 in install | upgrade) set -- \"$@\" --values={} ;; esac\nexec {} \"$@\"\n",
            rig_values.display(),
            helm.program().display()
        );
        let file = bin.join("helm");
        fs::write(&file, script).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
    }

    /// Runs commands of the guide, as an operator would; returns what they print.
    pub(crate) fn run(&self, commands: &str, node: usize) -> Result<String> {
        let commands = commands
            .replace("REGISTRY", "localhost")
            .replace("NODE", &Cluster::node_name(node));
        let path = env::var("PATH").unwrap_or_default();
        let mut command = Command::new("bash");
        command
            .args(["-euxo", "pipefail", "-c", &commands])
            .current_dir(&self.desk)
            .env(
                "PATH",
                format!("{}:{path}", self.desk.join("bin").display()),
            )
            .env("KUBECONFIG", self.kubelets.kubeconfig())
            .env("KUBECTL_KUBERC", "false")
            .env("HOME", &self.desk);
        let output = self.control().namespace().run(|| command.output())??;
        let said = String::from_utf8_lossy(&output.stdout).into_owned();
        let errors = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{said}{errors}{}", self.describe());
        Ok(said)
    }

    fn control(&self) -> &Host {
        control(&self.kubelets.rig)
    }

    pub(crate) fn rolled_out(&self, object: &str) {
        self.kubelets.rolled_out("kube-system", object).unwrap();
    }

    pub(crate) fn describe(&self) -> String {
        self.kubelets.describe("kube-system")
    }

    pub(crate) fn node(&self, number: usize) -> &Host {
        self.kubelets.rig.node(number)
    }

    /// The number of pods with a label on a node.
    fn pods_on(&self, label: &str, node: usize) -> usize {
        let field = format!(
            "--field-selector=spec.nodeName={}",
            Cluster::node_name(node)
        );
        let get = ["get", "pods", "--namespace=kube-system", "--output=name"];
        let selector = format!("--selector={label}");
        let found = self
            .kubelets
            .kubectl(&[&get[..], &[&field, &selector]].concat());
        found.unwrap().lines().count()
    }

    /// Waits until a node has this number of pods with a label.
    pub(crate) fn wait_for_pods(&self, label: &str, node: usize, count: usize) {
        let what = format!("{count} pods {label} on node {node}");
        let count = || (self.pods_on(label, node) == count).then_some(());
        wait_with_pauses(&what, kubelets::LIMIT, LOOK, count)
            .unwrap_or_else(|error| panic!("{error}: {}", self.describe()));
    }

    /// Waits until the agent of a node says that a gauge is 0.
    pub(crate) fn wait_for_zero(&self, gauge: &str, node: usize) {
        let line = format!("{gauge} 0");
        let is_zero = || {
            let metrics = http_get(self.node(node).namespace(), AGENT_ADMIN, "/metrics").ok()?;
            metrics.lines().any(|found| found == line).then_some(())
        };
        wait_with_pauses(&line, kubelets::LIMIT, LOOK, is_zero)
            .unwrap_or_else(|error| panic!("{error} on node {node}: {}", self.describe()));
    }

    /// Waits until the kube-proxy of a node answers.
    pub(crate) fn wait_for_kube_proxy(&self, node: usize) {
        let is_healthy = || {
            let answer = http_get(self.node(node).namespace(), 10256, "/healthz").ok()?;
            answer.contains("lastUpdated").then_some(())
        };
        wait_for("a healthy kube-proxy", kubelets::LIMIT, is_healthy).unwrap();
    }

    /// Asserts that a node has no object that is Portolan's alone.
    pub(crate) fn assert_nothing_of_ours(&self, node: usize) {
        let node = self.node(node);
        for (command, word) in [
            ("nft list tables", "portolan"),
            ("ipset list -n", "PORTOLAN"),
            ("iptables-save", "KUBE-LOCAL-POLICY"),
            ("ip route show table local proto 99", "local"),
            ("ipvsadm -Ln", "FWM"),
        ] {
            let words: Vec<_> = command.split(' ').collect();
            let found = node.exec(&words).unwrap();
            assert!(!found.contains(word), "{command}: {found}");
        }
    }

    /// Clients in pods of both nodes, on a node and outside.
    pub(crate) fn start_clients(&self) -> Clients {
        let web = ["10.96.10.1", "fd00:10:96::a01"].map(|ip| socket(ip, 80));
        let pods = self.kubelets.pods("default", "app=client").unwrap();
        let pods = pods.iter().map(|name| self.kubelets.pod("default", name));
        let pods: Vec<Host> = pods.collect::<Result<_>>().unwrap();
        let outside = self.kubelets.rig.client();
        let mut clients = Clients::default();
        for protocol in Protocol::ALL {
            for pod in &pods {
                clients.add(pod, protocol, &web);
            }
            for node in [0, 1] {
                let targets = Family::ALL.map(|family| self.node(node).socket(family, NODE_PORT));
                clients.add(outside, protocol, &targets);
            }
            clients.add(self.node(0), protocol, &web[..1]);
        }
        for pod in &pods {
            clients.add_regular(pod, socket("10.96.10.2", 80));
        }
        clients
    }
}

fn socket(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}
