// SPDX-License-Identifier: Apache-2.0

//! Files that lose most of their objects.

use super::*;
use crate::HeldKey;
use crate::deletions::GuardConfig;

/// Key of the held deletions of a kind.
fn of(kind: Kind) -> HeldKey {
    ("".into(), kind)
}

fn services(range: std::ops::Range<u32>) -> String {
    let one = |i| service(&format!("s{i}"), "80");
    range.map(one).collect::<Vec<_>>().concat()
}

fn slice(name: &str, ready: usize) -> String {
    let endpoints = (0..10).map(|i| {
        let is_ready = i < ready;
        format!("- addresses: [10.1.0.{i}]\n  conditions: {{ready: {is_ready}}}\n")
    });
    format!(
        "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata:\n  name: {name}\n  \
         namespace: prod\n  labels: {{kubernetes.io/service-name: s1}}\naddressType: IPv4\n\
         ports: [{{port: 80}}]\nendpoints:\n{}",
        endpoints.collect::<String>()
    )
}

fn guarded() -> (Rig, Arc<HeldDeletions>) {
    let mut rig = Rig::new();
    let holds = Arc::new(HeldDeletions::default());
    rig.files = Files::new(vec![rig.dir.path().to_owned()], &Arc::from(""))
        .with_names()
        .guarded(GuardConfig::default(), &holds);
    (rig, holds)
}

#[test]
fn a_directory_that_is_emptied_keeps_its_objects_until_that_is_confirmed() {
    let (mut rig, holds) = guarded();
    rig.write("a.yaml", &services(0..100));
    assert_eq!(rig.refresh().changes.len(), 100);
    rig.remove("a.yaml");
    rig.write("b.yaml", &services(200..201));
    let report = rig.refresh();
    assert_eq!(
        (report.changes.len(), report.names.len()),
        (1, 1),
        "new objects"
    );
    assert_eq!(rig.catalog.count(Kind::Service), 101);
    assert_eq!(holds.held()[&of(Kind::Service)].lost.objects, 100);
    assert!(rig.told().is_empty());

    // Some of it comes back, and changes.
    rig.write("c.yaml", &service("s7", "81"));
    assert_eq!(rig.told(), ["put Service prod/s7"]);
    assert_eq!(rig.port_of("s7"), Some(81));
    assert_eq!(holds.held()[&of(Kind::Service)].lost.objects, 99);

    holds.confirm();
    let report = rig.refresh();
    assert_eq!((report.changes.len(), report.names.len()), (99, 99));
    assert_eq!(rig.catalog.count(Kind::Service), 2);
    assert!(holds.held().is_empty());
}

#[test]
fn files_that_come_back_end_the_hold_and_small_losses_are_believed() {
    let (mut rig, holds) = guarded();
    rig.write("a.yaml", &services(0..100));
    rig.refresh();
    rig.write("a.yaml", "# nothing\n");
    assert!(rig.told().is_empty());
    assert_eq!(holds.held().len(), 1);
    rig.write("a.yaml", &services(0..100));
    assert!(rig.told().is_empty());
    assert!(holds.held().is_empty());
    rig.write("a.yaml", &services(0..80));
    assert_eq!(rig.told().len(), 20);
    assert!(holds.held().is_empty());
}

#[test]
fn endpoints_that_are_no_longer_ready_count_too() {
    let (mut rig, holds) = guarded();
    let slices = |ready| -> String { (0..10).map(|i| slice(&format!("e{i}"), ready)).collect() };
    rig.write("a.yaml", &slices(10));
    assert_eq!(rig.refresh().changes.len(), 10);
    rig.write("a.yaml", &slices(0));
    assert!(rig.told().is_empty());
    assert_eq!(holds.held()[&of(Kind::EndpointSlice)].lost.ready, 100);
    holds.confirm();
    assert_eq!(rig.told().len(), 10);
}
