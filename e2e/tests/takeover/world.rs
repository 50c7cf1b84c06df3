// SPDX-License-Identifier: Apache-2.0

//! A control plane with Services, and kube-proxies or agents that program the nodes.

use std::time::Duration;

use anyhow::Result;
use portolan_e2e::ask::address;
use portolan_e2e::clients::Clients;
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, program};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{merge, ports, service, slices};
use portolan_e2e::programs::Source;
use portolan_e2e::rig::{Family, Host, Protocol, Rig, RigConfig};
use portolan_e2e::servers::{ApiOnLan, KubeProxies, Servers};
use portolan_e2e::wait::wait_with_pauses;
use serde_json::{Value, json};
use tempfile::TempDir;

/// Reached by its cluster IP and by [`NODE_PORT`].
pub(crate) const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
pub(crate) const NODE_PORT: u16 = 30080;
/// With ClientIP affinity; reached by its cluster IP and by [`STICKY_NODE_PORT`].
pub(crate) const STICKY: [&str; 2] = ["10.96.0.11", "fd00:10:96::11"];
pub(crate) const STICKY_NODE_PORT: u16 = 30081;
/// With externalTrafficPolicy Local, for which a kube-proxy has no virtual servers by mark.
const LOCAL: [&str; 2] = ["10.96.0.12", "fd00:10:96::12"];
const BALANCED_CLUSTER: [&str; 2] = ["10.96.0.14", "fd00:10:96::14"];
/// The addresses of a load balancer, with source ranges.
pub(crate) const BALANCED: [&str; 2] = ["203.0.113.10", "2001:db8:113::10"];
/// Deleted while neither kube-proxy nor agent runs.
pub(crate) const GONE: &str = "gone";
const GONE_IPS: [&str; 2] = ["10.96.0.13", "fd00:10:96::13"];

pub(crate) struct World {
    // Fields drop in this order: clients before the servers they use.
    pub(crate) cluster: Cluster,
    api: ApiOnLan,
    servers: Servers,
    pub(crate) visitor: EchoPod,
    _pods: Vec<EchoPod>,
    directory: TempDir,
}

impl World {
    /// For a takeover to this dataplane.
    pub(crate) fn start_or_skip(test: &str, dataplane: &'static str) -> Option<Self> {
        let kernel = match dataplane {
            "nftables" => Need::Nftables,
            _ => Need::Ipvs,
        };
        if !lane::provides(test, &[Need::Root, kernel]) {
            return None;
        }
        let directory = TempDir::new().unwrap();
        let config = RigConfig {
            nodes: 2,
            clients: 3,
        };
        let rig = Rig::new(config).unwrap();
        let control = rig.clients().last().unwrap().clone();
        let servers = control
            .namespace()
            .run(|| Servers::start_or_skip(test, directory.path()))
            .unwrap()?;
        let api = ApiOnLan::start(&servers, &control, directory.path()).unwrap();
        let source = Source::Kubernetes(servers.kubeconfig().to_owned());
        let cluster = Cluster::without_agents(rig, source).unwrap();
        let cluster = cluster.programming(dataplane);
        let pods = vec![
            cluster.add_pod(0, "a").unwrap(),
            cluster.add_pod(1, "b").unwrap(),
        ];
        let visitor = cluster.add_pod(0, "v").unwrap();
        let world = Self {
            cluster,
            api,
            servers,
            visitor,
            _pods: pods,
            directory,
        };
        world.publish();
        Some(world)
    }

    fn publish(&self) {
        let node = |number: usize| {
            let machine = self.node(number);
            json!({
                "apiVersion": "v1",
                "kind": "Node",
                "metadata": { "name": Cluster::node_name(number) },
                "status": { "addresses": Family::ALL.map(|family| {
                    json!({ "type": "InternalIP", "address": machine.address(family) })
                }) },
            })
        };
        let nodes = [node(0), node(1)];
        let dual_stack = || json!({ "ipFamilyPolicy": "RequireDualStack" });
        let node_port = |port: u16, more: Value| {
            let mut spec = dual_stack();
            merge(
                &mut spec,
                json!({ "type": "NodePort", "ports": ports(Some(port)) }),
            );
            merge(&mut spec, more);
            spec
        };
        let ranges = ["192.168.77.0/24", "fd00:77::/64"];
        let balanced = json!({ "type": "LoadBalancer", "loadBalancerSourceRanges": ranges });
        let sticky = node_port(STICKY_NODE_PORT, json!({ "sessionAffinity": "ClientIP" }));
        let local = node_port(30082, json!({ "externalTrafficPolicy": "Local" }));
        let pods: Vec<(&EchoPod, usize)> = self._pods.iter().zip(0..).collect();
        let mut objects = nodes.to_vec();
        for (name, ips, spec) in [
            ("web", WEB, node_port(NODE_PORT, json!({}))),
            ("sticky", STICKY, sticky),
            ("local", LOCAL, local),
            ("balanced", BALANCED_CLUSTER, node_port(30083, balanced)),
            (GONE, GONE_IPS, dual_stack()),
        ] {
            objects.push(service(name, ips, spec));
            objects.extend(slices(name, &pods));
        }
        self.kubectl(&["create", "-f", "-"], &objects);
        let replace = ["replace", "--subresource=status", "-f", "-"];
        self.kubectl(&replace, &nodes);
        let ingress = BALANCED.map(|ip| json!({ "ip": ip }));
        let status = json!({ "status": { "loadBalancer": { "ingress": ingress } } });
        let patch = [
            "patch",
            "service",
            "balanced",
            "--subresource=status",
            "--patch",
        ];
        self.kubectl(&[&patch[..], &[&status.to_string()]].concat(), &[]);
        for (ip, family) in BALANCED.into_iter().zip(Family::ALL) {
            let node = self.node(0).address(family);
            self.other_client().add_route(ip, node).unwrap();
        }
    }

