// SPDX-License-Identifier: Apache-2.0

//! Three clusters that export one Service.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, http_get};
use portolan_e2e::figure::figure;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{service, slice_of};
use portolan_e2e::programs::{Source, edge};
use portolan_e2e::rig::{Connection, Family, Load, LoadConfig, Process, Protocol, Rig, RigConfig};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The clusters; cluster number N is node N.
pub(crate) const CLUSTERS: [&str; 3] = ["eu-1", "eu-2", "us-1"];
/// The number of pods of each.
pub(crate) const PODS: [usize; 3] = [3, 7, 11];
/// Connections to measure shares with.
pub(crate) const CONNECTIONS: u64 = 4_000;
/// Threads that ask at once.
pub(crate) const WORKERS: u64 = 4;
/// Source ports of UDP flows, one for each of [`CONNECTIONS`]: a port that is used again is no new flow. Ports that
/// hosts choose begin after them.
const PORTS: Range<u16> = 20_000..24_000;
/// Ports of edge controllers: of cluster number N twice N after this.
const EDGE_PORTS: u16 = 9500;
pub(crate) const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];

pub(crate) fn skip(test: &str) -> bool {
    skip_on("nftables", test)
}

/// The same for a test of agents that program a dataplane.
pub(crate) fn skip_on(dataplane: &str, test: &str) -> bool {
    let need = match dataplane {
        "ipvs" => Need::Ipvs,
        _ => Need::Nftables,
    };
    !lane::provides(test, &[Need::Root, need])
}

/// A TrafficPolicy of 70, 20 and 10 percent.
pub(crate) fn shares() -> Value {
    let weights = CLUSTERS.iter().zip([70, 20, 10]);
    let clusters = weights.map(|(name, weight)| json!({"names": [name], "weight": weight}));
    let tier = json!({"clusters": clusters.collect::<Vec<_>>()});
    json!({"services": {"names": ["web"]}, "tiers": [tier]})
}

/// Three clusters, their files, and a pod of `eu-1` that asks.
pub(crate) struct World {
    pub(crate) cluster: Cluster,
    pub(crate) files: TempDir,
    pub(crate) pods: [Vec<EchoPod>; 3],
    pub(crate) visitor: EchoPod,
    traffic: Value,
    loss: Value,
    /// The edge controllers of the clusters that have one, by their number.
    edges: BTreeMap<usize, Process>,
    served_by: ServedBy,
    /// The agents' `--dataplane`.
    dataplane: &'static str,
}

/// The controller that clusters but the first get their tables from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServedBy {
    /// The centre, which reads their files too.
    Centre,
    /// The centre, which edge controllers send the objects to.
    CentreOfEdges,
    /// Their own edge controllers.
    Edges,
}

impl World {
    /// Clusters with these numbers of pods, a TrafficPolicy and rules of loss. All agents are ready.
    pub(crate) fn new(pods: [usize; 3], traffic: Value, loss: Value) -> Self {
        Self::on("nftables", pods, traffic, loss)
    }

    /// The same where all clusters but the first have edge controllers.
    pub(crate) fn with_edges(pods: [usize; 3], traffic: Value, loss: Value) -> Self {
        Self::start("nftables", pods, traffic, loss, ServedBy::CentreOfEdges)
    }

    /// The same where the agents of these clusters have their tables from the edges.
    pub(crate) fn served_by_edges(pods: [usize; 3], traffic: Value, loss: Value) -> Self {
        Self::start("nftables", pods, traffic, loss, ServedBy::Edges)
    }

    /// As [`Self::new`], with agents that program another dataplane than nftables.
    pub(crate) fn on(
        dataplane: &'static str,
        pods: [usize; 3],
        traffic: Value,
        loss: Value,
    ) -> Self {
        Self::start(dataplane, pods, traffic, loss, ServedBy::Centre)
    }

