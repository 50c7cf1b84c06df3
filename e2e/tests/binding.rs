// SPDX-License-Identifier: Apache-2.0

//! Virtual addresses as addresses of a device instead of routes, and the change between both.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

use std::time::Duration;

use portolan_e2e::ask::{address, answers, ways};
use portolan_e2e::cluster::{Cluster, PATIENT};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::objects::{service, slices};
use portolan_e2e::rig::{Family, Host, Load, LoadConfig};
use portolan_e2e::wait::wait_for;
use serde_json::json;

const WEB: [&str; 2] = ["10.96.0.10", "fd00:10:96::10"];
const GONE: [&str; 2] = ["10.96.0.11", "fd00:10:96::11"];

/// For each of two addresses, whether a node has it on the device and has a route of the agent for
/// it.
fn bound(node: &Host, ips: [&str; 2]) -> ([bool; 2], [bool; 2]) {
    let text = |command: &str| {
        let words: Vec<_> = command.split(' ').collect();
        node.exec(&words).unwrap_or_default()
    };
    let addresses = text("ip -o addr show dev portolan-vips");
    let routes = text("ip -4 route show table local proto 99")
        + &text("ip -6 route show table local proto 99");
    let on_device = ips.map(|ip| addresses.contains(&format!(" {ip}/")));
    (
        on_device,
        ips.map(|ip| routes.contains(&format!("local {ip} "))),
    )
}

/// Checks that an address which another program deletes comes back, and that no check before took the device's addresses
/// for a change.
fn lost_address_returns(cluster: &Cluster) {
    let node = cluster.rig.node(0);
    let differences = || -> u32 {
        let metrics = cluster.agent_metrics(0).unwrap();
        let name = "portolan_agent_check_differences_total ";
        let count = metrics.lines().find_map(|line| line.strip_prefix(name));
        count.unwrap().parse().unwrap()
    };
    // Some checks, of which there is one a second.
    let found = wait_for("a difference", Duration::from_secs(4), || {
        (differences() > 0).then_some(())
    });
    assert!(found.is_err(), "nobody has changed anything");
    for (index, length) in [(0, 32), (1, 128)] {
        let address = format!("{}/{length}", GONE[index]);
        node.exec(&["ip", "addr", "del", &address, "dev", "portolan-vips"])
            .unwrap();
        wait_for("the address", PATIENT, || {
            (bound(node, GONE).0 == BOTH).then_some(())
        })
        .unwrap();
        assert!(differences() > 0, "{address}");
    }
}

const BOTH: [bool; 2] = [true; 2];
const NONE: [bool; 2] = [false; 2];

#[test]
fn virtual_addresses_can_be_addresses_and_change_over_without_a_gap() {
    if !lane::provides(
        "virtual_addresses_can_be_addresses_and_change_over_without_a_gap",
        &[Need::Root, Need::Ipvs],
    ) {
        return;
    }
    let mut cluster = Cluster::new().unwrap();
    let a = cluster.add_pod(0, "a").unwrap();
    let b = cluster.add_pod(1, "b").unwrap();
    let visitor = cluster.add_pod(0, "v").unwrap();
    for (name, ips) in [("web", WEB), ("gone", GONE)] {
        let of = slices(name, &[(&a, 0), (&b, 1)]);
        let objects = [vec![service(name, ips, json!({}))], of].concat();
        cluster.put(&format!("{name}.json"), &objects).unwrap();
    }
    assert_eq!(bound(cluster.rig.node(0), WEB), (NONE, BOTH));
    let web = Family::ALL.map(|family| address(WEB, family, 80));
    let config = LoadConfig {
        timeout: PATIENT,
        pause: Duration::from_millis(10),
        ..LoadConfig::default()
    };
    let loads = [&visitor.pod, &**cluster.rig.node(0)]
        .map(|from| Load::start(from, &web, config.clone()).unwrap());
    let wait_for_more = || {
        for load in &loads {
            let before = load.answered();
            let more = || (load.answered() > before + 50).then_some(());
            wait_for("more answers", PATIENT, more).unwrap();
        }
    };
    wait_for_more();
    for (flag, expected) in [("address", (BOTH, NONE)), ("route", (NONE, BOTH))] {
        cluster.agent(0).unwrap().kill9().unwrap();
        let flag = format!("--vip-binding={flag}");
        let flags = [&*flag, "--check-period=1s"];
        cluster.start_agent_with(0, &flags).unwrap();
        cluster.wait_until_ready(0).unwrap();
        let node = cluster.rig.node(0);
        for ips in [WEB, GONE] {
            assert_eq!(bound(node, ips), expected, "{flag}");
        }
        for (family, protocol) in ways() {
            for from in [&visitor.pod, &**node] {
                answers(from, protocol, address(WEB, family, 80), &["a", "b"]);
            }
        }
        wait_for_more();
        cluster.put("gone.json", &[]).unwrap();
        assert_eq!(bound(cluster.rig.node(0), GONE), (NONE, NONE), "{flag}");
        let of = slices("gone", &[(&a, 0)]);
        let objects = [vec![service("gone", GONE, json!({}))], of].concat();
        cluster.put("gone.json", &objects).unwrap();
        assert_eq!(bound(cluster.rig.node(0), GONE), expected, "{flag}");
        if expected.0 == BOTH {
            lost_address_returns(&cluster);
        }
    }
    for load in loads {
        let report = load.stop();
        println!("{} requests, slowest {}", report.requests, report.slowest);
        assert!(report.failures.is_empty(), "{:?}", report.failures);
    }
    let agent = cluster.agent(0).unwrap();
    agent.stop(PATIENT).unwrap();
    cluster
        .start_agent_with(0, &["--vip-binding=address"])
        .unwrap();
    cluster.wait_until_ready(0).unwrap();
    cluster.agent(0).unwrap().stop(PATIENT).unwrap();
    cluster.clean_up(0).unwrap();
    let node = cluster.rig.node(0);
    assert!(node.exec(&["ip", "link", "show", "portolan-vips"]).is_err());
    assert_eq!(bound(node, WEB), (NONE, NONE));
}
