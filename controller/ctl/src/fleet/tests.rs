// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;
use std::time::Duration;

use portolan_etcd::{EtcdError, Name};
use serde_json::{Value, json};

use super::apply::{Plan, chunks, differences, failed};
use super::args::Selector;
use super::files::{self, Text, Wanted};
use super::store::{Stored, show};
use crate::reply::Output;

fn web(name: &str, address: &str) -> String {
    format!(
        "apiVersion: portolan.dev/v1alpha1\nkind: LoadBalancer\nmetadata: {{name: {name}, labels: {{app: x}}}}\n\
         spec:\n  frontends: [{{addresses: [{address}], port: 80}}]\n  backends: [{{address: 10.0.0.1}}]\n"
    )
}

fn texts(text: &str) -> Vec<Text> {
    vec![("a.yaml".into(), text.to_owned())]
}

fn stored(texts_of: &[String]) -> BTreeMap<Name, Stored> {
    let wanted = files::parse(&texts(&texts_of.join("---\n")), &BTreeMap::new(), None).unwrap();
    let stored = (7..).zip(wanted);
    let stored = stored.map(|(version, wanted)| {
        let value = wanted.value;
        (wanted.name, Stored { version, value })
    });
    stored.collect()
}

fn problem(text: &str, stored: &BTreeMap<Name, Stored>) -> String {
    format!(
        "{:#}",
        files::parse(&texts(text), stored, None).unwrap_err()
    )
}

fn plan(text: &str, stored: &BTreeMap<Name, Stored>, prune: Option<&str>) -> String {
    let prune: Option<Selector> = prune.map(|text| text.parse().unwrap());
    let wanted = files::parse(&texts(text), stored, prune.as_ref()).unwrap();
    let plan = Plan::new(&wanted, stored, prune.as_ref());
    plan.show(stored).text.replace(" (dry run)", "")
}

#[test]
fn problems_have_file_line_and_column() {
    let none = BTreeMap::new();
    let bad = web("web", "192.0.2.1").replace("port: 80", "port: 0x");
    let said = problem(&bad, &none);
    assert!(said.contains("a.yaml:5:"), "{said}");
    assert!(said.contains("spec.frontends[0].port"), "{said}");
    let other = problem(
        "apiVersion: v1\nkind: Service\nmetadata: {name: a}\n",
        &none,
    );
    assert!(
        other.contains("a.yaml:1:1: kind: \"Service\": expected LoadBalancer"),
        "{other}"
    );
    let twice = "apiVersion: v1\nkind: Node\nmetadata: {name: a}\n";
    let twice = problem(&format!("{twice}---\n{twice}"), &none);
    assert_eq!(twice, "Node a: expected once");
    let hooks = "spec:\n  hooks: {onQuorum: [/bin/true]}\n";
    let hooks = web("web", "192.0.2.1").replace("spec:\n", hooks);
    let said = problem(&hooks, &none);
    assert!(
        said.contains("spec.hooks.onQuorum: not supported here"),
        "{said}"
    );
}

#[test]
fn frontends_of_stored_load_balancers_are_taken() {
    let stored = stored(&[web("a", "192.0.2.1"), web("b", "192.0.2.2")]);
    let said = problem(&web("c", "192.0.2.1"), &stored);
    assert!(
        said.contains("TCP 192.0.2.1:80 is of LoadBalancer default/a already"),
        "{said}"
    );
    // But not by the object itself, nor by one that goes at the same time.
    assert_eq!(
        plan(&web("a", "192.0.2.1"), &stored, None),
        "LoadBalancer default/a: unchanged\n"
    );
    let pruned = plan(&web("c", "192.0.2.1"), &stored, Some("app=x"));
    assert_eq!(
        pruned,
        "LoadBalancer default/c: created\nLoadBalancer default/a: deleted\nLoadBalancer default/b: deleted\n"
    );
    let kept = plan(&web("c", "192.0.2.3"), &stored, Some("app=y"));
    assert_eq!(kept, "LoadBalancer default/c: created\n");
}

