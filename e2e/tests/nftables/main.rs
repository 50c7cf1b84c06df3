// SPDX-License-Identifier: Apache-2.0

//! Agents that program nftables, on this machine's own kernel: the conformance table, affinity, repairs, limits. Guests
//! play the table too.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod affinity;
mod large;
mod marks;
mod neighbours;
mod ranges;
mod readings;
mod refusals;
mod removal;
mod takeover;
mod traces;

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use portolan_e2e::ask::{PROMPT, address, answers, ways};
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT, http_get};
use portolan_e2e::conformance::{Patience, Row, Stage, report};
use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{service, slices};
use portolan_e2e::programs::program;
use portolan_e2e::rig::{Host, Protocol, Rig, RigConfig, has_sctp};
use portolan_e2e::wait::wait_for;
use portolan_model::Family;
use portolan_netlink::nftables::{Nftables, TableContent};
use serde_json::{Value, json};

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const TABLE: &str = "portolan";

/// A node with these addresses of Services, which the node itself serves too.
fn node_with(addresses: &[&str]) -> Rig {
    let config = RigConfig {
        nodes: 1,
        clients: 0,
    };
    let rig = Rig::new(config).unwrap();
    for address in addresses {
        let add = ["ip", "addr", "add", address, "dev", "lo"];
        rig.node(0).exec(&add).unwrap();
    }
    rig
}

fn skip(test: &str) -> bool {
    !lane::provides(test, &[Need::Root, Need::Nftables])
}

#[test]
fn every_row_of_the_table() {
    if skip("every_row_of_the_table") {
        return;
    }
    let is_playable = |row: &Row| row.protocol != Protocol::Sctp || has_sctp();
    let rows: Vec<Row> = Row::all().into_iter().filter(is_playable).collect();
    // A machine's own kernel may lack SCTP. Those of the guests have it.
    println!("{} of {} rows", rows.len(), Row::all().len());
    if ["uml", "debian"].contains(&lane::lane().as_str()) {
        assert_eq!(rows.len(), Row::all().len());
    }
    let cluster = Cluster::on("nftables").unwrap();
    let stage = Stage::new(&cluster.rig).unwrap();
    let objects = stage.objects(&cluster.rig, &rows);
    cluster.put("table.json", &objects).unwrap();
    let start = Instant::now();
    let outcomes = stage.play(&rows, Patience::of_lane()).unwrap();
    let seconds = start.elapsed().as_secs_f64();
    let wrong = report(&outcomes);
    for line in &wrong {
        println!("wrong {line}");
    }
    figure("conformance_rows_of_nftables_played_in", seconds, "s", None);
    assert!(wrong.is_empty(), "{} rows went wrong", wrong.len());
}

/// Three pods behind the Service `web`.
fn web(spec: &Value) -> (Cluster, Vec<EchoPod>) {
    let cluster = Cluster::on("nftables").unwrap();
    let pod = |(name, node): (&&str, usize)| cluster.add_pod(node, name).unwrap();
    let pods: Vec<_> = ["a", "b", "c"].iter().zip([0, 1, 0]).map(pod).collect();
    put(
        &cluster,
        spec,
        &[(&pods[0], 0), (&pods[1], 1), (&pods[2], 0)],
    );
    (cluster, pods)
}

fn put(cluster: &Cluster, spec: &Value, pods: &[(&EchoPod, usize)]) {
    let objects = [vec![service("web", WEB, spec.clone())], slices("web", pods)].concat();
    cluster.put("web.json", &objects).unwrap();
}

/// Our tables on a node, as the kernel has them.
fn ours(node: &Host) -> [Option<TableContent>; 2] {
    let read =
        || Family::ALL.map(|family| Nftables::open().unwrap().content(family, TABLE).unwrap());
    node.namespace().run(read).unwrap()
}

/// Changes of all tables of a node so far.
fn generation(node: &Host) -> u32 {
    let read = || Nftables::open().unwrap().generation().unwrap();
    node.namespace().run(read).unwrap()
}

