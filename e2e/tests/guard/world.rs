// SPDX-License-Identifier: Apache-2.0

//! A control plane with many Services in several namespaces, two nodes, and traffic to every Service.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::{Duration, Instant};

use portolan_e2e::cluster::{Cluster, EchoPod, control};
use portolan_e2e::objects::{merge, slice_named};
use portolan_e2e::programs::Source;
use portolan_e2e::rig::{Family, Load, LoadConfig, Protocol};
use portolan_e2e::servers::Servers;
use portolan_e2e::wait::{wait_for, wait_with_pauses};
use serde_json::{Value, json};
use tempfile::TempDir;

/// Long enough for a control plane on an emulated machine that is busy.
const LONG: Duration = Duration::from_secs(240);
/// An agent takes an older table after all controllers have been behind its own for this time.
const BEHIND: Duration = Duration::from_secs(300);
/// The pause between two checks that each need a process or a connection.
const LOOK: Duration = Duration::from_millis(500);

/// A namespace and how many Services it has, each with one slice of two endpoints.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Group {
    name: &'static str,
    third: u8,
    pub(crate) services: usize,
}

/// In the backup.
pub(crate) const EARLY: [Group; 2] = [
    Group {
        name: "early-1",
        third: 1,
        services: 30,
    },
    Group {
        name: "early-2",
        third: 2,
        services: 30,
    },
];

/// Created after the backup; half of all Services.
pub(crate) const LATE: Group = Group {
    name: "late",
    third: 3,
    services: 60,
};

const ALL: [Group; 3] = [EARLY[0], EARLY[1], LATE];

/// The Service that is added while deletions are held.
const ADDED: Ipv4Addr = Ipv4Addr::new(10, 96, 9, 1);

impl Group {
    fn addresses(self) -> impl Iterator<Item = Ipv4Addr> {
        let last = u8::try_from(self.services).unwrap();
        (1..=last).map(move |host| Ipv4Addr::new(10, 96, self.third, host))
    }
}

pub(crate) struct World {
    // Fields drop in this order: clients before the servers they use.
    loads: Vec<(Group, Load)>,
    cluster: Cluster,
    servers: Servers,
    pods: [EchoPod; 2],
    visitors: [EchoPod; 2],
    directory: TempDir,
}

