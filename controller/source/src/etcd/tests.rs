// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use portolan_catalog::{Catalog, DirtySet, Kind, ObjectChange};
use portolan_etcd::{Change, Listing, News, Pair};
use tokio::sync::mpsc;

use super::*;
use crate::{Event, HeldDeletions, HeldKey};

mod rig;

use rig::Rig;

const WEB: &str = "loadbalancers/default/web";
const DNS: &str = "loadbalancers/default/dns";

/// Key of the held deletions of a kind.
fn of(kind: Kind) -> HeldKey {
    ("".into(), kind)
}

fn full(key: &str) -> String {
    format!("/portolan/v1alpha1/{key}")
}

fn pair(key: &str, created: i64, modified: i64, value: &str) -> Pair {
    Pair {
        key: full(key).into_bytes(),
        value: value.as_bytes().to_vec(),
        created,
        modified,
    }
}

fn balancer(name: &str, address: &str, weight: u16) -> String {
    format!(
        r#"{{"apiVersion":"portolan.dev/v1alpha1","kind":"LoadBalancer","metadata":{{"name":"{name}"}},
        "spec":{{"frontends":[{{"addresses":["{address}"],"port":80}}],
        "backends":[{{"address":"10.0.0.1","weight":{weight}}}]}}}}"#
    )
}

fn web(weight: u16) -> String {
    balancer("web", "192.0.2.1", weight)
}

async fn two() -> Rig {
    let mut rig = Rig::new();
    rig.store(WEB, &web(1));
    rig.store(DNS, &balancer("dns", "192.0.2.2", 1));
    rig.list().await;
    assert_eq!(rig.in_force(), "dns=1 web=1");
    rig
}

#[tokio::test]
async fn keys_become_records_at_the_revision_of_the_store() {
    let mut rig = two().await;
    assert_eq!((rig.synced, rig.generations), (1, 1));
    assert_eq!(rig.catalog.source_versions()[""], [3, 3, 3]);
    rig.put(WEB, &web(2)).await;
    assert_eq!(rig.in_force(), "dns=1 web=2");
    assert_eq!(rig.catalog.source_versions()[""], [4, 4, 4]);
    // A sign of life.
    rig.revision = 9;
    rig.tell(Vec::new()).await;
    assert_eq!(rig.catalog.source_versions()[""], [9, 9, 9]);
    rig.list().await;
    assert_eq!((rig.synced, rig.generations), (1, 2), "once, and no news");
}

#[tokio::test]
async fn a_bad_value_is_named_and_the_last_good_one_stays() {
    let mut rig = two().await;
    let bad = web(1).replace("\"weight\":1", "\"weight\":70000");
    rig.put(WEB, &bad).await;
    assert_eq!(rig.in_force(), "dns=1 web=1");
    let problems = rig.problems();
    let expected = "LoadBalancer default/web: spec.backends[0].weight: 70000: expected 0 to 65535";
    assert_eq!(problems, [expected]);
    // So it is after all keys were read again, and for another one.
    rig.list().await;
    rig.put(DNS, &balancer("dns", "192.0.2.2", 5)).await;
    assert_eq!(
        (rig.in_force(), rig.problems()),
        ("dns=5 web=1".to_owned(), problems)
    );
    rig.put(WEB, &web(3)).await;
    assert_eq!(
        (rig.in_force(), rig.problems().len()),
        ("dns=5 web=3".to_owned(), 0)
    );
}

