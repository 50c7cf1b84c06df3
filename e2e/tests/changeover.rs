// SPDX-License-Identifier: Apache-2.0

//! A node changes over between our dataplanes under load, there and back, also after an agent was killed in
//! between: no request fails, and no connection ends. What the former dataplane left is retired.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::net::SocketAddr;
use std::ops::Range;
use std::process::Command;
use std::time::Duration;

use portolan_e2e::ask::address;
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, http_get};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{ports, service, slices};
use portolan_e2e::rig::{Connection, Family, Host, Load, LoadConfig, Protocol, evidence};
use portolan_e2e::wait::{retry, wait_for, wait_with_pauses};
use serde_json::json;

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const NODE_PORT: u16 = 30080;
/// With externalTrafficPolicy Local, and no endpoint on the first node: IPVS reaches it there by a mark.
const LOCAL: [&str; 2] = ["10.96.0.11", "fd00:10:96::11"];
const LOCAL_EXTERNAL: [&str; 2] = ["203.0.113.10", "2001:db8:113::10"];

/// The deadline of an answer, with a whole cluster on one emulated processor.
const PROMPT: Duration = Duration::from_secs(20);

/// The families in which this kernel has nftables.
fn families() -> Vec<Family> {
    let has = |family: &Family| {
        let name = match family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        };
        let rules = format!(
            "table {name} portolan-lane {{ chain post {{ type nat hook postrouting priority 99; \
             masquerade fully-random; }}; }}"
        );
        let checked = Command::new("nft").args(["--check", &rules]).output();
        checked.is_ok_and(|checked| checked.status.success())
    };
    Family::ALL.into_iter().filter(has).collect()
}

/// Clients of the first node: new connections, and connections that stay open.
struct Clients {
    ways: Vec<(Host, Vec<SocketAddr>)>,
    loads: Vec<(String, Load)>,
}

impl Clients {
    fn start(cluster: &Cluster, visitor: &EchoPod, families: &[Family]) -> Self {
        let node: &Host = cluster.rig.node(0);
        let pod: &Host = &visitor.pod;
        let of = |ips: [&'static str; 2]| {
            let families = families.iter();
            families
                .map(move |family| address(ips, *family, 80))
                .collect::<Vec<_>>()
        };
        let node_ports = families
            .iter()
            .map(|f| node.socket(*f, NODE_PORT))
            .collect();
        let all = |a: Vec<_>, b: Vec<_>| [a, b].concat();
        let ways = vec![
            (pod.clone(), all(of(WEB), of(LOCAL_EXTERNAL))),
            (node.clone(), all(of(WEB), of(LOCAL_EXTERNAL))),
            (cluster.rig.client().clone(), node_ports),
        ];
        for (from, targets) in &ways {
            for protocol in Protocol::ALL {
                for to in targets {
                    let what = format!("{protocol:?} from {} to {to}", from.name());
                    wait_for(&what, PATIENT, || from.request(protocol, *to, PROMPT).ok()).unwrap();
                }
            }
        }
        let mut loads = Vec::new();
        for (from, targets) in &ways {
            for protocol in Protocol::ALL {
                let config = LoadConfig {
                    protocol,
                    workers: 1,
                    limit: u64::MAX,
                    pause: Duration::from_millis(50),
                    timeout: PROMPT,
                };
                let load = Load::start(from, targets, config).unwrap();
                loads.push((format!("{} {protocol:?}", from.name()), load));
            }
        }
        Self { ways, loads }
    }

    /// A connection of each kind, with the pod that answers. Their ports are none that the loads get: IPVS finds a connection
    /// by client and endpoint alone, so that it takes answers for those of a later one from the same port to another
    /// address of the endpoint.
    fn open(&self, ports: &mut Range<u16>) -> Vec<(String, String, Connection)> {
        let mut open = Vec::new();
        for (from, targets) in &self.ways {
            for protocol in Protocol::ALL {
                for to in targets {
                    let port = ports.next().unwrap();
                    let connect = || Connection::open_from(port, protocol, *to, PROMPT);
                    let mut connection = from.namespace().run(connect).unwrap().unwrap();
                    let name = connection.ask().unwrap().name;
                    let what = format!("{protocol:?} {} -> {to}", from.name());
                    open.push((what, name, connection));
                }
            }
        }
        open
    }

