// SPDX-License-Identifier: Apache-2.0

//! Nodes and Pods.

use super::*;

fn node(fields: Value) -> (catalog::Node, Vec<Found>) {
    let mut value = json!({"metadata": {"name": "n1"}});
    for (name, field) in fields.as_object().unwrap() {
        value[name] = field.clone();
    }
    value["metadata"]["name"] = json!("n1");
    match put(Kind::Node, &value) {
        (Object::Node(node), problems) => (node, problems),
        other => panic!("expected a Node: {other:?}"),
    }
}

fn cidrs(node: &catalog::Node) -> Vec<String> {
    node.info
        .pod_cidrs
        .iter()
        .map(ToString::to_string)
        .collect()
}

#[test]
fn a_node_has_all_that_counts() {
    let (node, problems) = node(json!({
        "metadata": {
            "labels": {"topology.kubernetes.io/zone": "a"},
            "annotations": {"portolan.dev/weight": "3"},
        },
        "spec": {
            "podCIDR": "10.244.9.0/24",
            "podCIDRs": ["10.244.1.0/24", "fd00:1::/64", "10.244.2.0/24"],
            "taints": [{"key": "node.kubernetes.io/unreachable"}],
        },
        "status": {"addresses": [
            {"type": "InternalIP", "address": "192.0.2.1"},
            {"type": "ExternalIP", "address": "2001:db8::1"},
            {"type": "Hostname", "address": "n1"},
            {"type": "InternalDNS", "address": "n1.example"},
        ]},
    }));
    assert_problems(&problems, &[]);
    assert_eq!(node.key.to_string(), "n1");
    assert_eq!(node.info.zone.as_deref(), Some("a"));
    assert_eq!(cidrs(&node), ["10.244.1.0/24", "fd00:1::/64"]);
    assert!(node.info.eligible);
    assert_eq!(node.weight, Some(3));
    let addresses: Vec<_> = node.addresses.into_iter().collect();
    assert_eq!(addresses, ips(&["192.0.2.1", "2001:db8::1"]));
}

#[test]
fn a_node_may_say_nothing() {
    let label = json!({"labels": {"topology.kubernetes.io/zone": ""}});
    for fields in [
        json!({}),
        json!({"metadata": label}),
        json!({"spec": null, "status": null}),
        json!({"spec": {"podCIDR": "", "podCIDRs": null, "taints": null}, "status": {}}),
    ] {
        let (node, problems) = node(fields);
        assert_problems(&problems, &[]);
        let mut expected = catalog::Node::new(node.key.clone());
        expected.info.eligible = true;
        assert_eq!(node, expected);
    }
}

#[test]
fn the_single_pod_cidr_counts_without_a_list() {
    let (node, problems) = node(json!({"spec": {"podCIDR": "10.244.9.0/24"}}));
    assert_eq!(cidrs(&node), ["10.244.9.0/24"]);
    assert_problems(&problems, &[]);
}

#[test]
fn bad_fields_of_a_node_are_reported_and_the_rest_counts() {
    let (node, problems) = node(json!({
        "metadata": {"annotations": {"portolan.dev/weight": "65536"}},
        "spec": {"podCIDRs": ["10.244.1.0", "fd00:1::/64"]},
        "status": {"addresses": [
            {"type": "InternalIP", "address": "192.0.2.256"},
            {"type": "InternalIP", "address": "192.0.2.1"},
            {"type": "ExternalIP"},
        ]},
    }));
    assert_eq!(cidrs(&node), ["fd00:1::/64"]);
    assert_eq!(node.addresses.len(), 1);
    assert_eq!(node.weight, None);
    let expected = [
        ("spec.podCIDRs[0]: invalid_value", "\"10.244.1.0\""),
        (
            "status.addresses[0].address: invalid_value",
            "\"192.0.2.256\"",
        ),
        (
            "status.addresses[2].address: invalid_value",
            "not an address",
        ),
        (
            "metadata.annotations[portolan.dev/weight]: invalid_value",
            "\"65536\": expected 0 to 65535",
        ),
    ];
    assert_problems(&problems, &expected);
    let (_, problems) = self::node(json!({"spec": {"podCIDR": "x"}}));
    assert_problems(&problems, &[("spec.podCIDR: invalid_value", "\"x\"")]);
}