    fn start(
        dataplane: &'static str,
        pods: [usize; 3],
        traffic: Value,
        loss: Value,
        served_by: ServedBy,
    ) -> Self {
        let files = TempDir::new().unwrap();
        let rig = Rig::new(RigConfig {
            nodes: 3,
            clients: 2,
        });
        let source = Source::Clusters(files.path().join("policy.yaml"));
        let cluster = Cluster::without_agents(rig.unwrap(), source).unwrap();
        let cluster = cluster.programming(dataplane);
        let visitor = cluster.add_pod(0, "visitor").unwrap();
        let mut node = 0;
        let pods = pods.map(|count| {
            let name = CLUSTERS[node];
            let pods = (0..count).map(|number| cluster.add_pod(node, &format!("{name}-{number}")));
            let pods = pods.map(Result::unwrap).collect();
            node += 1;
            pods
        });
        let mut world = Self {
            cluster,
            files,
            pods,
            visitor,
            traffic,
            loss,
            edges: BTreeMap::new(),
            served_by,
            dataplane,
        };
        for number in 0..CLUSTERS.len() {
            std::fs::create_dir(world.directory(number)).unwrap();
            world.web(number, world.pods[number].len(), &[]);
        }
        world.policy(&json!({}));
        if served_by != ServedBy::Centre {
            for number in 1..CLUSTERS.len() {
                world.start_edge(number, "edge-1");
            }
        }
        world.start_agents();
        world
    }

    /// Starts an edge controller of a cluster, which reads the cluster's directory.
    pub(crate) fn start_edge(&mut self, number: usize, name: &str) {
        let source = Source::Files(self.directory(number));
        let who = (CLUSTERS[number], name);
        let port = Self::edge_port(number);
        let mut command = edge(&source, port, who, self.cluster.agents_address()).unwrap();
        let state = self
            .files
            .path()
            .join(format!("state-{}", CLUSTERS[number]));
        command.arg(format!("--state-dir={}", state.display()));
        command.arg("--federation-address-range=10.112.0.0/16,fd00:112::/108");
        let namespace = self.cluster.control().namespace();
        let log = format!("{}-{name}", CLUSTERS[number]);
        let edge = Process::spawn(namespace, &log, &mut command, self.cluster.directory());
        self.edges.insert(number, edge.unwrap());
    }

    fn edge_port(number: usize) -> u16 {
        EDGE_PORTS + 2 * u16::try_from(number).unwrap()
    }

    /// A dump of the edge controller of a cluster; null while there is none.
    pub(crate) fn edge_debug(&self, number: usize, dump: &str) -> Value {
        let namespace = self.cluster.control().namespace();
        let port = Self::edge_port(number) + 1;
        let text = http_get(namespace, port, &format!("/debug/{dump}"));
        text.map_or(Value::Null, |text| {
            serde_json::from_str(&text).unwrap_or_default()
        })
    }

    /// The metrics of the edge controller of a cluster; empty while there is none.
    pub(crate) fn edge_metrics(&self, number: usize) -> String {
        let namespace = self.cluster.control().namespace();
        http_get(namespace, Self::edge_port(number) + 1, "/metrics").unwrap_or_default()
    }

    /// The edge controller of a cluster.
    pub(crate) fn edge(&mut self, number: usize) -> &mut Process {
        self.edges.get_mut(&number).unwrap()
    }

    fn start_agents(&mut self) {
        for (number, name) in CLUSTERS.iter().enumerate() {
            let mut controller = self.cluster.agents_address();
            if self.served_by == ServedBy::Edges && number > 0 {
                controller.set_port(Self::edge_port(number));
            }
            let add = |command: &mut Command| _ = command.arg(format!("--cluster={name}"));
            self.cluster
                .start_agent_of(controller, number, add)
                .unwrap();
        }
        for number in 0..CLUSTERS.len() {
            self.cluster.wait_until_ready(number).unwrap();
        }
    }

