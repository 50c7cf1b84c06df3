// SPDX-License-Identifier: Apache-2.0

//! Portolan as users install it: images that run as pods of real kubelets, without a kube-proxy.

#![allow(clippy::unwrap_used, reason = "a test")]

mod world;

use std::time::{Duration, Instant};

use portolan_e2e::figure::figure;
use portolan_e2e::rig::{Load, LoadConfig};
use portolan_e2e::wait::wait_for;

use self::world::{AGENT, CONTROLLER, KUBERNETES, World};

/// Requests that are answered before and after a change under load.
const REQUESTS: u64 = 200;

#[test]
fn a_cluster_without_kube_proxy_is_served_through_its_life() {
    let begun = Instant::now();
    let Some(mut world) = World::start_or_skip("a_cluster_without_kube_proxy_is_served") else {
        return;
    };
    seconds("install_nodes_ready", begun);

    // Long before the pods: a kubelet gives them variables for the Services that it has seen.
    world.create_services();
    let begun = Instant::now();
    world.install();
    seconds("install_ready", begun);
    world.start_pods();
    pods_reach_services(&world);
    pods_have_the_variables_that_are_told(&world);

    agents_are_replaced_under_load(&world);
    a_broken_image_stops_the_roll_out(&world);
    nodes_start_from_the_table_on_disk(&mut world);
    uninstalling_leaves_the_kernel_until_cleanup(&world);
}

fn seconds(name: &str, begun: Instant) {
    figure(name, begun.elapsed().as_secs_f64(), "s", None);
}

/// Pods of both nodes reach all endpoints of a Service with their own address, and the API server.
fn pods_reach_services(world: &World) {
    for client in world.clients() {
        let mut missing = world.servers();
        wait_for("answers of all endpoints", World::LIMIT, || {
            let answer = world.ask(&client)?;
            assert_eq!(answer.source, client.v4());
            missing.remove(&answer.name);
            missing.is_empty().then_some(())
        })
        .unwrap_or_else(|error| panic!("{}: {error}, {missing:?}", client.name()));
        assert!(world.connects(&client, KUBERNETES), "{}", client.name());
    }
}

/// `portolanctl env` prints what the kubelets have given the pods.
fn pods_have_the_variables_that_are_told(world: &World) {
    let told = world.told_variables();
    for name in [
        "REDIS_MASTER_SERVICE_PORT_SENTINEL_UDP",
        "WEB_PORT_80_TCP_ADDR",
        "KUBERNETES_SERVICE_HOST",
    ] {
        assert!(told.contains_key(name), "{name}: {told:#?}");
    }
    for pod in world.servers() {
        assert_eq!(world.variables(&pod), told, "{pod}");
    }
}

/// Starts requests from a pod, calls `change` while they flow, and expects no failure.
fn under_load(world: &World, what: &str, change: impl FnOnce()) {
    let client = world.clients().remove(0);
    let config = LoadConfig {
        workers: 1,
        pause: Duration::from_millis(20),
        timeout: Duration::from_secs(20),
        ..LoadConfig::default()
    };
    let load = Load::start(&client, &[world::WEB], config).unwrap();
    let more = |what: &str| {
        let goal = load.answered() + REQUESTS;
        wait_for(what, World::LIMIT, || {
            (load.answered() >= goal).then_some(())
        })
        .unwrap();
    };
    more("requests before the change");
    change();
    more("requests after the change");
    let report = load.stop();
    assert!(report.failures.is_empty(), "{what}: {:?}", report.failures);
    figure(
        &format!("install_{what}_requests"),
        report.requests as f64,
        "requests",
        None,
    );
}

fn agents_are_replaced_under_load(world: &World) {
    under_load(world, "upgrade", || world.upgrade());
}

/// The roll-out stops at the first node, whose kernel forwards on; the way back needs no more than
/// the former image.
fn a_broken_image_stops_the_roll_out(world: &World) {
    under_load(world, "rollback", || {
        let before = world.agents();
        world.break_agents();
        wait_for("one agent to be replaced", World::LIMIT, || {
            let agents = world.agents();
            (agents.len() == before.len() && agents != before).then_some(())
        })
        .unwrap();
        pods_reach_services(world);
        let kept = world.agents().intersection(&before).count();
        assert_eq!(kept, before.len() - 1, "{before:?} {:?}", world.agents());
        world.roll_back();
    });
}

/// All nodes lose their processes and their kernel state while no controller runs.
fn nodes_start_from_the_table_on_disk(world: &mut World) {
    world.scale_controller(0);
    world.restart_nodes_with_empty_kernels();
    let begun = Instant::now();
    for number in [0, 1] {
        let node = world.node(number);
        wait_for("the API server's VIP on a node", World::LIMIT, || {
            world.connects(&node, KUBERNETES).then_some(())
        })
        .unwrap_or_else(|error| panic!("{error}: {}", world.describe()));
    }
    seconds("install_cold_start", begun);
    world.scale_controller(1);
    world.rolled_out(CONTROLLER);
    world.rolled_out(AGENT);
    world.start_pods();
    pods_reach_services(world);
}

fn uninstalling_leaves_the_kernel_until_cleanup(world: &World) {
    world.uninstall();
    pods_reach_services(world);
    for number in [0, 1] {
        world.clean_up(number);
        assert_eq!(world.node(number).kernel_state().unwrap(), [].into());
    }
}
