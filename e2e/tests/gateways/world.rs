// SPDX-License-Identifier: Apache-2.0

//! Two clusters of two nodes, each pod of which has an address that the other cluster has too.

use std::net::{IpAddr, SocketAddr};

use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::objects::{service, slice_of};
use portolan_e2e::programs::{Source, edge};
use portolan_e2e::rig::{Family, Pod, Process, Protocol, Rig, RigConfig};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::large;

/// The clusters, with the numbers of their nodes. Pods of other Flat clusters would reach `here`; there are none.
const CLUSTERS: [(&str, &str, [usize; 2]); 2] =
    [("here", "Flat", [0, 1]), ("there", "Gateway", [2, 3])];
/// The largest packet between nodes, in bytes; pods have links of 1,500.
const MTU: u16 = 1_300;
/// The first port of the edge controller.
const EDGE_PORT: u16 = 9500;

/// Two clusters. `there` exports `web` and `large`, `here` exports `back`.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    files: TempDir,
    /// A pod of `here`.
    pub(crate) visitor: EchoPod,
    /// A pod of `there`, with the address of a pod of `here`.
    pub(crate) stranger: EchoPod,
    here: Vec<(EchoPod, usize)>,
    there: Vec<(EchoPod, usize)>,
    large: Pod,
    /// The edge controller of `there`, if it has one.
    edge: Option<Process>,
}

impl World {
    /// Clusters from files; with an edge, `there` is read by its edge controller.
    pub(crate) fn new(dataplane: &'static str, has_edge: bool) -> Self {
        let files = TempDir::new().unwrap();
        let config = RigConfig {
            nodes: 4,
            clients: 2,
        };
        let rig = Rig::of_clusters(config, 2).unwrap();
        rig.set_mtu(MTU).unwrap();
        let source = Source::Clusters(files.path().join("policy.yaml"));
        let cluster = Cluster::without_agents(rig, source).unwrap();
        let mut cluster = cluster.programming(dataplane);
        let pod = |node: usize, name: &str| cluster.add_pod(node, name).unwrap();
        let (visitor, stranger) = (pod(1, "visitor"), pod(3, "stranger"));
        assert_eq!(
            visitor.pod.v4(),
            stranger.pod.v4(),
            "the networks are the same"
        );
        let here = vec![(pod(0, "here-0"), 0)];
        let there = vec![(pod(2, "there-0"), 2), (pod(3, "there-1"), 3)];
        let large = cluster.rig.node(3).add_pod("large").unwrap();
        large::serve(&large);
        for (name, _, nodes) in CLUSTERS {
            for number in nodes {
                let flag = format!("--cluster={name}");
                cluster.start_agent_with(number, &[&flag]).unwrap();
            }
        }
        let mut world = Self {
            cluster,
            files,
            visitor,
            stranger,
            here,
            there,
            large,
            edge: None,
        };
        if has_edge {
            world.edge = Some(world.start_edge());
        }
        world.write_objects();
        for number in 0..4 {
            world.cluster.wait_until_ready(number).unwrap();
        }
        for (importing, service) in [("here", "web"), ("here", "large"), ("there", "back")] {
            wait_for(&format!("{service} in {importing}"), PATIENT, || {
                let both = Family::ALL.map(|family| world.gateways(importing, service, family));
                let is_whole = both.iter().all(|gateways| gateways.len() == 2);
                (is_whole && world.is_programmed(importing, service)).then_some(())
            })
            .unwrap_or_else(|error| panic!("{error:#}: {}", world.import(importing, service)));
        }
        world
    }

    fn start_edge(&self) -> Process {
        let source = Source::Files(self.files.path().join("there"));
        let centre = self.cluster.agents_address();
        let mut command = edge(&source, EDGE_PORT, ("there", "edge"), centre).unwrap();
        let namespace = self.cluster.control().namespace();
        Process::spawn(namespace, "edge", &mut command, self.cluster.directory()).unwrap()
    }

