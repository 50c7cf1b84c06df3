// SPDX-License-Identifier: Apache-2.0

//! Agents take over from a real kube-proxy in IPVS mode and hand back to one under load: no request fails, no
//! connection ends, and clients with affinity keep their pod.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod clients;
mod kernel;
mod world;

use std::time::Duration;

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::wait::wait_with_pauses;

use clients::Clients;
use world::{GONE, World};

#[test]
fn a_takeover_from_kube_proxy_and_the_way_back_fail_no_request() {
    let Some(mut world) =
        World::start_or_skip("a_takeover_from_kube_proxy_and_the_way_back_fail_no_request")
    else {
        return;
    };
    let proxies = world.start_proxies();
    world.print_state(0);
    let before: Vec<_> = (0..2)
        .map(|node| kernel::connections(world.node(node)))
        .collect();
    let mut clients = Clients::start(&world);
    clients.wait_for_more("under kube-proxy");

    // Agents wait beside running kube-proxies, which have their ports, and go on by themselves.
    let flag = ["--takeover=kube-proxy"];
    world.start_waiting_agents();
    clients.wait_for_more("beside waiting agents");

    drop(proxies);
    world.delete_service(GONE);
    for (node, before) in before.iter().enumerate() {
        world.cluster.wait_until_ready(node).unwrap();
        let what = "nothing of kube-proxy's to be left";
        let pause = Duration::from_millis(500);
        wait_with_pauses(what, PATIENT, pause, || {
            let metrics = world.cluster.agent_metrics(node).ok()?;
            let lines = [
                "portolan_agent_takeover_pending 0",
                "portolan_agent_errors_current 0",
            ];
            let has = |line: &&str| metrics.lines().any(|found| found == *line);
            lines.iter().all(has).then_some(())
        })
        .unwrap();
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
    let _proxies = world.start_proxies();
    clients.assert_kept("kube-proxy is back");
    for node in 0..2 {
        println!("{}", world.hand_over(node));
        kernel::assert_nothing_of_ours(world.node(node));
        clients.wait_for_more("handed over");
    }
    clients.assert_kept("handed over");
    clients.stop();
}
