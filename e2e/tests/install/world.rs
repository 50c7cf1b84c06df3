// SPDX-License-Identifier: Apache-2.0

//! A cluster of real nodes with the objects of a Portolan installation.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpStream};
use std::process::Command;
use std::time::Duration;

use portolan_e2e::chart::{Chart, values};
use portolan_e2e::cluster::control;
use portolan_e2e::kubelets::{self, Kubelets, VERSION};
use portolan_e2e::programs::{Trust, program};
use portolan_e2e::rig::{Answer, Host, Protocol};
use portolan_e2e::wait::wait_for;

pub(crate) const CONTROLLER: &str = "deployment/portolan-controller";
pub(crate) const AGENT: &str = "daemonset/portolan-agent";
/// The VIP of the Service of `pods.yaml`.
pub(crate) const WEB: SocketAddr = vip(Ipv4Addr::new(10, 96, 10, 1), 80);
/// The VIP of the API server.
pub(crate) const KUBERNETES: SocketAddr = vip(Ipv4Addr::new(10, 96, 0, 1), 443);

/// The certificate's name of the controller, whatever address agents dial.
const SERVER_NAME: &str = "portolan-controller.kube-system.svc";
/// The time for one answer with a whole cluster on the same processor.
const PROMPT: Duration = Duration::from_secs(20);

const fn vip(address: Ipv4Addr, port: u16) -> SocketAddr {
    SocketAddr::V4(SocketAddrV4::new(address, port))
}

pub(crate) struct World {
    kubelets: Kubelets,
    /// Chart that installs Portolan; without one, the objects of `portolan.yaml` do.
    chart: Option<Chart>,
}

impl World {
    pub(crate) const LIMIT: Duration = kubelets::LIMIT;