    fn write_objects(&self) {
        for (name, _, _) in CLUSTERS {
            std::fs::create_dir(self.files.path().join(name)).unwrap();
        }
        let endpoints = |pods: &[(EchoPod, usize)]| {
            Family::ALL.map(|family| {
                let all = pods.iter().map(|(pod, node)| pod.endpoint(family, *node));
                (family, all.collect::<Vec<_>>())
            })
        };
        let large = Family::ALL.map(|family| {
            let address = self.large.address(family).to_string();
            (
                family,
                vec![json!({"addresses": [address], "nodeName": "node4"})],
            )
        });
        let web = exported("web", 1, endpoints(&self.there));
        let back = exported("back", 3, endpoints(&self.here));
        self.write("there", "web", web);
        self.write("there", "large", exported("large", 2, large));
        self.write("here", "back", back);
        self.nodes("here", [true, true]);
        self.nodes_of_there([true, true]);
        let policy = CLUSTERS.map(|(name, mode, nodes)| self.policy(name, mode, nodes).to_string());
        std::fs::write(
            self.files.path().join("policy.yaml"),
            policy.join("\n---\n"),
        )
        .unwrap();
    }

    fn policy(&self, name: &str, mode: &str, nodes: [usize; 2]) -> Value {
        let hosts = nodes.map(|number| self.cluster.rig.node(number));
        let networks = hosts
            .iter()
            .flat_map(|node| [format!("{}/32", node.v4()), format!("{}/128", node.v6())]);
        let gateway =
            json!({"nodes": {"matchLabels": {"gateway": "true"}}, "ports": "20000-20999"});
        let network = json!({
            "mode": mode,
            "podCIDRs": ["10.244.0.0/16", "fd00:244::/32"],
            "nodeCIDRs": networks.collect::<Vec<_>>(),
            "clusterSetIPs": ["10.112.0.0/16", "fd00:112::/108"],
            "gateway": gateway,
        });
        let access = match &self.edge {
            Some(_) if name == "there" => json!({"edge": {}}),
            _ => json!({"files": [self.files.path().join(name)]}),
        };
        json!({"apiVersion": "portolan.dev/v1alpha1", "kind": "Cluster", "metadata": {"name": name},
            "spec": {"access": access, "network": network}})
    }

    /// Starts the agent of a node anew, with more arguments.
    pub(crate) fn restart_agent(&mut self, number: usize, more: &[&str]) {
        let of_cluster = CLUSTERS
            .iter()
            .find(|(_, _, nodes)| nodes.contains(&number));
        let (name, _, _) = of_cluster.unwrap();
        self.cluster.agent(number).unwrap().stop(PATIENT).unwrap();
        let cluster = format!("--cluster={name}");
        let args: Vec<&str> = more.iter().copied().chain([&*cluster]).collect();
        self.cluster.start_agent_with(number, &args).unwrap();
        self.cluster.wait_until_ready(number).unwrap();
    }

    /// The pod with the large answers, on node 3.
    pub(crate) fn large_pod(&self) -> &Pod {
        &self.large
    }

    /// Says which of the nodes of `there` are ready.
    pub(crate) fn nodes_of_there(&self, ready: [bool; 2]) {
        self.nodes("there", ready);
    }

