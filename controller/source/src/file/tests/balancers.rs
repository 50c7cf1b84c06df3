// SPDX-License-Identifier: Apache-2.0

//! Load balancers beside Kubernetes objects: a generation in force as a whole or not at all.

use portolan_director::Role;

use super::*;

const WEB: &str = "apiVersion: portolan.dev/v1alpha1
kind: LoadBalancer
metadata: {name: web}
spec:
  frontends: [{addresses: [192.0.2.10], port: 80}]
  backends: [{address: 10.0.0.11}]
";

fn service(name: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: prod}}\n\
         spec: {{clusterIPs: [10.96.0.1], ports: [{{port: 80}}]}}\n"
    )
}

/// The backends in force.
fn backends(rig: &Rig) -> Vec<String> {
    let records = rig.catalog.load_balancers().values();
    let destinations = records.flat_map(|record| &record.destinations);
    destinations.map(|one| one.address.to_string()).collect()
}

fn problems(report: &Report) -> Vec<String> {
    report.problems.iter().map(ToString::to_string).collect()
}

#[test]
fn a_generation_follows_its_files() {
    let mut rig = Rig::new();
    rig.write("lb.yaml", WEB);
    rig.write("objects.yaml", &service("a"));
    let report = rig.refresh();
    assert_eq!((report.changes.len(), problems(&report)), (2, vec![]));
    assert_eq!(backends(&rig), ["10.0.0.11:80"]);
    assert_eq!(rig.refresh().changes, [], "nothing changed");
    rig.write("lb.yaml", &WEB.replace("10.0.0.11", "10.0.0.12"));
    rig.refresh();
    assert_eq!(backends(&rig), ["10.0.0.12:80"]);
    rig.remove("lb.yaml");
    rig.refresh();
    assert_eq!(backends(&rig), [""; 0]);
    assert_eq!(rig.catalog.count(Kind::Service), 1);
}

#[test]
fn with_an_error_in_any_file_nothing_changes() {
    let mut rig = Rig::new();
    rig.write("a.yaml", WEB);
    rig.write("b.yaml", "{}");
    rig.refresh();
    assert_eq!(backends(&rig), [""; 0], "not even at the first start");
    rig.write("b.yaml", &service("a"));
    rig.refresh();
    assert_eq!(backends(&rig), ["10.0.0.11:80"]);

    rig.write(
        "a.yaml",
        &WEB.replace("10.0.0.11", "10.0.0.12")
            .replace("port: 80", "port: 70000"),
    );
    rig.write("c.yaml", &service("b"));
    let report = rig.refresh();
    assert_eq!(report.changes, []);
    let found = problems(&report);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(
        found[0].contains("a.yaml:5:47: spec.frontends[0].port: 70000"),
        "{found:?}"
    );
    assert!(
        found[1].contains("a.yaml: not applied: 1 error; the configuration of 2"),
        "{found:?}"
    );
    assert_eq!(backends(&rig), ["10.0.0.11:80"]);
    assert_eq!(rig.catalog.count(Kind::Service), 1);

    rig.write("a.yaml", &WEB.replace("10.0.0.11", "10.0.0.12"));
    let report = rig.refresh();
    assert_eq!((report.changes.len(), problems(&report)), (2, vec![]));
    assert_eq!(backends(&rig), ["10.0.0.12:80"]);
}

#[test]
fn a_start_with_an_error_waits_for_the_mended_file() {
    let mut rig = Rig::new();
    rig.write("a.yaml", &WEB.replace("port: 80", "port: 70000"));
    rig.write("b.yaml", &service("a"));
    for _ in 0..2 {
        let report = rig.refresh();
        assert!(!report.complete && report.changes.is_empty());
        assert_eq!(problems(&report).len(), 2);
    }
    rig.write("a.yaml", WEB);
    let report = rig.refresh();
    assert!(report.complete && report.problems.is_empty());
    assert_eq!(backends(&rig), ["10.0.0.11:80"]);
    // Later errors keep what is in force.
    rig.write("a.yaml", "{}");
    assert!(rig.refresh().complete);
}

#[test]
fn an_emptied_file_keeps_its_load_balancers_until_it_has_a_comment() {
    let mut rig = Rig::new();
    rig.write("lb.yaml", WEB);
    rig.refresh();
    for _ in 0..2 {
        rig.write("lb.yaml", "");
        let report = rig.refresh();
        assert_eq!(report.changes, []);
        let found = problems(&report);
        assert!(
            found[0].ends_with("lb.yaml: empty; its objects stay as they were"),
            "{found:?}"
        );
        assert!(found[1].contains("not applied: 1 error"), "{found:?}");
    }
    assert_eq!(backends(&rig), ["10.0.0.11:80"]);
    rig.write("lb.yaml", "# nothing\n");
    assert_eq!(problems(&rig.refresh()), [""; 0]);
    assert_eq!(backends(&rig), [""; 0]);
}