    /// The directory of a cluster's objects.
    pub(crate) fn directory(&self, number: usize) -> PathBuf {
        self.files.path().join(CLUSTERS[number])
    }

    /// Replaces a file atomically.
    pub(crate) fn write(&self, path: PathBuf, text: &str) {
        let hidden = path.with_file_name(".hidden");
        std::fs::write(&hidden, text).unwrap();
        std::fs::rename(hidden, path).unwrap();
    }

    /// Writes the policy; the fields are laid over the spec of `eu-1`.
    pub(crate) fn policy(&self, of_eu: &Value) {
        let object = |kind: &str, name: &str, spec: Value| {
            json!({"apiVersion": "portolan.dev/v1alpha1", "kind": kind, "metadata": {"name": name},
                "spec": spec})
        };
        let clusters = CLUSTERS.iter().enumerate().map(|(number, name)| {
            let node = self.cluster.rig.node(number);
            let network = json!({
                "podCIDRs": [node.pod_range_v4(), node.pod_range_v6()],
                "clusterSetIPs": ["10.112.0.0/16", "fd00:112::/108"],
            });
            let access = match self.served_by != ServedBy::Centre && number > 0 {
                true => json!({"edge": {}}),
                false => json!({"files": [self.directory(number)]}),
            };
            let mut spec = json!({"access": access, "network": network});
            if number == 0 {
                let fields = of_eu.as_object().unwrap().clone();
                spec.as_object_mut().unwrap().extend(fields);
            }
            object("Cluster", name, spec)
        });
        let set = object("ClusterSet", "test", json!({"loss": self.loss}));
        let traffic = object("TrafficPolicy", "web", self.traffic.clone());
        let all = clusters.chain([set, traffic]).map(|one| one.to_string());
        let text = all.collect::<Vec<_>>().join("\n---\n");
        self.write(self.files.path().join("policy.yaml"), &text);
    }

    /// The Service `web` of a cluster, exported, with so many ready pods, and endpoints at further addresses.
    pub(crate) fn web(&self, number: usize, ready: usize, more: &[&str]) {
        let text = self.text_of_web(number, ready, more);
        self.write(self.directory(number).join("web.json"), &text);
    }

    /// The file of [`Self::web`].
    pub(crate) fn text_of_web(&self, number: usize, ready: usize, more: &[&str]) -> String {
        let pods = self.pods[number].iter().enumerate();
        let endpoints = |family| {
            let own = pods.clone().map(|(index, pod)| {
                let mut endpoint = pod.endpoint(family, number);
                endpoint["conditions"]["ready"] = (index < ready).into();
                endpoint
            });
            let more = more.iter().filter(|_| family == Family::V4);
            let more = more.map(|address| json!({"addresses": [address]}));
            own.chain(more).collect::<Vec<_>>()
        };
        let mut items = vec![service("web", WEB, json!({}))];
        items.extend(Family::ALL.map(|family| slice_of("web", family, &endpoints(family))));
        items.push(
            json!({"apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
            "metadata": {"name": "web", "namespace": "default"}}),
        );
        json!({"kind": "List", "items": items}).to_string()
    }

    /// Returns the controller's answer about the import in a cluster.
    pub(crate) fn import(&self, cluster: &str) -> Value {
        let path = format!("federation?cluster={cluster}&import=default/web");
        self.cluster.controller_debug(&path).unwrap_or_default()
    }

    /// The shares of clusters in the import of `eu-1`, IPv4 and TCP, in permille.
    pub(crate) fn permille(&self) -> BTreeMap<String, u64> {
        self.permille_in("eu-1")
    }

    /// The same in any cluster.
    pub(crate) fn permille_in(&self, cluster: &str) -> BTreeMap<String, u64> {
        Self::permille_of(&self.import(cluster))
    }

