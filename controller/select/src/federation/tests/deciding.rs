// SPDX-License-Identifier: Apache-2.0

//! Clusters that decide about an import which prefers some of them.

use super::rules::{DOWN, World};
use super::*;

const LOCAL_FIRST: (&str, &str) = (
    "TrafficPolicy",
    "{tiers: [{clusters: [{local: true}]}, {rest: true}]}",
);

/// `web` in three clusters, of which `a`, `b` and `c` have 3, 7 and 11 ready pods.
fn world(more: &[(&str, &str)], facts: &ServiceFacts) -> World {
    let mut world = World::new("{}", more);
    world.apply(CLUSTERS.map(|cluster| export(cluster, "web", facts.clone())));
    world
}

/// The pods of a cluster, all of which serve while they terminate.
fn terminating(cluster: &str, pods: u8) -> ObjectChange {
    let endpoints = (1..=pods).map(|number| Endpoint {
        ready: false,
        serving: true,
        terminating: true,
        ..Endpoint::new(pod(cluster, number))
    });
    slice(cluster, "web", endpoints.collect())
}

#[test]
fn enough_ready_endpoints_of_the_first_tier_decide_alone() {
    let mut world = world(&[LOCAL_FIRST], &single());
    assert_eq!(world.weights("a"), [3, 0, 0]);
    // The Service of `c` itself, and the import there.
    let none = slice("c", "web", Vec::new());
    assert_eq!(world.apply([none]), 2);
    assert_eq!(world.weights("c"), [3, 7, 0]);
    assert_eq!(world.weights("a"), [3, 0, 0]);
}

/// `a` is the first of equally old exports.
#[test]
fn endpoints_of_the_winner_decide_for_those_alone_that_use_them() {
    let mut world = world(&[LOCAL_FIRST], &single());
    let only = |number| [slice("a", "web", vec![Endpoint::new(pod("a", number))])];
    // What was used before, with another family, is forgotten.
    world.apply(only(8));
    world.follow_names();
    world.apply(only(9));
    let [own, others @ ..] = CLUSTERS.map(|cluster| key(cluster, "web@clusterset"));
    assert_eq!(world.renamed(), [own.clone()].into());
    world.states(&[("a", DOWN)]);
    assert_eq!(world.renamed(), [own.clone()].into());
    assert_eq!(world.weights("a"), [0, 7, 11]);
    // But its settings are those of all.
    let drained = Service {
        drain_seconds: Some(7),
        ..service("a", "web")
    };
    world.apply([put(Object::Service(drained))]);
    assert_eq!(world.renamed(), others.into_iter().chain([own]).collect());
}

#[test]
fn terminating_endpoints_of_the_first_tier_leave_the_choice_to_ready_ones() {
    let mut world = world(&[LOCAL_FIRST], &single());
    world.apply([terminating("a", 3)]);
    assert_eq!(world.weights("a"), [0, 7, 11], "others are ready");
    world.apply([terminating("b", 7), terminating("c", 11)]);
    assert_eq!(world.weights("a"), [3, 0, 0], "nobody is");
    world.apply([slice("c", "web", vec![Endpoint::new(pod("c", 1))])]);
    assert_eq!(world.weights("a"), [0, 0, 1]);
}

#[test]
fn the_return_of_any_cluster_counts_when_all_were_lost() {
    let mut world = world(&[LOCAL_FIRST], &single());
    world.states(&CLUSTERS.map(|name| (name, DOWN)));
    assert_eq!(world.weights("a"), [3, 0, 0], "the last known endpoints");
    world.states(&[("a", DOWN), ("b", DOWN)]);
    assert_eq!(world.weights("a"), [0, 0, 11]);
}

#[test]
fn the_own_endpoints_are_known_whatever_tier_they_are_in() {
    let b_first = (
        "TrafficPolicy",
        "{tiers: [{clusters: [{names: [b]}]}, {rest: true}]}",
    );
    let local = ServiceFacts {
        internal_local: true,
        ..single()
    };
    let mut world = world(&[b_first], &local);
    let on_node = Endpoint {
        node: Some("n0".into()),
        ..Endpoint::new(pod("a", 1))
    };
    world.apply([node("a", "n0", None), slice("a", "web", vec![on_node])]);
    assert_eq!(world.local("a"), [pod("a", 1)]);
    let moved = Endpoint {
        node: Some("n0".into()),
        ..Endpoint::new(pod("a", 2))
    };
    world.apply([slice("a", "web", vec![moved])]);
    assert_eq!(world.local("a"), [pod("a", 2)]);
}

#[test]
fn an_overlay_of_own_endpoints_is_that_of_the_own_service() {
    let mut world = world(&[LOCAL_FIRST], &single());
    for number in [1, 2] {
        let on_node = Endpoint {
            node: Some("n0".into()),
            ..Endpoint::new(pod("a", number))
        };
        world.apply([slice("a", "web", vec![on_node])]);
        let [("web", one), ("web@clusterset", other)] = world.overlays("a")[..] else {
            panic!("{:?}", world.overlays("a"));
        };
        let own = one.own.iter().map(|address| address.ip());
        assert_eq!(own.collect::<Vec<_>>(), [pod("a", number)]);
        assert!(Arc::ptr_eq(one, other));
    }
}
