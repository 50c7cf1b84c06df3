// SPDX-License-Identifier: Apache-2.0

//! Rules about all backends together: quorum with hysteresis, the idle sorry server, the healthy share, and slow start.

use std::collections::BTreeMap;

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::{EchoServer, Host, Process};
use portolan_e2e::wait::wait_for;
use serde_json::Value;

use super::world::{CHECKS, PORT, World, balancer, serve};

/// States of the backends by address, as `status` tells them.
fn states(world: &World) -> BTreeMap<String, String> {
    let (code, text) = world.ask_agent(&["status", "web", "-o", "json"]);
    assert_eq!(code, Some(0), "{text}");
    let status: Value = serde_json::from_str(&text).unwrap();
    let backends = status["balancers"][0]["backends"].as_array().unwrap();
    let state = |backend: &Value| {
        let kept = if backend["kept"] == true {
            " (kept)"
        } else {
            ""
        };
        let [address, state] = ["address", "state"].map(|field| backend[field].as_str().unwrap());
        (address.to_owned(), format!("{state}{kept}"))
    };
    backends.iter().map(state).collect()
}

/// Weights in the kernel by address.
fn weights(world: &World) -> BTreeMap<String, u32> {
    let shown = world.ipvsadm();
    let lines = shown.lines().filter(|line| line.starts_with("-a "));
    let weight = |line: &str| {
        let after = |option: &str| line.split(option).nth(1)?.split(' ').next();
        Some((after(" -r ")?.to_owned(), after(" -w ")?.parse().ok()?))
    };
    lines.map(|line| weight(line).unwrap()).collect()
}

fn address(host: &Host) -> String {
    format!("{}:{PORT}", host.v4())
}

/// Waits until each host is in this state, and has this weight in the kernel.
fn wait_for_all(world: &World, expected: &[(&Host, &str, u32)]) {
    let is_so = || {
        let (states, weights) = (states(world), weights(world));
        let is_right = |(host, state, weight): &(&Host, &str, u32)| {
            let address = address(host);
            states.get(&address).is_none_or(|there| there == state)
                && weights.get(&address) == Some(weight)
        };
        expected.iter().all(is_right).then_some(())
    };
    let waited = wait_for("the states and weights", PATIENT, is_so);
    assert!(waited.is_ok(), "{:?}, {:?}", states(world), weights(world));
}

/// A director with so many backends that serve and are checked.
fn start(count: u8, spec: &str) -> (World, Vec<EchoServer>, Process) {
    let world = World::new(count + 1);
    let reals = || (0..count).map(|number| world.real(usize::from(number)));
    let serving = reals().map(serve).collect();
    let spec = spec.replace("SORRY", &world.real(usize::from(count)).v4().to_string());
    let backends: Vec<_> = reals().map(|real| (real, "")).collect();
    world.write(&balancer(&format!("  checks: {CHECKS}\n{spec}"), &backends));
    let mut agent = world.start_agent();
    agent.wait_for_log("programmed", PATIENT).unwrap();
    (world, serving, agent)
}

#[test]
fn a_quorum_is_gained_above_and_lost_below_it_by_the_hysteresis() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let spec = format!(
        "  scheduler: rr\n  health: {{quorum: 2, hysteresis: 1}}\n  \
         sorryServer: {{address: SORRY, port: {PORT}, keepIdle: true}}\n"
    );
    let (world, mut serving, _agent) = start(3, &spec);
    let [a, b, c, sorry] = [0, 1, 2, 3].map(|number| world.real(number));
    let _sorry = serve(sorry);
    // The sorry server has no state of its own, and stays in the kernel.
    wait_for_all(
        &world,
        &[(a, "up", 1), (b, "up", 1), (c, "up", 1), (sorry, "", 0)],
    );

    // One is below the quorum of 2, and not below 2 - 1.
    drop(serving.drain(..2));
    wait_for_all(
        &world,
        &[(a, "down", 0), (b, "down", 0), (c, "up", 1), (sorry, "", 0)],
    );
    assert_eq!(world.count(6), [(c.name().to_owned(), 6)].into());
    serving.clear();
    wait_for_all(
        &world,
        &[
            (a, "down", 0),
            (b, "down", 0),
            (c, "down", 0),
            (sorry, "", 1),
        ],
    );
    assert_eq!(world.count(6), [(sorry.name().to_owned(), 6)].into());

    // Two are the quorum, and less than 2 + 1.
    serving.extend([a, b].map(serve));
    wait_for_all(
        &world,
        &[(a, "up", 0), (b, "up", 0), (c, "down", 0), (sorry, "", 1)],
    );
    assert_eq!(world.count(6), [(sorry.name().to_owned(), 6)].into());
    serving.push(serve(c));
    wait_for_all(
        &world,
        &[(a, "up", 1), (b, "up", 1), (c, "up", 1), (sorry, "", 0)],
    );
    world.wait_for_answers(&[a.name(), b.name(), c.name()]);
}

#[test]
fn backends_that_fail_last_keep_their_weight_below_the_healthy_share() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let spec = "  scheduler: rr\n  health: {minimumHealthyPercent: 60}\n";
    let (world, mut serving, _agent) = start(3, spec);
    let [a, b, c] = [0, 1, 2].map(|number| world.real(number));
    wait_for_all(&world, &[(a, "up", 1), (b, "up", 1), (c, "up", 1)]);
    drop(serving.remove(0));
    wait_for_all(&world, &[(a, "down", 0), (b, "up", 1), (c, "up", 1)]);
    // A third is too little.
    drop(serving.remove(0));
    wait_for_all(
        &world,
        &[(a, "down", 0), (b, "down (kept)", 1), (c, "up", 1)],
    );
    drop(serving.remove(0));
    wait_for_all(
        &world,
        &[(a, "down", 0), (b, "down (kept)", 1), (c, "down (kept)", 1)],
    );
    serving.extend([a, b].map(serve));
    wait_for_all(&world, &[(a, "up", 1), (b, "up", 1), (c, "down", 0)]);
    world.wait_for_answers(&[a.name(), b.name()]);
}

#[test]
fn the_weight_of_a_backend_that_came_back_rises() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let spec = "  scheduler: wrr\n  health: {slowStart: 5s}\n";
    let (world, mut serving, _agent) = start(2, spec);
    let [a, b] = [0, 1].map(|number| world.real(number));
    // Steps of a weight of 1 need a larger one. The first result is no return.
    wait_for_all(&world, &[(a, "up", 100), (b, "up", 100)]);
    drop(serving.pop());
    wait_for_all(&world, &[(a, "up", 100), (b, "down", 0)]);
    serving.push(serve(b));
    let (mut seen, of_b) = (Vec::new(), address(b));
    let has_risen = || {
        let weight = weights(&world)[&of_b];
        if weight > 0 && seen.last() != Some(&weight) {
            seen.push(weight);
        }
        (weight == 100).then_some(())
    };
    wait_for("the whole weight", PATIENT, has_risen).unwrap();
    // 10, 25, 45, 60, 80 and 100, a second apart; a slow look may miss some.
    assert!(seen.is_sorted() && seen.len() >= 3, "{seen:?}");
    let known = [10, 25, 45, 60, 80, 100];
    assert!(seen.iter().all(|weight| known.contains(weight)), "{seen:?}");
    wait_for_all(&world, &[(a, "up", 100), (b, "up", 100)]);
}
