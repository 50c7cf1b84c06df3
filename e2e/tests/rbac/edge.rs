// SPDX-License-Identifier: Apache-2.0

//! An edge controller that follows an API server and writes there with the permissions of the chart, and the centre that
//! it sends the objects to.

use std::fs::File;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use portolan_e2e::cluster::http_get_from;
use portolan_e2e::ports;
use portolan_e2e::programs::program;
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

use super::{MISSED, PATIENT, Permission, Running, World};

/// The centre of two clusters: `eu-1` of the edge, `us-1` with one namespace.
struct Centre {
    agents: SocketAddr,
    admin: SocketAddr,
    process: Option<Running>,
    directory: PathBuf,
}

impl Centre {
    fn start(directory: &Path, [agents, admin]: [SocketAddr; 2]) -> Self {
        let at = |name: &str| directory.join(name);
        certify(directory, &["--cluster=eu-1", "--edge=edge"]);
        let object = |kind: &str, name: &str, spec: Value| json!({"apiVersion": "portolan.dev/v1alpha1", "kind": kind, "metadata": {"name": name}, "spec": spec});
        let cluster = |name: &str, number: u8, access: Value| {
            let network = json!({"podCIDRs": [format!("10.{number}.0.0/16")],
                "clusterSetIPs": [format!("10.112.{number}.0/24")]});
            object(
                "Cluster",
                name,
                json!({"access": access, "network": network}),
            )
            .to_string()
        };
        let slices = json!({"endpointSlices": "All"});
        let policy = [
            object("ClusterSet", "test", slices).to_string(),
            cluster("eu-1", 1, json!({"edge": {}})),
            cluster("us-1", 2, json!({"files": [at("us-1.yaml")]})),
        ];
        std::fs::write(at("policy.yaml"), policy.join("\n---\n")).unwrap();
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
        std::fs::write(at("us-1.yaml"), namespace.to_string()).unwrap();
        let mut centre = Self {
            agents,
            admin,
            process: None,
            directory: directory.to_owned(),
        };
        centre.begin();
        centre
    }

    /// Starts the program, without anything that it knew.
    fn begin(&mut self) {
        let at = |name: &str| self.directory.join(name);
        let log = at("centre.log");
        let log = File::options().create(true).append(true).open(log).unwrap();
        let mut command = Command::new(program("portolan-controller").unwrap());
        command
            .args(["--source=clusters", "--file-poll=100ms", "--debug-listen="])
            .arg(format!("--listen={}", self.agents))
            .arg(format!("--admin-listen={}", self.admin))
            .arg("--policy-file")
            .arg(at("policy.yaml"))
            .arg("--tls-dir")
            .arg(at("certs/controller"))
            .stdout(std::process::Stdio::null())
            .stderr(log);
        self.process = Some(Running(command.spawn().unwrap()));
    }

    /// Ends the program.
    fn end(&mut self) {
        self.process = None;
    }

    /// Ready endpoints of `eu-1` in the import of `us-1`; `None` without the import, or without `eu-1` in it.
    fn imported(&self) -> Option<u64> {
        let path = "/debug/federation?cluster=us-1&import=default/web";
        let answer: Value = serde_json::from_str(&http_get_from(self.admin, path).ok()?).ok()?;
        let clusters = answer["import"]["ports"][0]["clusters"].as_array()?;
        let ours = clusters.iter().find(|one| one["cluster"] == "eu-1")?;
        ours["ready"].as_u64()
    }
}

fn certify(directory: &Path, arguments: &[&str]) {
    let mut command = Command::new(program("portolan-controller").unwrap());
    command
        .args(["certs", "--server-name=127.0.0.1", "--dir"])
        .arg(directory.join("certs"));
    let output = command.args(arguments).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
}

/// The definitions of the Multi-Cluster Services API and of ClusterProperties.
fn definitions() -> String {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tools/build");
    let built = Command::new(script).arg("mcs").output().unwrap();
    assert!(built.status.success(), "{built:?}");
    let said = String::from_utf8(built.stdout).unwrap();
    let printer = Path::new(said.trim().lines().last().unwrap()).join("mcs");
    let services = String::from_utf8(Command::new(printer).output().unwrap().stdout).unwrap();
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let properties = json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "clusterproperties.about.k8s.io",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/enhancements/pull/2149"}},
        "spec": {"group": "about.k8s.io", "scope": "Cluster",
            "names": {"plural": "clusterproperties", "singular": "clusterproperty", "kind": "ClusterProperty"},
            "versions": [{"name": "v1beta1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema}}]}});
    format!("{services}\n---\n{properties}")
}

/// The Service `web`, exported, with endpoints at these addresses.
fn web(world: &World, addresses: &[&str]) {
    let metadata = json!({"name": "web", "namespace": "default"});
    let endpoints = addresses
        .iter()
        .map(|address| json!({"addresses": [address]}));
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4",
        "metadata": {"name": "web-1", "namespace": "default", "labels": {"kubernetes.io/service-name": "web"}},
        "ports": [{"name": "http", "port": 8080}], "endpoints": endpoints.collect::<Vec<_>>()});
    for object in [
        json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata,
            "spec": {"ports": [{"name": "http", "port": 80}]}}),
        json!({"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport", "metadata": metadata}),
        slice,
    ] {
        world.apply_in_default(&object);
    }
}

