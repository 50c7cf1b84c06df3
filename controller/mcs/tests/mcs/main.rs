// SPDX-License-Identifier: Apache-2.0

//! Clusters that are reached by their API servers: MCS objects read and written, on real servers.

#![allow(clippy::unwrap_used, reason = "a test")]
#![allow(clippy::print_stdout, reason = "figures, and logs of what failed")]

mod specs;
mod suite;
mod world;

use std::fs;
use std::io::Write as _;
use std::panic::{AssertUnwindSafe, catch_unwind};

use portolan_e2e::figure::{Goal, figure};
use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

use specs::{export, exported, service};
use world::{NAMES, PATIENT, World};

#[test]
fn clusters_share_services_as_the_mcs_api_says() {
    if let Some(world) = World::start("clusters_share_services_as_the_mcs_api_says") {
        all_requirements_hold(&world, "mcs_requirements_held");
    }
}

#[test]
fn a_cluster_behind_an_edge_shares_services_as_the_mcs_api_says() {
    let name = "a_cluster_behind_an_edge_shares_services_as_the_mcs_api_says";
    if let Some(world) = World::start_with(name, &["beta"]) {
        all_requirements_hold(&world, "mcs_requirements_held_behind_an_edge");
    }
}

fn all_requirements_hold(world: &World, measured: &str) {
    let only = std::env::var("PORTOLAN_MCS_SPEC").ok();
    let mut failed = Vec::new();
    let mut passed = 0_u16;
    for (id, check) in specs::ALL {
        if only.as_deref().is_some_and(|only| only != id) {
            continue;
        }
        let namespace = format!("spec-{id}");
        world.namespace(&namespace);
        match catch_unwind(AssertUnwindSafe(|| check(world, &namespace))) {
            Ok(()) => passed += 1,
            Err(_) => failed.push(id),
        }
    }
    // Straight to the stream: the harness hides the output of a passing test.
    let all = specs::ALL.len();
    let _ = writeln!(
        std::io::stdout(),
        "{passed} of {all} requirements of the MCS API hold"
    );
    if only.is_none() {
        let goal = Some(Goal::AtLeast(16.0));
        figure(measured, f64::from(passed), "requirements", goal);
    }
    assert_eq!(failed, [""; 0], "requirements that do not hold");
    // The permissions of the documentation are enough, and nothing is written that an API server refuses.
    for result in ["forbidden", "invalid"] {
        assert_eq!(world.writes("", "", result), 0, "{result}");
    }
}

#[test]
#[ignore = "needs a conformance suite of the MCS API, built elsewhere: PORTOLAN_MCS_SUITE names it"]
fn the_conformance_suite_passes() {
    if let Some(world) = World::start("the_conformance_suite_passes") {
        the_suite_passes(&world);
    }
}

#[test]
#[ignore = "needs a conformance suite of the MCS API, built elsewhere: PORTOLAN_MCS_SUITE names it"]
fn the_conformance_suite_passes_behind_an_edge() {
    let name = "the_conformance_suite_passes_behind_an_edge";
    if let Some(world) = World::start_with(name, &["beta"]) {
        the_suite_passes(&world);
    }
}

fn the_suite_passes(world: &World) {
    let suite = std::env::var_os("PORTOLAN_MCS_SUITE").expect("PORTOLAN_MCS_SUITE");
    let (text, is_good) = suite::run(world, &suite);
    let summary = text.lines().filter(|line| line.contains(" Passed"));
    summary.for_each(|line| _ = writeln!(std::io::stdout(), "{line}"));
    assert!(is_good && text.contains("16 Passed"), "{text}");
}

#[test]
fn what_is_written_survives_restarts_and_strangers() {
    if let Some(mut world) = World::start("what_is_written_survives_restarts_and_strangers") {
        what_is_written_survives(&mut world);
    }
}

#[test]
fn what_an_edge_writes_survives_restarts_and_strangers() {
    let name = "what_an_edge_writes_survives_restarts_and_strangers";
    if let Some(mut world) = World::start_with(name, &["beta"]) {
        what_is_written_survives(&mut world);
        one_edge_writes_at_a_time(&mut world);
    }
}

fn what_is_written_survives(world: &mut World) {
    strangers_keep_their_import(world);
    bad_labels_harm_nobody(world);
    kubeconfigs_change_without_a_gap(world);
    nothing_is_written_twice(world);
    restarts_keep_addresses_and_lost_clusters(world);
}

/// A ServiceImport that another program wrote is neither changed nor deleted.
fn strangers_keep_their_import(world: &World) {
    let namespace = "stranger";
    world.namespace(namespace);
    let foreign = json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceImport",
        "metadata": {"namespace": namespace, "name": "hello"},
        "spec": {"type": "Headless", "ports": [{"port": 1}]},
    });
    world.beta().apply(&foreign);
    let before = world.beta().import(namespace).unwrap();
    exported(world.alpha(), namespace, &json!({}));
    world
        .alpha()
        .await_import(namespace, "an import", |import| {
            import["status"]["conditions"][0]["status"] == "True"
        });
    world.alpha().delete("serviceexport", namespace, "hello");
    world.alpha().await_no_import(namespace);
    let after = world.beta().import(namespace).unwrap();
    assert_eq!(
        after["metadata"]["resourceVersion"],
        before["metadata"]["resourceVersion"]
    );
}