impl World {
    pub(crate) fn start_or_skip(test: &str) -> Option<Self> {
        let directory = TempDir::new().unwrap();
        let (rig, servers) = Servers::in_rig_or_skip(test, directory.path())?;
        let nodes: Vec<_> = (0..2)
            .map(|number| {
                let metadata = json!({ "name": Cluster::node_name(number) });
                json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata })
            })
            .collect();
        create(control(&rig).namespace(), &servers, &nodes);
        let source = Source::Kubernetes(servers.kubeconfig().to_owned());
        let cluster = Cluster::with(rig, source).unwrap();
        let add = |node, name| cluster.add_pod(node, name).unwrap();
        Some(Self {
            loads: Vec::new(),
            pods: [add(0, "a"), add(1, "b")],
            visitors: [add(0, "v0"), add(1, "v1")],
            cluster,
            servers,
            directory,
        })
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn all_services() -> usize {
        ALL.iter().map(|group| group.services).sum()
    }

    fn kubectl(&self, args: &[&str], input: &str) -> String {
        let run = || self.servers.kubectl_with_input(args, input);
        let said = self.cluster.control().namespace().run(run);
        said.unwrap().unwrap()
    }

    fn create_objects(&self, objects: &[Value]) {
        create(self.cluster.control().namespace(), &self.servers, objects);
    }

    /// Stops the API server and its storage, changes the data, and starts both again.
    pub(crate) fn with_storage(&mut self, work: impl FnOnce(&Path) -> anyhow::Result<()> + Send) {
        let namespace = self.cluster.control().namespace().clone();
        let done = namespace.run(|| self.servers.with_storage(work));
        done.unwrap().unwrap();
    }

    fn service(namespace: &str, address: Ipv4Addr) -> Value {
        let metadata = json!({ "name": name_of(address), "namespace": namespace });
        let spec = json!({
            "clusterIP": address,
            "ports": [{ "name": "http", "port": 80, "targetPort": EchoPod::PORT }],
        });
        json!({ "apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": spec })
    }

    fn slice(&self, namespace: &str, address: Ipv4Addr) -> Value {
        let pods = self.pods.iter().enumerate();
        let endpoints: Vec<_> = pods
            .map(|(node, pod)| pod.endpoint(Family::V4, node))
            .collect();
        let mut slice = slice_named(
            &name_of(address),
            "v4",
            json!({
                "addressType": "IPv4",
                "ports": [{ "name": "http", "protocol": "TCP", "port": EchoPod::PORT }],
                "endpoints": endpoints,
            }),
        );
        merge(
            &mut slice,
            json!({ "metadata": { "namespace": namespace } }),
        );
        slice
    }

    /// Creates namespaces with their Services and slices, and waits until both nodes have them.
    pub(crate) fn create(&self, groups: &[Group]) {
        let namespace = |group: &Group| json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": group.name } });
        let mut objects: Vec<_> = groups.iter().map(namespace).collect();
        for group in groups {
            for address in group.addresses() {
                objects.push(Self::service(group.name, address));
                objects.push(self.slice(group.name, address));
            }
        }
        self.create_objects(&objects);
        for group in groups {
            self.wait_for_servers(|servers| {
                group
                    .addresses()
                    .all(|address| has_endpoints(servers, address))
            });
        }
    }

    /// Creates all slices again.
    pub(crate) fn create_slices(&self) {
        let slices = |group: &Group| {
            let name = group.name;
            group
                .addresses()
                .map(move |address| self.slice(name, address))
        };
        let slices: Vec<_> = ALL.iter().flat_map(slices).collect();
        self.create_objects(&slices);
    }

    /// Returns when the virtual servers of both nodes, as `ipvsadm` prints them, satisfy a condition.
    fn wait_for_servers(&self, is_so: impl Fn(&str) -> bool) {
        for node in self.cluster.rig.nodes() {
            let waited = wait_with_pauses("the virtual servers", LONG, LOOK, || {
                let servers = node.exec(&["ipvsadm", "-Sn"]).unwrap();
                is_so(&servers).then_some(())
            });
            waited.unwrap_or_else(|error| {
                let servers = node.exec(&["ipvsadm", "-Sn"]).unwrap();
                panic!("{}: {error}: {servers}", node.name())
            });
        }
    }

    pub(crate) fn start_traffic(&mut self) {
        for group in ALL {
            let targets: Vec<_> = group
                .addresses()
                .map(|ip| SocketAddr::from((ip, 80)))
                .collect();
            for visitor in &self.visitors {
                let config = LoadConfig {
                    protocol: Protocol::Tcp,
                    workers: 1,
                    limit: 1_000_000,
                    // A whole control plane is on the same processor.
                    pause: Duration::from_millis(100),
                    timeout: Duration::from_secs(30),
                };
                let load = Load::start(&visitor.pod, &targets, config).unwrap();
                self.loads.push((group, load));
            }
        }
        self.flows();
    }

    /// Returns when every load has asked each of its Services again; none may have failed.
    pub(crate) fn flows(&self) {
        let before: Vec<_> = self.loads.iter().map(|(_, load)| load.answered()).collect();
        for ((group, load), before) in self.loads.iter().zip(before) {
            let round = u64::try_from(group.services).unwrap() + 1;
            wait_for("a round of answers", LONG, || {
                let failures = load.failures();
                assert!(failures.is_empty(), "{}: {failures:?}", group.name);
                (load.answered() >= before + round).then_some(())
            })
            .unwrap();
        }
    }

    /// Asserts that traffic flows for `time`.
    pub(crate) fn flows_for(&self, time: Duration) {
        let start = Instant::now();
        while start.elapsed() < time {
            self.flows();
        }
    }

    fn metric(metrics: &str, name: &str) -> Option<usize> {
        let value = metrics.lines().find_map(|line| line.strip_prefix(name));
        value?.trim().parse().ok()
    }

    fn held(&self, kind: &str) -> Option<usize> {
        let metrics = self.cluster.controller_metrics().ok()?;
        let name = format!("portolan_controller_source_deletions_held{{kind=\"{kind}\"}}");
        Self::metric(&metrics, &name)
    }

    /// Returns when the controller holds at least that many deletions of a kind.
    pub(crate) fn wait_until_held(&self, kind: &str, count: usize) {
        let waited = wait_with_pauses(&format!("{count} {kind} held"), LONG, LOOK, || {
            (self.held(kind)? >= count).then_some(())
        });
        waited.unwrap_or_else(|error| panic!("{error}: {:?}", self.held(kind)));
    }

    /// Returns when both agents hold at least that many deletions.
    pub(crate) fn wait_until_agents_hold(&self, count: usize) {
        for number in 0..2 {
            let held = || {
                let metrics = self.cluster.agent_metrics(number).ok()?;
                Self::metric(&metrics, "portolan_agent_deletions_held_current ")
            };
            let waited =
                wait_with_pauses("deletions that an agent holds", BEHIND + LONG, LOOK, || {
                    (held()? >= count).then_some(())
                });
            waited.unwrap_or_else(|error| panic!("{error}: node {number}: {:?}", held()));
        }
    }

    /// A Service that is created while deletions are held is programmed.
    pub(crate) fn additions_go_on(&self) {
        let namespace = EARLY[0].name;
        let objects = [
            Self::service(namespace, ADDED),
            self.slice(namespace, ADDED),
        ];
        self.create_objects(&objects);
        self.wait_for_servers(|servers| has_endpoints(servers, ADDED));
    }

    /// Kills the controller and the agent of node 0, and starts them again.
    pub(crate) fn restart_controller_and_agent(&mut self) {
        self.cluster.controller().unwrap().kill9().unwrap();
        self.cluster.agent(0).unwrap().kill9().unwrap();
        self.flows();
        self.cluster.start_controller().unwrap();
        self.cluster.start_agent(0).unwrap();
        self.cluster.wait_until_ready(0).unwrap();
        wait_with_pauses("the controller to be ready", LONG, LOOK, || {
            self.cluster.nodes().ok()
        })
        .unwrap();
    }

    /// Returns when nothing is held and both nodes have programmed the controller's newest table.
    pub(crate) fn wait_until_whole(&self) {
        for kind in ["Service", "EndpointSlice"] {
            let what = format!("no {kind} to be held");
            wait_with_pauses(&what, LONG, LOOK, || {
                (self.held(kind).unwrap_or(0) == 0).then_some(())
            })
            .unwrap();
        }
        let waited = wait_with_pauses("programmed nodes", LONG, LOOK, || {
            self.cluster.wait_until_programmed(0).ok()
        });
        waited.unwrap();
    }

    /// Deletes all slices of all namespaces at once, as a broken controller would.
    pub(crate) fn delete_all_slices(&self) {
        std::thread::scope(|scope| {
            for group in ALL {
                scope.spawn(move || {
                    let path = format!(
                        "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices",
                        group.name
                    );
                    self.kubectl(&["delete", "--raw", &path], "");
                });
            }
        });
    }

    pub(crate) fn delete_namespace(&self, group: Group) {
        self.kubectl(&["delete", "namespace", group.name, "--wait=false"], "");
    }

    /// Returns when no node has a virtual server of a namespace.
    pub(crate) fn wait_until_gone(&self, group: Group) {
        self.wait_for_servers(|servers| {
            !group
                .addresses()
                .any(|address| servers.contains(&format!("-t {address}:80 ")))
        });
    }

    pub(crate) fn stop_traffic_to(&mut self, group: Group) {
        let (stopped, rest) = self.loads.drain(..).partition(|(of, _)| *of == group);
        self.loads = rest;
        report(stopped);
    }

    pub(crate) fn finish(&mut self) {
        report(self.loads.drain(..).collect());
    }
}

fn name_of(address: Ipv4Addr) -> String {
    let [_, _, third, last] = address.octets();
    format!("s{third}-{last}")
}

/// Returns `true` if a virtual server has two real servers that get new connections.
fn has_endpoints(servers: &str, address: Ipv4Addr) -> bool {
    let start = format!("-a -t {address}:80 ");
    let lines = servers.lines().filter(|line| line.starts_with(&start));
    lines.filter(|line| !line.ends_with("-w 0")).count() == 2
}

fn report(loads: Vec<(Group, Load)>) {
    for (group, load) in loads {
        let report = load.stop();
        println!(
            "{}: {} requests, {} failed, slowest {}",
            group.name,
            report.requests,
            report.failures.len(),
            report.slowest
        );
        assert!(report.failures.is_empty(), "{:?}", report.failures);
        assert!(report.requests > 300, "{}", group.name);
    }
}

fn create(namespace: &portolan_e2e::rig::Namespace, servers: &Servers, objects: &[Value]) {
    let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string();
    let create = ["create", "-f", "-"];
    let created = namespace.run(|| servers.kubectl_with_input(&create, &list));
    created.unwrap().unwrap();
}
