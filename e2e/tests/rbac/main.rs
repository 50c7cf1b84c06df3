// SPDX-License-Identifier: Apache-2.0

//! The permissions that the chart gives controllers, on an API server with RBAC: with all of them nothing is refused,
//! and each that is taken away is missed.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod edge;

use std::fs::{self, File};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use portolan_e2e::cluster::http_get_from;
use portolan_e2e::lane;
use portolan_e2e::objects::merge;
use portolan_e2e::ports;
use portolan_e2e::programs::program;
use portolan_e2e::servers::Servers;
use portolan_e2e::wait::wait_for;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for a loaded machine; only a failure ever waits this long.
const PATIENT: Duration = Duration::from_secs(60);
/// The time within which a controller misses a permission. Informers try again after some seconds.
const MISSED: Duration = Duration::from_secs(40);
const NAMESPACE: &str = "kube-system";
/// The user with the permissions.
const USER: &str = "controller";
const NODE: &str = "node1";
const AUDIENCE: &str = "portolan-controller";

/// An API server with the chart's objects, and ports for one controller after the other.
struct World {
    servers: Servers,
    helm: PathBuf,
    dir: TempDir,
    agents: SocketAddr,
    admin: SocketAddr,
    /// Values of the chart beside those of all tests.
    values: Value,
}

/// A program, which ends when it is dropped: asked to, so that it gives its leases back.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let asked = kill_process(Pid::from_child(&self.0), Signal::TERM);
        if asked.is_err() {
            let _ = self.0.kill();
        }
        let _ = self.0.wait();
    }
}

/// A permission that is taken away.
#[derive(Debug, Clone)]
struct Permission {
    role: &'static str,
    rule: usize,
    verb: String,
    resources: String,
}

impl World {
    fn start_or_skip(test: &str, values: Value) -> Option<Self> {
        let dir = TempDir::new().unwrap();
        let servers = Servers::start_for_workloads_or_skip(test, dir.path(), &[USER])?;
        let tools = concat!(env!("CARGO_MANIFEST_DIR"), "/tools/build");
        let built = Command::new(tools).arg("helm").output().unwrap();
        if !built.status.success() {
            lane::missing(test, "Helm cannot be built here");
            return None;
        }
        let built = String::from_utf8(built.stdout).unwrap();
        let helm = Path::new(built.lines().last().unwrap()).join("helm");
        let [agents, admin] = ports::reserve().unwrap();
        let local = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let world = Self {
            servers,
            helm,
            dir,
            agents: local(agents),
            admin: local(admin),
            values,
        };
        world.install();
        Some(world)
    }

