// SPDX-License-Identifier: Apache-2.0

//! The changes for DNS from files.

use portolan_dns::{Kind as NameKind, NamesChange as Name};

use super::*;

const TEXT: &str = "kind: Namespace
apiVersion: v1
metadata: {name: prod}
---
kind: Service
apiVersion: v1
metadata: {name: db, namespace: prod}
spec: {clusterIP: None}
---
kind: Service
apiVersion: v1
metadata: {name: out, namespace: prod}
spec: {type: ExternalName, externalName: a.test}
---
kind: Pod
apiVersion: v1
metadata: {name: p, namespace: prod}
status: {podIP: 10.2.0.1}
";

fn rig() -> Rig {
    let mut rig = Rig::new();
    rig.files = Files::new(vec![rig.dir.path().to_owned()], &Arc::from("")).with_names();
    rig
}

#[test]
fn objects_that_only_dns_has_are_read() {
    let mut rig = rig();
    rig.write("a.yaml", TEXT);
    let report = rig.refresh();
    assert_eq!(report.changes, []);
    assert_eq!(report.problems, []);
    assert_eq!(report.names.len(), 4, "{:?}", report.names);
    assert!(report.names.contains(&Name::Namespace("prod".to_owned())));
    assert_eq!(rig.refresh().names, []);

    rig.write(
        "a.yaml",
        &TEXT
            .replace("a.test", "b.test")
            .replace("kind: Pod", "kind: X"),
    );
    let names = rig.refresh().names;
    let [Name::Service(service), Name::PodRemoved(pod)] = names.as_slice() else {
        panic!("{names:?}");
    };
    let target = "b.test".to_owned();
    assert_eq!(service.kind, NameKind::ExternalName { target });
    assert_eq!(pod.name, "p");
}

#[test]
fn unreadable_objects_keep_their_names_and_are_reported() {
    let mut rig = rig();
    rig.write("a.yaml", TEXT);
    rig.refresh();
    rig.write("a.yaml", &TEXT.replace("clusterIP: None", "clusterIP: [1]"));
    let report = rig.refresh();
    assert_eq!(report.names, []);
    let bad = TEXT.replace("clusterIP: None", "clusterIP: None, ports: [{port: 0}]");
    rig.write("a.yaml", &bad);
    let report = rig.refresh();
    let problems: Vec<_> = report.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].contains("spec.ports[0].port: 0 is not a port"),
        "{problems:?}"
    );
}
