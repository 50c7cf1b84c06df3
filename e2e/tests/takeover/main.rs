// SPDX-License-Identifier: Apache-2.0

//! Agents take over from a real kube-proxy in each of its modes under load, and hand back to one, from IPVS to
//! IPVS mode and from nftables to any: no request fails and no connection ends. From IPVS mode to IPVS, clients with affinity keep their pod.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod kernel;
mod world;

use portolan_e2e::clients::Clients;
use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};

use world::{GONE, World};

#[test]
fn a_takeover_from_kube_proxy_and_the_way_back_fail_no_request() {
    let Some(mut world) = World::start_or_skip(
        "a_takeover_from_kube_proxy_and_the_way_back_fail_no_request",
        "ipvs",
    ) else {
        return;
    };
    let proxies = world.start_proxies("ipvs");
    world.print_state(0);
    let before: Vec<_> = (0..2)
        .map(|node| kernel::connections(world.node(node)))
        .collect();
    let mut clients = world.start_clients();
    clients.wait_for_more("under kube-proxy");

    // Agents wait beside running kube-proxies, which have their ports, and go on by themselves.
    let flag = ["--takeover=kube-proxy"];
    world.start_waiting_agents();
    clients.wait_for_more("beside waiting agents");

    drop(proxies);
    world.delete_service(GONE);
    for (node, before) in before.iter().enumerate() {
        world.wait_until_taken_over(node);
        kernel::assert_nothing_of_kube_proxy(world.node(node));
        kernel::assert_kept(world.node(node), before);
        clients.assert_kept("taken over");
        clients.wait_for_more("taken over");
    }
    world.cluster.wait_until_programmed(0).unwrap();

    // With the flag still set, a restarted agent finds nothing to take over.
    world.cluster.agent(0).unwrap().kill9().unwrap();
    world.cluster.start_agent_with(0, &flag).unwrap();
    world.cluster.wait_until_ready(0).unwrap();
    let metrics = world.cluster.agent_metrics(0).unwrap();
    assert!(
        metrics.contains("portolan_agent_objects_changed_total 0\n"),
        "{metrics}"
    );
    clients.wait_for_more("after a restart");

    for node in 0..2 {
        let agent = world.cluster.agent(node).unwrap();
        agent.stop(PATIENT).unwrap();
    }
    let _proxies = world.start_proxies("ipvs");
    clients.assert_kept("kube-proxy is back");
    for node in 0..2 {
        println!("{}", world.hand_over(node, "ipvs").unwrap());
        kernel::assert_nothing_of_ours(world.node(node));
        clients.wait_for_more("handed over");
    }
    clients.assert_kept("handed over");
    stop(clients);
}

/// The rules of such a kube-proxy rewrite packets before IPVS sees them.
fn take_over_from_rules(test: &str, mode: &str, dataplane: &'static str) {
    let Some(mut world) = World::start_or_skip(test, dataplane) else {
        return;
    };
    world.add_routes();
    let proxies = world.start_proxies(mode);
    kernel::assert_rules_of(mode, world.node(0));
    let mut clients = world.start_clients();
    clients.wait_for_more("under kube-proxy");
    world.start_waiting_agents();

    drop(proxies);
    clients.wait_for_more("beside the rules of a stopped kube-proxy");
    for node in 0..2 {
        world.wait_until_taken_over(node);
        kernel::assert_no_rules_of_kube_proxy(world.node(node));
        kernel::assert_serves(dataplane, world.node(node));
        clients.wait_for_more("taken over");
    }
    world.cluster.wait_until_programmed(0).unwrap();
    // Affinity begins anew: it was kept by the rules.
    clients.assert_open("taken over");
    // With the flag still set, a restarted agent finds nothing to take over.
    world.cluster.agent(0).unwrap().kill9().unwrap();
    let flag = ["--takeover=kube-proxy"];
    world.cluster.start_agent_with(0, &flag).unwrap();
    world.cluster.wait_until_ready(0).unwrap();
    let metrics = world.cluster.agent_metrics(0).unwrap();
    assert!(
        metrics.contains("portolan_agent_objects_changed_total 0\n"),
        "{metrics}"
    );
    clients.wait_for_more("after a restart");
    if dataplane == "nftables" {
        give_back_to(mode, &mut world, &mut clients);
    }
    stop(clients);
}