#[test]
fn an_object_that_does_not_fit_a_stored_one_is_refused() {
    let director = "apiVersion: portolan.dev/v1alpha1\nkind: Director\nmetadata: {name: lb-1}\n\
                    spec: {statelessFailover: true}\n";
    let of_scheduler = |name: &str, address: &str, scheduler: &str| {
        web(name, address) + &format!("  scheduler: {scheduler}\n")
    };
    let wlc = of_scheduler("a", "192.0.2.1", "wlc");
    let said = problem(director, &stored(std::slice::from_ref(&wlc)));
    let expected =
        "a.yaml:4:27: spec.statelessFailover: default/a has scheduler \"wlc\": expected mh";
    assert!(said.contains(expected), "{said}");
    let with_director = stored(&[director.to_owned()]);
    let said = problem(&wlc, &with_director);
    let expected =
        "spec.scheduler: \"wlc\": expected mh, by spec.statelessFailover of Director lb-1";
    assert!(said.contains(expected), "{said}");

    // Objects of the files count in place of the stored ones of their names.
    let mh = of_scheduler("a", "192.0.2.1", "mh");
    let both = plan(
        &format!("{director}---\n{mh}"),
        &stored(std::slice::from_ref(&wlc)),
        None,
    );
    assert_eq!(
        both,
        "LoadBalancer default/a: changed\nDirector lb-1: created\n"
    );
    let plain = director.replace("statelessFailover: true", "statelessFailover: false");
    let both = plan(&format!("{plain}---\n{wlc}"), &with_director, None);
    assert_eq!(
        both,
        "LoadBalancer default/a: created\nDirector lb-1: changed\n"
    );
    // Nor do objects count that go at the same time.
    let pruned = plan(director, &stored(&[wlc]), Some("app=x"));
    assert_eq!(
        pruned,
        "Director lb-1: created\nLoadBalancer default/a: deleted\n"
    );
}

#[test]
fn a_shown_object_can_be_edited_and_applied() {
    let stored = stored(&[web("a", "192.0.2.1"), web("b", "192.0.2.2")]);
    let objects: Vec<_> = stored.clone().into_iter().collect();
    let reply = show(&objects, false, true);
    assert!(
        reply
            .text
            .contains("LoadBalancer  default/a  7        app=x\n"),
        "{}",
        reply.text
    );
    let yaml = reply.format(Output::Yaml).unwrap();
    let unchanged = "LoadBalancer default/a: unchanged\nLoadBalancer default/b: unchanged\n";
    assert_eq!(plan(&yaml, &stored, None), unchanged);
    let wanted = files::parse(&texts(&yaml), &stored, None).unwrap();
    let versions: Vec<_> = wanted.iter().map(|wanted| wanted.based_on).collect();
    assert_eq!(versions, [Some(7), Some(8)]);
    assert_eq!(differences(&wanted, &stored).code, 0);
    let edited = yaml.replace("192.0.2.1", "192.0.2.9");
    let wanted = files::parse(&texts(&edited), &stored, None).unwrap();
    let reply = differences(&wanted, &stored);
    assert_eq!(reply.code, 1);
    for line in [
        "--- version 7\n",
        "-    - \"192.0.2.1\"\n",
        "+    - \"192.0.2.9\"\n",
    ] {
        assert!(reply.text.contains(line), "{}", reply.text);
    }
    let one: Value = show(&objects[..1], true, false).value;
    assert_eq!(one["metadata"]["resourceVersion"], json!("7"));
}

#[test]
fn what_is_not_there_cannot_be_deleted() {
    let stored = stored(&[web("a", "192.0.2.1")]);
    let error = Plan::of_deletions(&[Name::Node("n".to_owned())], &stored).unwrap_err();
    assert_eq!(error.to_string(), "Node n: not found");
}

#[test]
fn an_object_of_a_file_can_be_deleted_though_another_one_claims_its_address() {
    let mut all = stored(&[web("a", "192.0.2.1")]);
    all.extend(stored(&[web("b", "192.0.2.1")]));
    let names = files::names(&texts(&web("b", "192.0.2.1"))).unwrap();
    let plan = Plan::of_deletions(&names, &all).unwrap();
    let deleted = "LoadBalancer default/b: deleted (dry run)\n";
    assert_eq!(plan.show(&all).text, deleted);
}

