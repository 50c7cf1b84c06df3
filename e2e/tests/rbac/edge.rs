// SPDX-License-Identifier: Apache-2.0

//! An edge controller that follows an API server with the permissions of the chart, and the centre that it sends the
//! objects to.

use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use portolan_e2e::cluster::http_get_from;
use portolan_e2e::ports;
use portolan_e2e::programs::program;
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

use super::{MISSED, PATIENT, Running, World};

/// The centre of two clusters: `eu-1` of the edge, `us-1` with one namespace.
struct Centre {
    agents: SocketAddr,
    admin: SocketAddr,
    _process: Running,
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
        let policy = [
            cluster("eu-1", 1, json!({"edge": {}})),
            cluster("us-1", 2, json!({"files": [at("us-1.yaml")]})),
        ];
        std::fs::write(at("policy.yaml"), policy.join("\n---\n")).unwrap();
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
        std::fs::write(at("us-1.yaml"), namespace.to_string()).unwrap();
        let mut command = Command::new(program("portolan-controller").unwrap());
        command
            .args(["--source=clusters", "--file-poll=100ms", "--debug-listen="])
            .arg(format!("--listen={agents}"))
            .arg(format!("--admin-listen={admin}"))
            .arg("--policy-file")
            .arg(at("policy.yaml"))
            .arg("--tls-dir")
            .arg(at("certs/controller"))
            .stdout(std::process::Stdio::null())
            .stderr(std::fs::File::create(at("centre.log")).unwrap());
        Self {
            agents,
            admin,
            _process: Running(command.spawn().unwrap()),
        }
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

#[test]
fn an_edge_sends_what_the_chart_lets_it_read() {
    let name = "an_edge_sends_what_the_chart_lets_it_read";
    let addresses: [u16; 2] = ports::reserve().unwrap();
    let addresses = addresses.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    let values = json!({"clusterName": "eu-1",
        "federation": {"upstreams": [addresses[0].to_string()], "tlsSecret": "edge"}});
    let Some(world) = World::start_or_skip(name, values) else {
        return;
    };
    let args = ["apply", "--server-side", "-f", "-"];
    world
        .servers
        .kubectl_with_input(&args, &definitions())
        .unwrap();
    let directory = world.dir.path();
    let centre = Centre::start(directory, addresses);
    assert_eq!(centre.agents, addresses[0]);
    let certificate = format!(
        "--federation-tls-dir={}",
        directory.join("certs/edges/edge").display()
    );
    let edge = world.controller_with(&[&certificate]);
    web(&world, &["10.1.0.1"]);
    let imported = |ready: Option<u64>| {
        let waited = wait_for(
            &format!("{ready:?} endpoints in the import"),
            PATIENT,
            || (centre.imported() == ready).then_some(()),
        );
        waited.unwrap_or_else(|error| {
            panic!(
                "{error}: {}\n{}",
                world.log("controller"),
                world.log("centre")
            )
        });
    };
    imported(Some(1));
    web(&world, &["10.1.0.1", "10.1.0.2"]);
    imported(Some(2));
    assert_eq!(world.refused(), [""; 0], "with all permissions");
    let delete = [
        "delete",
        "serviceexports.multicluster.x-k8s.io",
        "web",
        "-n",
        "default",
    ];
    world.servers.kubectl(&delete).unwrap();
    imported(None);
    drop(edge);

    let of_edges = ["serviceexports", "clusterproperties"];
    let permissions = world.permissions().into_iter();
    let permissions =
        permissions.filter(|one| of_edges.iter().any(|of| one.resources.contains(of)));
    let permissions: Vec<_> = permissions.collect();
    assert_eq!(permissions.len(), 4);
    for permission in permissions {
        let role = world.take(&permission);
        let before = world.refused().len();
        let _edge = world.controller_with(&[&certificate]);
        let refused = || world.refused().into_iter().nth(before);
        wait_for(&format!("{permission:?}"), MISSED, refused).unwrap();
        world.replace(&role);
    }
}
