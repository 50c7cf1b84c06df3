// SPDX-License-Identifier: Apache-2.0

//! Files that cannot be read, as a whole or in part.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

use super::*;

#[test]
fn a_file_that_was_cut_short_keeps_all_that_it_had() {
    let mut rig = Rig::new();
    let text = service("a", "1") + &service("b", "2") + &service("c", "3");
    rig.write("a.yaml", &text);
    rig.refresh();
    // Within the second Service: its ports are `[` now.
    let mut cut = service("a", "9") + &service("b", "2").replace("ports:\n  - port: 2\n", "");
    cut.push_str("ports: [\n");
    rig.write("a.yaml", &cut);
    assert_eq!(rig.told(), ["put Service prod/a", "refuse Service prod/b"]);
    assert_eq!(
        ["a", "b", "c"].map(|name| rig.port_of(name)),
        [Some(9), Some(2), Some(3)]
    );
    let problems = rig.of_objects();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(
        problems[0].starts_with("Service prod/b: unclosed bracket"),
        "{problems:?}"
    );
    assert!(problems[0].ends_with("(a.yaml:19:10)"), "{problems:?}");
    // Mended, and without the object that was held back.
    rig.write("a.yaml", &(service("a", "9") + &service("b", "4")));
    assert_eq!(rig.told(), ["put Service prod/b", "delete Service prod/c"]);
    assert!(rig.of_objects().is_empty());
}

#[test]
fn a_broken_document_of_a_known_object_stops_no_other() {
    let mut rig = Rig::new();
    let text = |b: &str, c: &str| service("a", "1") + b + &service("c", c);
    rig.write("a.yaml", &text(&service("b", "2"), "3"));
    rig.refresh();
    rig.write("a.yaml", &text(&service("b", "[2"), "4"));
    let told = ["refuse Service prod/b", "put Service prod/c"];
    assert_eq!(rig.told(), told);
    assert_eq!(
        ["a", "b", "c"].map(|name| rig.port_of(name)),
        [Some(1), Some(2), Some(4)]
    );
    // The file is readable except for this object, so absent objects are deleted.
    rig.write("a.yaml", &(service("b", "[2") + &service("c", "4")));
    let told = ["refuse Service prod/b", "delete Service prod/a"];
    assert_eq!(rig.told(), told);
}

#[test]
fn a_broken_unidentified_document_holds_deletions_back() {
    let mut rig = Rig::new();
    rig.write("a.yaml", &(service("a", "1") + &service("b", "2")));
    rig.write("z.yaml", &service("z", "26"));
    rig.refresh();
    rig.write("a.yaml", &("a: b: c\n".to_owned() + &service("b", "3")));
    rig.remove("z.yaml");
    assert_eq!(rig.told(), ["put Service prod/b", "delete Service prod/z"]);
    assert_eq!(rig.port_of("a"), Some(1));
    let problem = "a.yaml:1:5: mapping values are not allowed in this context";
    assert_eq!(rig.problems(), [problem]);
    rig.write(
        "a.yaml",
        &("metadata: {name: b}\n".to_owned() + &service("b", "3")),
    );
    let problem = "a.yaml:1: kind: missing: expected an object with apiVersion and kind";
    assert_eq!(rig.problems(), [problem]);
    assert_eq!(rig.port_of("a"), Some(1));
}

#[test]
fn an_object_that_moves_out_of_a_broken_file_is_where_it_can_be_read() {
    let mut rig = Rig::new();
    rig.write("a.yaml", &service("a", "1"));
    rig.refresh();
    rig.write("a.yaml", "[");
    rig.write("b.yaml", &service("a", "2"));
    rig.refresh();
    assert_eq!(rig.port_of("a"), Some(2));
    assert!(rig.of_objects().is_empty());
    rig.remove("b.yaml");
    rig.refresh();
    assert_eq!(rig.port_of("a"), Some(1));
}

#[test]
fn a_wrong_type_is_named_with_its_place() {
    let mut rig = Rig::new();
    rig.write("a.yaml", &(service("a", "1") + &service("b", "2")));
    rig.refresh();
    let broken = service("b", "two").replace("v1", "v1 # x");
    rig.write("a.yaml", &(service("a", "1") + &broken));
    assert_eq!(rig.told(), ["refuse Service prod/b"]);
    assert_eq!(rig.port_of("b"), Some(2));
    let problem = "Service prod/b: spec.ports[0].port: invalid type: string \"two\", expected i64 \
                   (a.yaml:20:11)";
    assert_eq!(rig.of_objects(), [problem]);
    assert!(rig.problems().is_empty());
}

