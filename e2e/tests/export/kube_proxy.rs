// SPDX-License-Identifier: Apache-2.0

//! The exported rules of iptables beside those of a real kube-proxy.

use std::collections::BTreeMap;

use portolan_e2e::cluster::{Cluster, control};
use portolan_e2e::conformance::Stage;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{service, slice_named};
use portolan_e2e::rig::{self, Node, Rig, RigConfig};
use portolan_e2e::servers::{ApiOnLan, KubeProxies, Servers};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::{FAMILIES, file, playable_rows, restore};

#[test]
fn rules_of_iptables_are_those_of_a_real_kube_proxy() {
    const NAME: &str = "rules_of_iptables_are_those_of_a_real_kube_proxy";
    if !lane::provides(NAME, &[Need::Root]) {
        return;
    }
    let directory = TempDir::new().unwrap();
    let rig = Rig::new(RigConfig::CLUSTER).unwrap();
    let start = || Servers::start_or_skip(NAME, directory.path());
    let Some(servers) = control(&rig).namespace().run(start).unwrap() else {
        return;
    };
    let stage = Stage::new(&rig).unwrap();
    let rows = playable_rows();
    let mut objects = stage.objects(&rig, &rows);
    objects.extend(sticky());
    let kubectl = |args: &[&str], objects: &[Value]| {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string();
        let run = || servers.kubectl_with_input(args, &list);
        control(&rig).namespace().run(run).unwrap().unwrap()
    };
    kubectl(&["create", "-f", "-"], &objects);
    let mut with_status = objects;
    with_status.retain(|object| object.get("status").is_some());
    kubectl(
        &["replace", "--subresource=status", "-f", "-"],
        &with_status,
    );
    let api = ApiOnLan::start(&servers, control(&rig), directory.path()).unwrap();
    let proxies = KubeProxies::start("iptables", &rig, &api, directory.path()).unwrap();
    let saved = |node: &Node| FAMILIES.map(|(_, _, save)| chains(&node.exec(&[save]).unwrap()));
    let theirs: Vec<_> = rig.nodes().iter().map(saved).collect();
    proxies.clean_up(&rig).unwrap();
    for node in rig.nodes() {
        // The chain is kubelet's too: a cleanup leaves it and the jumps to it.
        for (program, chain) in ["iptables", "ip6tables"]
            .iter()
            .flat_map(|program| ["INPUT", "OUTPUT"].map(|chain| (program, chain)))
        {
            let jump = [program, "-D", chain, "-j", "KUBE-FIREWALL"];
            node.exec(&jump).unwrap();
        }
    }
    // What kube-proxy was told, with the API server's own Service.
    let all = ["get", "nodes,services,endpointslices", "--output=json"];
    std::fs::write(file(directory.path()), kubectl(&all, &[])).unwrap();
    for (number, node) in rig.nodes().iter().enumerate() {
        restore(node, number, directory.path());
        for (theirs, ours) in theirs[number].iter().zip(saved(node)) {
            let count: usize = theirs.values().map(Vec::len).sum();
            println!("kube-proxy has {count} rules");
            assert!(count > 500, "{theirs:#?}");
            let only = |a: &Chains, b: &Chains| -> Chains {
                let differs =
                    |(name, rules): &(&String, &Vec<String>)| b.get(*name) != Some(*rules);
                let differing = a.iter().filter(differs);
                differing
                    .map(|(name, rules)| (name.clone(), rules.clone()))
                    .collect()
            };
            assert_eq!(only(theirs, &ours), only(&ours, theirs), "node {number}");
        }
    }
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
