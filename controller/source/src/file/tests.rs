// SPDX-License-Identifier: Apache-2.0

//! Files that change, break and vanish, and the resulting catalog.

mod balancers;
mod broken;
mod deletions;
mod exports;
mod names;
mod selectors;
mod watching;

use std::fs;
use std::os::unix::fs::symlink;

use portolan_catalog::{Catalog, DirtySet, Kind, ObjectChange, ObjectKey};
use tempfile::TempDir;

use super::*;

/// A directory of files, read into a catalog.
struct Rig {
    dir: TempDir,
    files: Files,
    catalog: Catalog,
}

impl Rig {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        Self::reading(dir, &[""])
    }

    fn reading(dir: TempDir, paths: &[&str]) -> Self {
        let paths = paths.iter().map(|path| dir.path().join(path)).collect();
        Self {
            files: Files::new(paths, &Arc::from("")),
            dir,
            catalog: Catalog::default(),
        }
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.path().join(name), text).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.dir.path().join(name)).unwrap();
    }

    fn refresh(&mut self) -> Report {
        let report = self.files.refresh();
        for change in &report.changes {
            self.catalog.apply(change.clone(), &mut DirtySet::default());
        }
        report
    }

    /// The changes of a refresh.
    fn told(&mut self) -> Vec<String> {
        self.refresh().changes.iter().map(describe).collect()
    }

    /// The problems with files of a refresh, without the directory's path.
    fn problems(&mut self) -> Vec<String> {
        let prefix = format!("{}/", self.dir.path().display());
        let problems = self.refresh().problems;
        let text = |problem: &FileProblem| problem.to_string().replace(&prefix, "");
        problems.iter().map(text).collect()
    }

    /// The catalog's problems with objects.
    fn of_objects(&self) -> Vec<String> {
        let prefix = format!("{}/", self.dir.path().display());
        let of_object = |(object, problems): (&_, &Vec<portolan_catalog::FieldProblem>)| {
            let text =
                |p: &portolan_catalog::FieldProblem| format!("{object}: {p}").replace(&prefix, "");
            problems.iter().map(text).collect::<Vec<_>>()
        };
        self.catalog.problems().iter().flat_map(of_object).collect()
    }

    fn port_of(&self, service: &str) -> Option<u16> {
        let key = ObjectKey {
            cluster: "".into(),
            namespace: "prod".into(),
            name: service.into(),
        };
        Some(self.catalog.service(&key)?.ports[0].port)
    }
}

fn describe(change: &ObjectChange) -> String {
    match change {
        ObjectChange::Put { object, .. } => format!("put {}", object.reference()),
        ObjectChange::Refused { object, .. } => format!("refuse {object}"),
        ObjectChange::Delete(object) => format!("delete {object}"),
        ObjectChange::Retain { kind, .. } => format!("retain {kind}"),
        ObjectChange::Reached { .. } => panic!("files have no versions"),
        ObjectChange::Problems { object, .. } => format!("problems of {object}"),
        ObjectChange::LoadBalancers { records, .. } => format!("{} load balancers", records.len()),
    }
}

fn service(name: &str, port: &str) -> String {
    format!(
        "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: {name}\n  namespace: prod\n\
         spec:\n  clusterIP: 10.96.0.1\n  ports:\n  - port: {port}\n"
    )
}

#[test]
fn documents_lists_and_json_are_read() {
    let mut rig = Rig::new();
    rig.write(
        "a.yaml",
        &format!(
            "# services\n{}---\napiVersion: v1\nkind: Node\nmetadata: {{name: n1}}\n",
            service("web", "80")
        ),
    );
    rig.write(
        "b.yml",
        "apiVersion: v1\nkind: List\nitems:\n\
         - {apiVersion: v1, kind: Node, metadata: {name: n2}}\n\
         - {apiVersion: v1, kind: ConfigMap, metadata: {name: c}}\n\
         - apiVersion: discovery.k8s.io/v1\n  kind: EndpointSlice\n  addressType: IPv4\n  \
         metadata:\n    name: web-1\n    namespace: prod\n    \
         labels: {kubernetes.io/service-name: web}\n",
    );
    rig.write(
        "c.json",
        r#"{"apiVersion": "v1", "kind": "NodeList", "items": [{"metadata": {"name": "n3"}}]}"#,
    );
    rig.write(".hidden.yaml", "kind: [");
    rig.write("notes.txt", "kind: [");
    fs::create_dir(rig.dir.path().join("sub.yaml")).unwrap();
    let report = rig.refresh();
    let told: Vec<_> = report.changes.iter().map(describe).collect();
    assert_eq!(
        told,
        [
            "put Service prod/web",
            "put EndpointSlice prod/web-1",
            "put Node n1",
            "put Node n2",
            "put Node n3",
        ]
    );
    assert_eq!(report.problems, []);
    assert!(report.complete);
    let paths = [rig.dir.path().to_owned()];
    assert_eq!(read(&paths, &Arc::from("")), report);
}

#[test]
fn ports_of_slices_need_no_name() {
    let mut rig = Rig::new();
    rig.write(
        "a.yaml",
        &format!(
            "{}---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\naddressType: IPv4\n\
             metadata:\n  name: web-1\n  namespace: prod\n  \
             labels: {{kubernetes.io/service-name: web}}\n\
             ports: [{{port: 8080}}]\nendpoints: [{{addresses: [10.0.0.1]}}]\n",
            service("web", "80")
        ),
    );
    rig.refresh();
    assert_eq!(rig.of_objects(), [""; 0]);
    let web = ObjectKey {
        cluster: "".into(),
        namespace: "prod".into(),
        name: "web".into(),
    };
    let endpoints = rig.catalog.endpoints_of(&web, |_| true);
    let places: Vec<_> = endpoints.iter().map(|(at, _)| at.to_string()).collect();
    assert_eq!(places, ["10.0.0.1:8080"]);
}

