// SPDX-License-Identifier: Apache-2.0

//! Objects of an API server, beside those of files.

use std::collections::BTreeSet;

use portolan_policy::{File, Kind, ObjectName, Objects, Reading, Served, read_all};
use serde_json::{Value, json};

fn named(kind: Kind, name: &str) -> ObjectName {
    ObjectName::new(kind, name)
}

fn served(kind: Kind, name: &str, spec: Value) -> Served {
    Served {
        name: named(kind, name),
        created: Some(1_000),
        labels: json!({"tier": "prod"}),
        spec,
    }
}

fn cluster(name: &str, pods: &str) -> Served {
    let spec = json!({"access": {"edge": {}}, "network": {"podCIDRs": [pods]}});
    served(Kind::Cluster, name, spec)
}

fn texts(reading: &Reading) -> Vec<String> {
    reading.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn objects_of_an_api_server_have_the_rules_of_files() {
    let bad = json!({"access": {}, "network": {"podCIDRs": ["10.2.0.1/16"]}, "more": 1});
    let all = [
        cluster("eu-1", "10.1.0.0/16"),
        served(Kind::Cluster, "us-1", bad),
        served(Kind::TrafficPolicy, "web", json!({"minHealthy": "0%"})),
        served(Kind::ExportPolicy, "none", Value::Null),
        served(Kind::ClusterSet, "a.b", json!({})),
    ];
    let reading = read_all(&[], &all, &Objects::default());
    assert_eq!(
        texts(&reading),
        [
            "ClusterSet a.b: metadata.name: \"a.b\": expected at most 63 lower-case letters, digits and \"-\"",
            "Cluster us-1: spec.more: unknown field: expected access, agents, drain, id, loss, network, \
             properties, quota or region",
            "ExportPolicy none: spec: missing: expected fields",
            "TrafficPolicy web: spec.minHealthy: \"0%\": expected a number of at least 1, or a percentage of \
             \"1%\" to \"100%\"",
        ]
    );
    let found = &reading.objects.clusters["eu-1"];
    assert_eq!(
        (found.meta.created, found.meta.labels["tier"].as_str()),
        (Some(1_000), "prod")
    );
    assert_eq!(reading.objects.names(), [named(Kind::Cluster, "eu-1")]);
    // The names are known, so that last good versions are.
    assert_eq!(reading.refused().len(), 4);
    assert!(!reading.is_incomplete());
}

#[test]
fn a_bad_object_stays_as_it_was_and_keeps_no_deleted_one() {
    let good = [
        cluster("eu-1", "10.1.0.0/16"),
        cluster("us-1", "10.2.0.0/16"),
    ];
    let (last, _) = read_all(&[], &good, &Objects::default()).in_force(&Objects::default());
    assert_eq!(last.clusters.len(), 2);
    let now = [
        cluster("eu-1", "10.1.0.1/16"),
        served(Kind::TrafficPolicy, "new", json!({"minHealthy": 0})),
    ];
    let deleted = BTreeSet::from([named(Kind::Cluster, "us-1")]);
    let reading = read_all(&[], &now, &last);
    let (objects, faults) = reading.clone().in_force_without(&last, &deleted);
    assert_eq!(faults, []);
    assert_eq!(objects.clusters.keys().collect::<Vec<_>>(), ["eu-1"]);
    assert_eq!(objects.clusters["eu-1"], last.clusters["eu-1"]);

    // A broken file may have had any object, but not one that was deleted.
    let broken = [File {
        name: "p.yaml",
        text: "kind: [",
    }];
    let reading = read_all(&broken, &now, &last);
    let (objects, _) = reading.clone().in_force_without(&last, &deleted);
    assert_eq!(objects.clusters.keys().collect::<Vec<_>>(), ["eu-1"]);
    let (objects, _) = reading.in_force(&last);
    assert_eq!(objects.clusters.len(), 2);
}

#[test]
fn an_object_of_the_api_server_comes_before_one_of_a_file() {
    let text = "apiVersion: portolan.dev/v1alpha1\nkind: Cluster\nmetadata: {name: eu-1}\nspec: {access: {edge: {}}, \
                network: {podCIDRs: [10.9.0.0/16]}}\n";
    let files = [File {
        name: "p.yaml",
        text,
    }];
    let all = [cluster("eu-1", "10.1.0.0/16")];
    let reading = read_all(&files, &all, &Objects::default());
    assert_eq!(
        texts(&reading),
        ["p.yaml:3:18: metadata.name: Cluster eu-1 is defined twice"]
    );
    let pods = reading.objects.clusters["eu-1"].network.pods[0];
    assert_eq!(pods.to_string(), "10.1.0.0/16");
}