fn stop(clients: Clients) {
    for (name, report) in clients.stop() {
        println!(
            "{name}: {} requests, slowest {}, by {:?}",
            report.requests, report.slowest, report.by_name
        );
    }
}

/// The way back from nftables to a kube-proxy in any mode, which shares nothing with them.
fn give_back_to(mode: &str, world: &mut World, clients: &mut Clients) {
    for node in 0..2 {
        world.cluster.agent(node).unwrap().stop(PATIENT).unwrap();
    }
    let error = world.hand_over(0, "nftables").unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("kube-proxy has not begun yet"), "{error}");
    let proxies = world.start_proxies(mode);
    clients.wait_for_more("beside a kube-proxy that is back");
    for node in 0..2 {
        // Flags of the other dataplane delete nothing, whatever the mode of kube-proxy is.
        let error = format!("{:#}", world.hand_over(node, "ipvs").unwrap_err());
        assert!(error.contains("name --dataplane nftables"), "{error}");
        println!("{}", world.hand_over(node, "nftables").unwrap());
        kernel::assert_no_table_of_ours(world.node(node));
        // A cleanup that is repeated, as after a reboot, finds nothing.
        world.hand_over(node, "nftables").unwrap();
        clients.wait_for_more("handed over");
    }
    clients.assert_open("handed over");
    drop(proxies);
}

#[test]
fn a_takeover_from_iptables_mode_fails_no_request() {
    let test = "a_takeover_from_iptables_mode_fails_no_request";
    take_over_from_rules(test, "iptables", "ipvs");
}

#[test]
fn a_takeover_from_nftables_mode_fails_no_request() {
    let test = "a_takeover_from_nftables_mode_fails_no_request";
    take_over_from_rules(test, "nftables", "ipvs");
}

#[test]
fn nftables_take_over_from_iptables_mode_without_a_failed_request() {
    let test = "nftables_take_over_from_iptables_mode_without_a_failed_request";
    take_over_from_rules(test, "iptables", "nftables");
}

#[test]
fn nftables_take_over_from_nftables_mode_without_a_failed_request() {
    let test = "nftables_take_over_from_nftables_mode_without_a_failed_request";
    take_over_from_rules(test, "nftables", "nftables");
}

/// IPVS is in between: the connections of the kube-proxy go on in it.
#[test]
fn from_ipvs_mode_to_nftables_one_start_fails_no_request() {
    let test = "from_ipvs_mode_to_nftables_one_start_fails_no_request";
    if !lane::provides(test, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let Some(mut world) = World::start_or_skip(test, "nftables") else {
        return;
    };
    world.add_routes();
    let proxies = world.start_proxies("ipvs");
    let mut clients = world.start_clients();
    clients.wait_for_more("under kube-proxy");
    world.start_waiting_agents();

    drop(proxies);
    world.delete_service(GONE);
    // One is killed in between, and the next one goes on with whatever it finds.
    let flag = ["--takeover=kube-proxy"];
    let agent = world.cluster.agent(1).unwrap();
    agent.wait_for_log("has begun", PATIENT).unwrap();
    agent.kill9().unwrap();
    clients.wait_for_more("after a crash");
    world.cluster.start_agent_with(1, &flag).unwrap();
    for node in 0..2 {
        world.wait_until_taken_over(node);
        kernel::wait_for_table(world.node(node));
        kernel::assert_no_device_of_kube_proxy(world.node(node));
        clients.wait_for_more("changed over");
    }
    // Affinity begins anew.
    clients.assert_open("changed over");
    // Killed once more, while connections are open in IPVS.
    world.cluster.agent(0).unwrap().kill9().unwrap();
    world.cluster.start_agent_with(0, &flag).unwrap();
    world.cluster.wait_until_ready(0).unwrap();
    clients.wait_for_more("after a crash");
    clients.assert_open("after a crash");

    clients.close();
    let soon = ["--takeover=kube-proxy", "--drain-timeout=1s"];
    for node in 0..2 {
        world.cluster.agent(node).unwrap().stop(PATIENT).unwrap();
        world.cluster.start_agent_with(node, &soon).unwrap();
        world.cluster.wait_until_ready(node).unwrap();
        kernel::wait_for_end_of_ipvs(world.node(node));
        kernel::assert_no_rules_of_kube_proxy(world.node(node));
        kernel::assert_serves("nftables", world.node(node));
        clients.wait_for_more("without ipvs");
    }
    give_back_to("ipvs", &mut world, &mut clients);
    stop(clients);
}
