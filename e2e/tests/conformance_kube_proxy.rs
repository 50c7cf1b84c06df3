// SPDX-License-Identifier: Apache-2.0

//! The conformance table on a real kube-proxy: a check of the oracle, and the exact list of differences of each
//! of its modes.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::time::{Duration, Instant};

use portolan_e2e::cluster::control;
use portolan_e2e::conformance::{
    Difference, Kind, KnownDifferences, Outcome, Patience, Policy, Row, Situation, Source, Stage,
};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{Protocol, has_sctp};
use portolan_e2e::servers::{ApiOnLan, KubeProxies, Servers};
use serde_json::{Value, json};
use tempfile::TempDir;

/// The modes, each with its known differences.
const MODES: [(&str, &str); 2] = [
    ("ipvs", include_str!("../conformance/kube-proxy-ipvs.txt")),
    (
        "nftables",
        include_str!("../conformance/kube-proxy-nftables.txt"),
    ),
];

/// The modes to test: the lane's, or those of `PORTOLAN_KUBE_PROXY_MODES`.
fn modes() -> impl Iterator<Item = (&'static str, &'static str)> {
    let asked = std::env::var("PORTOLAN_KUBE_PROXY_MODES").unwrap_or_else(|_| {
        // The built kernel of lane `uml` has nftables too, but lane `netns` plays that mode. The package's kernel has no
        // nftables that translates. IPVS mode starts thousands of programs, which takes too long on an emulated
        // processor. A machine's own kernel may have no IPVS.
        let of_lane = match lane::lane().as_str() {
            "uml" => "ipvs",
            "debian" | "netns" => "nftables",
            _ => "ipvs,nftables",
        };
        of_lane.into()
    });
    MODES
        .into_iter()
        .filter(move |(mode, _)| asked.split(',').any(|word| word == *mode))
}

#[test]
fn a_real_kube_proxy_differs_only_where_we_know_why() {
    const NAME: &str = "a_real_kube_proxy_differs_only_where_we_know_why";
    let directory = TempDir::new().unwrap();
    let start = Instant::now();
    let need = match modes().any(|(mode, _)| mode == "ipvs") {
        true => Need::Ipvs,
        false => Need::Nftables,
    };
    let Some((rig, servers)) = Servers::in_rig_for_or_skip(NAME, need, directory.path()) else {
        return;
    };
    let stage = Stage::new(&rig).unwrap();
    let control = control(&rig);
    println!("servers run after {:.1} s", start.elapsed().as_secs_f32());
    let kubectl = |args: &[&str], objects: &[Value]| {
        let list = json!({ "apiVersion": "v1", "kind": "List", "items": objects }).to_string();
        let run = || servers.kubectl_with_input(args, &list);
        control.namespace().run(run).unwrap().unwrap();
    };
    // Not by `apply`, which limits a node to one address of each type.
    let rows = rows();
    let objects = stage.objects(&rig, &rows);
    kubectl(&["create", "-f", "-"], &objects);
    let mut with_status = objects;
    with_status.retain(|object| object.get("status").is_some());
    let replace = ["replace", "--subresource=status", "-f", "-"];
    kubectl(&replace, &with_status);
    println!(
        "objects are there after {:.1} s",
        start.elapsed().as_secs_f32()
    );

    let api = ApiOnLan::start(&servers, control, directory.path()).unwrap();
    let mut unexplained = Vec::new();
    let mut modes = modes().peekable();
    while let Some((mode, list)) = modes.next() {
        if mode == "nftables" && rig.node(0).exec(&["nft", "--version"]).is_err() {
            lane::missing(NAME, "kube-proxy's nftables mode needs the program nft");
            continue;
        }
        let proxies = KubeProxies::start(mode, &rig, api.url(), directory.path()).unwrap();
        println!("{mode} runs after {:.1} s", start.elapsed().as_secs_f32());
        unexplained.extend(compare(mode, &stage, &rows, list));
        println!("{mode} played after {:.1} s", start.elapsed().as_secs_f32());
        // The rig removes the leftovers of the last one.
        if modes.peek().is_some() {
            proxies.clean_up(&rig).unwrap();
        }
    }
    assert!(unexplained.is_empty(), "{unexplained:#?}");
}

/// All rows, unless IPVS mode is tested: it starts a program for each entry of each set, which
/// takes minutes on an emulated machine. Then only the rows of TCP in which it differs most.
fn rows() -> Vec<Row> {
    use Situation::{Both, HereOnly, Nowhere, ThereOnly};
    let all = !modes().any(|(mode, _)| mode == "ipvs");
    let mut rows = Row::all();
    rows.retain(|row| row.protocol != Protocol::Sctp || has_sctp());
    rows.retain(|row| {
        let basic = matches!(row.situation, Both | HereOnly | ThereOnly | Nowhere);
        // kube-proxy hangs in many of these rows, each of which then takes as long as an answer
        // may.
        let hangs =
            (row.kind, row.policy, row.source) == (Kind::NodePort, Policy::Local, Source::PodThere);
        (all && !hangs) || (basic && row.protocol == Protocol::Tcp)
    });
    rows
}

/// The time within which a synchronized kube-proxy learns the properties of its node.
const LATE: Duration = Duration::from_secs(120);

/// Runs rows, and repeats unexplained ones for a while.
fn play(stage: &Stage, rows: &[Row], known: &KnownDifferences) -> Vec<Outcome> {
    let play = |rows: &[Row]| stage.play(rows, Patience::of_lane()).unwrap();
    let is_explained =
        |outcome: &Outcome| outcome.is_right() || known.reason(&outcome.into()).is_some();
    let mut outcomes = play(rows);
    let start = Instant::now();
    while start.elapsed() < LATE {
        let (explained, late): (Vec<_>, Vec<_>) = outcomes.into_iter().partition(is_explained);
        outcomes = explained;
        if late.is_empty() {
            break;
        }
        println!("{} rows are played again", late.len());
        let rows: Vec<Row> = late.iter().map(|outcome| outcome.row).collect();
        outcomes.extend(play(&rows));
    }
    outcomes.sort_by_key(|outcome| outcome.row);
    outcomes
}

/// Runs rows, prints each difference, and returns the unexplained ones.
fn compare(mode: &str, stage: &Stage, rows: &[Row], list: &str) -> Vec<String> {
    let known = KnownDifferences::parse(list).unwrap();
    let outcomes = play(stage, rows, &known);
    let wrong: Vec<_> = outcomes
        .iter()
        .filter(|outcome| !outcome.is_right())
        .collect();
    let differences: Vec<Difference> = wrong.iter().map(|outcome| (*outcome).into()).collect();
    let mut unexplained = Vec::new();
    for (outcome, difference) in wrong.iter().zip(&differences) {
        let Difference { row, seen } = difference;
        let line = format!(
            "difference {mode} {row}: expected {}, kube-proxy {seen}",
            outcome.expected
        );
        match known.reason(difference) {
            Some(reason) => println!("{line} [{reason}]"),
            None => {
                println!("{line} [unexplained]");
                unexplained.push(line);
            }
        }
    }
    for entry in known.unused(&differences) {
        println!("no longer different {mode}: {entry}");
    }
    println!(
        "kube-proxy {mode}: {} rows, {} as expected, {} known differences, {} unexplained",
        rows.len(),
        rows.len() - wrong.len(),
        wrong.len() - unexplained.len(),
        unexplained.len()
    );
    unexplained
}
