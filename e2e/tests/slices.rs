// SPDX-License-Identifier: Apache-2.0

//! Endpoints that controllers move from slice to slice are always present.

#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use portolan_e2e::ask::address;
use portolan_e2e::cluster::{Cluster, EchoPod, PATIENT};
use portolan_e2e::figure::figure;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{merge, service, slice_of};
use portolan_e2e::rig::{Family, Load, LoadConfig, Namespace, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const ENDPOINTS: u16 = 300;
const SLICES: usize = 3;
/// The number of times that all slices are rewritten.
const MOVES: usize = 12;

/// The address of an endpoint: all are on one pod.
fn endpoint(number: u16) -> Ipv4Addr {
    let [high, low] = number.to_be_bytes();
    Ipv4Addr::new(10, 244, 100 + high, low)
}

/// The Service and its slices at a turn. Each endpoint is in one slice, in another one in the next
/// turn, and in both halfway.
fn objects(turn: usize) -> Vec<Value> {
    let mut objects = vec![service("web", WEB, json!({}))];
    for number in 0..SLICES {
        let is_in = |index: u16| {
            let at =
                |turn: usize| (usize::from(index) + turn / 2 * usize::from(index % 7)) % SLICES;
            at(turn) == number || (turn % 2 == 1 && at(turn + 1) == number)
        };
        let endpoints: Vec<_> = (0..ENDPOINTS)
            .filter(|index| is_in(*index))
            .map(|index| {
                json!({
                    "addresses": [endpoint(index)],
                    "nodeName": Cluster::node_name(0),
                    "conditions": { "ready": true },
                })
            })
            .collect();
        let mut slice = slice_of("web", Family::V4, &endpoints);
        merge(
            &mut slice["metadata"],
            json!({ "name": format!("web-{number}") }),
        );
        objects.push(slice);
    }
    objects
}

/// The real servers of the Service with a weight.
fn present(node: &Namespace) -> BTreeSet<IpAddr> {
    let servers = node.exec(&["ipvsadm", "-Ln", "-t", "10.96.0.10:80"]);
    let parse = |line: &str| {
        let words: Vec<_> = line.split_whitespace().collect();
        let [_, address, _, weight, ..] = words[..] else {
            return None;
        };
        let (ip, _) = address.rsplit_once(':')?;
        (weight == "1").then(|| ip.parse().ok())?
    };
    servers.unwrap().lines().filter_map(parse).collect()
}

#[test]
fn endpoints_that_move_between_slices_stay_programmed() {
    let name = "endpoints_that_move_between_slices_stay_programmed";
    if !lane::provides(name, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let cluster = Cluster::new().unwrap();
    let a = EchoPod::serving(cluster.rig.node(0), "a", &[Protocol::Tcp]).unwrap();
    let visitor = cluster.add_pod(0, "visitor").unwrap();
    let add: Vec<_> = (0..ENDPOINTS)
        .map(|number| format!("addr add {}/32 dev eth0", endpoint(number)))
        .collect();
    a.pod.namespace().ip(&add).unwrap();
    let node = cluster.rig.node(0);
    node.add_route("10.244.100.0/23", a.pod.v4().into())
        .unwrap();
    cluster.put("web.json", &objects(0)).unwrap();
    assert_eq!(present(node.namespace()).len(), usize::from(ENDPOINTS));

    let config = LoadConfig {
        timeout: Duration::from_secs(10),
        limit: u64::MAX,
        ..LoadConfig::default()
    };
    let load = Load::start(&visitor.pod, &[address(WEB, Family::V4, 80)], config).unwrap();
    let (done, looks) = (AtomicBool::new(false), AtomicUsize::new(0));
    let missing = thread::scope(|scope| {
        let watch = scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                let present = present(node.namespace());
                looks.fetch_add(1, Ordering::Relaxed);
                if present.len() != usize::from(ENDPOINTS) {
                    return Some(usize::from(ENDPOINTS) - present.len());
                }
            }
            None
        });
        for turn in 1..=MOVES {
            let text = json!({ "kind": "List", "items": objects(turn) });
            cluster.write("web.json", &text.to_string()).unwrap();
            // Nothing changes for the nodes, so reads and requests are the only measure of
            // progress.
            let (answered, looked) = (load.answered(), looks.load(Ordering::Relaxed));
            wait_for("requests and looks", PATIENT, || {
                let looked_on = looks.load(Ordering::Relaxed) >= looked + 3;
                let gone = watch.is_finished();
                (gone || (looked_on && load.answered() >= answered + 50)).then_some(())
            })
            .unwrap();
        }
        done.store(true, Ordering::Relaxed);
        watch.join().unwrap()
    });
    assert_eq!(missing, None, "so many real servers were missing at once");
    let report = load.stop();
    assert!(report.failures.is_empty(), "{:?}", report.failures.first());

    // The controller still reads the files: removing an endpoint removes a real server.
    let mut fewer = objects(MOVES);
    let endpoints = fewer[1]["endpoints"].as_array_mut().unwrap();
    endpoints.pop().unwrap();
    cluster.put("web.json", &fewer).unwrap();
    assert_eq!(present(node.namespace()).len(), usize::from(ENDPOINTS) - 1);
    figure(
        "slice_moves_requests",
        f64::from(u32::try_from(report.requests).unwrap()),
        "requests",
        None,
    );
}