    /// Waits until each load has had more answers, and none has failed.
    fn wait_for_more(&self, when: &str) {
        let before: Vec<_> = self.loads.iter().map(|(_, load)| load.answered()).collect();
        for ((name, load), before) in self.loads.iter().zip(before) {
            wait_for(&format!("{when}: more answers to {name}"), PATIENT, || {
                (load.answered() > before + 20 || load.failed() > 0).then_some(())
            })
            .unwrap();
            let failures = load.failures();
            assert!(failures.is_empty(), "{when}: {name}: {failures:?}");
        }
    }

    fn stop(self) {
        for (name, load) in self.loads {
            let report = load.stop();
            println!(
                "{name}: {} requests, {} failed, slowest {}",
                report.requests,
                report.failures.len(),
                report.slowest
            );
            assert!(report.failures.is_empty(), "{name}: {:?}", report.failures);
            assert!(report.requests > 100, "{name}");
        }
    }
}

/// Asserts that all connections are open. A UDP flow may get another pod.
fn assert_open(when: &str, open: &mut [(String, String, Connection)]) {
    for (what, name, connection) in open {
        let answer = connection.ask();
        let answer = answer.unwrap_or_else(|error| {
            let port = connection.local_address().unwrap().port();
            let lines = evidence::of_port(port).join("\n    ");
            panic!("{when}: {what} from port {port}, {name}: {error}\n    {lines}")
        });
        let is_same = answer.name == *name || what.starts_with("Udp");
        assert!(is_same, "{when}: {what}: {name}, now {}", answer.name);
    }
}

/// The objects of our IPVS dataplane in these families.
fn of_ipvs(node: &Host, families: &[Family]) -> Vec<String> {
    let text = |command: &str| {
        let words: Vec<_> = command.split(' ').collect();
        retry(command, PATIENT, || node.exec(&words)).unwrap()
    };
    let mut found = Vec::new();
    let mut add = |text: String, is_ours: &dyn Fn(&str) -> bool| {
        let lines = text.lines().filter(|line| is_ours(line));
        found.extend(lines.map(str::to_owned));
    };
    for family in families {
        let is_v6 = *family == Family::V6;
        let (version, rules) = if is_v6 {
            ("-6", "ip6tables-save")
        } else {
            ("-4", "iptables-save")
        };
        let routes = format!("ip {version} route show table local proto 99");
        add(text(&routes), &|_| true);
        add(text(rules), &|line| line.contains("KUBE-"));
        add(text("ipset list -n"), &|line| {
            line.starts_with("KUBE-") && line.starts_with("KUBE-6-") == is_v6
        });
        add(text("ipvsadm -Sn"), &|line| {
            line.starts_with("-A") && (line.contains('[') || line.contains(" -6")) == is_v6
        });
    }
    found
}

fn tables(node: &Host) -> String {
    let tables = node.exec(&["nft", "list", "tables"]).unwrap();
    let ours = tables.lines().filter(|line| line.ends_with(" portolan"));
    ours.collect::<Vec<_>>().join("\n")
}

/// Restarts the agent of the first node; by force, as a crash would end it.
fn restart(cluster: &mut Cluster, dataplane: &'static str, by_force: bool, args: &[&str]) {
    let agent = cluster.agent(0).unwrap();
    match by_force {
        true => agent.kill9().unwrap(),
        false => agent.stop(PATIENT).unwrap(),
    };
    cluster.program(dataplane);
    cluster.start_agent_with(0, args).unwrap();
    cluster.wait_until_ready(0).unwrap();
}