#[test]
fn a_client_stays_with_the_pod_that_was_drawn_for_it() {
    if skip("a_client_stays_with_the_pod_that_was_drawn_for_it") {
        return;
    }
    let spec = json!({ "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": { "clientIP": { "timeoutSeconds": 600 } } });
    let (cluster, pods) = web(&spec);
    let node = |name: &str| usize::from(name == "b");
    let mut drawn = BTreeSet::new();
    for number in 0..8 {
        let visitor = cluster.add_pod(0, &format!("v{number}")).unwrap();
        for (family, protocol) in ways() {
            let web = address(WEB, family, 80);
            let ask = || visitor.pod.request(protocol, web, PROMPT).unwrap().name;
            let first = ask();
            for _ in 0..10 {
                assert_eq!(ask(), first, "{family:?} {protocol:?} {number}");
            }
            drawn.insert(first);
        }
    }
    assert!(
        drawn.len() > 1,
        "32 clients and ways have all drawn {drawn:?}"
    );

    // A pod that goes leaves its clients to the others.
    let visitor = cluster.add_pod(0, "last").unwrap();
    for (family, protocol) in ways() {
        let web = address(WEB, family, 80);
        let ask = || visitor.pod.request(protocol, web, PROMPT).unwrap().name;
        let first = ask();
        let stays: Vec<_> = pods
            .iter()
            .filter(|pod| pod.pod.name() != first)
            .map(|pod| (pod, node(pod.pod.name())))
            .collect();
        put(&cluster, &spec, &stays);
        let second = wait_for("another pod to answer", PATIENT, || {
            Some(ask()).filter(|name| *name != first)
        });
        assert_eq!(ask(), second.unwrap());
        let all: Vec<_> = pods.iter().map(|pod| (pod, node(pod.pod.name()))).collect();
        put(&cluster, &spec, &all);
    }
}

#[test]
fn an_agent_that_restarts_changes_nothing_and_mends_what_others_changed() {
    if skip("an_agent_that_restarts_changes_nothing_and_mends_what_others_changed") {
        return;
    }
    let (mut cluster, _pods) = web(&json!({}));
    let visitor = cluster.add_pod(0, "v").unwrap();
    let before = ours(cluster.rig.node(0));
    assert!(before.iter().all(Option::is_some));
    let programmed = generation(cluster.rig.node(0));
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    // Only a notification can tell of a change within a second.
    let seldom = ["--check-period=1h", "--sync-period=1h"];
    cluster.start_agent_with(0, &seldom).unwrap();
    cluster.wait_until_ready(0).unwrap();
    let node = cluster.rig.node(0);
    assert_eq!(generation(node), programmed, "nothing was to be done");

    let theirs = "add table ip somebody; add chain ip somebody else; \
                  add rule ip somebody else meta l4proto tcp counter";
    node.exec(&["nft", theirs]).unwrap();
    let others = || {
        node.exec(&["nft", "list", "tables"])
            .unwrap()
            .contains("somebody")
    };
    let list = || node.exec(&["nft", "list", "table", "ip", "somebody"]);
    let before_changes = list().unwrap();
    let mut counted = repaired(&cluster);
    assert_eq!(counted, 0, "tables of others are nobody's business");
    let mut times = Vec::new();
    for command in [
        "delete element ip portolan cluster-ips { 10.96.0.10 }",
        "flush map ip6 portolan services",
        "flush chain ip portolan nat-in",
        "add chain ip portolan stray",
        "chain ip portolan nat-in { policy drop; }",
        "add table ip6 portolan { flags dormant; }",
        "delete table ip6 portolan",
        "flush ruleset",
    ] {
        node.exec(&["nft", command]).unwrap();
        let start = Instant::now();
        wait_for(&format!("{command:?} to be repaired"), PATIENT, || {
            (ours(node) == before).then_some(())
        })
        .unwrap();
        times.push(start.elapsed());
        println!("{command}: repaired after {:?}", start.elapsed());
        counted = wait_for("the repair to be counted", PATIENT, || {
            Some(repaired(&cluster)).filter(|now| *now > counted)
        })
        .unwrap();
        match command {
            "flush ruleset" => assert!(!others()),
            _ => assert_eq!(list().unwrap(), before_changes, "{command}"),
        }
        for (family, protocol) in ways() {
            let web = address(WEB, family, 80);
            answers(&visitor.pod, protocol, web, &["a", "b", "c"]);
        }
    }

    times.sort();
    let median = times[times.len() / 2];
    let milliseconds = median.as_secs_f64() * 1000.0;
    let goal = Goal::AtMost(1000.0);
    figure("nftables_repaired_after", milliseconds, "ms", Some(goal));
    assert!(median < Duration::from_secs(1), "{times:?}");

    node.exec(&["nft", "add table ip somebody"]).unwrap();
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    cluster.clean_up(0).unwrap();
    let node = cluster.rig.node(0);
    assert_eq!(ours(node), [None, None]);
    let listed = node.exec(&["nft", "list tables"]).unwrap();
    assert_eq!(listed.trim(), "table ip somebody");
}