#[test]
fn only_changes_are_sent() {
    let mut rig = Rig::new();
    rig.write("a.yaml", &(service("web", "80") + &service("api", "81")));
    assert_eq!(rig.told(), ["put Service prod/api", "put Service prod/web"]);
    assert!(rig.told().is_empty());
    rig.write("a.yaml", &(service("web", "8080") + &service("api", "81")));
    assert_eq!(rig.told(), ["put Service prod/web"]);
    assert_eq!(rig.port_of("web"), Some(8080));
    rig.write("a.yaml", &service("api", "81"));
    assert_eq!(rig.told(), ["delete Service prod/web"]);
    rig.remove("a.yaml");
    assert_eq!(rig.told(), ["delete Service prod/api"]);
}

#[test]
fn a_service_that_is_not_ours_any_more_is_deleted() {
    let mut rig = Rig::new();
    rig.write("a.yaml", &service("web", "80"));
    rig.refresh();
    let headless = service("web", "80").replace("10.96.0.1", "None");
    rig.write("a.yaml", &headless);
    assert_eq!(rig.told(), ["delete Service prod/web"]);
}

#[test]
fn a_projected_volume_is_followed_through_its_swap() {
    let mut rig = Rig::new();
    let at = |name: &str| rig.dir.path().join(name);
    for (version, port) in [("..1", "1"), ("..2", "2")] {
        fs::create_dir(at(version)).unwrap();
        fs::write(at(version).join("a.yaml"), service("a", port)).unwrap();
    }
    symlink("..1", at("..data")).unwrap();
    symlink("..data/a.yaml", at("a.yaml")).unwrap();
    let swapped = (at("..tmp"), at("..data"));
    assert_eq!(rig.told(), ["put Service prod/a"]);
    symlink("..2", &swapped.0).unwrap();
    fs::rename(&swapped.0, &swapped.1).unwrap();
    assert_eq!(rig.told(), ["put Service prod/a"]);
    assert_eq!(rig.port_of("a"), Some(2));
}

#[test]
fn the_first_file_has_an_object_that_two_have() {
    let mut rig = Rig::new();
    rig.write("a.yaml", &service("a", "1"));
    rig.write(
        "b.yaml",
        &(service("b", "2") + &service("a", "9") + &service("b", "3")),
    );
    assert_eq!(rig.told(), ["put Service prod/a", "put Service prod/b"]);
    assert_eq!(["a", "b"].map(|name| rig.port_of(name)), [Some(1), Some(2)]);
    assert_eq!(
        rig.of_objects(),
        [
            "Service prod/a: Service prod/a is in a.yaml:2 too, which comes first; ignored here \
             (b.yaml:12)",
            "Service prod/b: Service prod/b is in b.yaml:2 too, which comes first; ignored here \
             (b.yaml:22)",
        ]
    );
    rig.remove("a.yaml");
    assert_eq!(rig.told(), ["put Service prod/a"]);
    assert_eq!(rig.port_of("a"), Some(9));
}

#[test]
fn a_path_that_is_missing_is_waited_for_and_later_missed() {
    let dir = tempfile::tempdir().unwrap();
    let mut rig = Rig::reading(dir, &["a.yaml", "late"]);
    rig.write("a.yaml", &service("a", "1"));
    let report = rig.refresh();
    assert!(!report.complete);
    assert_eq!(report.changes.len(), 1);
    let missing = "No such file or directory (os error 2)";
    assert_eq!(rig.problems(), [format!("late: {missing}; waiting for it")]);
    fs::create_dir(rig.dir.path().join("late")).unwrap();
    symlink("nowhere", rig.dir.path().join("late/b.yaml")).unwrap();
    assert!(!rig.refresh().complete);
    assert_eq!(
        rig.problems(),
        [format!("late/b.yaml: {missing}; waiting for it")]
    );
    rig.remove("late/b.yaml");
    let report = rig.refresh();
    assert!(report.complete && report.problems.is_empty());
    rig.remove("a.yaml");
    assert!(rig.told().is_empty());
    assert_eq!(
        rig.problems(),
        [format!("a.yaml: {missing}; its objects stay as they were")]
    );
    assert!(rig.refresh().complete);
}

#[test]
fn a_pod_is_read_if_it_has_a_weight() {
    let mut rig = Rig::new();
    let pod = |name: &str, annotations: &str| {
        format!(
            "---\napiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n  namespace: prod\n  \
             annotations: {annotations}\nspec: {{}}\n"
        )
    };
    rig.write(
        "a.yaml",
        &(pod("heavy", "{portolan.dev/weight: 5}") + &pod("plain", "{}")),
    );
    assert_eq!(rig.told(), ["put Pod prod/heavy"]);
    assert_eq!(rig.catalog.count(Kind::Pod), 1);
    rig.write("a.yaml", &pod("heavy", "{portolan.dev/weight: heavy}"));
    assert_eq!(rig.told(), ["refuse Pod prod/heavy"]);
    let problem = "Pod prod/heavy: metadata.annotations[portolan.dev/weight]: \"heavy\": \
                   expected 0 to 65535; ignored (a.yaml:7:38)";
    assert_eq!(rig.of_objects(), [problem]);
    assert_eq!(rig.catalog.count(Kind::Pod), 1);
    rig.write("a.yaml", &pod("heavy", "{}"));
    assert_eq!(rig.told(), ["delete Pod prod/heavy"]);
}