/// A label that an API server refuses does not keep the import from being written.
fn bad_labels_harm_nobody(world: &World) {
    let namespace = "bad-labels";
    world.namespace(namespace);
    world.alpha().apply(&service(namespace, &json!({})));
    let labels = json!({"exportedLabels": {"not a key!": "1", "good": "1"}});
    world.alpha().apply(&export(namespace, &labels));
    for member in &world.members {
        member.await_import(namespace, "the good label", |import| {
            import["metadata"]["labels"] == json!({"good": "1"})
        });
    }
}

/// A kubeconfig that must not be used changes nothing; another good one takes its place.
fn kubeconfigs_change_without_a_gap(world: &World) {
    let path = &world.alpha().kubeconfig;
    let good: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    let problem = |expected: &str| {
        wait_for(expected, PATIENT, || {
            world.controller.problems().contains(expected).then_some(())
        })
        .unwrap();
    };
    let mut bad = good.clone();
    bad["users"][0]["user"] =
        json!({"exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "sh"}});
    fs::write(path, bad.to_string()).unwrap();
    problem("KubeconfigForbidden: users[test].user.exec");
    let mut stranger = good.clone();
    stranger["users"][0]["user"]["token"] = "unknown".into();
    fs::write(path, stranger.to_string()).unwrap();
    problem("the client before stays in use");
    // That of the other cluster.
    fs::copy(&world.beta().kubeconfig, path).unwrap();
    problem("the server is that of another cluster");
    assert_eq!(world.controller.state("alpha")["state"], "Ready");
    let mut other = good.clone();
    other["preferences"] = json!({});
    fs::write(path, other.to_string()).unwrap();
    wait_for("no problem", PATIENT, || {
        (!world.controller.problems().contains("kubeconfigFile")).then_some(())
    })
    .unwrap();
    world.namespace("after-swap");
    exported(world.alpha(), "after-swap", &json!({}));
    for member in &world.members {
        member.await_import("after-swap", "an import after the change", |import| {
            import["spec"]["type"] == "ClusterSetIP"
        });
    }
}

/// An import takes three writes, and others none.
fn nothing_is_written_twice(world: &World) {
    let quiet = |namespace: &str| {
        for member in &world.members {
            member.await_import(namespace, "a ready import", |import| {
                import["status"]["conditions"][0]["status"] == "True"
            });
        }
        world
            .alpha()
            .await_condition(namespace, "Conflict", ["False", "NoConflicts"]);
    };
    quiet("after-swap");
    let count = || NAMES.map(|cluster| world.writes(cluster, "ServiceImport", ""));
    // A write is counted when it is answered, and the import is seen before. Creating namespaces takes longer.
    world.namespace("quiet");
    let before = count();
    exported(world.alpha(), "quiet", &json!({}));
    quiet("quiet");
    // Created, applied, and the status of it.
    let expected = before.map(|count| count + 3);
    wait_for("three writes in each cluster", PATIENT, || {
        (count() == expected).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error}: {before:?}, {:?}", count()));
}

/// A controller that knows nothing takes over what the objects record, and deletes nothing that a cluster exports
/// which it does not reach.
fn restarts_keep_addresses_and_lost_clusters(world: &mut World) {
    let namespace = "restart";
    world.namespace(namespace);
    exported(world.beta(), namespace, &json!({}));
    let address = |import: &Value| import["spec"]["ips"].clone();
    let before = world
        .alpha()
        .await_import(namespace, "an address", |import| {
            import["status"]["conditions"][0]["status"] == "True"
        });
    world.members[1].servers.kill_api().unwrap();
    world.restart();
    wait_for("alpha to be reached", PATIENT, || {
        (world.controller.state("alpha")["state"] == "Ready").then_some(())
    })
    .unwrap();
    // Something else is written meanwhile.
    world.alpha().apply(
        &json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "meanwhile"}}),
    );
    exported(world.alpha(), "meanwhile", &json!({}));
    world
        .alpha()
        .await_import("meanwhile", "an import", |import| {
            import["status"]["conditions"][0]["status"] == "True"
        });
    let meanwhile = world
        .alpha()
        .import(namespace)
        .expect("the import of a cluster that is away");
    assert_eq!(meanwhile["metadata"]["uid"], before["metadata"]["uid"]);
    assert_eq!(address(&meanwhile), address(&before));
    world.members[1].servers.start_api().unwrap();
    wait_for("beta to be reached", PATIENT, || {
        (world.controller.state("beta")["state"] == "Ready").then_some(())
    })
    .unwrap();
    for member in &world.members {
        member.await_import(namespace, "the import as before", |import| {
            import["status"]["clusters"] == json!([{"cluster": "beta"}])
        });
    }
    assert_eq!(
        address(&world.alpha().import(namespace).unwrap()),
        address(&before)
    );
}

/// Of two edges of a cluster the one with the stream writes; the other one takes its place.
fn one_edge_writes_at_a_time(world: &mut World) {
    let imported = |world: &World, namespace: &str| {
        world.namespace(namespace);
        exported(world.alpha(), namespace, &json!({}));
        world.beta().await_import(namespace, "an import", |import| {
            import["status"]["conditions"][0]["status"] == "True"
        });
    };
    world.second_edge("beta");
    imported(world, "of-the-first");
    let writes = world.writes_of_edges();
    assert!(writes[0] > 0 && writes[1] == 0, "{writes:?}");
    world.kill_first_edge();
    imported(world, "of-the-second");
    // A write is counted when it is answered, and the import is seen before.
    let is_counted = || (world.writes_of_edges() == [3]).then_some(());
    wait_for("three writes of an import", PATIENT, is_counted).unwrap();
}
