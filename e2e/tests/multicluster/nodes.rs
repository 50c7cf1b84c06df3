// SPDX-License-Identifier: Apache-2.0

//! The nodes of a cluster that get the address of an import.

use std::net::SocketAddr;

use portolan_e2e::ask::{answers, no_answer};
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::objects::{service, slice_of};
use portolan_e2e::programs::{Source, program};
use portolan_e2e::rig::{Family, Protocol, Rig, RigConfig};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::world::{WEB, skip};

/// Two nodes of `eu-1`, and one of `us-1`, which exports `web`.
struct World {
    cluster: Cluster,
    files: TempDir,
    /// The endpoint of `web`.
    pod: EchoPod,
}

impl World {
    fn new() -> Self {
        let files = TempDir::new().unwrap();
        let rig = Rig::new(RigConfig {
            nodes: 3,
            clients: 2,
        });
        let source = Source::Clusters(files.path().join("policy.yaml"));
        let cluster = Cluster::without_agents(rig.unwrap(), source).unwrap();
        let cluster = cluster.programming("nftables");
        let pod = cluster.add_pod(2, "us-1-0").unwrap();
        let world = Self {
            cluster,
            files,
            pod,
        };
        let mut exported = vec![
            service("web", WEB, json!({})),
            json!({"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
                "metadata": {"name": "web", "namespace": "default"}}),
        ];
        exported.extend(
            Family::ALL.map(|family| slice_of("web", family, &[world.pod.endpoint(family, 2)])),
        );
        world.write("us-1", "web.json", &exported);
        let namespace =
            json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "default"}});
        world.write("eu-1", "namespace.json", &[namespace]);
        world.label(0);
        world.policy(Some(json!({"matchLabels": {"edge": "true"}})));
        let mut world = world;
        for (number, of) in ["eu-1", "eu-1", "us-1"].into_iter().enumerate() {
            let flag = format!("--cluster={of}");
            world.cluster.start_agent_with(number, &[&flag]).unwrap();
        }
        for number in 0..3 {
            world.cluster.wait_until_ready(number).unwrap();
        }
        world
    }

    fn write(&self, cluster: &str, file: &str, items: &[Value]) {
        let directory = self.files.path().join(cluster);
        std::fs::create_dir_all(&directory).unwrap();
        let hidden = directory.join(".hidden");
        let list = json!({"kind": "List", "items": items});
        std::fs::write(&hidden, list.to_string()).unwrap();
        std::fs::rename(hidden, directory.join(file)).unwrap();
    }

    /// Gives the label to one of the nodes of `eu-1`.
    fn label(&self, labelled: usize) {
        let nodes = [0, 1].map(|number| {
            let labels = json!({"edge": (number == labelled).to_string()});
            json!({"apiVersion": "v1", "kind": "Node",
                "metadata": {"name": Cluster::node_name(number), "labels": labels}})
        });
        self.write("eu-1", "nodes.json", &nodes);
    }

    fn policy(&self, nodes: Option<Value>) {
        let object = |kind: &str, name: &str, spec: Value| {
            json!({"apiVersion": "portolan.dev/v1alpha1", "kind": kind, "metadata": {"name": name},
                "spec": spec})
        };
        let cluster = |name: &str, numbers: &[usize]| {
            let nodes = numbers.iter().map(|number| self.cluster.rig.node(*number));
            let ranges = nodes.flat_map(|node| [node.pod_range_v4(), node.pod_range_v6()]);
            let network = json!({"podCIDRs": ranges.collect::<Vec<_>>(),
                "clusterSetIPs": ["10.112.0.0/16", "fd00:112::/108"]});
            let access = json!({"files": [self.files.path().join(name)]});
            object(
                "Cluster",
                name,
                json!({"access": access, "network": network}),
            )
        };
        let nodes = nodes.unwrap_or(json!({}));
        let spec = json!({"clusters": {"names": ["eu-1"]}, "nodes": nodes});
        let all = [
            cluster("eu-1", &[0, 1]),
            cluster("us-1", &[2]),
            object("ImportPolicy", "edge", spec),
        ];
        let text = all.map(|one| one.to_string()).join("\n---\n");
        let hidden = self.files.path().join(".hidden");
        std::fs::write(&hidden, text).unwrap();
        std::fs::rename(hidden, self.files.path().join("policy.yaml")).unwrap();
    }

    /// The address of the import in `eu-1`.
    fn vip(&self) -> SocketAddr {
        let path = "federation?cluster=eu-1&import=default/web";
        let ip = wait_for("the address", PATIENT, || {
            let import = self.cluster.controller_debug(path).ok()?["import"].clone();
            let vips = import["vips"].as_array()?.clone();
            let mut ips = vips.iter().filter_map(|ip| ip.as_str()?.parse().ok());
            ips.find(std::net::IpAddr::is_ipv4)
        });
        SocketAddr::new(ip.unwrap(), 80)
    }

    /// Waits until the kernels of these nodes of `eu-1` have the address, and those of others do not.
    fn wait_for_nodes(&self, vip: SocketAddr, expected: &[usize]) {
        let has = |number: &usize| {
            let node = self.cluster.rig.node(*number);
            let rules = node.exec(&["nft", "list", "ruleset"]).unwrap();
            rules.contains(&vip.ip().to_string())
        };
        let found = || -> Vec<usize> { [0, 1].into_iter().filter(has).collect() };
        wait_for(&format!("{vip} on nodes {expected:?}"), PATIENT, || {
            (found() == expected).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error:#}: nodes {:?}", found()));
    }
}

#[test]
fn the_labelled_node_alone_has_the_address_and_it_moves_with_the_label() {
    if skip("the_labelled_node_alone_has_the_address_and_it_moves_with_the_label") {
        return;
    }
    let world = World::new();
    let visitors = [0, 1].map(|number| {
        let name = format!("visitor-{number}");
        world.cluster.add_pod(number, &name).unwrap()
    });
    let vip = world.vip();
    for labelled in [0, 1, 0] {
        world.label(labelled);
        world.wait_for_nodes(vip, &[labelled]);
        answers(&visitors[labelled].pod, Protocol::Tcp, vip, &["us-1-0"]);
        let other = &visitors[1 - labelled].pod;
        no_answer(other, Protocol::Tcp, vip);
    }
    let ctl = program("portolanctl").unwrap();
    let explain = [
        ctl.to_str().unwrap(),
        "--cluster=eu-1",
        "explain-import",
        "default/web",
    ];
    let shown = world.cluster.control().exec(&explain).unwrap();
    assert!(
        shown.contains("at nodes of ImportPolicy edge alone"),
        "{shown}"
    );
    // Without the field all nodes have it.
    world.policy(None);
    world.wait_for_nodes(vip, &[0, 1]);
    for visitor in &visitors {
        answers(&visitor.pod, Protocol::Tcp, vip, &["us-1-0"]);
    }
}