/// Objects that the edge writes for the centre.
impl World {
    fn object(&self, kind: &str, name: &str) -> Option<Value> {
        let args = [
            "get",
            kind,
            name,
            "-n",
            "default",
            "--ignore-not-found",
            "-o",
            "json",
        ];
        let text = self.servers.kubectl(&args).unwrap();
        serde_json::from_str(&text).ok()
    }

    /// The ServiceImport `web`.
    fn import(&self) -> Option<Value> {
        self.object("serviceimports.multicluster.x-k8s.io", "web")
    }

    /// Returns `true` if the export `web` has this condition.
    fn has_condition(&self, kind: &str, status: &str) -> bool {
        let export = self.object("serviceexports.multicluster.x-k8s.io", "web");
        let conditions = export.unwrap_or_default()["status"]["conditions"].clone();
        let mut conditions = conditions
            .as_array()
            .cloned()
            .unwrap_or_default()
            .into_iter();
        conditions.any(|one| one["type"] == kind && one["status"] == status)
    }

    /// The addresses in EndpointSlices of the import.
    fn imported_addresses(&self) -> Vec<String> {
        let label = "multicluster.kubernetes.io/service-name=web";
        let args = [
            "get",
            "endpointslices",
            "-n",
            "default",
            "-l",
            label,
            "-o",
            "json",
        ];
        let list: Value = serde_json::from_str(&self.servers.kubectl(&args).unwrap()).unwrap();
        let slices = list["items"].as_array().unwrap().iter();
        let endpoints = slices.flat_map(|slice| slice["endpoints"].as_array().unwrap());
        let addresses = endpoints.map(|one| one["addresses"][0].as_str().unwrap().to_owned());
        addresses.collect()
    }

    /// Returns `true` if the import is complete, with endpoints at these addresses.
    fn has_import(&self, addresses: &[&str]) -> bool {
        let import = self.import().unwrap_or_default();
        let is_ready = import["status"]["conditions"][0]["status"] == "True"
            && import["status"]["clusters"] == json!([{"cluster": "eu-1"}])
            && import["spec"]["ips"][0]
                .as_str()
                .is_some_and(|ip| ip.starts_with("10.112.1."))
            && import["spec"]["ports"][0]["port"] == 80;
        is_ready && self.has_condition("Ready", "True") && self.imported_addresses() == addresses
    }

    /// Takes the export away.
    fn unexport(&self) {
        let kind = "serviceexports.multicluster.x-k8s.io";
        let args = ["delete", kind, "web", "-n", "default", "--ignore-not-found"];
        self.servers.kubectl(&args).unwrap();
    }

    /// Changes an export, step by step. Each step waits for the objects that the edge is to write.
    fn cycle(&self, wait: &dyn Fn(&str, &dyn Fn() -> bool) -> bool) {
        for addresses in [&["10.1.0.1"][..], &["10.1.0.1", "10.1.0.2"], &[]] {
            web(self, addresses);
            if !wait(&format!("an import with {addresses:?}"), &|| {
                self.has_import(addresses)
            }) {
                return;
            }
        }
        self.unexport();
        wait("no import", &|| self.import().is_none());
    }
}

#[test]
fn an_edge_sends_what_the_chart_lets_it_read_and_writes_what_it_is_told() {
    let name = "an_edge_sends_what_the_chart_lets_it_read_and_writes_what_it_is_told";
    let addresses: [u16; 2] = ports::reserve().unwrap();
    let addresses = addresses.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let values = json!({"clusterName": "eu-1", "federation": {
        "upstreams": [addresses[0].to_string()], "tlsSecret": "edge", "endpointSlices": true}});
    let Some(world) = World::start_or_skip(name, values) else {
        return;
    };
    let args = ["apply", "--server-side", "-f", "-"];
    world
        .servers
        .kubectl_with_input(&args, &definitions())
        .unwrap();
    let directory = world.dir.path();
    let mut centre = Centre::start(directory, addresses);
    let certificate = format!(
        "--federation-tls-dir={}",
        directory.join("certs/edges/edge").display()
    );
    let edge = world.controller_with(&[&certificate]);
    let wait = |what: &str, is_so: &dyn Fn() -> bool| {
        let waited = wait_for(what, PATIENT, || is_so().then_some(()));
        waited.unwrap_or_else(|error| {
            panic!(
                "{error}: {}\n{}",
                world.log("controller"),
                world.log("centre")
            )
        });
        true
    };
    web(&world, &["10.1.0.1"]);
    wait("an endpoint at the centre", &|| {
        centre.imported() == Some(1)
    });
    web(&world, &["10.1.0.1", "10.1.0.2"]);
    wait("endpoints at the centre", &|| centre.imported() == Some(2));
    wait("an import", &|| world.has_import(&["10.1.0.1", "10.1.0.2"]));
    restarts_of_the_centre_change_nothing(&world, &mut centre, &wait);
    strangers_keep_their_import(&world, &wait);
    world.unexport();
    wait("no endpoint at the centre", &|| centre.imported().is_none());
    wait("no import", &|| world.import().is_none());
    world.cycle(&wait);
    assert_eq!(world.refused(), [""; 0], "with all permissions");
    assert_eq!(
        world.metric("portolan_controller_edge_refused_total"),
        Some(0.0)
    );
    drop(edge);
    each_permission_is_missed(&world, &certificate);
}