    fn permille_of(answer: &Value) -> BTreeMap<String, u64> {
        let ports = answer["import"]["ports"].as_array().cloned();
        let mut ports = ports.unwrap_or_default().into_iter();
        let tcp = ports.find(|port| port["family"] == "IPv4" && port["port"] == "http 80/TCP");
        let clusters = tcp.unwrap_or_default()["clusters"].as_array().cloned();
        let clusters = clusters.unwrap_or_default().into_iter();
        clusters
            .filter_map(|one| {
                let name = one["cluster"].as_str()?.to_owned();
                Some((name, one["sharePermille"].as_u64()?))
            })
            .collect()
    }

    /// Returns when the shares are these and programmed in all clusters.
    pub(crate) fn wait_for_shares(&self, expected: [u64; 3]) {
        let expected: BTreeMap<_, _> = CLUSTERS
            .iter()
            .zip(expected)
            .filter(|(_, share)| *share > 0)
            .map(|(name, share)| ((*name).to_owned(), share))
            .collect();
        wait_for(&format!("shares {expected:?}"), PATIENT, || {
            let imports = CLUSTERS.map(|name| self.import(name));
            // Shares of one answer: in the next one they may be newer than what is programmed.
            let is_programmed = imports.iter().all(|import| {
                let is_sent = import["import"]["pending"] == false;
                is_sent && import["programmed"] == 1 && import["connected"] == 1
            });
            (is_programmed && Self::permille_of(&imports[0]) == expected).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error:#}: {:?}", self.permille()));
    }

    /// The state and step of a cluster.
    pub(crate) fn state(&self, name: &str) -> (String, u64) {
        let dump = self.cluster.controller_debug("clusters").unwrap();
        let all = dump["clusters"].as_array().unwrap();
        let found = all.iter().find(|one| one["name"] == name).unwrap();
        let state = found["state"].as_str().unwrap_or_default();
        (state.to_owned(), found["step"].as_u64().unwrap_or_default())
    }

    pub(crate) fn wait_for_state(&self, name: &str, state: &str) {
        wait_for(&format!("{name} to be {state}"), PATIENT, || {
            (self.state(name).0 == state).then_some(())
        })
        .unwrap();
    }

    /// The virtual address of the import in a cluster.
    pub(crate) fn vip(&self, cluster: &str, family: Family) -> SocketAddr {
        let import = self.import(cluster);
        let vips = import["import"]["vips"].as_array().unwrap();
        let vips = vips.iter().map(|vip| vip.as_str().unwrap().parse());
        let mut vips = vips.map(|vip| vip.unwrap());
        let is_it = |vip: &IpAddr| vip.is_ipv4() == (family == Family::V4);
        SocketAddr::new(vips.find(is_it).unwrap(), 80)
    }

    /// Asks until the load is stopped or has reached its limit.
    pub(crate) fn load(&self, limit: u64, pause: Duration) -> Load {
        let vip = self.vip("eu-1", Family::V4);
        Self::load_from(&self.visitor, vip, limit, pause)
    }

    fn load_from(visitor: &EchoPod, vip: SocketAddr, limit: u64, pause: Duration) -> Load {
        let config = LoadConfig {
            protocol: Protocol::Tcp,
            workers: WORKERS,
            limit: limit / WORKERS,
            pause,
            timeout: Duration::from_secs(10),
        };
        Load::start(&visitor.pod, &[vip], config).unwrap()
    }

    /// The share of each cluster in [`CONNECTIONS`] connections from a pod of `eu-1`, in percent. None fails.
    pub(crate) fn measured(&self) -> [f64; 3] {
        Self::percent(&Self::measured_from(
            &self.visitor,
            self.vip("eu-1", Family::V4),
        ))
    }

    /// Returns the number of connections that each pod answers, of [`CONNECTIONS`] from a pod to the address of an
    /// import there.
    fn measured_from(visitor: &EchoPod, vip: SocketAddr) -> BTreeMap<String, u64> {
        let load = Self::load_from(visitor, vip, CONNECTIONS, Duration::ZERO);
        wait_for("all connections", PATIENT, || {
            (load.answered() + load.failed() as u64 >= CONNECTIONS).then_some(())
        })
        .unwrap();
        let report = load.stop();
        assert_eq!(report.failures.len(), 0, "{:?}", report.failures);
        report.by_name.into_iter().collect()
    }

    /// The same with UDP, each time from another port.
    fn measured_by_udp(visitor: &EchoPod, vip: SocketAddr) -> BTreeMap<String, u64> {
        let ask = || {
            let mut by_name: BTreeMap<String, u64> = BTreeMap::new();
            for port in PORTS {
                let flow = Connection::open_from(port, Protocol::Udp, vip, Duration::from_secs(10));
                let answer = flow.and_then(|mut flow| flow.ask());
                let answer =
                    answer.unwrap_or_else(|error| panic!("UDP from {port} to {vip}: {error}"));
                *by_name.entry(answer.name).or_default() += 1;
            }
            by_name
        };
        visitor.pod.namespace().run(ask).unwrap()
    }

    /// The share of each cluster in the connections that pods answered, in percent.
    fn percent(by_name: &BTreeMap<String, u64>) -> [f64; 3] {
        CLUSTERS.map(|name| {
            let answers = by_name.iter();
            let of_cluster = answers.filter(|(pod, _)| pod.starts_with(name));
            let count: u64 = of_cluster.map(|(_, count)| count).sum();
            100.0 * count as f64 / CONNECTIONS as f64
        })
    }

    /// Measures shares, which must be the expected ones: to within one point with IPVS, which takes endpoints in turns,
    /// and to within four standard deviations and a little with nftables, which draws them.
    pub(crate) fn check_shares(&self, expected: [f64; 3]) {
        self.compare(self.measured(), expected);
    }

    /// The same with a protocol, printed.
    pub(crate) fn check_shares_by(&self, protocol: Protocol, expected: [f64; 3]) {
        let (vip, dataplane) = (self.vip("eu-1", Family::V4), self.dataplane);
        let (by_name, protocol) = match protocol {
            Protocol::Udp => (Self::measured_by_udp(&self.visitor, vip), "udp"),
            _ => (Self::measured_from(&self.visitor, vip), "tcp"),
        };
        let found = Self::percent(&by_name);
        for (name, share) in CLUSTERS.iter().zip(found) {
            let name = name.replace('-', "_");
            figure(
                &format!("multicluster_share_{dataplane}_{protocol}_{name}"),
                share,
                "%",
                None,
            );
        }
        self.compare(found, expected);
    }

    /// The same from any pod, to the address of an import there. Returns the pods that answered.
    pub(crate) fn check_shares_from(
        visitor: &EchoPod,
        vip: SocketAddr,
        expected: [f64; 3],
    ) -> BTreeSet<String> {
        let by_name = Self::measured_from(visitor, vip);
        Self::check(Self::percent(&by_name), expected);
        by_name.into_keys().collect()
    }

    fn compare(&self, found: [f64; 3], expected: [f64; 3]) {
        if self.dataplane != "ipvs" {
            return Self::check(found, expected);
        }
        for (found, expected) in found.into_iter().zip(expected) {
            let is_close = (found - expected).abs() <= 1.0;
            assert!(is_close, "{found} instead of {expected} % of connections");
        }
    }

    fn check(found: [f64; 3], expected: [f64; 3]) {
        for (found, expected) in found.into_iter().zip(expected) {
            let part = expected / 100.0;
            let deviation = 100.0 * (part * (1.0 - part) / CONNECTIONS as f64).sqrt();
            let most = 4.0 * deviation + 0.1;
            let is_close = (found - expected).abs() <= most;
            assert!(is_close, "{found} instead of {expected} % of connections");
        }
    }

    /// The newest revision of a cluster.
    pub(crate) fn revision(&self, cluster: &str) -> u64 {
        self.import(cluster)["revision"].as_u64().unwrap()
    }
}