    fn nodes(&self, cluster: &str, ready: [bool; 2]) {
        let of_cluster = CLUSTERS.iter().find(|(name, _, _)| *name == cluster);
        let (_, _, numbers) = of_cluster.unwrap();
        let nodes = numbers.iter().zip(ready).map(|(number, ready)| {
            let node = self.cluster.rig.node(*number);
            let address = |ip: String| json!({"type": "InternalIP", "address": ip});
            let ready = if ready { "True" } else { "Unknown" };
            json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": {"name": Cluster::node_name(*number), "labels": {"gateway": "true"}},
                "spec": {"podCIDRs": [node.pod_range_v4(), node.pod_range_v6()]},
                "status": {
                    "addresses": [address(node.v4().to_string()), address(node.v6().to_string())],
                    "conditions": [{"type": "Ready", "status": ready}],
                },
            })
        });
        self.write(cluster, "nodes", nodes.collect());
    }

    /// Replaces a file atomically.
    fn write(&self, cluster: &str, name: &str, items: Vec<Value>) {
        let path = self.files.path().join(cluster).join(format!("{name}.json"));
        let hidden = path.with_file_name(".hidden");
        let list = json!({"kind": "List", "items": items});
        std::fs::write(&hidden, list.to_string()).unwrap();
        std::fs::rename(hidden, path).unwrap();
    }

    /// Returns the controller's answer about the import of a Service.
    pub(crate) fn import(&self, cluster: &str, service: &str) -> Value {
        let path = format!("federation?cluster={cluster}&import=default/{service}");
        self.cluster.controller_debug(&path).unwrap_or_default()
    }

    /// Returns `true` if all nodes of a cluster have what the controller says.
    pub(crate) fn is_programmed(&self, cluster: &str, service: &str) -> bool {
        let import = self.import(cluster, service);
        let is_sent = import["import"]["pending"] == false;
        is_sent && import["connected"] == 2 && import["programmed"] == 2
    }

    /// The gateways by which a cluster reaches the TCP port of a Service of the other one.
    pub(crate) fn gateways(&self, cluster: &str, service: &str, family: Family) -> Vec<SocketAddr> {
        self.gateways_of(cluster, service, family, Protocol::Tcp)
    }

    fn gateways_of(
        &self,
        cluster: &str,
        service: &str,
        family: Family,
        protocol: Protocol,
    ) -> Vec<SocketAddr> {
        let import = self.import(cluster, service);
        let (family, port) = match (family, protocol) {
            (Family::V4, Protocol::Tcp) => ("IPv4", "http 80/TCP"),
            (Family::V6, Protocol::Tcp) => ("IPv6", "http 80/TCP"),
            (Family::V4, _) => ("IPv4", "dns 80/UDP"),
            (Family::V6, _) => ("IPv6", "dns 80/UDP"),
        };
        let ports = import["import"]["ports"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let of_port = ports
            .iter()
            .filter(|one| one["family"] == family && one["port"] == port);
        let clusters =
            of_port.flat_map(|one| one["clusters"].as_array().cloned().unwrap_or_default());
        let gateways =
            clusters.flat_map(|one| one["gateways"].as_array().cloned().unwrap_or_default());
        gateways
            .map(|at| at.as_str().unwrap().parse().unwrap())
            .collect()
    }

    /// The place of a Service at the same gateway with another protocol.
    pub(crate) fn same_address(
        &self,
        gateway: SocketAddr,
        cluster: &str,
        service: &str,
        protocol: Protocol,
    ) -> SocketAddr {
        let family = if gateway.is_ipv4() {
            Family::V4
        } else {
            Family::V6
        };
        let all = self.gateways_of(cluster, service, family, protocol);
        let mut all = all.into_iter();
        all.find(|one| one.ip() == gateway.ip()).unwrap()
    }

    /// The virtual address of an import.
    pub(crate) fn vip(&self, cluster: &str, service: &str, family: Family) -> SocketAddr {
        let import = self.import(cluster, service);
        let vips = import["import"]["vips"].as_array().unwrap();
        let vips = vips
            .iter()
            .map(|vip| vip.as_str().unwrap().parse::<IpAddr>());
        let mut vips = vips.map(Result::unwrap);
        let is_it = |vip: &IpAddr| vip.is_ipv4() == (family == Family::V4);
        SocketAddr::new(vips.find(is_it).unwrap(), 80)
    }
}

/// A Service with its slices and its export. `number` tells cluster IPs apart.
fn exported(name: &str, number: u8, endpoints: [(Family, Vec<Value>); 2]) -> Vec<Value> {
    let ips = [format!("10.96.0.{number}"), format!("fd00:10:96::{number}")];
    let mut items = vec![service(name, [&ips[0], &ips[1]], json!({}))];
    items.extend(endpoints.map(|(family, endpoints)| slice_of(name, family, &endpoints)));
    items.push(
        json!({"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
        "metadata": {"name": name, "namespace": "default"}}),
    );
    items
}
