// SPDX-License-Identifier: Apache-2.0

//! The nodes that get the virtual addresses of imports.

use super::rules::World;
use super::*;

const EDGE: &str = "{clusters: {names: [a]}, nodes: {matchLabels: {edge: 'true'}}}";
const GROUP: &str = "ImportPolicy/p0";

fn labelled(cluster: &str, name: &str, edge: bool) -> ObjectChange {
    let mut node = gateway_node(cluster, name, true);
    let labels = &mut node.host.as_mut().unwrap().labels;
    labels.insert("edge".to_owned(), edge.to_string());
    put(Object::Node(node))
}

fn groups(world: &World, cluster: &str, node: &str) -> Vec<String> {
    let key = NodeKey {
        cluster: cluster.into(),
        name: node.into(),
    };
    let info = world.tables().nodes.get(&key);
    let groups = info.into_iter().flat_map(|info| &info.groups);
    groups.map(ToString::to_string).collect()
}

/// The nodes of `a` that serve the import there.
fn serving(world: &World) -> Vec<String> {
    let record = world.record("a");
    let serves = |name: &&str| {
        let key = NodeKey {
            cluster: "a".into(),
            name: (*name).into(),
        };
        let info = world.tables().nodes.get(&key).cloned();
        record.is_for(&info.unwrap_or_default())
    };
    let names = ["n1", "n2"].into_iter().filter(serves);
    names.map(str::to_owned).collect()
}

#[test]
fn the_labelled_nodes_serve_and_a_label_changes_no_record() {
    let mut world = World::new("{}", &[("ImportPolicy", EDGE)]);
    world.apply([
        labelled("a", "n1", true),
        labelled("a", "n2", false),
        labelled("b", "n1", true),
    ]);
    assert_eq!(world.record("a").node_group.as_deref(), Some(GROUP));
    assert_eq!(
        world.record("b").node_group,
        None,
        "it is of another policy"
    );
    assert_eq!(serving(&world), ["n1"]);
    assert_eq!(groups(&world, "b", "n1"), [""; 0]);
    let moved = [labelled("a", "n1", false), labelled("a", "n2", true)];
    assert_eq!(world.apply(moved), 0, "records that changed");
    assert_eq!(serving(&world), ["n2"]);
    assert_eq!(world.import("a").nodes.as_deref(), Some("p0"));
    // Another selector changes no record either, and none gives the address to all nodes.
    let other = "{clusters: {names: [a]}, nodes: {names: [n1]}}";
    world.policies(policies("{}", &[("ImportPolicy", other)]));
    assert_eq!(serving(&world), ["n1"]);
    let all = policies("{}", &[("ImportPolicy", "{clusters: {names: [a]}}")]);
    let planned = world.planned(all.clone());
    assert_eq!(planned.len(), 1);
    let nodes = |shares: &Option<PlannedShares>| shares.as_ref().unwrap().nodes.clone();
    assert_eq!(nodes(&planned[0].before).as_deref(), Some("p0"));
    assert_eq!(nodes(&planned[0].after), None);
    world.policies(all);
    assert_eq!(serving(&world), ["n1", "n2"]);
    assert_eq!(groups(&world, "a", "n1"), [""; 0]);
}

#[test]
fn the_policy_of_the_winner_names_the_nodes() {
    let of_b = "{clusters: {names: [a]}, from: {names: [b]}, nodes: {names: [n1]}}";
    let mut world = World::new("{}", &[("ImportPolicy", of_b)]);
    world.apply([labelled("a", "n1", false), labelled("a", "n2", false)]);
    assert_eq!(
        serving(&world),
        ["n1", "n2"],
        "a exports it itself, and wins"
    );
    let gone =
        |cluster: &str| ObjectChange::Delete(super::super::export::object(&key(cluster, "web")));
    world.apply([gone("a")]);
    assert_eq!(serving(&world), ["n1"]);
}
