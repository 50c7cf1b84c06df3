// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;

use portolan_etcd::Name;
use serde_json::{Value, json};

use super::apply::{Plan, differences};
use super::args::Selector;
use super::files::{self, Text};
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
    plan.show().text.replace(" (dry run)", "")
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