    pub(crate) fn start_or_skip(test: &str) -> Option<Self> {
        let kubelets = Kubelets::start_or_skip(test)?;
        let chart = Chart::find(&kubelets);
        Some(Self { kubelets, chart })
    }

    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        self.kubelets.kubectl(args).unwrap()
    }

    fn apply(&self, objects: &str) {
        let apply = ["apply", "--filename=-"];
        self.kubelets.kubectl_with_input(&apply, objects).unwrap();
    }

    /// Installs Portolan and waits until controllers and agents are ready.
    pub(crate) fn install(&self) {
        match &self.chart {
            Some(chart) => {
                let values = values(&self.kubelets, &KUBERNETES.to_string());
                chart.install(&self.kubelets, &values).unwrap();
            }
            None => self.create_objects(),
        }
        self.rolled_out(CONTROLLER);
        self.rolled_out(AGENT);
        if let Some(chart) = &self.chart {
            chart.test(&self.kubelets).unwrap();
        }
    }

    fn create_objects(&self) {
        self.prepare_nodes();
        let certs = self.kubelets.directory().join("certs");
        Trust::certify(&certs, SERVER_NAME, &[]).unwrap();
        let file =
            |key: &str, path: &str| format!("--from-file={key}={}", certs.join(path).display());
        let [certificate, key] =
            ["tls.crt", "tls.key"].map(|name| file(name, &format!("controller/{name}")));
        let authority = file("ca.crt", "ca/tls.crt");
        let secret = [
            "secret",
            "generic",
            "portolan-controller-tls",
            &certificate,
            &key,
        ];
        let config = ["configmap", "portolan-agents", &authority];
        for object in [&secret[..], &config[..]] {
            let create = ["create", "--namespace=kube-system"];
            self.kubectl(&[&create[..], object].concat());
        }
        self.apply(&self.manifest());
    }

    /// Replaces all pods of Portolan, as a new version does.
    pub(crate) fn upgrade(&self) {
        if let Some(chart) = &self.chart {
            let set = [
                "controller.podAnnotations.step=2",
                "agent.podAnnotations.step=2",
            ];
            chart.upgrade(&self.kubelets, &set).unwrap();
        } else {
            for object in [CONTROLLER, AGENT] {
                self.kubectl(&["rollout", "restart", object, "--namespace=kube-system"]);
            }
        }
        self.rolled_out(CONTROLLER);
        self.rolled_out(AGENT);
    }

    /// Begins a roll-out of agents whose image never gets ready.
    pub(crate) fn break_agents(&self) {
        if let Some(chart) = &self.chart {
            let set = ["agent.image.tag=broken"];
            chart.upgrade(&self.kubelets, &set).unwrap();
        } else {
            let image = "agent=localhost/portolan-agent:broken";
            self.kubectl(&["set", "image", AGENT, image, "--namespace=kube-system"]);
        }
    }

    /// Goes back to the agents of before.
    pub(crate) fn roll_back(&self) {
        match &self.chart {
            Some(chart) => chart.roll_back(&self.kubelets).unwrap(),
            None => drop(self.kubectl(&["rollout", "undo", AGENT, "--namespace=kube-system"])),
        }
        self.rolled_out(AGENT);
    }

    fn manifest(&self) -> String {
        let (host, port) = self.kubelets.api();
        include_str!("portolan.yaml")
            .replace("API_HOST", &host.to_string())
            .replace("API_PORT", &port.to_string())
            .replace("VERSION", VERSION)
    }

    /// Writes the settings that a container without privileges cannot write.
    fn prepare_nodes(&self) {
        for node in self.kubelets.rig.nodes() {
            let on = [
                "ipv4/vs/conntrack",
                "ipv4/vs/expire_nodest_conn",
                "ipv4/vs/expire_quiescent_template",
                "ipv4/ip_forward",
            ];
            node.namespace()
                .sysctl(&on.map(|name| (name, "1")))
                .unwrap();
        }
    }

    /// Uninstalls Portolan and waits for the end of its agents.
    pub(crate) fn uninstall(&self) {
        if let Some(chart) = &self.chart {
            chart.uninstall(&self.kubelets).unwrap();
        } else {
            let delete = ["delete", "--filename=-", "--timeout=120s"];
            let manifest = self.manifest();
            self.kubelets
                .kubectl_with_input(&delete, &manifest)
                .unwrap();
        }
        wait_for("the end of the agents", Self::LIMIT, || {
            self.agents().is_empty().then_some(())
        })
        .unwrap();
    }

    pub(crate) fn rolled_out(&self, object: &str) {
        self.kubelets.rolled_out("kube-system", object).unwrap();
    }

    pub(crate) fn describe(&self) -> String {
        self.kubelets.describe("kube-system")
    }

    /// Creates the Service of the pods, and others.
    pub(crate) fn create_services(&self) {
        self.apply(include_str!("services.yaml"));
    }

    /// The variables of pods of the namespace `default`, as `portolanctl env` prints them.
    pub(crate) fn told_variables(&self) -> BTreeMap<String, String> {
        let mut command = Command::new(program("portolanctl").unwrap());
        command.args(["env", "--namespace=default", "--output=json"]);
        command.arg("--kubeconfig").arg(self.kubelets.kubeconfig());
        let control = control(&self.kubelets.rig).namespace();
        let output = control.run(move || command.output().unwrap()).unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {errors}"))
    }

    /// The variables for Services that a kubelet has given a pod. The name of the pod is its host name.
    pub(crate) fn variables(&self, pod: &str) -> BTreeMap<String, String> {
        let is_pod = format!("HOSTNAME={pod}");
        let processes = fs::read_dir("/proc").unwrap().flatten();
        let environments =
            processes.filter_map(|it| fs::read_to_string(it.path().join("environ")).ok());
        let found = environments.filter(|environ| environ.split('\0').any(|line| line == is_pod));
        let found = found
            .last()
            .unwrap_or_else(|| panic!("no process of {pod}"));
        let pairs = found.split('\0').filter_map(|line| line.split_once('='));
        let own = ["HOSTNAME", "HOME", "PATH"];
        let of_services = pairs.filter(|(name, _)| !own.contains(name));
        of_services
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
            .collect()
    }

    /// Starts the pods of the Service and the clients, or waits until they run again.
    pub(crate) fn start_pods(&self) {
        self.apply(include_str!("pods.yaml"));
        for object in ["daemonset/web", "daemonset/client"] {
            self.kubelets.rolled_out("default", object).unwrap();
        }
    }

    /// The client pod of each node.
    pub(crate) fn clients(&self) -> Vec<Host> {
        let names = self.kubelets.pods("default", "app=client").unwrap();
        let pod = |name: &String| self.kubelets.pod("default", name).unwrap();
        names.iter().map(pod).collect()
    }

    /// The names of the Service's pods.
    pub(crate) fn servers(&self) -> BTreeSet<String> {
        let names = self.kubelets.pods("default", "app=web").unwrap();
        names.into_iter().collect()
    }

    /// The names of the agents' pods.
    pub(crate) fn agents(&self) -> BTreeSet<String> {
        self.components("agent")
    }

    /// The names of the pods of the agents or of the controllers.
    fn components(&self, name: &str) -> BTreeSet<String> {
        let label = format!("app.kubernetes.io/component={name}");
        let names = self.kubelets.pods("kube-system", &label).unwrap();
        names.into_iter().collect()
    }

    /// Asks the Service once.
    pub(crate) fn ask(&self, client: &Host) -> Option<Answer> {
        client.request(Protocol::Tcp, WEB, PROMPT).ok()
    }

    /// Returns `true` if a TCP connection from a host succeeds.
    pub(crate) fn connects(&self, from: &Host, to: SocketAddr) -> bool {
        let connect = || TcpStream::connect_timeout(&to, PROMPT).is_ok();
        from.namespace().run(connect).unwrap()
    }

    pub(crate) fn node(&self, number: usize) -> Host {
        (**self.kubelets.rig.node(number)).clone()
    }

    /// Scales the controller; returns when the pods of before have gone.
    pub(crate) fn scale_controller(&self, replicas: u8) {
        let replicas = format!("--replicas={replicas}");
        self.kubectl(&["scale", CONTROLLER, &replicas, "--namespace=kube-system"]);
        if replicas.ends_with("=0") {
            wait_for("the end of the controller", Self::LIMIT, || {
                self.components("controller").is_empty().then_some(())
            })
            .unwrap();
        }
    }

    /// Ends everything on all nodes and empties their kernels, as a power failure does, then starts
    /// the kubelets.
    pub(crate) fn restart_nodes_with_empty_kernels(&mut self) {
        for number in [0, 1] {
            self.kubelets.kill_node(number).unwrap();
            self.clean_up(number);
            assert!(!self.connects(&self.node(number), KUBERNETES));
        }
        for number in [0, 1] {
            self.kubelets.start_node(number).unwrap();
        }
        self.kubelets.wait_until_ready().unwrap();
    }

    /// Removes what the agent programmed on a node.
    pub(crate) fn clean_up(&self, number: usize) {
        let agent = program("portolan-agent").unwrap();
        let agent = agent.to_str().unwrap();
        self.node(number).exec(&[agent, "cleanup"]).unwrap();
    }
}