#[tokio::test(start_paused = true)]
async fn values_that_are_not_their_keys_are_refused() {
    let mut rig = two().await;
    rig.put("directors/e", &director("e", "")).await;
    let node = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"n"}}"#;
    let hooks = balancer("web", "192.0.2.1", 1).replace(
        r#""spec":{"#,
        r#""spec":{"hooks":{"onQuorum":["/bin/true"]},"#,
    );
    for (key, value, expected) in [
        (
            WEB,
            balancer("other", "192.0.2.1", 2),
            "LoadBalancer default/web: metadata.name: LoadBalancer default/other at the key of",
        ),
        (
            WEB,
            node.to_owned(),
            "LoadBalancer default/web: kind: \"Node\": expected a LoadBalancer",
        ),
        (
            WEB,
            hooks,
            "LoadBalancer default/web: spec.hooks.onQuorum: not supported here",
        ),
        (WEB, "{".to_owned(), "LoadBalancer default/web: "),
        (
            "nodes/a",
            node.to_owned(),
            "Node a: metadata.name: Node n at the key of Node a",
        ),
        (
            "nodes/a",
            web(1),
            "Node a: kind: \"LoadBalancer\": expected a Node",
        ),
        (
            "directors/d",
            web(1),
            "Director d: metadata.name: LoadBalancer default/web at",
        ),
    ] {
        rig.put(key, &value).await;
        let problems = rig.problems().join("\n");
        assert!(problems.contains(expected), "{value}: {problems}");
        assert_eq!(rig.in_force(), "dns=1 web=1");
    }
    rig.delete(&["directors/d"]).await;
    rig.wait().await;
    assert_eq!(rig.problems().len(), 2, "{:?}", rig.problems());
}

#[tokio::test]
async fn a_frontend_is_of_the_load_balancer_that_was_created_first() {
    let mut rig = two().await;
    // The younger one wants the elder's address, and keeps its own.
    rig.put(DNS, &balancer("dns", "192.0.2.1", 7)).await;
    assert_eq!(rig.in_force(), "dns=1 web=1");
    let expected = "LoadBalancer default/dns: spec.frontends[0]: TCP 192.0.2.1:80 is of \
                    LoadBalancer default/web already: expected once";
    assert_eq!(rig.problems(), [expected]);
    // A restarted controller knows no earlier version.
    let mut restarted = Rig::new();
    restarted.keys.clone_from(&rig.keys);
    restarted.list().await;
    assert_eq!(restarted.in_force(), "web=1");
    // The elder one gives it up.
    rig.put(WEB, &balancer("web", "192.0.2.3", 1)).await;
    assert_eq!(
        (rig.in_force(), rig.problems().len()),
        ("dns=7 web=1".to_owned(), 0)
    );
}

#[tokio::test]
async fn keys_of_no_object_are_reported_as_long_as_they_are_there() {
    let mut rig = two().await;
    rig.put("loadbalancers/web", &web(9)).await;
    assert_eq!(rig.strays.len(), 1);
    let stray = &rig.strays[0];
    assert!(
        stray.starts_with("/portolan/v1alpha1/loadbalancers/web: is the key of no"),
        "{stray}"
    );
    rig.list().await;
    assert_eq!(rig.strays.len(), 1);
    rig.delete(&["loadbalancers/web"]).await;
    assert_eq!(rig.strays.len(), 0);
    assert_eq!(rig.in_force(), "dns=1 web=1");
}

#[tokio::test(start_paused = true)]
async fn an_empty_prefix_is_held_until_it_is_confirmed() {
    let mut rig = two().await;
    let keys = std::mem::take(&mut rig.keys);
    rig.list().await;
    assert_eq!(rig.in_force(), "dns=1 web=1");
    assert_eq!(rig.holds.held()[&of(Kind::LoadBalancer)].lost.objects, 2);
    rig.keys = keys;
    rig.list().await;
    assert!(rig.holds.held().is_empty(), "they are back");
    // The same by a watch.
    rig.delete(&[WEB, DNS]).await;
    rig.wait().await;
    assert_eq!(rig.in_force(), "dns=1 web=1");
    assert_eq!(rig.holds.held()[&of(Kind::LoadBalancer)].lost.objects, 2);
    rig.holds.confirm();
    rig.wait().await;
    assert_eq!((rig.in_force(), rig.holds.held().len()), (String::new(), 0));
}

