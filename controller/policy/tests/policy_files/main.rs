// SPDX-License-Identifier: Apache-2.0

//! Broken objects, each with all its problems.

#![allow(clippy::unwrap_used, reason = "a test")]

mod cases;
mod damage;
mod served;

use portolan_policy::spec::SpillOver;
use portolan_policy::{
    File, Labels, ObjectFault, Objects, Reading, Threshold, overlaps, read, read_after,
};

use cases::{CLUSTERS, SELECTORS, THRESHOLDS, TIERS};

fn reading(text: &str) -> Reading {
    read(&[File {
        name: "p.yaml",
        text,
    }])
}

#[test]
fn broken_objects_have_exactly_these_problems() {
    for (kind, spec, expected) in [SELECTORS, TIERS, THRESHOLDS, CLUSTERS].concat() {
        let text = format!(
            "apiVersion: portolan.dev/v1alpha1\nkind: {kind}\nmetadata: {{name: x}}\nspec: {spec}\n"
        );
        let reading = reading(&text);
        let found: Vec<(String, String)> = reading
            .problems
            .iter()
            .map(|problem| {
                let reason = problem.fault.error.reason().to_string();
                let text = problem.to_string();
                (reason, text.strip_prefix("p.yaml:").unwrap().to_owned())
            })
            .collect();
        let found: Vec<(&str, &str)> = found
            .iter()
            .map(|(reason, text)| (reason.as_str(), text.as_str()))
            .collect();
        assert_eq!(found, expected, "{kind} {spec}");
        let refused: Vec<String> = reading.refused().iter().map(ToString::to_string).collect();
        assert_eq!(refused, [format!("{kind} x")]);
    }
}

const BASE: &str = include_str!("good.yaml");

#[test]
fn documents_that_are_no_objects_are_named_by_place() {
    let cases = [
        (
            "apiVersion: portolan.dev/v2\nkind: Cluster\n",
            "1:13: apiVersion: \"portolan.dev/v2\": expected portolan.dev/v1alpha1",
        ),
        (
            "kind: Cluster\n",
            "1:1: apiVersion: missing: expected portolan.dev/v1alpha1",
        ),
        (
            "apiVersion: portolan.dev/v1alpha1\nkind: Clusters\n",
            "2:7: kind: \"Clusters\": expected ClusterSet, Cluster, ExportPolicy, ImportPolicy or TrafficPolicy",
        ),
        (
            "apiVersion: portolan.dev/v1alpha1\nkind: ExportPolicy\nspec: {}\n",
            "1:1: metadata: missing: expected fields",
        ),
        (
            "apiVersion: portolan.dev/v1alpha1\nkind: ExportPolicy\nmetadata: {name: a.b}\nspec: {}\n",
            "3:18: metadata.name: \"a.b\": expected at most 63 lower-case letters, digits and \"-\"",
        ),
    ];
    for (text, expected) in cases {
        let reading = reading(text);
        let found: Vec<String> = reading.problems.iter().map(ToString::to_string).collect();
        assert_eq!(found, [format!("p.yaml:{expected}")]);
        assert_eq!(reading.problems[0].object, None);
        assert!(reading.is_incomplete());
    }
    let broken = reading("a: [");
    assert_eq!(broken.problems.len(), 1);
    assert!(broken.is_incomplete());
}

#[test]
fn a_bad_object_loses_no_other() {
    let good = reading(BASE);
    assert_eq!(good.problems, [], "{:#?}", good.problems);
    assert_eq!(good.objects.clusters.len(), 2);
    let broken = BASE.replace("minHealthy: 70%", "minHealthy: 700%") + "---\na: [\n";
    let broken = reading(&broken);
    let refused: Vec<String> = broken.refused().iter().map(ToString::to_string).collect();
    assert_eq!(refused, ["TrafficPolicy web"]);
    assert!(broken.objects.traffic.is_empty());
    let mut expected = good.objects.clone();
    expected.traffic.clear();
    assert_eq!(broken.objects, expected);
    let (kept, faults) = broken.in_force(&good.objects);
    assert_eq!((kept, faults), (good.objects.clone(), Vec::new()));
    // An object that nobody wants any more goes, unless it may be what a broken text was to be.
    let fewer = BASE.replace("name: payments", "name: wages");
    let (kept, _) = reading(&fewer).in_force(&good.objects);
    assert!(!kept.exports.contains_key("payments"));
    let (kept, _) = reading(&(fewer + "---\na: [\n")).in_force(&good.objects);
    assert!(kept.exports.contains_key("payments"));
}

