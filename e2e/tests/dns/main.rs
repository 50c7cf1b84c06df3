// SPDX-License-Identifier: Apache-2.0

//! A real CoreDNS that reads Portolan's records in each of the three ways gives the same answers as
//! its own kubernetes plugin, for the same objects of a real kube-apiserver.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test")]

mod agent;
mod ask;
mod clusterset;
mod compare;
mod differences;
mod export;
mod fixtures;
mod programs;
mod questions;
mod world;

use std::collections::BTreeSet;
use std::time::Instant;

use ask::Question;
use compare::{of_exports, with_plugin};
use programs::{PATIENT, an_own_address};
use world::{COPIED, NO_ENDPOINTS, NOT_EMPTY, OF_AGENT, World};

/// One of every `every` questions, from the one with this index; with `PORTOLAN_ALL_CASES`, all.
fn sample(questions: &BTreeSet<Question>, every: usize, from: usize) -> BTreeSet<Question> {
    let every = match std::env::var_os("PORTOLAN_ALL_CASES") {
        Some(_) => 1,
        None => every,
    };
    let some = questions.iter().skip(from % every).step_by(every);
    some.cloned().collect()
}

#[test]
fn coredns_answers_equal_those_of_its_kubernetes_plugin() {
    let start = Instant::now();
    let Some(world) = World::start_or_skip("dns") else {
        return;
    };
    println!("all runs after {:.1} s", start.elapsed().as_secs_f32());
    world.apply(&fixtures::objects(&an_own_address().unwrap()));
    world.set_addresses();
    world.await_slices();
    world.apply(&fixtures::last());
    world.settle_all();
    // The API server publishes no endpoint of its own here.
    let own = Question::a("kubernetes.default.svc.cluster.local.");
    world.settle(&own, true, &[NOT_EMPTY]);

    let exported = questions::of_exports();
    for comparison in of_exports(&world.ports) {
        let equal = comparison.run(&exported, start);
        assert!(equal >= 500, "{}: only {equal}", comparison.what);
    }
    let asked = questions::all();
    for (index, comparison) in with_plugin(&world.ports).iter().enumerate() {
        // Names of Pods differ in the first way only. The ways after it differ in one option each.
        let questions = match index {
            0 => exported.clone(),
            COPIED | OF_AGENT => asked.clone(),
            _ => sample(&asked, 4, index),
        };
        let equal = comparison.run(&questions, start);
        let unequal = questions.len() - equal;
        assert!(
            equal >= 500 && (unequal == 0 || index == NO_ENDPOINTS),
            "{unequal}"
        );
    }
    let second = questions::of_zone("second.test.");
    let with_second = [world.ports.grpc[COPIED], world.ports.agent];
    for comparison in with_plugin(&world.ports) {
        if with_second.contains(&comparison.ours.port()) {
            comparison.run(&sample(&second, 2, 0), start);
        }
    }

    // A change at run time arrives in all ways.
    let delete = [
        "delete",
        "--namespace=testns",
        "service/svc1",
        "endpointslice/hdls1-b",
    ];
    world.servers.kubectl(&delete).unwrap();
    world
        .servers
        .kubectl(&["delete", "namespace", "emptyns"])
        .unwrap();
    for name in ["svc1", "ep1a.svc1"] {
        let gone = Question::a(&format!("{name}.testns.svc.cluster.local."));
        world.settle(&gone, false, &[]);
    }
    let arrived = Instant::now() + PATIENT;
    let all = [with_plugin(&world.ports), of_exports(&world.ports)].concat();
    for (index, comparison) in all.iter().enumerate() {
        comparison.run(&sample(&exported, 2, index), arrived);
    }
    println!("done after {:.1} s", start.elapsed().as_secs_f32());
}