#[test]
fn a_mistyped_version_deletes_nothing() {
    let mut rig = Rig::new();
    rig.write("lb.yaml", WEB);
    rig.refresh();
    for (mistyped, problem) in [
        (
            WEB.replace("portolan.dev", "portlan.dev"),
            r#":1:13: apiVersion: "portlan.dev/v1alpha1": expected portolan.dev/v1alpha1"#,
        ),
        (
            WEB.replace("apiVersion", "apiversion"),
            ":1:1: apiVersion: missing: expected portolan.dev/v1alpha1",
        ),
        (
            WEB.replace("portolan.dev", "portlan.dev")
                .replace("kind", "knd"),
            ":1: kind: missing: expected an object with apiVersion and kind",
        ),
    ] {
        rig.write("lb.yaml", &mistyped);
        let report = rig.refresh();
        assert_eq!(report.changes, [], "{mistyped}");
        let found = problems(&report);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].ends_with(problem), "{found:?}");
        assert!(
            found[1].contains("lb.yaml: not applied: 1 error; the configuration of 2"),
            "{found:?}"
        );
        assert_eq!(backends(&rig), ["10.0.0.11:80"]);
    }
    rig.remove("lb.yaml");
    assert_eq!(problems(&rig.refresh()), [""; 0]);
    assert_eq!(backends(&rig), [""; 0]);
    // Without load balancers, an error stops no other object.
    rig.write("a.yaml", "a: 1\n");
    rig.write("b.yaml", &service("b"));
    assert_eq!(rig.told(), ["put Service prod/b"]);
}

#[test]
fn a_director_stays_on_standby_when_its_file_is_emptied_or_mistyped() {
    let director = "apiVersion: portolan.dev/v1alpha1\nkind: Director\nmetadata: {name: lb1}\n\
                    spec: {vips: {role: Command}}\n";
    let role = |report: Report| report.director.map(|director| director.vips.role);
    let rig = || {
        let mut rig = Rig::new();
        rig.files =
            Files::new(vec![rig.dir.path().to_owned()], &Arc::from("")).on_host("lb1".into());
        rig
    };
    let mistyped = director.replace("portolan.dev", "portlan.dev");
    let mut running = rig();
    running.write("director.yaml", director);
    assert_eq!(role(running.refresh()), Some(Role::Command));
    for text in ["", &mistyped, "apiVersi"] {
        running.write("director.yaml", text);
        assert_eq!(role(running.refresh()), Some(Role::Command), "{text}");
    }
    running.remove("director.yaml");
    assert_eq!(role(running.refresh()), Some(Role::Always));
    let mut starting = rig();
    starting.write("director.yaml", &mistyped);
    assert_eq!(role(starting.refresh()), None);
}

#[test]
fn a_document_that_may_be_a_load_balancer_deletes_none() {
    let mut rig = Rig::new();
    let two = WEB.replace("web", "two").replace("2.10", "2.11");
    rig.write("lb.yaml", &format!("{WEB}---\n{two}"));
    rig.refresh();
    let mistyped = two.replace("portolan.dev", "portlan.dev");
    for text in [
        mistyped.clone(),
        mistyped.replace("kind", "knd"),
        two.replace("kind: LoadBalancer", "kind: ["),
        "apiVersi".to_owned(),
    ] {
        rig.write("lb.yaml", &format!("{WEB}---\n{text}"));
        let report = rig.refresh();
        assert_eq!(report.changes, [], "{text}");
        let found = problems(&report);
        assert_eq!(found.len(), 2, "told once: {found:?}");
        assert!(found[1].contains("not applied: 1 error"), "{found:?}");
    }
}

#[test]
fn what_cannot_be_programmed_is_refused_by_name() {
    let mut rig = Rig::new();
    let hooks = format!("{WEB}  hooks: {{onQuorum: [/bin/true]}}\n");
    rig.write("lb.yaml", &hooks);
    let report = rig.refresh();
    let expected = "LoadBalancer default/web: spec.hooks.onQuorum: not supported here";
    assert!(
        problems(&report)[0].contains(expected),
        "{:?}",
        report.problems
    );
    assert_eq!(backends(&rig), [""; 0]);
}

#[test]
fn annotations_of_our_group_are_no_load_balancers() {
    let mut rig = Rig::new();
    let list = r#"{"kind": "List", "items": [{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "a",
        "namespace": "prod", "annotations": {"portolan.dev/scheduler": "mh"}}, "spec": {"clusterIPs": ["10.96.0.1"],
        "ports": [{"port": 80}]}}]}"#;
    rig.write("list.json", list);
    let report = rig.refresh();
    assert_eq!((report.changes.len(), problems(&report)), (1, vec![]));
    // Nor are they beside one.
    rig.write("lb.yaml", WEB);
    rig.write(
        "b.yaml",
        &format!("{}---\n{list}\n---\n{WEB}", service("b"))
            .replace("name: web", "name: www")
            .replace("2.10", "2.11"),
    );
    let report = rig.refresh();
    assert_eq!(problems(&report), [""; 0]);
    assert_eq!(backends(&rig), ["10.0.0.11:80", "10.0.0.11:80"]);
}

#[test]
fn files_of_directors_alone_are_recognised_without_parsing() {
    let directory = tempfile::tempdir().unwrap();
    let alone = |files: &[(&str, &str)]| {
        let own = tempfile::tempdir_in(directory.path()).unwrap();
        for (name, text) in files {
            std::fs::write(own.path().join(name), text).unwrap();
        }
        crate::file::have_directors_alone(&[own.path().to_owned()])
    };
    let two = format!("# all\n---\n{WEB}---\n{}", WEB.replace("web", "two"));
    let service = service("a");
    assert!(alone(&[("a.yaml", &two), ("b.yaml", WEB)]));
    assert!(!alone(&[("a.yaml", &two), ("b.yaml", &service)]));
    assert!(!alone(&[("a.yaml", &format!("{WEB}---\n{service}"))]));
    assert!(!alone(&[]), "no documents");
    assert!(!alone(&[("a.yaml", "# nothing\n")]), "no documents");
    assert!(!alone(&[("a.json", "{}")]), "in doubt");
    let missing = directory.path().join("missing");
    assert!(!crate::file::have_directors_alone(&[missing]));
}