    fn kubectl(&self, args: &[&str], objects: &[Value]) -> String {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string();
        let run = || self.servers.kubectl_with_input(args, &list);
        self.cluster
            .control()
            .namespace()
            .run(run)
            .unwrap()
            .unwrap()
    }

    pub(crate) fn delete_service(&self, name: &str) {
        let slices = format!("kubernetes.io/service-name={name}");
        self.kubectl(&["delete", "service", name], &[]);
        self.kubectl(&["delete", "endpointslices", "--selector", &slices], &[]);
    }

    /// Clients in a pod, on a node and outside, of the first node's proxy.
    pub(crate) fn start_clients(&self) -> Clients {
        let (node, client) = (self.node(0), self.cluster.rig.client());
        let visitor = &self.visitor.pod;
        // A separate client: IPVS cannot distinguish two UDP Services with the same endpoints that
        // one port sends requests to.
        let other = self.other_client();
        let web = Family::ALL.map(|family| address(WEB, family, 80));
        let node_port = Family::ALL.map(|family| node.socket(family, NODE_PORT));
        let balanced = Family::ALL.map(|family| address(BALANCED, family, 80));
        let mut clients = Clients::default();
        for (from, targets) in [
            (visitor, web),
            (client, node_port),
            (other, balanced),
            (node, web),
        ] {
            for protocol in Protocol::ALL {
                clients.add(from, protocol, &targets);
            }
        }
        // Not the node itself: its source is the virtual address with kube-proxy but its own with
        // Portolan, so it would count as another client.
        for family in Family::ALL {
            clients.add_regular(visitor, address(STICKY, family, 80));
            clients.add_regular(client, node.socket(family, STICKY_NODE_PORT));
        }
        clients
    }

    /// A second machine outside.
    pub(crate) fn other_client(&self) -> &Host {
        &self.cluster.rig.clients()[1]
    }

    pub(crate) fn node(&self, number: usize) -> &Host {
        self.cluster.rig.node(number)
    }

    /// Routes on the first node to a Service, which only IPVS mode brings itself: a node has a default route.
    pub(crate) fn add_routes(&self) {
        for (ip, family) in WEB.into_iter().zip(Family::ALL) {
            let gateway = self.other_client().address(family);
            self.node(0).add_route(ip, gateway).unwrap();
        }
    }

    /// kube-proxies on all nodes in a mode, each through with its first synchronization.
    pub(crate) fn start_proxies(&self, mode: &str) -> KubeProxies {
        let (rig, api) = (&self.cluster.rig, self.api.url());
        KubeProxies::start(mode, rig, api, self.directory.path()).unwrap()
    }

    /// Waits until a takeover is complete on a node.
    pub(crate) fn wait_until_taken_over(&self, node: usize) {
        self.cluster.wait_until_ready(node).unwrap();
        let what = "nothing of kube-proxy's to be left";
        let pause = Duration::from_millis(500);
        wait_with_pauses(what, PATIENT, pause, || {
            let metrics = self.cluster.agent_metrics(node).ok()?;
            let lines = [
                "portolan_agent_takeover_pending 0",
                "portolan_agent_errors_current 0",
            ];
            let has = |line: &&str| metrics.lines().any(|found| found == *line);
            lines.iter().all(has).then_some(())
        })
        .unwrap();
    }

    /// Starts agents beside running kube-proxies, and returns when they wait for the end of these.
    pub(crate) fn start_waiting_agents(&mut self) {
        for number in 0..2 {
            let flag = ["--takeover=kube-proxy"];
            self.cluster.start_agent_with(number, &flag).unwrap();
            let agent = self.cluster.agent(number).unwrap();
            let said = agent.wait_for_log("waiting until it has ended", PATIENT);
            let said = said.unwrap();
            assert!(said.contains("kube-proxy runs on this node"), "{said}");
        }
    }

    /// Runs the agent's cleanup of a dataplane for a kube-proxy and returns its output.
    pub(crate) fn hand_over(&self, number: usize, dataplane: &str) -> Result<String> {
        let agent = program("portolan-agent").unwrap();
        let dataplane = format!("--dataplane={dataplane}");
        let hand_over = ["cleanup", "--hand-over=kube-proxy", &dataplane];
        let command = [&[agent.to_str().unwrap()], &hand_over[..]].concat();
        self.node(number).exec(&command)
    }

    /// Prints the leftovers of a kube-proxy if `PORTOLAN_PRINT_STATE` is set.
    pub(crate) fn print_state(&self, number: usize) {
        if std::env::var_os("PORTOLAN_PRINT_STATE").is_none() {
            return;
        }
        for command in [
            "ipvsadm -Sn",
            "ipset save",
            "iptables-save",
            "ip6tables-save",
            "ip -o addr show dev kube-ipvs0",
        ] {
            let words: Vec<_> = command.split(' ').collect();
            println!("# {command}\n{}", self.node(number).exec(&words).unwrap());
        }
    }
}
