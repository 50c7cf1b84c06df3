// SPDX-License-Identifier: Apache-2.0

//! Source ranges that come and go while permitted clients send requests.

use std::time::Duration;

use portolan_e2e::ask::address;
use portolan_e2e::cluster::PATIENT;
use portolan_e2e::objects::{merge, service, slices};
use portolan_e2e::rig::{Family, Load, LoadConfig, Protocol};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

use crate::{WEB, web};

const BALANCED: [&str; 2] = ["203.0.113.10", "2001:db8:113::10"];

/// Services that change together with the ranges, so that the kernel takes some time.
const CROWD: u32 = 2_000;

/// The kernel shows elements of sets with intervals last: at the end of a transaction, when its other changes are
/// already in force.
#[test]
fn a_permitted_client_is_served_while_ranges_come_and_go() {
    if crate::skip("a_permitted_client_is_served_while_ranges_come_and_go") {
        return;
    }
    let (cluster, pods) = web(&json!({}));
    let pods = [(&pods[0], 0), (&pods[1], 1)];
    let client = cluster.rig.client();
    let put = |ranges: &Value, is_crowd_outside: bool| {
        let mut balanced = service("web", WEB, json!({ "type": "LoadBalancer" }));
        let ingress = BALANCED.map(|ip| json!({ "ip": ip }));
        merge(
            &mut balanced,
            json!({
                "spec": { "loadBalancerSourceRanges": ranges },
                "status": { "loadBalancer": { "ingress": ingress } },
            }),
        );
        let crowd = (0..CROWD).map(|number| {
            let ips = |v4: &str, v6: &str| {
                let v4 = format!("{v4}.{}.{}", number / 250, number % 250 + 1);
                [v4, format!("{v6}::{:x}", number + 1)]
            };
            let [v4, v6] = ips("10.100", "fd00:10:100");
            let external = is_crowd_outside.then(|| ips("198.18", "2001:db8:18"));
            let spec = json!({ "externalIPs": external.iter().flatten().collect::<Vec<_>>() });
            service(&format!("crowd-{number}"), [&v4, &v6], spec)
        });
        let web = [vec![balanced], slices("web", &pods)].concat();
        let objects: Vec<_> = web.into_iter().chain(crowd).collect();
        cluster.put("web.json", &objects).unwrap();
    };
    let all = json!([]);
    put(&all, false);
    for (ip, family) in BALANCED.into_iter().zip(Family::ALL) {
        let node = cluster.rig.node(0).address(family);
        client.add_route(ip, node).unwrap();
    }

    let config = LoadConfig {
        protocol: Protocol::Udp,
        workers: 4,
        limit: u64::MAX,
        pause: Duration::from_millis(1),
        timeout: Duration::from_secs(5),
    };
    let targets = Family::ALL.map(|family| address(BALANCED, family, 80));
    let load = Load::start(client, &targets, config).unwrap();
    let permitted = json!(["192.168.77.0/24", "fd00:77::/64"]);
    let wider = json!(["192.168.0.0/16", "fd00::/16"]);
    for turn in 0..2 {
        for (ranges, is_crowd_outside) in [
            (&permitted, true),
            (&wider, false),
            (&all, true),
            (&all, false),
        ] {
            put(ranges, is_crowd_outside);
            let before = load.answered();
            let what = format!("turn {turn}: answers with the ranges {ranges}");
            let has_more = || (load.answered() > before + 100).then_some(());
            wait_for(&what, PATIENT, has_more).unwrap();
        }
    }
    let report = load.stop();
    println!("{} requests, slowest {}", report.requests, report.slowest);
    let failures = report.failures;
    assert!(failures.is_empty(), "{}: {failures:?}", failures.len());
}