/// A cluster on IPVS with two Services, and a pod on its first node.
fn cluster() -> (Cluster, Vec<EchoPod>, EchoPod) {
    let cluster = Cluster::on("ipvs").unwrap();
    let pods = vec![
        cluster.add_pod(0, "a").unwrap(),
        cluster.add_pod(1, "b").unwrap(),
    ];
    let visitor = cluster.add_pod(0, "v").unwrap();
    let web = json!({ "type": "NodePort", "ports": ports(Some(NODE_PORT)) });
    let local = json!({ "type": "NodePort", "externalTrafficPolicy": "Local",
        "externalIPs": LOCAL_EXTERNAL, "ports": ports(Some(30081)) });
    let objects = [
        vec![service("web", WEB, web), service("local", LOCAL, local)],
        slices("web", &[(&pods[0], 0), (&pods[1], 1)]),
        slices("local", &[(&pods[1], 1)]),
    ];
    cluster.put("web.json", &objects.concat()).unwrap();
    // Only IPVS brings routes: without it, a node reaches Services by its default route.
    for (ip, family) in WEB
        .iter()
        .chain(&LOCAL_EXTERNAL)
        .zip(Family::ALL.iter().cycle())
    {
        let gateway = cluster.rig.client().address(*family);
        cluster.rig.node(0).add_route(ip, gateway).unwrap();
    }
    (cluster, pods, visitor)
}

#[test]
fn a_node_changes_over_and_back_without_a_failed_request() {
    let test = "a_node_changes_over_and_back_without_a_failed_request";
    if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let families = families();
    if families.is_empty() {
        lane::missing(test, "needs a kernel with nftables");
        return;
    }
    let (mut cluster, _pods, visitor) = cluster();
    let clients = Clients::start(&cluster, &visitor, &families);
    // Below those that connections get.
    let mut ports = 20_000..30_000;
    let mut open = clients.open(&mut ports);
    clients.wait_for_more("on ipvs");

    restart(&mut cluster, "nftables", false, &[]);
    clients.wait_for_more("on nftables");
    assert_open("on nftables", &mut open);
    let node = cluster.rig.node(0);
    assert!(
        !of_ipvs(node, &families).is_empty(),
        "open connections need them"
    );
    wait_for("no rule to lead packets past nftables", PATIENT, || {
        let rules = of_ipvs(node, &families).join("\n");
        (!rules.contains("KUBE-LOCAL-POLICY")).then_some(())
    })
    .unwrap();
    clients.wait_for_more("without marks");

    // Killed in between; the next agent finds what is left.
    restart(&mut cluster, "nftables", true, &[]);
    clients.wait_for_more("after a crash");
    assert_open("after a crash", &mut open);
    drop(open);
    restart(&mut cluster, "nftables", false, &["--drain-timeout=1s"]);
    let node = cluster.rig.node(0);
    let pause = Duration::from_millis(500);
    wait_with_pauses("nothing of IPVS to be left", PATIENT, pause, || {
        of_ipvs(node, &families).is_empty().then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {:#?}", of_ipvs(node, &families)));
    clients.wait_for_more("without ipvs");

    let mut open = clients.open(&mut ports);
    restart(&mut cluster, "ipvs", false, &[]);
    let node = cluster.rig.node(0);
    wait_with_pauses("the tables to go", PATIENT, pause, || {
        tables(node).is_empty().then_some(())
    })
    .unwrap();
    clients.wait_for_more("back on ipvs");
    assert_open("back on ipvs", &mut open);

    restart(&mut cluster, "auto", false, &[]);
    let mode = http_get(cluster.rig.node(0).namespace(), 10249, "/proxyMode").unwrap();
    assert_eq!(mode, "ipvs", "the node has objects of it");
    clients.wait_for_more("on auto");
    assert_open("on auto", &mut open);
    clients.stop();
    drop(open);

    // A cleanup removes both, in the middle of a change.
    restart(&mut cluster, "nftables", false, &["--drain-timeout=15m"]);
    cluster.agent(0).unwrap().kill9().unwrap();
    assert!(!tables(cluster.rig.node(0)).is_empty());
    println!("{}", cluster.clean_up(0).unwrap());
    let node = cluster.rig.node(0);
    assert_eq!(tables(node), "");
    assert_eq!(of_ipvs(node, &Family::ALL), Vec::<String>::new());
}
