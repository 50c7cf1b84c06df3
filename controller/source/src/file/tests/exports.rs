// SPDX-License-Identifier: Apache-2.0

//! Exports and namespaces in files of a cluster that shares Services.

use portolan_catalog::ServiceType;

use super::*;

const EXPORT: &str = "apiVersion: multicluster.x-k8s.io/v1beta1\nkind: ServiceExport\n\
     metadata: {name: web, namespace: shop, annotations: {portolan.dev/cluster-weight: 30}}\n\
     spec: {exportedLabels: {tier: front}}\n---\n";
const SERVICE: &str = "apiVersion: v1\nkind: Service\n\
     metadata: {name: web, namespace: shop, labels: {app: web}}\n\
     spec: {clusterIP: 10.96.0.1, internalTrafficPolicy: Local, trafficDistribution: PreferClose,\n  \
     ports: [{name: http, port: 80, appProtocol: http}]}\n---\n";

fn sharing() -> Rig {
    let mut rig = Rig::new();
    rig.files = std::mem::replace(&mut rig.files, Files::new(Vec::new(), &Arc::from(""))).sharing();
    rig
}

fn key(name: &str) -> ObjectKey {
    ObjectKey {
        cluster: "".into(),
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn names(rig: &Rig) -> Vec<String> {
    let namespaces = rig.catalog.namespaces("").into_iter().flatten();
    namespaces.map(ToString::to_string).collect()
}

#[test]
fn an_export_has_what_it_needs_of_its_service() {
    for version in ["v1beta1", "v1alpha1"] {
        let mut rig = sharing();
        rig.write("a.yaml", &EXPORT.replace("v1beta1", version));
        assert_eq!(rig.problems(), [""; 0]);
        let export = rig.catalog.export(&key("web")).unwrap();
        assert_eq!((export.weight, &export.service), (Some(30), &None));
        assert_eq!(export.labels["tier"], "front");
        assert_eq!(names(&rig), ["shop"]);

        // The Service comes later, in another file.
        rig.write("b.yaml", SERVICE);
        rig.refresh();
        let export = rig.catalog.export(&key("web")).unwrap();
        let facts = export.service.as_ref().unwrap();
        assert_eq!(
            (facts.kind, facts.internal_local),
            (ServiceType::ClusterIp, true)
        );
        assert_eq!(facts.labels["app"], "web");
        assert_eq!(facts.traffic_distribution.as_deref(), Some("PreferClose"));
        assert_eq!(facts.ports[0].app_protocol.as_deref(), Some("http"));

        for (spec, kind) in [
            (
                "{clusterIP: None, ports: [{port: 80}]}",
                ServiceType::Headless,
            ),
            (
                "{type: ExternalName, externalName: a.example}",
                ServiceType::ExternalName,
            ),
        ] {
            let start = &SERVICE[..SERVICE.find("spec").unwrap()];
            rig.write("b.yaml", &format!("{start}spec: {spec}\n"));
            rig.refresh();
            let export = rig.catalog.export(&key("web")).unwrap();
            assert_eq!(export.service.as_ref().unwrap().kind, kind);
        }
        rig.write("b.yaml", "# none\n");
        rig.refresh();
        let export = rig.catalog.export(&key("web")).unwrap();
        assert_eq!(export.service, None);
        rig.write("a.yaml", "# none\n");
        rig.refresh();
        assert_eq!(rig.catalog.export(&key("web")), None);
        assert_eq!(names(&rig), [""; 0]);
    }
}

#[test]
fn an_unreadable_object_leaves_its_export_as_it_was() {
    let mut rig = sharing();
    rig.write("a.yaml", EXPORT);
    rig.write("b.yaml", SERVICE);
    rig.refresh();
    let before = rig.catalog.export(&key("web")).unwrap().clone();
    rig.write("b.yaml", &SERVICE.replace("port: 80", "port: [80]"));
    rig.refresh();
    assert_eq!(rig.catalog.export(&key("web")), Some(&before));
    rig.write("b.yaml", SERVICE);
    let bad = EXPORT.replace("{tier: front}", "[tier]");
    rig.write("a.yaml", &bad);
    rig.refresh();
    assert_eq!(rig.catalog.export(&key("web")), Some(&before));
    let problems = rig.of_objects();
    assert!(
        problems[0].contains("ServiceExport shop/web"),
        "{problems:?}"
    );
    assert!(problems[0].contains("spec.exportedLabels"), "{problems:?}");
    rig.write("a.yaml", &EXPORT.replace("30}", "1001}"));
    rig.refresh();
    assert_eq!(rig.catalog.export(&key("web")).unwrap().weight, None);
    assert!(
        rig.of_objects()[0].contains("cluster-weight"),
        "{:?}",
        rig.of_objects()
    );
}

#[test]
fn selectors_of_clusters_that_an_owner_writes_are_named_as_unsupported() {
    let mut rig = sharing();
    let selectors = "{clusterSelectors: [{matchLabels: {tier: prod}}], exportedLabels";
    rig.write("a.yaml", &EXPORT.replace("{exportedLabels", selectors));
    rig.refresh();
    let problems = rig.of_objects();
    let [problem] = &problems[..] else {
        panic!("{problems:?}")
    };
    assert!(problem.contains("spec.clusterSelectors"), "{problem}");
    let export = rig.catalog.export(&key("web")).unwrap();
    assert_eq!((export.weight, export.labels.len()), (Some(30), 1));
}

#[test]
fn services_are_exported_without_an_object_only_if_policies_ask() {
    let mut rig = sharing();
    rig.write("b.yaml", SERVICE);
    rig.refresh();
    assert_eq!(
        rig.catalog.export(&key("web")),
        None,
        "nothing is kept of it"
    );
    rig.files.set_automatic(true);
    rig.refresh();
    let export = rig.catalog.export(&key("web")).unwrap();
    assert!(!export.requested && export.service.is_some());
    rig.files.set_automatic(false);
    rig.refresh();
    assert_eq!(rig.catalog.export(&key("web")), None);
}

#[test]
fn elsewhere_an_export_is_read_and_has_no_effect() {
    let mut rig = Rig::new();
    rig.write("a.yaml", EXPORT);
    rig.write("b.yaml", SERVICE);
    let report = rig.refresh();
    assert_eq!(report.problems, []);
    assert_eq!(rig.catalog.export(&key("web")), None);
    assert_eq!(names(&rig), [""; 0]);
    assert_eq!(rig.catalog.count(Kind::Service), 1);
}

#[test]
fn no_service_has_the_name_of_an_import() {
    let mut rig = sharing();
    rig.write(
        "b.yaml",
        &SERVICE.replace("name: web", "name: web@clusterset"),
    );
    rig.refresh();
    assert_eq!(rig.catalog.count(Kind::Service), 0);
    assert!(
        rig.of_objects()[0].contains("no Service has '@'"),
        "{:?}",
        rig.of_objects()
    );
}
