// SPDX-License-Identifier: Apache-2.0

//! Agent start on nodes that cannot serve an IP family, or no family.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, http_get};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{service, slices};
use portolan_e2e::programs::program;
use portolan_e2e::rig::{Host, Process, Protocol, Rig, RigConfig};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
/// The timeout of a request.
const PROMPT: Duration = Duration::from_secs(10);
/// All names of the IPv6 iptables tools.
const IP6TABLES: [&str; 6] = [
    "ip6tables-save",
    "ip6tables-restore",
    "ip6tables-nft-save",
    "ip6tables-nft-restore",
    "ip6tables-legacy-save",
    "ip6tables-legacy-restore",
];

fn skip(test: &str) -> bool {
    !lane::provides(test, &[Need::Root, Need::Ipvs])
}

/// A `PATH` in which these tools are `script`, by way of `directory`.
fn path_with(directory: &Path, tools: &[&str], script: &str) -> String {
    std::fs::create_dir_all(directory).unwrap();
    for tool in tools {
        let path = directory.join(tool);
        std::fs::write(&path, format!("#!/bin/sh\n{script}\n")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let path = std::env::var("PATH").unwrap();
    format!("{}:{path}", directory.display())
}

/// All objects that an agent could leave behind, as the tools print them.
fn kernel(node: &Host) -> String {
    let mut all = String::new();
    for command in [
        "ipvsadm -Sn",
        "ipset save",
        "iptables-save",
        "ip6tables-save",
        "ip -o link",
        "ip -4 route show table all",
        "ip -6 route show table all",
    ] {
        let words: Vec<_> = command.split(' ').collect();
        let text = node.exec(&words).unwrap();
        // Excludes times, counters and the tables' own chains: a read creates the table.
        let kept = text.lines().filter(|line| {
            !line.starts_with(['#', ':', '*']) && *line != "COMMIT" && !line.contains("expires")
        });
        kept.for_each(|line| all.push_str(&format!("{line}\n")));
    }
    all
}

fn put_node(cluster: &Cluster) {
    let metadata = json!({ "name": Cluster::node_name(0) });
    let node = json!({ "apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {} });
    cluster.put("node.json", &[node]).unwrap();
}

fn publish(cluster: &Cluster, pods: &[(&EchoPod, usize)]) {
    let objects = [vec![service("web", WEB, json!({}))], slices("web", pods)].concat();
    cluster.put("web.json", &objects).unwrap();
}

fn answers(from: &Host, ip: &str) -> Result<String, String> {
    let target = SocketAddr::new(ip.parse::<IpAddr>().unwrap(), 80);
    let connection = from.connect(Protocol::Tcp, target, PROMPT);
    let answer = connection.and_then(|mut connection| connection.ask());
    answer
        .map(|answer| answer.name)
        .map_err(|error| format!("{error:?}"))
}

fn health(cluster: &Cluster, path: &str) -> Result<Value, String> {
    let answer = http_get(cluster.rig.node(0).namespace(), 10256, path);
    let answer = answer.map_err(|error| format!("{error:#}"))?;
    Ok(serde_json::from_str(&answer).unwrap())
}

/// Asserts that an agent ends with this reason in its log, and leaves the kernel unchanged.
fn refuses(cluster: &mut Cluster, path: &str, args: &[&str], reason: &str) {
    let node = cluster.rig.node(0);
    wait_for("routes of all link-local addresses", PATIENT, || {
        has_link_routes(&kernel_state(node)).then_some(())
    })
    .unwrap();
    let before = kernel(node);
    let start = |command: &mut std::process::Command| {
        command.args(args).env("PATH", path);
    };
    cluster.start_agent_by(0, start).unwrap();
    let status = cluster.agent(0).unwrap().wait(PATIENT).unwrap();
    let log = cluster.agent(0).unwrap().log().unwrap();
    assert!(!status.success(), "{log}");
    assert!(log.lines().last().unwrap().contains(reason), "{log}");
    assert_eq!(kernel(cluster.rig.node(0)), before, "{args:?}");
}

/// Asserts that IPv4 follows a change of endpoints, that the agent is ready and healthy, and that it logs the
/// reason once.
fn serves_ipv4_alone(cluster: &mut Cluster, path: &str, pods: [&EchoPod; 2], reason: &str) {
    let [a, b] = pods;
    let from = &a.pod;
    cluster
        .start_agent_by(0, |command| {
            command.env("PATH", path);
        })
        .unwrap();
    cluster.wait_until_ready(0).unwrap();
    publish(cluster, &[(b, 0)]);
    assert_eq!(answers(from, WEB[0]).as_deref(), Ok("b"));
    publish(cluster, &[(a, 0), (b, 0)]);
    wait_for("an eligible node", PATIENT, || {
        health(cluster, "/healthz").ok()
    })
    .unwrap();
    let livez = health(cluster, "/livez").unwrap();
    assert_eq!(livez["status"]["IPv4"]["healthy"], true, "{livez}");
    assert_eq!(livez["status"]["IPv6"], Value::Null, "{livez}");
    let log = cluster.agent(0).unwrap().log().unwrap();
    let said = log
        .lines()
        .filter(|line| line.contains("IPv6 is not served"));
    let said: Vec<_> = said.collect();
    assert!(said.last().unwrap().contains(reason), "{said:?}");
    println!("{said:?}");
}

#[test]
fn an_agent_whose_ip6tables_fail_serves_ipv4_alone() {
    if skip("an_agent_whose_ip6tables_fail_serves_ipv4_alone") {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    put_node(&cluster);
    let a = cluster.add_pod(0, "a").unwrap();
    let b = cluster.add_pod(0, "b").unwrap();
    publish(&cluster, &[(&a, 0), (&b, 0)]);
    assert!(answers(&a.pod, WEB[1]).is_ok());
    let stubs = cluster.directory().join("stubs");
    let path = path_with(&stubs, &IP6TABLES, "echo broken by a test >&2; exit 1");

    cluster.agent(0).unwrap().kill9().unwrap();
    let of_v6 = |cluster: &Cluster| {
        let all = kernel(cluster.rig.node(0));
        let lines = all.lines().filter(|line| line.contains("fd00:10:96::"));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = of_v6(&cluster);
    serves_ipv4_alone(&mut cluster, &path, [&a, &b], "broken by a test");
    // State that an earlier agent programmed stays in effect.
    assert_eq!(of_v6(&cluster), before);
    assert!(answers(&a.pod, WEB[1]).is_ok());

    cluster.agent(0).unwrap().kill9().unwrap();
    let nothing = "this node can serve nothing: IPv6: ip6tables";
    refuses(&mut cluster, &path, &["--families=ipv6"], nothing);
    let part = "--families names a family that this node cannot serve: IPv6: ip6tables";
    refuses(&mut cluster, &path, &["--families=ipv4,ipv6"], part);
    if lane::lane() == "uml" {
        // The guest's kernel was built without this scheduler.
        let scheduler = "this node can serve nothing: IPv4: IPVS refuses virtual servers with the \
                         scheduler twos: ENOENT";
        let all = std::env::var("PATH").unwrap();
        for path in [&path, &all] {
            refuses(&mut cluster, path, &["--scheduler=twos"], scheduler);
        }
    }

    // With working tools IPv6 is served again.
    cluster.start_agent_with(0, &["--families=dual"]).unwrap();
    cluster.wait_until_ready(0).unwrap();
    publish(&cluster, &[(&b, 0)]);
    for ip in WEB {
        assert_eq!(answers(&a.pod, ip).as_deref(), Ok("b"));
    }
}

#[test]
fn an_agent_with_ipv6_switched_off_serves_ipv4_alone() {
    if skip("an_agent_with_ipv6_switched_off_serves_ipv4_alone") {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    put_node(&cluster);
    let a = cluster.add_pod(0, "a").unwrap();
    let b = cluster.add_pod(0, "b").unwrap();
    let path = std::env::var("PATH").unwrap();
    cluster.agent(0).unwrap().kill9().unwrap();
    cluster.clean_up(0).unwrap();
    let off = [
        ("ipv6/conf/all/disable_ipv6", "1"),
        ("ipv6/conf/default/disable_ipv6", "1"),
    ];
    let namespace = cluster.rig.node(0).namespace().clone();
    namespace.sysctl(&off).unwrap();
    let reason = "net.ipv6.conf.lo.disable_ipv6 is 1";
    serves_ipv4_alone(&mut cluster, &path, [&a, &b], reason);
    let sets = namespace.exec(&["ipset", "list", "-n"]).unwrap();
    assert!(sets.contains("KUBE-CLUSTER-IP"), "{sets}");
    assert!(!sets.contains("KUBE-6-"), "{sets}");
    cluster.agent(0).unwrap().kill9().unwrap();
    let nothing = "this node can serve nothing: IPv6: IPv6 is switched off";
    refuses(&mut cluster, &path, &["--families=ipv6"], nothing);

    // IPv6 disabled on one interface alone does not count: the others have it.
    namespace
        .sysctl(&[("ipv6/conf/lo/disable_ipv6", "0")])
        .unwrap();
    cluster.start_agent(0).unwrap();
    cluster.wait_until_ready(0).unwrap();
    let livez = health(&cluster, "/livez").unwrap();
    assert_eq!(livez["status"]["IPv6"]["healthy"], true, "{livez}");
}

#[test]
fn named_families_are_served() {
    if skip("named_families_are_served") {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    publish(&cluster, &[(&a, 0)]);
    for (families, served) in [("ipv4", [true, false]), ("ipv6", [false, true])] {
        cluster.agent(0).unwrap().kill9().unwrap();
        cluster.clean_up(0).unwrap();
        let flag = format!("--families={families}");
        cluster.start_agent_with(0, &[&flag]).unwrap();
        cluster.wait_until_ready(0).unwrap();
        let here = kernel(cluster.rig.node(0));
        let names = ["create KUBE-CLUSTER-IP ", "create KUBE-6-CLUSTER-IP "];
        for ((name, vip), served) in names.into_iter().zip(WEB).zip(served) {
            assert_eq!(here.contains(name), served, "{families}: {name}\n{here}");
            let by = here.lines().any(|line| line.contains(vip));
            assert_eq!(by, served, "{families}: {vip}\n{here}");
        }
    }
}

/// The iptables tools fail for a while.
#[test]
fn an_agent_is_not_ready_while_nothing_can_be_programmed() {
    if skip("an_agent_is_not_ready_while_nothing_can_be_programmed") {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    put_node(&cluster);
    cluster.agent(0).unwrap().kill9().unwrap();
    let directory = cluster.directory().join("stubs");
    let broken = directory.join("broken");
    let tools: Vec<String> = ["iptables", "ip6tables"]
        .iter()
        .flat_map(|tool| ["", "-nft", "-legacy"].map(|variant| format!("{tool}{variant}-restore")))
        .collect();
    let tools: Vec<&str> = tools.iter().map(String::as_str).collect();
    let script = format!(
        "[ -e {} ] && exit 1\nPATH=${{PATH#*:}}\nexec \"${{0##*/}}\" \"$@\"",
        broken.display()
    );
    let path = path_with(&directory, &tools, &script);
    let start = |command: &mut std::process::Command| {
        command.arg("--sync-period=2").env("PATH", path);
    };
    cluster.start_agent_by(0, start).unwrap();
    cluster.wait_until_ready(0).unwrap();
    wait_for("a healthy agent", PATIENT, || {
        health(&cluster, "/healthz").ok()
    })
    .unwrap();

    std::fs::write(&broken, "").unwrap();
    for tool in ["iptables", "ip6tables"] {
        let flush = [tool, "-t", "nat", "-F", "KUBE-SERVICES"];
        cluster.rig.node(0).exec(&flush).unwrap();
    }
    let ready = || http_get(cluster.rig.node(0).namespace(), 10249, "/readyz");
    wait_for("an agent that is not ready", PATIENT, || ready().err()).unwrap();
    for path in ["/healthz", "/livez"] {
        wait_for("an unhealthy agent", PATIENT, || {
            health(&cluster, path).err()
        })
        .unwrap();
    }
    std::fs::remove_file(&broken).unwrap();
    wait_for("a ready agent", PATIENT, || ready().ok()).unwrap();
    for path in ["/healthz", "/livez"] {
        wait_for("a healthy agent", PATIENT, || health(&cluster, path).ok()).unwrap();
    }
}

/// Uses the machine's own kernel: a guest's has IPVS.
#[test]
fn an_agent_without_ipvs_exits_with_an_error() {
    let name = "an_agent_without_ipvs_exits_with_an_error";
    if lane::has_ipvs() || !lane::provides(name, &[Need::Root]) {
        return;
    }
    let rig = Rig::new(RigConfig {
        nodes: 1,
        clients: 1,
    })
    .unwrap();
    let node = rig.node(0);
    let before = wait_for("routes of all IPv6 addresses", PATIENT, || {
        let state = kernel_state(node);
        has_ipv6_routes(&state).then_some(state)
    })
    .unwrap();
    let directory = tempfile::tempdir().unwrap();
    let objects: PathBuf = directory.path().join("objects");
    std::fs::create_dir(&objects).unwrap();
    let mut command = std::process::Command::new(program("portolan-agent").unwrap());
    command
        .args(["--node-name=x", "--source=file", "--file"])
        .arg(&objects)
        .arg("--state-dir")
        .arg(directory.path());
    let mut agent =
        Process::spawn(node.namespace(), "agent", &mut command, directory.path()).unwrap();
    let status = agent.wait(PATIENT).unwrap();
    let log = agent.log().unwrap();
    assert!(!status.success(), "{log}");
    let last = log.lines().last().unwrap();
    assert!(
        last.contains("this node can serve nothing: the kernel has no IPVS"),
        "{log}"
    );
    assert!(
        last.contains("on the host, run `modprobe -a ip_vs"),
        "{log}"
    );
    assert_eq!(kernel_state(node), before);
}

/// The sets, rules, addresses and routes of a host, as tools print them.
fn kernel_state(host: &Host) -> [String; 5] {
    let tools = [
        vec!["ipset", "save"],
        vec!["iptables-save"],
        vec!["ip6tables-save"],
        vec!["ip", "-o", "addr"],
        vec!["ip", "route", "show", "table", "all"],
    ];
    tools.map(|command| host.exec(&command).unwrap())
}

/// Returns `true` if a host has its link-local address, and a local route for each IPv6 address: the kernel adds both
/// some time after the commands that cause them.
fn has_ipv6_routes(state: &[String; 5]) -> bool {
    let [.., addresses, routes] = state;
    let addresses = addresses.lines().filter_map(|line| {
        let (_, rest) = line.split_once(" inet6 ")?;
        rest.split('/').next()
    });
    let addresses: Vec<&str> = addresses.collect();
    let has_route = |address: &&str| routes.contains(&format!("\nlocal {address} dev "));
    let is_of_link = |address: &&str| address.starts_with("fe80:");
    addresses.iter().any(is_of_link) && addresses.iter().all(has_route)
}

/// Returns `true` if each link-local address of a host has its local route, which comes when no neighbour has claimed
/// the address for a second or two.
fn has_link_routes([.., addresses, routes]: &[String; 5]) -> bool {
    let mut of_links = addresses
        .lines()
        .filter_map(|line| line.split_once(" inet6 fe80:"));
    of_links.all(|(_, rest)| {
        let rest = rest.split('/').next().unwrap_or_default();
        routes.contains(&format!("\nlocal fe80:{rest} dev "))
    })
}

/// A part of the rules of Calico's Felix.
const CALICO: [&str; 3] = [
    "iptables -t mangle -N cali-PREROUTING",
    "iptables -t mangle -A PREROUTING -j cali-PREROUTING",
    "iptables -t mangle -A cali-PREROUTING -m mark --mark 0x10000/0x10000 -j ACCEPT",
];

#[test]
fn agent_beside_calico_uses_other_bits_of_the_mark() {
    if skip("agent_beside_calico_uses_other_bits_of_the_mark") {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    put_node(&cluster);
    cluster.wait_until_ready(0).unwrap();
    let end = |cluster: &Cluster| {
        let save = ["iptables-save", "-t", "mangle"];
        let rules = cluster.rig.node(0).exec(&save).unwrap();
        let mut rules = rules.lines().map(str::to_owned);
        let rule = rules.find(|rule| rule.starts_with("-A KUBE-SHORT-CIRCUIT-END "));
        rule.unwrap()
    };
    assert!(end(&cluster).ends_with("--set-xmark 0x0/0x3fff0000"));
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    for command in CALICO {
        let words: Vec<_> = command.split(' ').collect();
        cluster.rig.node(0).exec(&words).unwrap();
    }
    let path = std::env::var("PATH").unwrap();
    let asked = ["--short-circuit-mask=0x3fff0000"];
    refuses(&mut cluster, &path, &asked, "Calico uses the bits 0x10000");
    cluster.start_agent_with(0, &[]).unwrap();
    cluster.wait_until_ready(0).unwrap();
    let rule = end(&cluster);
    assert!(rule.ends_with("--set-xmark 0x0/0x3fff"), "{rule}");
    let log = cluster.agent(0).unwrap().log().unwrap();
    assert!(log.contains("Calico: 0xffff0000"), "{log}");
}
