// SPDX-License-Identifier: Apache-2.0

//! A director that stands still for a while, and one whose clock jumps: no check fails by that.

use std::time::Duration;

use portolan_e2e::clock;
use portolan_e2e::cluster::{PATIENT, http_get};
use portolan_e2e::lane::{self, Need};
use portolan_e2e::programs::AGENT_ADMIN;
use portolan_e2e::rig::{EchoServer, Host, Process};
use portolan_e2e::wait::wait_for;
use rustix::process::Signal;

use super::standby::pass;
use super::world::{CHECKS, PORT, World, balancer, serve};

/// Time for which the agent stands still: that of many checks, of their timeouts too.
const STILL: Duration = Duration::from_secs(20);
const DAY: i64 = 24 * 60 * 60;

/// A director with two checked backends and a sorry server, which would serve if both were down.
struct Director {
    world: World,
    agent: Process,
    _serving: [EchoServer; 3],
    /// Its virtual servers at the start.
    before: String,
}

impl Director {
    fn start() -> Self {
        let world = World::new(3);
        let (a, b, sorry) = (world.real(0), world.real(1), world.real(2));
        let spec = format!(
            "  scheduler: rr\n  checks: {CHECKS}\n  sorryServer: {{address: {}, port: {PORT}}}\n",
            sorry.v4()
        );
        world.write(&balancer(&spec, &[(a, ""), (b, "")]));
        let serving = [serve(a), serve(b), serve(sorry)];
        let agent = world.start_agent();
        world.wait_for_answers(&[a.name(), b.name()]);
        let before = world.ipvsadm();
        Self {
            world,
            agent,
            _serving: serving,
            before,
        }
    }

    /// Numbers of checks that passed, and that failed.
    fn checks(&self) -> [f64; 2] {
        let director: &Host = self.world.director();
        let metrics = http_get(director.namespace(), AGENT_ADMIN, "/metrics").unwrap();
        let mut counts = [0.0; 2];
        for line in metrics.lines() {
            if let Some(labels) = line.strip_prefix("portolan_agent_checks_total{") {
                let count: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
                for (result, sum) in ["pass", "fail"].iter().zip(&mut counts) {
                    let is_it = labels.contains(&format!("result=\"{result}\""));
                    *sum += if is_it { count } else { 0.0 };
                }
            }
        }
        counts
    }

    /// Asserts that many checks after a moment pass, that none fails, and that nothing has changed in the kernel.
    fn assert_unharmed(&self, what: &str, [passed, failed]: [f64; 2]) {
        let is_checked = || (self.checks()[0] >= passed + 20.0).then_some(());
        wait_for("checks", PATIENT, is_checked).unwrap();
        assert_eq!(self.checks()[1], failed, "{what}: checks failed");
        assert_eq!(self.world.ipvsadm(), self.before, "{what}");
    }
}

#[test]
fn a_director_that_stands_still_has_no_false_verdict() {
    if !lane::provides("director", &[Need::Root, Need::Ipvs]) {
        return;
    }
    let director = Director::start();
    let before = director.checks();
    director.agent.signal(Signal::STOP).unwrap();
    pass(STILL);
    director.agent.signal(Signal::CONT).unwrap();
    director.assert_unharmed("stopped", before);
}

#[test]
fn a_clock_that_jumps_makes_no_false_verdict() {
    let name = "a_clock_that_jumps_makes_no_false_verdict";
    if !clock::is_of_guest() {
        println!("SKIP {name}: sets the clock, so it needs a machine of its own");
        return;
    }
    if !lane::provides(name, &[Need::Root, Need::Ipvs]) {
        return;
    }
    let director = Director::start();
    for days in [1, -1] {
        let before = director.checks();
        clock::jump(days * DAY).unwrap();
        director.assert_unharmed("the clock jumped", before);
    }
}
