// SPDX-License-Identifier: Apache-2.0

//! The exported rules of iptables and nftables beside those of a real kube-proxy.

use std::collections::BTreeMap;
use std::time::Duration;

use portolan_e2e::cluster::{Cluster, PATIENT, control};
use portolan_e2e::conformance::Stage;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{service, slice_named};
use portolan_e2e::rig::{self, Node, Rig, RigConfig};
use portolan_e2e::servers::{ApiOnLan, KubeProxies, Servers};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{FAMILIES, export, file, playable_rows, restore};

/// Limit of the starts of a kube-proxy.
const STARTS: usize = 8;
/// Time in which a kube-proxy learns the zone of its node, if ever: ten times its period of synchronizations.
const ZONE_LIMIT: Duration = Duration::from_secs(10);

/// An API server with the objects of the conformance table, and nodes for a kube-proxy.
struct World {
    rig: Rig,
    api: ApiOnLan,
    servers: Servers,
    directory: TempDir,
}

impl World {
    fn start_or_skip(test: &str) -> Option<Self> {
        if !lane::provides(test, &[Need::Root]) {
            return None;
        }
        let directory = TempDir::new().unwrap();
        let rig = Rig::new(RigConfig::CLUSTER).unwrap();
        let start = || Servers::start_or_skip(test, directory.path());
        let servers = control(&rig).namespace().run(start).unwrap()?;
        let stage = Stage::new(&rig).unwrap();
        let mut objects = stage.objects(&rig, &playable_rows());
        objects.extend(sticky());
        let api = ApiOnLan::start(&servers, control(&rig), directory.path()).unwrap();
        let world = Self {
            rig,
            api,
            servers,
            directory,
        };
        world.kubectl(&["create", "-f", "-"], &objects);
        objects.retain(|object| object.get("status").is_some());
        world.kubectl(&["replace", "--subresource=status", "-f", "-"], &objects);
        Some(world)
    }

    fn kubectl(&self, args: &[&str], objects: &[Value]) -> String {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string();
        let run = || self.servers.kubectl_with_input(args, &list);
        control(&self.rig).namespace().run(run).unwrap().unwrap()
    }

    /// Returns the result of `read` on each node that a real kube-proxy in a mode has programmed. Afterwards nothing of
    /// the kube-proxy is left.
    ///
    /// A kube-proxy of which `read` finds nothing is started again.
    fn of_kube_proxy<T>(&self, mode: &str, read: impl Fn(&Node) -> Option<T>) -> Vec<T> {
        let directory = self.directory.path();
        let run = || {
            let proxies = KubeProxies::start(mode, &self.rig, self.api.url(), directory).unwrap();
            let found: Option<Vec<T>> = self.rig.nodes().iter().map(&read).collect();
            proxies.clean_up(&self.rig).unwrap();
            found
        };
        let found = (0..STARTS).find_map(|_| run());
        let found = found.expect("a kube-proxy that follows its objects");
        // What kube-proxy was told, with the API server's own Service.
        let all = ["get", "nodes,services,endpointslices", "--output=json"];
        std::fs::write(file(directory), self.kubectl(&all, &[])).unwrap();
        found
    }
}

#[test]
fn rules_of_iptables_are_those_of_a_real_kube_proxy() {
    const NAME: &str = "rules_of_iptables_are_those_of_a_real_kube_proxy";
    let Some(world) = World::start_or_skip(NAME) else {
        return;
    };
    let saved = |node: &Node| FAMILIES.map(|(_, _, save)| chains(&node.exec(&[save]).unwrap()));
    let theirs = world.of_kube_proxy("iptables", |node| Some(saved(node)));
    for (number, node) in world.rig.nodes().iter().enumerate() {
        // The chain is kubelet's too: a cleanup leaves it and the jumps to it.
        for (program, chain) in ["iptables", "ip6tables"]
            .iter()
            .flat_map(|program| ["INPUT", "OUTPUT"].map(|chain| (program, chain)))
        {
            let jump = [program, "-D", chain, "-j", "KUBE-FIREWALL"];
            node.exec(&jump).unwrap();
        }
        restore(node, number, world.directory.path());
        for (theirs, ours) in theirs[number].iter().zip(saved(node)) {
            let count: usize = theirs.values().map(Vec::len).sum();
            println!("kube-proxy has {count} rules");
            assert!(count > 500, "{theirs:#?}");
            assert_eq!(only(theirs, &ours), only(&ours, theirs), "node {number}");
        }
    }
}

/// True if a Service whose endpoints have hints for different zones is served by one of them.
fn follows_hints(tables: &Chains) -> bool {
    let mut of_service = tables
        .iter()
        .filter(|(name, _)| name.contains("/zone-hints-cluster/tcp"));
    of_service.any(|(_, rules)| rules.iter().any(|rule| rule.contains(" mod 1 ")))
}