#[test]
fn other_apis_and_other_readers_documents_are_left_alone() {
    let text = "apiVersion: v1\nkind: Service\n---\napiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\n";
    let reading = reading(text);
    assert_eq!(reading.problems, []);
    let kinds: Vec<&str> = reading
        .not_ours
        .iter()
        .map(|one| one.kind.as_str())
        .collect();
    assert_eq!(kinds, ["Service", "LoadBalancer"]);
}

fn cluster(name: &str, id: &str) -> String {
    format!(
        "---\napiVersion: portolan.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}}}\nspec: {{id: {id}, access: {{edge: {{}}}}, network: {{podCIDRs: [10.0.0.0/16]}}}}\n"
    )
}

#[test]
fn objects_that_cannot_be_together_are_refused() {
    let set = "apiVersion: portolan.dev/v1alpha1\nkind: ClusterSet\nmetadata: {name: b}\nspec: {}\n---\napiVersion: portolan.dev/v1alpha1\nkind: ClusterSet\nmetadata: {name: a}\nspec: {}\n";
    let policy = "---\napiVersion: portolan.dev/v1alpha1\nkind: ExportPolicy\nmetadata: {name: p}\nspec: {to: {names: [one, two, t*]}}\n";
    let text = [
        set,
        &cluster("one", "x"),
        &cluster("other", "x"),
        &cluster("one", "y"),
        policy,
    ]
    .concat();
    let reading = reading(&text);
    let found: Vec<(String, String)> = reading
        .problems
        .iter()
        .map(|problem| {
            (
                problem.fault.error.reason().to_string(),
                problem.to_string(),
            )
        })
        .collect();
    let expected = [
        (
            "DuplicateID",
            "p.yaml:3:18: metadata.name: ClusterSet a is in force: expected one ClusterSet",
        ),
        (
            "DuplicateID",
            "p.yaml:19:12: spec.id: Cluster \"one\" has the id \"x\" too",
        ),
        (
            "DuplicateID",
            "p.yaml:23:18: metadata.name: Cluster one is defined twice",
        ),
        (
            "UnknownCluster",
            "p.yaml:29:26: spec.to.names[1]: no Cluster \"two\": the rest of the object is in force",
        ),
    ];
    let expected: Vec<(String, String)> = expected
        .map(|(reason, text)| (reason.to_owned(), text.to_owned()))
        .into();
    assert_eq!(found, expected);
    assert_eq!(reading.objects.clusters["one"].id, "x");
    assert!(reading.objects.exports.contains_key("p"));
    let refused: Vec<String> = reading.refused().iter().map(ToString::to_string).collect();
    assert_eq!(refused, ["ClusterSet b", "Cluster other"]);
}

#[test]
fn no_more_policies_name_nodes_than_there_are_groups() {
    let policy = |name: &str, nodes: &str| {
        format!(
            "---\napiVersion: portolan.dev/v1alpha1\nkind: ImportPolicy\nmetadata: {{name: {name}}}\nspec: {{nodes: {nodes}}}\n"
        )
    };
    let some = |numbers: std::ops::RangeInclusive<u32>| -> String {
        numbers
            .map(|number| policy(&format!("n{number}"), "{names: [edge]}"))
            .collect()
    };
    let before = reading(&(some(1..=64) + &policy("all", "{}")));
    assert_eq!(before.problems, []);
    // The new one is first by name, and the last one by name was in force.
    let after = reading(&(some(1..=64) + &policy("all", "{names: [edge]}")));
    let problems = |reading: &Reading| -> Vec<String> {
        let found = reading.problems.iter();
        found.map(|one| one.fault.to_string()).collect()
    };
    let expected = "spec.nodes: 64 other ImportPolicies name nodes, and no more can";
    assert_eq!(problems(&after), [expected]);
    let (kept, faults) = after.in_force(&before.objects);
    let named: Vec<String> = faults.iter().map(|one| one.object.to_string()).collect();
    assert_eq!(named, ["ImportPolicy all"]);
    assert_eq!(faults[0].fault.to_string(), expected);
    let narrowing = kept.imports.values().filter(|one| one.narrows());
    assert_eq!(narrowing.count(), 64);
    assert!(
        kept.imports.values().filter(|one| one.narrows()).eq(before
            .objects
            .imports
            .values()
            .filter(|one| one.narrows()))
    );
    // Without anything before the first ones are in force.
    let first = reading(&some(10..=74));
    assert_eq!(first.objects.imports.len(), 64);
    let refused: Vec<String> = first.refused().iter().map(ToString::to_string).collect();
    assert_eq!(refused, ["ImportPolicy n74"]);
}