#[test]
fn an_object_that_may_not_be_written_can_be_deleted() {
    let node = "apiVersion: v1\nkind: Node\nmetadata: {name: n, resourceVersion: 7}\n";
    assert!(files::parse(&texts(node), &BTreeMap::new(), None).is_err());
    let names = files::names(&texts(node)).unwrap();
    assert_eq!(names, [Name::Node("n".to_owned())]);
    let twice = format!("{node}---\n{node}");
    assert!(files::names(&texts(&twice)).is_err());
}

#[test]
fn a_dry_run_shows_a_conflict_as_the_run_itself_does() {
    let stored = stored(&[web("a", "192.0.2.1")]);
    let edited = |version: &str| {
        let name = format!("{{name: a, resourceVersion: '{version}',");
        web("a", "192.0.2.9").replace("{name: a,", &name)
    };
    let show = |text: &str| {
        let wanted = files::parse(&texts(text), &stored, None).unwrap();
        Plan::new(&wanted, &stored, None).show(&stored)
    };
    let reply = show(&edited("6"));
    assert_eq!(reply.code, 4);
    let said = "LoadBalancer default/a: conflict: based on version 6, but version 7 is stored\n";
    assert!(reply.text.starts_with(said), "{}", reply.text);
    assert_eq!(show(&edited("7")).code, 0);
    // An object that is stored as it is wanted is not written, whatever it is based on.
    let equal = edited("6").replace("192.0.2.9", "192.0.2.1");
    assert_eq!(show(&equal).code, 0);
}

#[test]
fn a_transaction_has_at_most_128_objects_and_1_mib() {
    let wanted = |(number, bytes): (usize, &usize)| Wanted {
        name: Name::Node(format!("n{number}")),
        value: json!("x".repeat(*bytes)),
        based_on: None,
    };
    let sizes = |bytes: &[usize]| {
        let wanted: Vec<_> = bytes.iter().enumerate().map(wanted).collect();
        let plan = Plan::new(&wanted, &BTreeMap::new(), None);
        let sizes = chunks(&plan.steps).into_iter().map(<[_]>::len);
        sizes.collect::<Vec<_>>()
    };
    assert_eq!(sizes(&[]), [0; 0]);
    assert_eq!(sizes(&[1; 300]), [128, 128, 44]);
    assert_eq!(sizes(&[300_000; 7]), [3, 3, 1]);
    // One that is too large alone is tried alone.
    assert_eq!(sizes(&[1, 1_100_000, 1]), [1, 1, 1]);
}

#[test]
fn a_failed_write_says_what_may_be_written() {
    let late = || EtcdError::Timeout(Duration::from_secs(5));
    let said = |error, written| format!("{:#}", failed(error, written));
    assert_eq!(
        said(late(), 0),
        "no answer to a write, which may be done all the same: no answer within 5s"
    );
    assert_eq!(
        said(late(), 128),
        "128 objects of earlier transactions are written: \
         no answer to a write, which may be done all the same: no answer within 5s"
    );
    assert_eq!(
        said(EtcdError::Ended, 0),
        EtcdError::Ended.to_string(),
        "a refusal is an answer"
    );
}

#[test]
fn a_node_with_a_wrong_version_or_name_is_refused() {
    let none = BTreeMap::new();
    let node = |metadata: &str| format!("apiVersion: v1\nkind: Node\nmetadata: {{{metadata}}}\n");
    let based_on = |metadata: &str| {
        let wanted = files::parse(&texts(&node(metadata)), &none, None).unwrap();
        (wanted[0].based_on, wanted[0].value["metadata"].clone())
    };
    let bare = json!({"name": "a"});
    let good = based_on("name: a, resourceVersion: '7'");
    assert_eq!(good, (Some(7), bare.clone()));
    for wrong in ["7", "'7x'", "'-7'", "''", "'1234567890123456789'"] {
        let said = problem(&node(&format!("name: a, resourceVersion: {wrong}")), &none);
        let expected = "Node a: metadata.resourceVersion: expected at most 18 digits, in quotes";
        assert!(said.contains(expected), "{wrong}: {said}");
    }
    // The version of a Node of Kubernetes is one of another store.
    let foreign = based_on("name: a, uid: u, resourceVersion: '99'");
    assert_eq!(foreign, (None, bare));
    let said = problem(&node("name: a/b"), &none);
    assert!(said.contains("Node a/b: metadata.name: "), "{said}");
}