#[tokio::test(start_paused = true)]
async fn one_of_several_is_deleted_without_a_question() {
    let mut rig = two().await;
    rig.delete(&[WEB]).await;
    let began = tokio::time::Instant::now();
    rig.wait().await;
    assert_eq!(rig.in_force(), "dns=1");
    assert!(began.elapsed() <= Duration::from_secs(1));
    // And while the controller was away.
    let mut rig = two().await;
    rig.keys.remove(DNS).unwrap();
    rig.list().await;
    assert_eq!(
        (rig.in_force(), rig.holds.held().len()),
        ("web=1".to_owned(), 0)
    );
}

#[tokio::test(start_paused = true)]
async fn nodes_come_and_go() {
    let node = |name: &str, zone: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{name}",
            "labels":{{"topology.kubernetes.io/zone":"{zone}"}}}}}}"#
        )
    };
    let mut rig = Rig::new();
    rig.store("nodes/a", &node("a", "x"));
    rig.store("nodes/b", &node("b", "y"));
    rig.store(
        "directors/a",
        "{\"apiVersion\":\"portolan.dev/v1alpha1\",\"kind\":\"Director\",\
        \"metadata\":{\"name\":\"a\"},\"spec\":{}}",
    );
    rig.list().await;
    assert_eq!(
        (rig.catalog.count(Kind::Node), rig.problems().len()),
        (2, 0)
    );
    rig.put("nodes/c", &node("c", "x")).await;
    rig.delete(&["nodes/b"]).await;
    rig.wait().await;
    let mut nodes: Vec<_> = rig
        .catalog
        .nodes()
        .map(|node| node.name.to_string())
        .collect();
    nodes.sort();
    assert_eq!(nodes, ["a", "c"]);
    rig.keys.remove("nodes/c").unwrap();
    rig.list().await;
    assert_eq!(rig.catalog.count(Kind::Node), 1);
}

/// The Directors that the hosts are sent: `a=role`, and `b` for a Node without one.
fn directed(rig: &Rig) -> String {
    let nodes = rig.catalog.nodes().map(|node| {
        let info = rig.catalog.node_info(&node).unwrap();
        let director = info.director.as_deref().map(|text| {
            let read = portolan_director::Director::from_sent(text.as_bytes(), &node.name);
            format!("={}", read.unwrap().announce_table)
        });
        format!("{}{}", node.name, director.unwrap_or_default())
    });
    let mut nodes: Vec<_> = nodes.collect();
    nodes.sort();
    nodes.join(" ")
}

fn director(name: &str, spec: &str) -> String {
    format!(
        r#"{{"apiVersion":"portolan.dev/v1alpha1","kind":"Director","metadata":{{"name":"{name}"}},"spec":{{{spec}}}}}"#
    )
}