    /// Applies the chart's objects of controllers, for the user in place of the account, and what a cluster has.
    fn install(&self) {
        self.apply(&self.template(&[
            "controller/clusterrole",
            "controller/role",
            "controller/state",
            "controller/service",
            "controller/deployment",
            "agent/serviceaccount",
        ]));
        let user = format!("--user={USER}");
        for (kind, role) in [("clusterrole", "clusterrole"), ("role", "role")] {
            let binding = format!("{role}binding");
            let of = format!("--{kind}={}", role_name(kind));
            let create = ["create", &binding, "test", &of, &user, "-n", NAMESPACE];
            self.servers.kubectl(&create).unwrap();
        }
        let metadata = |name: &str| json!({ "name": name, "namespace": NAMESPACE });
        let slice = json!({ "kubernetes.io/service-name": "portolan-controller" });
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": [
            { "apiVersion": "v1", "kind": "Node", "metadata": { "name": NODE } },
            { "apiVersion": "v1", "kind": "Pod", "metadata": metadata("agent"),
                "spec": { "nodeName": NODE, "serviceAccountName": "portolan-agent",
                    "containers": [{ "name": "agent", "image": "none" }] } },
            { "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
                "metadata": { "name": "portolan-controller-1", "namespace": NAMESPACE, "labels": slice },
                "ports": [{ "name": "agents", "port": 9443 }],
                "endpoints": [{ "addresses": ["10.0.0.1"], "conditions": { "ready": true } }] },
        ] });
        self.apply(&list.to_string());
    }

    /// Objects as the chart renders them.
    fn template(&self, templates: &[&str]) -> String {
        let values = self.dir.path().join("values.json");
        let mut all = json!({
            "image": { "registry": "localhost" },
            "agent": { "kernel": { "clusterCIDRs": ["10.244.0.0/16"] } },
            "apiServer": { "host": "127.0.0.1", "port": 6443 },
            "controller": { "podWeights": true, "events": true },
            "dns": { "zones": ["cluster.local"], "pods": "verified" },
            "tokens": { "issuer": "https://kubernetes.default.svc", "review": { "enabled": true, "period": "1s" } },
        });
        merge(&mut all, self.values.clone());
        fs::write(&values, all.to_string()).unwrap();
        let chart = concat!(env!("CARGO_MANIFEST_DIR"), "/../charts/portolan");
        let mut command = Command::new(&self.helm);
        command
            .args([
                "template",
                "portolan",
                chart,
                "--namespace",
                NAMESPACE,
                "--values",
            ])
            .arg(&values)
            .env("HELM_CACHE_HOME", self.dir.path())
            .env("HELM_CONFIG_HOME", self.dir.path())
            .env("HELM_DATA_HOME", self.dir.path());
        command.args(["--kube-version", "v1.36.0"]);
        for template in templates {
            command
                .arg("--show-only")
                .arg(format!("templates/{template}.yaml"));
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "helm template: {said}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn apply(&self, text: &str) {
        let args = [
            "apply",
            "--server-side",
            "--force-conflicts",
            "-n",
            NAMESPACE,
            "-f",
            "-",
        ];
        self.servers.kubectl_with_input(&args, text).unwrap();
    }

    fn replace(&self, object: &Value) {
        let args = ["replace", "-f", "-"];
        self.servers
            .kubectl_with_input(&args, &object.to_string())
            .unwrap();
    }

    fn get(&self, kind: &str, name: &str) -> Value {
        let args = ["get", kind, name, "-n", NAMESPACE, "-o", "json"];
        let mut object: Value =
            serde_json::from_str(&self.servers.kubectl(&args).unwrap()).unwrap();
        // Whatever version it has then is replaced.
        object["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("resourceVersion");
        object
    }

    /// Makes the controllers' state what the chart makes it, and starts a controller as the chart does.
    fn controller(&self) -> Running {
        self.controller_with(&[])
    }

    /// The same with more arguments.
    fn controller_with(&self, more: &[&str]) -> Running {
        let mut secret = self.get("secret", "portolan-tls");
        secret.as_object_mut().unwrap().remove("data");
        self.replace(&secret);
        let mut published = self.get("configmap", "portolan-agents");
        published.as_object_mut().unwrap().remove("data");
        self.replace(&published);
        let deployment = self.get("deployment", "portolan-controller");
        let args = &deployment["spec"]["template"]["spec"]["containers"][0]["args"];
        let args = args
            .as_array()
            .unwrap()
            .iter()
            .map(|arg| arg.as_str().unwrap());
        let of_pod = [
            "--listen=",
            "--admin-listen=",
            "--debug-listen=",
            "--dns-bind-address=",
            "--federation-tls-dir=",
        ];
        let is_of_pod = |arg: &&str| of_pod.iter().any(|flag| arg.starts_with(flag));
        let log = self.dir.path().join("controller.log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(program("portolan-controller").unwrap());
        command
            .args(args.filter(|arg| !is_of_pod(arg)))
            .arg(format!("--listen={}", self.agents))
            .arg(format!("--admin-listen={}", self.admin))
            .args([
                "--debug-listen=",
                "--dns-bind-address=127.0.0.1:0",
                "--kubeconfig",
            ])
            .arg(self.dir.path().join(format!("{USER}.kubeconfig")))
            .args(more)
            .env("HOSTNAME", "controller-0")
            .env("POD_NAMESPACE", NAMESPACE)
            .stdout(Stdio::null())
            .stderr(log);
        Running(command.spawn().unwrap())
    }

    /// An agent without rights on its machine, with a token of its pod.
    fn agent(&self) -> Running {
        let published = || {
            let published = self.get("configmap", "portolan-agents");
            published["data"]["ca.crt"].as_str().map(str::to_owned)
        };
        let ca = wait_for("the published authority", PATIENT, published);
        let ca = ca.unwrap_or_else(|error| panic!("{error}: {}", self.log("controller")));
        let at = |name: &str| self.dir.path().join(name);
        fs::write(at("ca.crt"), ca).unwrap();
        let bound = ["--bound-object-kind=Pod", "--bound-object-name=agent"];
        let create = [
            "create",
            "token",
            "portolan-agent",
            "-n",
            NAMESPACE,
            "--audience",
            AUDIENCE,
        ];
        let token = self
            .servers
            .kubectl(&[&create[..], &bound].concat())
            .unwrap();
        fs::write(at("token"), token.trim()).unwrap();
        let log = File::create(at("agent.log")).unwrap();
        let mut command = Command::new(program("portolan-agent").unwrap());
        command
            .args([
                "--dataplane=userspace",
                "--admin-listen=127.0.0.1:0",
                "--healthz-listen=",
                "--debug-listen=",
            ])
            .arg(format!("--node-name={NODE}"))
            .arg(format!("--controller={}", self.agents))
            .arg("--tls-server-name=portolan-controller.kube-system.svc")
            .arg("--tls-ca")
            .arg(at("ca.crt"))
            .arg("--token-file")
            .arg(at("token"))
            .arg("--state-dir")
            .arg(at("state"))
            .stderr(log);
        Running(command.spawn().unwrap())
    }

    /// The end of a program's log.
    fn log(&self, name: &str) -> String {
        let log = fs::read_to_string(self.dir.path().join(format!("{name}.log"))).unwrap();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }

    /// A Service with a scheduler that nobody has, or with a good one: of each such time an Event tells.
    fn put_service(&self, scheduler: &str) {
        let annotations = json!({ "portolan.dev/scheduler": scheduler });
        let service = json!({ "apiVersion": "v1", "kind": "Service",
            "metadata": { "name": "web", "namespace": "default", "annotations": annotations },
            "spec": { "ports": [{ "port": 80 }] } });
        self.apply_in_default(&service);
    }

    fn apply_in_default(&self, object: &Value) {
        let args = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
        self.servers
            .kubectl_with_input(&args, &object.to_string())
            .unwrap();
    }

    /// Refused requests so far.
    fn refused(&self) -> Vec<String> {
        self.servers.refused_requests().unwrap()
    }

    /// A metric of the controller, all labels together.
    fn metric(&self, name: &str) -> Option<f64> {
        let metrics = http_get_from(self.admin, "/metrics").ok()?;
        let of_name = metrics.lines().filter(|line| {
            let rest = line.strip_prefix(name);
            rest.is_some_and(|rest| rest.starts_with(['{', ' ']))
        });
        let values = of_name.filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok());
        Some(values.sum())
    }

    /// The number of Events about the Service.
    fn events(&self) -> usize {
        let args = ["get", "events.events.k8s.io", "-n", "default", "-o", "json"];
        let list: Value = serde_json::from_str(&self.servers.kubectl(&args).unwrap()).unwrap();
        list["items"].as_array().unwrap().len()
    }

    /// All verbs of the rules of both roles.
    fn permissions(&self) -> Vec<Permission> {
        let mut all = Vec::new();
        for role in ["clusterrole", "role"] {
            let object = self.get(role, &role_name(role));
            for (rule, of) in object["rules"].as_array().unwrap().iter().enumerate() {
                let resources = of
                    .get("resources")
                    .unwrap_or(&of["nonResourceURLs"])
                    .to_string();
                for verb in of["verbs"].as_array().unwrap() {
                    all.push(Permission {
                        role,
                        rule,
                        verb: verb.as_str().unwrap().to_owned(),
                        resources: resources.clone(),
                    });
                }
            }
        }
        all
    }

    /// Takes a permission away; the role as it was.
    fn take(&self, permission: &Permission) -> Value {
        let role = self.get(permission.role, &role_name(permission.role));
        let mut without = role.clone();
        let verbs = without["rules"][permission.rule]["verbs"]
            .as_array_mut()
            .unwrap();
        verbs.retain(|verb| *verb != *permission.verb);
        if verbs.is_empty() {
            without["rules"]
                .as_array_mut()
                .unwrap()
                .remove(permission.rule);
        }
        self.replace(&without);
        role
    }
}

fn role_name(kind: &str) -> String {
    match kind {
        "clusterrole" => format!("portolan-{NAMESPACE}-controller"),
        _ => "portolan-controller".to_owned(),
    }
}

#[test]
fn each_permission_of_a_controller_is_needed_and_no_other() {
    const NAME: &str = "each_permission_of_a_controller_is_needed_and_no_other";
    let Some(world) = World::start_or_skip(NAME, json!({})) else {
        return;
    };
    world.put_service("rr");
    {
        let _controller = world.controller();
        let _agent = world.agent();
        world.put_service("nosuch");
        wait_for("an Event", PATIENT, || (world.events() > 0).then_some(())).unwrap();
        world.put_service("rr");
        let told = || {
            world
                .metric("portolan_controller_agents_connected")
                .filter(|n| *n > 0.0)
        };
        let connected = wait_for("the agent", PATIENT, told);
        connected.unwrap_or_else(|error| panic!("{error}: {}", world.log("agent")));
        let reviewed = || {
            world
                .metric("portolan_controller_token_reviews_total")
                .filter(|n| *n > 0.0)
        };
        wait_for("a review of the agent's token", PATIENT, reviewed).unwrap();
        let get = || http_get_from(world.admin, "/readyz").ok();
        wait_for("the controller's readiness", PATIENT, get).unwrap();
    }
    assert_eq!(world.refused(), [""; 0], "with all permissions");

    let permissions = world.permissions();
    println!("{} permissions", permissions.len());
    let mut needless = Vec::new();
    for permission in permissions {
        let role = world.take(&permission);
        let before = world.refused().len();
        let refused = {
            let _controller = world.controller();
            let needs_agent = permission.resources.contains("tokenreviews");
            let _agent = needs_agent.then(|| world.agent());
            if permission.resources.contains("events") {
                world.put_service("nosuch");
            }
            let refused = || world.refused().into_iter().nth(before);
            wait_for(&format!("{permission:?}"), MISSED, refused)
        };
        world.put_service("rr");
        match refused {
            Ok(refused) => println!("{} {}: {refused}", permission.verb, permission.resources),
            Err(error) => needless.push(error.to_string()),
        }
        world.replace(&role);
    }
    assert!(needless.is_empty(), "{needless:#?}");
}