#[test]
fn bad_values_are_named_with_their_place() {
    let mut rig = Rig::new();
    rig.write(
        "a.yaml",
        "kind: ServiceList\napiVersion: v1\nitems:\n- metadata: {name: a, namespace: prod}\n  \
         spec:\n    clusterIP: 10.96.0.1\n    externalIPs:\n    - 192.0.2.1\n    - 127.0.0.1\n    \
         ports: [{port: 80}]\n- metadata: {name: b}\n",
    );
    rig.write(
        "b.yaml",
        "apiVersion: discovery.k8s.io/v1beta1\nkind: EndpointSlice\n",
    );
    assert_eq!(rig.told(), ["put Service prod/a"]);
    let problem = "Service prod/a: items[0].spec.externalIPs[1]: \"127.0.0.1\" is a loopback \
                   address: expected an address that other hosts can reach (a.yaml:9:7)";
    assert_eq!(rig.of_objects(), [problem]);
    let problems = [
        "a.yaml:11:13: items[1].metadata.namespace: missing: a Service needs a namespace",
        "b.yaml:1:13: apiVersion: \"discovery.k8s.io/v1beta1\" is not read: expected \
         discovery.k8s.io/v1",
    ];
    assert_eq!(rig.problems(), problems);
}

#[test]
fn broken_json_and_binary_files_keep_their_objects() {
    let mut rig = Rig::new();
    let node = |name: &str| {
        format!(
            "{{\"apiVersion\": \"v1\",\n\t\"kind\": \"Node\",\n\t\"metadata\": {{\"name\": {name}}}}}\n"
        )
    };
    rig.write("a.json", &node("\"n1\""));
    assert_eq!(rig.told(), ["put Node n1"]);
    rig.write("a.json", &node("n1"));
    assert_eq!(rig.problems(), ["a.json:3:24: expected ident"]);
    rig.write("a.json", &node("1"));
    let problem = "a.json:3:23: metadata.name: invalid type: integer `1`, expected a string";
    assert_eq!(rig.problems(), [problem]);
    fs::write(rig.dir.path().join("a.json"), b"\xff\xfe").unwrap();
    let problems = rig.problems();
    assert!(
        problems[0].starts_with("a.json: not text: invalid utf-8"),
        "{problems:?}"
    );
    assert_eq!(rig.catalog.count(Kind::Node), 1);
    rig.write("a.json", &node("\"n1\""));
    assert!(rig.problems().is_empty());
}

#[test]
fn an_emptied_file_keeps_its_objects_until_it_has_a_comment() {
    let mut rig = Rig::new();
    rig.write("a.yaml", &service("a", "1"));
    rig.refresh();
    for _ in 0..2 {
        rig.write("a.yaml", "");
        assert!(rig.told().is_empty());
        assert_eq!(
            rig.problems(),
            ["a.yaml: empty; its objects stay as they were"]
        );
    }
    rig.write("a.yaml", &service("a", "1"));
    assert!(rig.problems().is_empty());
    rig.write("a.yaml", "# nothing\n");
    assert_eq!(rig.told(), ["delete Service prod/a"]);
}

#[test]
fn a_file_may_be_cut_anywhere() {
    let text = service("a", "1") + "---\nkind: List\nitems: [{kind: Node, apiVersion: \"v1\"}]\n";
    let node = r#"{"kind": "Node", "apiVersion": "v1", "metadata": {"name": "n"}}"#;
    for (name, text) in [("a.yaml", text.as_str()), ("a.json", node)] {
        let mut rig = Rig::new();
        for end in 0..=text.len() {
            rig.write(name, &text[..end]);
            rig.refresh();
        }
    }
}

#[test]
fn a_pipe_is_not_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    symlink("/dev/null", dir.path().join("a.yaml")).unwrap();
    let mut rig = Rig::reading(dir, &[""]);
    assert_eq!(rig.problems(), ["a.yaml: not a file; waiting for it"]);
}

/// The thread's processor time, which excludes other load on the machine.
fn processor_time() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).expect("a clock that began at 0")
}

/// The processor time of a list's first reading.
fn time_of_list(items: &[serde_json::Value], separator: &str) -> Duration {
    let items: Vec<_> = items.iter().map(ToString::to_string).collect();
    let items = items.join(separator);
    let text = format!("{{\"kind\": \"List\", \"items\": [{items}]}}");
    let mut rig = Rig::new();
    rig.write("a.json", &text);
    let start = processor_time();
    rig.refresh();
    processor_time() - start
}

#[test]
fn a_list_on_one_line_takes_no_longer_than_on_many_lines() {
    let items: Vec<_> = (0..3000)
        .map(|number| {
            serde_json::json!({"apiVersion": "v1", "kind": "Service",
                "metadata": {"name": format!("s{number}"), "namespace": "prod"},
                "spec": {"clusterIP": format!("10.96.{}.{}", number / 250, number % 250),
                    "ports": [{"port": 80}], "description": "x".repeat(300)}})
        })
        .collect();
    // The best of five of each, by turns: a slow moment of the machine meets both.
    let turns = (0..5).map(|_| (time_of_list(&items, ",\n"), time_of_list(&items, ",")));
    let (many, one): (Vec<_>, Vec<_>) = turns.unzip();
    let (many, one) = (many.into_iter().min(), one.into_iter().min());
    let (many, one) = (many.unwrap(), one.unwrap());
    assert!(one < many * 2, "{one:?} on one line, {many:?} on many");
}
