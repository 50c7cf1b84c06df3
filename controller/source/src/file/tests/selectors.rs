// SPDX-License-Identifier: Apache-2.0

//! Load balancers that are for some of the Nodes in files.

use portolan_model::NodeInfo;

use super::*;

/// A load balancer for the nodes with a role.
fn web(role: &str) -> String {
    format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: web}}\nspec:\n  \
         frontends: [{{addresses: [192.0.2.10], port: 80}}]\n  backends: [{{address: 10.0.0.11}}]\n  \
         nodeSelector: {{role: {role}}}\n"
    )
}

fn node(name: &str, role: &str) -> String {
    format!("apiVersion: v1\nkind: Node\nmetadata: {{name: {name}, labels: {{role: {role}}}}}\n")
}

/// The Nodes that serve the load balancer.
fn serving(rig: &Rig) -> Vec<String> {
    let Some(record) = rig.catalog.load_balancers().values().next() else {
        return Vec::new();
    };
    assert!(
        !record.is_for(&NodeInfo::default()),
        "a host without a Node"
    );
    let nodes = rig.catalog.nodes();
    let nodes = nodes.filter(|node| record.is_for(&rig.catalog.node_info(node).unwrap()));
    let mut names: Vec<_> = nodes.map(|node| node.name.to_string()).collect();
    names.sort();
    names
}

/// A load balancer for edge nodes, of which `a` is one and `b` is not.
fn edge() -> Rig {
    let mut rig = Rig::new();
    rig.write("a.yaml", &node("a", "edge"));
    rig.write("b.yaml", &node("b", "core"));
    rig.write("lb.yaml", &web("edge"));
    assert_eq!(rig.problems(), [""; 0]);
    assert_eq!(serving(&rig), ["a"]);
    rig
}

#[test]
fn labels_of_nodes_move_a_load_balancer() {
    let mut rig = edge();
    assert_eq!(rig.told(), [""; 0], "nothing changed");
    rig.write("b.yaml", &node("b", "edge"));
    assert_eq!(rig.told(), ["put Node b"]);
    assert_eq!(serving(&rig), ["a", "b"]);
    rig.write("a.yaml", &node("a", "core"));
    assert_eq!(rig.told(), ["put Node a"]);
    assert_eq!(serving(&rig), ["b"]);
    rig.remove("b.yaml");
    assert_eq!(rig.told(), ["delete Node b"]);
    assert_eq!(serving(&rig), [""; 0]);
}

#[test]
fn another_selector_moves_a_load_balancer() {
    let mut rig = edge();
    rig.write("lb.yaml", &web("core"));
    assert_eq!(rig.told(), ["put Node a", "put Node b", "1 load balancers"]);
    assert_eq!(serving(&rig), ["b"]);
    rig.remove("lb.yaml");
    assert_eq!(rig.told(), ["put Node b", "0 load balancers"]);
    let groups = rig.catalog.nodes().map(|node| {
        let info = rig.catalog.node_info(&node).unwrap();
        info.groups.len()
    });
    assert_eq!(groups.sum::<usize>(), 0, "no group is left");
}

#[test]
fn a_node_and_its_load_balancer_may_be_in_one_file() {
    let mut rig = Rig::new();
    rig.write("all.yaml", &[node("a", "edge"), web("edge")].join("---\n"));
    rig.refresh();
    assert_eq!(serving(&rig), ["a"]);
}

#[test]
fn a_load_balancer_with_an_error_moves_nothing() {
    let mut rig = edge();
    let bad = web("core").replace("port: 80", "port: 70000");
    rig.write("lb.yaml", &bad);
    rig.write("b.yaml", &node("b", "edge"));
    assert_eq!(rig.told(), [""; 0]);
    assert_eq!(serving(&rig), ["a"]);
    rig.write("lb.yaml", &web("core"));
    rig.refresh();
    assert_eq!(serving(&rig), [""; 0]);
}

#[test]
fn an_unreadable_node_follows_selectors_with_its_last_labels() {
    let mut rig = Rig::new();
    let nodes = |name: &str| [node("a", "edge"), node(name, "core")].join("---\n");
    // In the file of the load balancer, where a bad Node is a problem of its own.
    let write = |rig: &Rig, nodes: &str, role: &str| {
        rig.write("all.yaml", &[nodes, &web(role)].join("---\n"));
    };
    write(&rig, &nodes("b"), "edge");
    rig.refresh();
    assert_eq!(serving(&rig), ["a"]);
    let bad = nodes("b") + "spec: {taints: 1}\n";
    write(&rig, &bad, "edge");
    assert_eq!(rig.told(), ["refuse Node b"]);
    write(&rig, &bad, "core");
    rig.refresh();
    assert_eq!(serving(&rig), ["b"]);
    let problems = rig.of_objects();
    assert!(
        problems.len() == 1 && problems[0].contains("Node b: spec.taints"),
        "{problems:?}"
    );
    write(&rig, &nodes("b"), "core");
    rig.refresh();
    assert_eq!(
        (serving(&rig), rig.of_objects()),
        (vec!["b".to_owned()], vec![])
    );
}