fn repaired(cluster: &Cluster) -> u64 {
    let metrics = cluster.agent_metrics(0).unwrap();
    let name = "portolan_agent_drift_repaired_total ";
    let value = metrics.lines().find_map(|line| line.strip_prefix(name));
    value.unwrap().parse().unwrap()
}

#[test]
fn auto_takes_nftables_without_ipvs_and_says_why() {
    let test = "auto_takes_nftables_without_ipvs_and_says_why";
    if skip(test) {
        return;
    }
    if lane::has_ipvs() {
        lane::missing(test, "needs a kernel without IPVS");
        return;
    }
    let mut cluster = Cluster::on("auto").unwrap();
    let says = |cluster: &Cluster, reason: &str| {
        let metrics = cluster.agent_metrics(0).unwrap();
        let line = format!(
            "portolan_agent_dataplane_info{{dataplane=\"nftables\",reason=\"{reason}\"}} 1"
        );
        assert!(metrics.lines().any(|found| found == line), "{metrics}");
        let get = |path| http_get(cluster.rig.node(0).namespace(), 10249, path).unwrap();
        assert_eq!(get("/proxyMode"), "nftables");
        let status: Value = serde_json::from_str(&get("/debug/status")).unwrap();
        assert_eq!(status["dataplane"], "nftables");
        assert_eq!(status["dataplane_reason"], reason);
    };
    says(&cluster, "probe");
    let log = cluster.agent(0).unwrap().log().unwrap();
    assert!(log.contains("dataplane chosen"), "{log}");
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    cluster.start_agent(0).unwrap();
    cluster.wait_until_ready(0).unwrap();
    says(&cluster, "present");
}

#[test]
fn auto_ends_with_every_reason_where_nothing_can_be_used() {
    let test = "auto_ends_with_every_reason_where_nothing_can_be_used";
    if skip(test) {
        return;
    }
    let rig = Rig::new(RigConfig::CLUSTER).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let agent = program("portolan-agent").unwrap();
    let directory = directory.path().to_str().unwrap();
    let script =
        "setpriv --no-new-privs --inh-caps=-all --bounding-set=-all \"$@\" 2>&1; echo code $?";
    let (file, state) = (
        format!("--file={directory}"),
        format!("--state-dir={directory}"),
    );
    let said = rig.node(0).exec(&[
        "sh",
        "-c",
        script,
        "sh",
        agent.to_str().unwrap(),
        "--node-name=x",
        "--source=file",
        &file,
        &state,
        "--admin-listen=127.0.0.1:0",
        "--debug-listen=",
        "--dataplane=auto",
    ]);
    let said = said.unwrap();
    for expected in [
        "code 69",
        "nftables: needs CAP_NET_ADMIN in the host's network namespace",
        "ipvs: ",
    ] {
        assert!(said.contains(expected), "{said}");
    }
}