/// A centre that knows nothing gives imports what they have, and has nothing written.
fn restarts_of_the_centre_change_nothing(
    world: &World,
    centre: &mut Centre,
    wait: &dyn Fn(&str, &dyn Fn() -> bool) -> bool,
) {
    let writes = || {
        world
            .metric("portolan_controller_mcs_writes_total")
            .unwrap_or_default()
    };
    let (import, before) = (world.import().unwrap(), writes());
    assert!(before > 0.0);
    let replicas = || world.metric("portolan_controller_edge_replicas_current");
    centre.end();
    // Before the next centre, which soon has a stream again.
    wait("no stream", &|| replicas() == Some(0.0));
    centre.begin();
    wait("the objects at the centre", &|| {
        centre.imported() == Some(2)
    });
    // Something that the restarted centre has written, so that it has looked at all.
    let other = json!({"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
        "metadata": {"name": "none", "namespace": "default"}});
    world.apply_in_default(&other);
    wait("a condition of another export", &|| {
        let export = world.object("serviceexports.multicluster.x-k8s.io", "none");
        export.unwrap_or_default()["status"]["conditions"][0]["reason"] == "NoService"
    });
    // The edge counts a write when it has the answer: others may see what is written before that.
    wait("the count of the condition", &|| writes() > before);
    assert_eq!(world.import().unwrap(), import);
    assert_eq!(writes(), before + 1.0);
}

/// Objects of other programs are neither changed nor deleted.
fn strangers_keep_their_import(world: &World, wait: &dyn Fn(&str, &dyn Fn() -> bool) -> bool) {
    let foreign = json!({"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceImport",
        "metadata": {"name": "none", "namespace": "default"},
        "spec": {"type": "Headless", "ports": [{"port": 1}]}});
    world.apply_in_default(&foreign);
    let kind = "serviceimports.multicluster.x-k8s.io";
    let before = world.object(kind, "none").unwrap();
    let service = json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "none", "namespace": "default"}, "spec": {"ports": [{"port": 80}]}});
    world.apply_in_default(&service);
    wait("an export", &|| {
        let export = world.object("serviceexports.multicluster.x-k8s.io", "none");
        export.unwrap_or_default()["status"]["conditions"][1]["reason"] == "Exported"
    });
    for kind in ["serviceexports.multicluster.x-k8s.io", "service"] {
        let args = ["delete", kind, "none", "-n", "default"];
        world.servers.kubectl(&args).unwrap();
    }
    world.unexport();
    wait("no other import", &|| world.import().is_none());
    assert_eq!(world.object(kind, "none").unwrap(), before);
}

/// Each permission of edges that is taken away is missed.
fn each_permission_is_missed(world: &World, certificate: &str) {
    let is_of_edges = |one: &Permission| {
        let has = |of: &str| one.resources.contains(of);
        has("serviceexports") || has("serviceimports") || has("clusterproperties")
            // Those of slices that every controller reads are tested elsewhere.
            || has("endpointslices") && !["list", "watch"].contains(&&*one.verb)
    };
    let permissions = world.permissions().into_iter().filter(is_of_edges);
    let permissions: Vec<_> = permissions.collect();
    assert_eq!(permissions.len(), 11, "{permissions:#?}");
    for permission in permissions {
        let role = world.take(&permission);
        let before = world.refused().len();
        let refused = || world.refused().into_iter().nth(before);
        {
            let _edge = world.controller_with(&[certificate]);
            let wait = |what: &str, is_so: &dyn Fn() -> bool| {
                let waited = wait_for(what, MISSED, || {
                    refused().map(|_| false).or_else(|| is_so().then_some(true))
                });
                waited.unwrap_or_else(|error| panic!("{permission:?}: {error}"))
            };
            world.cycle(&wait);
            // Objects are listed once more after a while.
            wait_for(&format!("{permission:?}"), MISSED, refused).unwrap();
        }
        world.replace(&role);
        world.unexport();
        for kind in ["serviceimports.multicluster.x-k8s.io", "endpointslices"] {
            let args = ["delete", kind, "-n", "default", "--all"];
            world.servers.kubectl(&args).unwrap();
        }
    }
}