#[test]
fn the_id_of_a_cluster_never_changes() {
    let before = reading(&cluster("one", "x")).objects;
    let after = reading(&cluster("one", "y")).objects;
    let (kept, faults) = after.or_last_good(&[], &before);
    assert_eq!(kept, before);
    let texts: Vec<String> = faults.iter().map(|fault| fault.fault.to_string()).collect();
    assert_eq!(
        texts,
        ["spec.id: \"y\": expected \"x\": the id of a cluster never changes"]
    );
}

fn texts_of(faults: &[ObjectFault]) -> Vec<String> {
    let faults = faults.iter();
    faults
        .map(|found| format!("{}: {}", found.object, found.fault))
        .collect()
}

#[test]
fn a_new_cluster_with_the_id_of_one_in_force_is_left_out() {
    let before = reading(&cluster("two", "x")).objects;
    let both = [cluster("one", "x"), cluster("two", "x")].concat();
    let (kept, faults) = reading(&both).in_force(&before);
    assert_eq!(kept, before);
    let expected = "Cluster one: spec.id: Cluster \"two\" has the id \"x\" too";
    assert_eq!(texts_of(&faults), [expected]);
    // At a start the first by name is in force, and a cluster may get another name.
    let one = reading(&cluster("one", "x")).objects;
    let (first, _) = reading(&both).in_force(&Objects::default());
    assert_eq!(first, one);
    let (renamed, faults) = reading(&cluster("one", "x")).in_force(&before);
    assert_eq!((renamed, faults), (one, Vec::new()));
    // What is missing beside a bad new one may be what that was to be.
    let before = reading(&[cluster("b", "x"), cluster("c", "z")].concat()).objects;
    let after = reading(&[cluster("a", "x"), cluster("b", "x")].concat());
    let (kept, faults) = after.in_force(&before);
    assert_eq!((kept, faults.len()), (before, 1));
}

#[test]
fn a_second_cluster_set_takes_the_place_of_none_in_force() {
    let set = |name: &str| {
        format!(
            "---\napiVersion: portolan.dev/v1alpha1\nkind: ClusterSet\nmetadata: {{name: {name}}}\nspec: {{}}\n"
        )
    };
    let before = reading(&set("b")).objects;
    let (kept, faults) = reading(&[set("a"), set("b")].concat()).in_force(&before);
    assert_eq!(kept, before);
    let expected = "ClusterSet a: metadata.name: ClusterSet b is in force: expected one ClusterSet";
    assert_eq!(texts_of(&faults), [expected]);
}

/// Reads what comes after `last`. Returns the objects in force, and all that is wrong.
fn change(last: &Objects, text: &str) -> (Objects, Vec<String>) {
    let file = File {
        name: "p.yaml",
        text,
    };
    let reading = read_after(&[file], last);
    let mut wrong: Vec<String> = reading.problems.iter().map(ToString::to_string).collect();
    let (objects, faults) = reading.in_force(last);
    wrong.extend(texts_of(&faults));
    (objects, wrong)
}

#[test]
fn a_cluster_in_force_is_edited_beside_a_new_one_with_its_id() {
    let edited = |name: &str, id: &str| {
        let network = "podCIDRs: [10.0.0.0/16]";
        cluster(name, id).replace(network, "podCIDRs: [10.9.0.0/16]")
    };
    let before = reading(&cluster("two", "x")).objects;
    // The new one is the first by name, and in the file.
    let both = [cluster("one", "x"), edited("two", "x")].concat();
    let (objects, wrong) = change(&before, &both);
    assert_eq!(objects, reading(&edited("two", "x")).objects);
    let expected = "p.yaml:5:12: spec.id: Cluster \"two\" has the id \"x\" too";
    assert_eq!(wrong, [expected]);
    // An id that may not change takes none from a Cluster that has it.
    let before = reading(&[cluster("one", "z"), cluster("two", "x")].concat()).objects;
    let (objects, wrong) = change(&before, &both);
    let expected = reading(&[cluster("one", "z"), edited("two", "x")].concat()).objects;
    assert_eq!(objects, expected);
    let expected = "p.yaml:5:12: spec.id: \"x\": expected \"z\": the id of a cluster never changes";
    assert_eq!(wrong, [expected]);
}

#[test]
fn a_cluster_set_in_force_is_edited_beside_a_new_one() {
    let set = |name: &str, clusters: u32| {
        format!(
            "---\napiVersion: portolan.dev/v1alpha1\nkind: ClusterSet\nmetadata: {{name: {name}}}\nspec: {{quota: {{clusters: {clusters}}}}}\n"
        )
    };
    let before = reading(&set("b", 2)).objects;
    let (objects, wrong) = change(&before, &[set("a", 9), set("b", 3)].concat());
    assert_eq!(objects, reading(&set("b", 3)).objects);
    let expected = "p.yaml:4:18: metadata.name: ClusterSet b is in force: expected one ClusterSet";
    assert_eq!(wrong, [expected]);
}

