// SPDX-License-Identifier: Apache-2.0

//! Checks of a director on standby.

use std::time::{Duration, Instant};

use portolan_e2e::cluster::PATIENT;
use portolan_e2e::lane::{self, Need};
use portolan_e2e::rig::Host;
use portolan_e2e::wait::wait_for;

use super::via::run;
use super::world::{CHECKS, PORT, World, balancer, serve};

/// Many intervals of the checks.
pub(super) const LONG: Duration = Duration::from_secs(5);

/// Lets time pass in which nothing may happen.
pub(super) fn pass(time: Duration) {
    let begin = Instant::now();
    let is_over = || (begin.elapsed() >= time).then_some(());
    wait_for("the end of the time", PATIENT, is_over).unwrap();
}

/// Has a real server count the packets to its port.
fn count_packets(real: &Host) {
    run(
        real,
        &format!("iptables -I INPUT -p tcp --dport {PORT} --syn"),
    );
}

/// Returns the number of connections that have come.
fn connections(real: &Host) -> u64 {
    let listed = real.exec(&["iptables", "-nvxL", "INPUT"]).unwrap();
    let rule = listed.lines().find(|line| line.contains("dpt:")).unwrap();
    rule.split_whitespace().next().unwrap().parse().unwrap()
}

fn command(world: &World, role: &str) {
    let (code, text) = world.ask_agent(&["director", role]);
    assert_eq!(code, Some(0), "{text}");
}

/// Waits until the kernel has real servers with these weights, in any order.
fn wait_for_weights(world: &World, expected: [&str; 2]) {
    let has = || {
        let shown = world.ipvsadm();
        let weights = shown.lines().filter(|line| line.starts_with("-a"));
        let mut weights: Vec<_> = weights
            .filter_map(|line| Some(line.split("-w ").nth(1)?.split(' ').next()?.to_owned()))
            .collect();
        weights.sort();
        (weights == expected).then_some(())
    };
    let waited = wait_for("the weights", PATIENT, has);
    assert!(waited.is_ok(), "expected {expected:?}: {}", world.ipvsadm());
}

#[test]
fn a_director_on_standby_sends_no_checks_and_keeps_every_weight() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let world = World::new(2);
    let (a, b) = (world.real(0), world.real(1));
    let text = balancer(&format!("  checks: {CHECKS}\n"), &[(a, ""), (b, "")]);
    let director = |on_standby| {
        format!(
            "---\napiVersion: portolan.dev/v1alpha1\nkind: Director\nmetadata: {{name: node1}}\n\
             spec: {{checksOnStandby: {on_standby}, vips: {{role: Command}}}}\n"
        )
    };
    world.write(&format!("{text}{}", director(false)));
    let (serving_a, _serving_b) = (serve(a), serve(b));
    for real in [a, b] {
        count_packets(real);
    }
    let mut agent = world.start_agent();
    agent.wait_for_log("programmed", PATIENT).unwrap();
    // On standby from the start: no backend has been checked.
    pass(LONG);
    assert_eq!([a, b].map(connections), [0, 0]);
    wait_for_weights(&world, ["0", "0"]);

    command(&world, "active");
    wait_for_weights(&world, ["1", "1"]);
    command(&world, "standby");
    // Checks that are running may still send packets.
    pass(Duration::from_secs(2));
    let before = [a, b].map(connections);
    assert!(before.iter().all(|packets| *packets > 0), "{before:?}");
    drop(serving_a);
    pass(LONG);
    assert_eq!([a, b].map(connections), before, "no packet of a check");
    wait_for_weights(&world, ["1", "1"]);

    // Soon after the standby, the backend that failed during it is down.
    command(&world, "active");
    wait_for_weights(&world, ["0", "1"]);
    let _serving_a = serve(a);
    wait_for_weights(&world, ["1", "1"]);

    // By default a director on standby checks.
    world.write(&format!("{text}{}", director(true)));
    command(&world, "standby");
    let before = connections(b);
    wait_for("checks on standby", PATIENT, || {
        (connections(b) > before + 5).then_some(())
    })
    .unwrap();
}