#[tokio::test(start_paused = true)]
async fn a_director_is_of_its_own_host_and_stays_when_it_is_bad() {
    let node = r#"{"apiVersion":"v1","kind":"Node","metadata":{"name":"a"}}"#;
    let table = |table: u32| format!(r#""announceTable":{table}"#);
    let mut rig = Rig::new();
    rig.store("nodes/a", node);
    // The last Node would be held.
    rig.store("nodes/z", &node.replace("\"a\"", "\"z\""));
    rig.store("directors/a", &director("a", &table(7)));
    rig.store("directors/b", &director("b", &table(8)));
    rig.store("directors/c", &director("c", &table(9)));
    rig.list().await;
    assert_eq!(directed(&rig), "a=7 b=8 c=9 z");
    rig.put("directors/b", &director("b", &table(5))).await;
    assert_eq!(directed(&rig), "a=7 b=5 c=9 z");

    // Programs of a host are named, and the last good one stays.
    let bad = director("b", r#""scripts":{"user":"root"}"#);
    rig.put("directors/b", &bad).await;
    assert_eq!(directed(&rig), "a=7 b=5 c=9 z");
    let problems = rig.problems();
    assert!(
        problems[0].starts_with("Director b: spec.scripts.user: not supported here"),
        "{problems:?}"
    );
    rig.put("directors/b", &director("b", "")).await;
    assert_eq!(
        (directed(&rig), rig.problems().len()),
        ("a=7 b=0 c=9 z".to_owned(), 0)
    );

    // A Node comes and goes under its Director, also by a listing.
    rig.delete(&["nodes/a"]).await;
    rig.wait().await;
    rig.put("nodes/b", &node.replace("\"a\"", "\"b\"")).await;
    assert_eq!(directed(&rig), "a=7 b=0 c=9 z");
    rig.list().await;
    assert_eq!(directed(&rig), "a=7 b=0 c=9 z");
    rig.delete(&["directors/a", "directors/b"]).await;
    rig.wait().await;
    assert_eq!(directed(&rig), "b c=9 z");
}

#[tokio::test(start_paused = true)]
async fn nodes_belong_to_the_groups_that_load_balancers_select() {
    let node = |name: &str, role: &str| {
        format!(
            r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{name}","labels":{{"role":"{role}"}}}}}}"#
        )
    };
    let selecting = |role: &str| {
        let selector = format!(r#""spec":{{"nodeSelector":{{"role":"{role}"}},"#);
        web(1).replace(r#""spec":{"#, &selector)
    };
    let groups = |rig: &Rig| {
        let nodes = rig.catalog.nodes().map(|node| {
            let info = rig.catalog.node_info(&node).unwrap();
            format!("{} {:?}", node.name, info.groups)
        });
        let mut nodes: Vec<_> = nodes.collect();
        nodes.sort();
        nodes
    };
    let edge = r#""{\"role\":\"edge\"}""#;
    let mut rig = Rig::new();
    rig.store("nodes/a", &node("a", "edge"));
    rig.store("nodes/b", &node("b", "core"));
    rig.store(WEB, &web(1));
    rig.list().await;
    assert_eq!(groups(&rig), ["a []", "b []"]);
    rig.put(WEB, &selecting("edge")).await;
    assert!(rig.problems().is_empty(), "{:?}", rig.problems());
    assert_eq!(groups(&rig), [format!("a [{edge}]"), "b []".to_owned()]);
    let record = rig.catalog.load_balancers().values().next().unwrap();
    let is_for = |name: &str| {
        let mut nodes = rig.catalog.nodes();
        let node = nodes.find(|node| *node.name == *name).unwrap();
        record.is_for(&rig.catalog.node_info(&node).unwrap())
    };
    assert_eq!((is_for("a"), is_for("b")), (true, false));
    // A Node that cannot be read follows selectors with its last labels, and keeps its problem.
    let bad = node("b", "core").replace("}}}", "}},\"spec\":{\"taints\":1}}");
    rig.put("nodes/b", &bad).await;
    rig.put(WEB, &selecting("core")).await;
    assert_eq!(groups(&rig)[1], r#"b ["{\"role\":\"core\"}"]"#);
    assert!(
        rig.problems()[0].contains("Node b: spec.taints"),
        "{:?}",
        rig.problems()
    );
    rig.put(WEB, &selecting("edge")).await;
    // Labels change.
    rig.put("nodes/b", &node("b", "edge")).await;
    assert!(rig.problems().is_empty(), "{:?}", rig.problems());
    assert_eq!(groups(&rig)[1], format!("b [{edge}]"));
    rig.put("nodes/a", &node("a", "core")).await;
    assert_eq!(groups(&rig)[0], "a []");
    // The load balancer asks for others, and then for all.
    rig.put(WEB, &selecting("core")).await;
    assert_eq!(groups(&rig), [r#"a ["{\"role\":\"core\"}"]"#, "b []"]);
    rig.put(WEB, &web(1)).await;
    assert_eq!(groups(&rig), ["a []", "b []"]);
    let record = rig.catalog.load_balancers().values().next().unwrap();
    assert!(record.is_for(&portolan_model::NodeInfo::default()));
}