fn networked(name: &str, network: &str) -> String {
    format!(
        "---\napiVersion: portolan.dev/v1alpha1\nkind: Cluster\nmetadata: {{name: {name}}}\nspec: {{access: {{edge: {{}}}}, network: {{{network}}}}}\n"
    )
}

#[test]
fn a_new_cluster_that_overlaps_one_in_force_is_left_out_until_it_is_mended() {
    let prod = networked("prod", "podCIDRs: [10.1.0.0/16]");
    let before = reading(&prod).objects;
    let after = |network: &str| {
        let text = [networked("dev", network), prod.clone()].concat();
        reading(&text).in_force(&before)
    };
    let (kept, faults) = after("podCIDRs: [10.1.0.0/16]");
    assert_eq!(kept, before);
    assert!(overlaps(&kept.clusters).is_empty());
    let expected = "Cluster dev: spec.network.podCIDRs: 10.1.0.0/16 of pods overlaps 10.1.0.0/16 of Cluster prod, which is in force";
    assert_eq!(texts_of(&faults), [expected]);
    let behind_gateways = "mode: Gateway, podCIDRs: [10.1.0.0/16], nodeCIDRs: [192.168.1.0/24], gateway: {ports: 20000-29999}";
    for good in ["podCIDRs: [10.2.0.0/16]", behind_gateways] {
        let (kept, faults) = after(good);
        assert_eq!((kept.clusters.len(), faults), (2, Vec::new()), "{good}");
    }
}

#[test]
fn a_new_cluster_beyond_the_quota_takes_no_membership() {
    let of = |names: &[&str]| {
        let clusters = names.iter().zip(1..).map(|(name, number)| {
            let network = format!("podCIDRs: [10.{number}.0.0/16]");
            networked(name, &network)
        });
        let set = "apiVersion: portolan.dev/v1alpha1\nkind: ClusterSet\nmetadata: {name: all}\nspec: {quota: {clusters: 2}}\n";
        reading(&(set.to_owned() + &clusters.collect::<String>()))
    };
    let before = of(&["b", "c"]).objects;
    let (kept, faults) = of(&["a", "b", "c"]).in_force(&before);
    let members: Vec<&str> = kept.members().into_keys().collect();
    assert_eq!((members, kept.clusters.len()), (vec!["b", "c"], 2));
    let expected = "Cluster a: metadata.name: 2 other Clusters are in force, and spec.quota.clusters of the ClusterSet allows no more";
    assert_eq!(texts_of(&faults), [expected]);
    let (joined, faults) = of(&["a", "c"]).in_force(&before);
    let members: Vec<&str> = joined.members().into_keys().collect();
    assert_eq!((members, faults), (vec!["a", "c"], Vec::new()));
    let (first, faults) = of(&["a", "b", "c"]).in_force(&Objects::default());
    assert_eq!((first.clusters.len(), faults), (3, Vec::new()));
}

#[test]
fn what_a_cluster_reports_never_hides_what_the_operator_says() {
    let objects = reading(BASE).objects;
    let of = |pairs: &[(&str, &str)]| -> Labels {
        let pairs = pairs.iter();
        pairs
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect()
    };
    let reported = of(&[
        ("tier", "forged"),
        ("region.topology.k8s.io", "forged"),
        ("zone", "z"),
    ]);
    let expected = of(&[
        ("tier", "prod"),
        ("region.topology.k8s.io", "eu"),
        ("example.org/cost", "low"),
        ("zone", "z"),
    ]);
    assert_eq!(objects.clusters["eu-1"].labels(&reported), expected);
}

#[test]
fn load_is_given_away_in_proportion_where_a_threshold_is_given() {
    let of = |spec: &str| {
        let text = format!(
            "apiVersion: portolan.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {{name: x}}\nspec: {spec}\n"
        );
        let policy = reading(&text).objects.traffic["x"].clone();
        (policy.min_healthy, policy.spill_over)
    };
    let one = Threshold::Number(1);
    assert_eq!(of("{}"), (one, SpillOver::AllAtOnce));
    assert_eq!(of("{minHealthy: 1}"), (one, SpillOver::Proportional));
    let seventy = Threshold::Percent(70);
    let spec = "{minHealthy: 70%, spillOver: AllAtOnce}";
    assert_eq!(of(spec), (seventy, SpillOver::AllAtOnce));
}