#[test]
fn a_node_that_goes_away_is_not_eligible() {
    let taint = |key: &str| json!({"spec": {"taints": [{"effect": "NoSchedule"}, {"key": key}]}});
    let deleted = json!({"metadata": {"deletionTimestamp": "2026-01-02T03:04:05Z"}});
    let cases = [
        (taint("ToBeDeletedByClusterAutoscaler"), false),
        (taint("DeletionCandidateOfClusterAutoscaler"), true),
        (deleted, false),
    ];
    for (fields, expected) in cases {
        let (node, problems) = node(fields);
        assert_eq!(node.info.eligible, expected);
        assert_problems(&problems, &[]);
    }
}

fn pod(annotations: Value) -> Value {
    json!({"metadata": {"name": "web-0", "namespace": "prod", "annotations": annotations}})
}

#[test]
fn a_pod_counts_if_it_has_a_weight() {
    for (weight, expected) in [(json!("0"), 0), (json!(7), 7), (json!(" 65535 "), 65535)] {
        let (object, problems) = put(Kind::Pod, &pod(json!({"portolan.dev/weight": weight})));
        assert_problems(&problems, &[]);
        let Object::Pod(pod) = object else {
            panic!("expected a Pod")
        };
        assert_eq!(
            (pod.key.to_string().as_str(), pod.weight),
            ("prod/web-0", expected)
        );
    }
    for annotations in [json!(null), json!({}), json!({"other": "1"})] {
        let value = pod(annotations);
        assert!(!has_weight(&value));
        let converted = convert(Kind::Pod, &value, &Scope::default());
        assert!(matches!(converted, Converted::NotOurs(_)), "{converted:?}");
    }
}

#[test]
fn a_pods_bad_weight_is_refused() {
    for weight in ["", "-1", "+1", "1.5", "heavy", "65536", "99999999999"] {
        let value = pod(json!({"portolan.dev/weight": weight}));
        assert!(has_weight(&value));
        let problems = refused(Kind::Pod, &value, Some("Pod prod/web-0"));
        let field = "metadata.annotations[portolan.dev/weight]: invalid_value";
        assert_problems(&problems, &[(field, "expected 0 to 65535")]);
        assert!(
            problems[0].1.starts_with(&format!("{weight:?}")),
            "{problems:?}"
        );
    }
}

/// Returns the facts that decide about gateways.
fn host(shares: bool, conditions: Value, deleted: Value) -> Option<catalog::HostFacts> {
    let value = json!({
        "metadata": {"name": "n1", "labels": {"gateway": "true"}, "deletionTimestamp": deleted},
        "status": {
            "addresses": [
                {"type": "InternalIP", "address": "192.0.2.1"},
                {"type": "ExternalIP", "address": "198.51.100.1"},
                {"type": "ExternalIP", "address": "192.0.2.1"},
            ],
            "conditions": conditions,
        },
    });
    let scope = Scope {
        shares,
        ..Scope::default()
    };
    match convert(Kind::Node, &value, &scope) {
        Converted::Put {
            object: Object::Node(node),
            ..
        } => node.host.map(|host| *host),
        other => panic!("expected a Node: {other:?}"),
    }
}

#[test]
fn a_node_of_several_clusters_has_what_decides_about_gateways() {
    let set = |texts: &[&str]| ips(texts).into_iter().collect();
    let facts = host(true, json!(null), json!(null)).unwrap();
    let expected = catalog::HostFacts {
        ready: true,
        labels: [("gateway".to_owned(), "true".to_owned())].into(),
        internal: set(&["192.0.2.1"]),
        external: set(&["192.0.2.1", "198.51.100.1"]),
    };
    assert_eq!(facts, expected);
    assert_eq!(host(false, json!(null), json!(null)), None);
    let of = |status: &str| json!([{"type": "Other"}, {"type": "Ready", "status": status}]);
    let is_ready = |status| host(true, of(status), json!(null)).unwrap().ready;
    assert_eq!(
        ["True", "False", "Unknown"].map(is_ready),
        [true, false, false]
    );
    let deleted = host(true, of("True"), json!("2026-01-01T00:00:00Z"));
    assert!(!deleted.unwrap().ready);
}