#[test]
fn tables_of_nft_are_those_of_a_real_kube_proxy() {
    const NAME: &str = "tables_of_nft_are_those_of_a_real_kube_proxy";
    if !lane::provides(NAME, &[Need::Root, Need::Nftables]) {
        return;
    }
    let Some(world) = World::start_or_skip(NAME) else {
        return;
    };
    let tables = |node: &Node| {
        ["ip", "ip6"].map(|family| {
            let listed = node.exec(&["nft", "list", "table", family, "kube-proxy"]);
            objects(&listed.unwrap())
        })
    };
    // The zone of the node often comes after the first synchronization. On a busy machine kube-proxy 1.36 may miss it, and
    // ignores hints as long as it runs.
    let theirs = world.of_kube_proxy("nftables", |node| {
        let found = wait_for("the zone of the node", ZONE_LIMIT, || {
            let found = tables(node);
            found.iter().all(follows_hints).then_some(found)
        });
        found.ok()
    });
    for (number, node) in world.rig.nodes().iter().enumerate() {
        // A kube-proxy in this mode takes primary addresses by default.
        let arguments = ["nft", "--kube-proxy", "--nodeport-addresses=primary"];
        let text = export(node, number, world.directory.path(), &arguments);
        // The second time it replaces what it made.
        for _ in 0..2 {
            let load = ["nft", "-f", "-"];
            node.namespace().exec_with_input(&load, &text).unwrap();
        }
        // While the kernel enlarges sets without a size, a listing may lack elements.
        let _ = wait_for("the whole tables", PATIENT, || {
            (tables(node) == theirs[number]).then_some(())
        });
        for (theirs, ours) in theirs[number].iter().zip(tables(node)) {
            let count: usize = theirs.values().map(Vec::len).sum();
            println!("kube-proxy has {count} lines in {} objects", theirs.len());
            assert!(count > 300, "{theirs:#?}");
            assert_eq!(only(theirs, &ours), only(&ours, theirs), "node {number}");
        }
    }
}

/// Chains of one map that another has not, or with other rules.
fn only(a: &Chains, b: &Chains) -> Chains {
    let differing = a
        .iter()
        .filter(|(name, rules)| b.get(*name) != Some(*rules));
    differing
        .map(|(name, rules)| (name.clone(), rules.clone()))
        .collect()
}

/// The chains, sets and maps of a listing of `nft`. Elements of sets and maps stand in any order. The agent does not know
/// the networks of unallocated cluster IPs.
fn objects(listed: &str) -> Chains {
    let mut objects = Chains::new();
    let mut of = String::new();
    for line in listed.lines() {
        let depth = line.len() - line.trim_start_matches('\t').len();
        match (depth, line.trim()) {
            (1, head) if head.ends_with('{') => of = head.trim_end_matches(" {").to_owned(),
            (1, "}") | (0, _) => of.clear(),
            (_, line) if !line.contains("Drop traffic to unallocated ClusterIPs") => {
                objects.entry(of.clone()).or_default().push(line.to_owned());
            }
            _ => {}
        }
    }
    for (name, lines) in &mut objects {
        if name.starts_with("set ") || name.starts_with("map ") {
            let text = lines.join(" ");
            let (head, elements) = text.split_once("elements = {").unwrap_or((&text, ""));
            let elements = elements.trim_end_matches(['}', ' ']).split(',');
            let elements = elements.map(|element| element.trim().to_owned());
            let mut sorted: Vec<String> = elements.filter(|e| !e.is_empty()).collect();
            sorted.sort();
            sorted.insert(0, head.trim().to_owned());
            *lines = sorted;
        }
    }
    objects
}

/// Rules by table and chain.
type Chains = BTreeMap<String, Vec<String>>;

/// The rules of an `iptables-save`. Rules of Services stand in any order in the chains that Services share, and
/// nobody but kube-proxy itself watches its canary.
fn chains(saved: &str) -> Chains {
    let mut table = "";
    let mut chains = Chains::new();
    for line in saved.lines() {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        let rule = line.strip_prefix("-A ").and_then(uncounted);
        if let Some((chain, rule)) = rule.as_deref().and_then(|rule| rule.split_once(' ')) {
            let rules = chains.entry(format!("{table} {chain}")).or_default();
            rules.push(rule.to_owned());
        }
    }
    for (chain, rules) in &mut chains {
        let is_shared = ["SERVICES", "NODEPORTS", "PROXY-FIREWALL"];
        if is_shared.iter().any(|name| chain.ends_with(name)) {
            rules.sort();
        }
    }
    chains
}

/// A Service with affinity, source ranges and a port without a name, and three endpoints, on one node only.
fn sticky() -> Vec<Value> {
    let spec = json!({
        "type": "LoadBalancer", "ipFamilyPolicy": "RequireDualStack", "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 77 } },
        "loadBalancerSourceRanges": ["192.168.77.0/24", "fd00:77::/64"],
        "ports": [{ "protocol": "TCP", "port": 80, "targetPort": 8080, "nodePort": 30999 }],
    });
    let mut service = service("sticky", ["10.96.0.99", "fd00:10:96::99"], spec);
    let ingress = ["203.0.113.99", "2001:db8:113::99"].map(|ip| json!({ "ip": ip }));
    service["status"] = json!({ "loadBalancer": { "ingress": ingress } });
    let slice = |family: rig::Family, network: &str, suffix: &str| {
        let endpoints = [9, 10, 11].map(|number| {
            json!({ "addresses": [format!("{network}{number}")], "nodeName": Cluster::node_name(0),
                "conditions": { "ready": true, "serving": true, "terminating": false } })
        });
        let kind = format!("{family:?}").replace('V', "IPv");
        slice_named(
            "sticky",
            suffix,
            json!({ "addressType": kind, "endpoints": endpoints,
            "ports": [{ "name": "", "protocol": "TCP", "port": 8080 }] }),
        )
    };
    vec![
        service,
        slice(rig::Family::V4, "10.244.0.", "v4"),
        slice(rig::Family::V6, "fd00:244::", "v6"),
    ]
}

/// A rule without a counter of `nfacct`, which kube-proxy makes where the kernel has them: a rule that names a
/// counter needs its object. A rule for the loopback network counts alone, since the next one has its effect.
fn uncounted(rule: &str) -> Option<String> {
    const COUNTER: &str = " -m nfacct --nfacct-name ";
    let Some((before, after)) = rule.split_once(COUNTER) else {
        return Some(rule.to_owned());
    };
    let (name, rest) = after.trim_start().split_once(' ').unwrap();
    (name != "localhost_nps_accepted_pkts").then(|| format!("{before} {rest}"))
}
