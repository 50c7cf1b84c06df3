// SPDX-License-Identifier: Apache-2.0

//! The requirements on API objects of the Multi-Cluster Services API (KEP-1645), in words of our own: those that
//! its conformance suite checks without DNS and without packets. Each has a namespace of its own.

use portolan_e2e::wait::wait_for;
use serde_json::{Value, json};

use crate::world::{Member, PATIENT, World};

/// A requirement: its id, and its check in a namespace.
pub(crate) type Spec = (&'static str, fn(&World, &str));

pub(crate) const ALL: [Spec; 16] = [
    ("s1", an_import_lives_as_long_as_one_cluster_exports),
    ("s2", only_exported_labels_travel),
    ("s3", the_oldest_labels_win),
    ("s4", an_export_is_imported_everywhere),
    ("s5", session_affinity_travels),
    ("s6", internal_traffic_policy_travels),
    ("s7", traffic_distribution_travels),
    ("s8", there_is_an_address_of_each_family),
    ("s9", ports_travel),
    ("s10", ports_are_united),
    ("s11", the_oldest_port_wins),
    ("s12", a_headless_service_is_imported_headless),
    ("s13", a_headless_import_has_no_address),
    ("s14", an_external_name_is_not_exported),
    ("s15", the_oldest_type_wins),
    ("e1", endpoint_slices_follow),
];

/// A Service with two ports; `spec` is laid over it.
pub(crate) fn service(namespace: &str, spec: &Value) -> Value {
    let mut service = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"namespace": namespace, "name": "hello", "labels": {"own": "1"}, "annotations": {"own": "1"}},
        "spec": {
            "selector": {"app": "hello"},
            "ports": [port("tcp", "TCP", 42), port("udp", "UDP", 42)],
        },
    });
    portolan_e2e::objects::merge(&mut service["spec"], spec.clone());
    service
}

pub(crate) fn port(name: &str, protocol: &str, number: u16) -> Value {
    json!({"name": name, "protocol": protocol, "port": number})
}

pub(crate) fn export(namespace: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "multicluster.x-k8s.io/v1beta1", "kind": "ServiceExport",
        "metadata": {"namespace": namespace, "name": "hello"}, "spec": spec,
    })
}

/// Has a cluster export a Service.
pub(crate) fn exported(member: &Member, namespace: &str, spec: &Value) {
    member.apply(&service(namespace, spec));
    member.apply(&export(namespace, &json!({})));
}

/// Has both clusters export a Service: `beta` is seconds older.
fn both(world: &World, namespace: &str, beta: &Value, alpha: &Value) {
    exported(world.beta(), namespace, beta);
    let seconds = |member: &Member| {
        let export = member.get("serviceexport", namespace, "hello")?;
        let created = export["metadata"]["creationTimestamp"].as_str()?;
        Some(created.to_owned())
    };
    let older = seconds(world.beta()).unwrap();
    // Times of objects have whole seconds, and equally old ones are another rule.
    world.alpha().apply(&service(namespace, alpha));
    wait_for("a younger export", PATIENT, || {
        world.alpha().apply(&export(namespace, &json!({})));
        let younger = seconds(world.alpha())?;
        if younger > older {
            return Some(());
        }
        world.alpha().delete("serviceexport", namespace, "hello");
        None
    })
    .unwrap();
}

fn conflict(world: &World, namespace: &str, reason: &str) {
    for member in &world.members {
        member.await_condition(namespace, "Conflict", ["True", reason]);
    }
}

fn an_import_lives_as_long_as_one_cluster_exports(world: &World, namespace: &str) {
    both(world, namespace, &json!({}), &json!({}));
    for member in &world.members {
        member.await_import(namespace, "both clusters in its status", |import| {
            let clusters = &import["status"]["clusters"];
            *clusters == json!([{"cluster": "alpha"}, {"cluster": "beta"}])
        });
        member.await_condition(namespace, "Conflict", ["False", "NoConflicts"]);
    }
    world.beta().delete("serviceexport", namespace, "hello");
    for member in &world.members {
        member.await_import(namespace, "the other cluster in its status", |import| {
            import["status"]["clusters"] == json!([{"cluster": "alpha"}])
        });
    }
    world.alpha().delete("serviceexport", namespace, "hello");
    world
        .members
        .iter()
        .for_each(|member| member.await_no_import(namespace));
}

fn only_exported_labels_travel(world: &World, namespace: &str) {
    let alpha = world.alpha();
    alpha.apply(&service(namespace, &json!({})));
    let spec = |label: &str| json!({"exportedLabels": {label: "1"}, "exportedAnnotations": {"note": "a b"}});
    alpha.apply(&export(namespace, &spec("first")));
    let has = |import: &Value, label: &str| import["metadata"]["labels"] == json!({label: "1"});
    for member in &world.members {
        let import = member.await_import(namespace, "labels", |import| has(import, "first"));
        let annotations = &import["metadata"]["annotations"];
        assert_eq!(annotations["note"], "a b", "{import:#}");
        assert_eq!(annotations["own"], Value::Null, "{import:#}");
    }
    // A label that is not exported any more goes.
    alpha.apply(&export(namespace, &spec("second")));
    for member in &world.members {
        member.await_import(namespace, "other labels", |import| has(import, "second"));
    }
}

fn the_oldest_labels_win(world: &World, namespace: &str) {
    both(world, namespace, &json!({}), &json!({}));
    for (member, label) in [(world.alpha(), "a"), (world.beta(), "b")] {
        member.apply(&export(namespace, &json!({"exportedLabels": {label: "1"}})));
    }
    conflict(world, namespace, "LabelsConflict");
    for member in &world.members {
        member.await_import(namespace, "the older labels", |import| {
            import["metadata"]["labels"] == json!({"b": "1"})
        });
    }
}

fn an_export_is_imported_everywhere(world: &World, namespace: &str) {
    exported(world.alpha(), namespace, &json!({}));
    world
        .alpha()
        .await_condition(namespace, "Valid", ["True", "Valid"]);
    world
        .alpha()
        .await_condition(namespace, "Ready", ["True", "Exported"]);
    for member in &world.members {
        member.await_import(namespace, "a ready import", |import| {
            let condition = &import["status"]["conditions"][0];
            import["spec"]["type"] == "ClusterSetIP"
                && condition["type"] == "Ready"
                && condition["status"] == "True"
        });
    }
    world.alpha().delete("serviceexport", namespace, "hello");
    world
        .members
        .iter()
        .for_each(|member| member.await_no_import(namespace));
}

/// A field of the import is that of the Service, and follows it.
fn follows(world: &World, namespace: &str, fields: &[&str], first: &Value, second: &Value) {
    exported(world.alpha(), namespace, first);
    for expected in [first, second] {
        world.alpha().apply(&service(namespace, expected));
        for member in &world.members {
            member.await_import(namespace, "equal fields", |import| {
                fields
                    .iter()
                    .all(|field| import["spec"][field] == expected[field])
            });
        }
    }
}

fn session_affinity_travels(world: &World, namespace: &str) {
    let of = |seconds: u32| {
        json!({"sessionAffinity": "ClientIP",
            "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": seconds}}})
    };
    let fields = ["sessionAffinity", "sessionAffinityConfig"];
    follows(world, namespace, &fields, &of(10), &of(20));
}

fn internal_traffic_policy_travels(world: &World, namespace: &str) {
    let of = |policy: &str| json!({"internalTrafficPolicy": policy});
    let fields = ["internalTrafficPolicy"];
    follows(world, namespace, &fields, &of("Cluster"), &of("Local"));
}

fn traffic_distribution_travels(world: &World, namespace: &str) {
    let of = |distribution: &str| json!({"trafficDistribution": distribution});
    let fields = ["trafficDistribution"];
    follows(
        world,
        namespace,
        &fields,
        &of("PreferClose"),
        &json!({"trafficDistribution": null}),
    );
}

fn there_is_an_address_of_each_family(world: &World, namespace: &str) {
    exported(world.alpha(), namespace, &json!({}));
    for (number, member) in world.members.iter().enumerate() {
        let import = member.await_import(namespace, "an address", |import| {
            import["spec"]["ips"]
                .as_array()
                .is_some_and(|ips| !ips.is_empty())
        });
        assert_eq!(import["spec"]["ipFamilies"], json!(["IPv4"]), "{import:#}");
        let ips = import["spec"]["ips"].as_array().unwrap();
        let prefix = format!("10.112.{number}.");
        assert!(
            ips.len() == 1 && ips[0].as_str().unwrap().starts_with(&prefix),
            "{import:#}"
        );
    }
}

fn ports_travel(world: &World, namespace: &str) {
    let first = json!({"ports": [port("tcp", "TCP", 42), port("udp", "UDP", 42)]});
    let second = json!({"ports": [port("tcp", "TCP", 43)]});
    exported(world.alpha(), namespace, &first);
    for expected in [&first, &second] {
        world.alpha().apply(&service(namespace, expected));
        for member in &world.members {
            member.await_import(namespace, "equal ports", |import| {
                sorted(&import["spec"]["ports"]) == sorted(&expected["ports"])
            });
        }
    }
}

fn sorted(ports: &Value) -> Vec<String> {
    let ports = ports.as_array().into_iter().flatten();
    let mut names: Vec<String> = ports
        .map(|port| format!("{} {} {}", port["name"], port["protocol"], port["port"]))
        .collect();
    names.sort();
    names
}

fn ports_are_united(world: &World, namespace: &str) {
    let [tcp, udp, sctp] = [
        port("tcp", "TCP", 42),
        port("udp", "UDP", 42),
        port("sctp", "SCTP", 142),
    ];
    let (older, younger) = (json!({"ports": [tcp, udp]}), json!({"ports": [tcp, sctp]}));
    both(world, namespace, &older, &younger);
    conflict(world, namespace, "PortConflict");
    for member in &world.members {
        member.await_import(namespace, "all ports", |import| {
            sorted(&import["spec"]["ports"]) == sorted(&json!([tcp, udp, sctp]))
        });
    }
}

fn the_oldest_port_wins(world: &World, namespace: &str) {
    let of = |number| json!({"ports": [port("tcp", "TCP", number)]});
    both(world, namespace, &of(42), &of(43));
    conflict(world, namespace, "PortConflict");
    for member in &world.members {
        member.await_import(namespace, "the older port", |import| {
            sorted(&import["spec"]["ports"]) == sorted(&of(42)["ports"])
        });
    }
}

fn a_headless_service_is_imported_headless(world: &World, namespace: &str) {
    exported(world.alpha(), namespace, &json!({"clusterIP": "None"}));
    for member in &world.members {
        member.await_import(namespace, "a headless import", |import| {
            import["spec"]["type"] == "Headless" && import["spec"]["ipFamilies"] == json!(["IPv4"])
        });
    }
    world.alpha().delete("serviceexport", namespace, "hello");
    world
        .members
        .iter()
        .for_each(|member| member.await_no_import(namespace));
}

fn a_headless_import_has_no_address(world: &World, namespace: &str) {
    exported(world.alpha(), namespace, &json!({"clusterIP": "None"}));
    for member in &world.members {
        // Complete: an address would have come before the status.
        let import = member.await_import(namespace, "a ready import", |import| {
            import["status"]["conditions"][0]["status"] == "True"
        });
        let ips = &import["spec"]["ips"];
        assert!(ips.as_array().is_none_or(Vec::is_empty), "{import:#}");
    }
}

fn an_external_name_is_not_exported(world: &World, namespace: &str) {
    let spec = json!({"type": "ExternalName", "externalName": "example.com"});
    exported(world.alpha(), namespace, &spec);
    world
        .alpha()
        .await_condition(namespace, "Valid", ["False", "InvalidServiceType"]);
    world
        .alpha()
        .await_condition(namespace, "Ready", ["False", "Failed"]);
    for member in &world.members {
        assert_eq!(member.import(namespace), None);
    }
}

fn the_oldest_type_wins(world: &World, namespace: &str) {
    both(world, namespace, &json!({}), &json!({"clusterIP": "None"}));
    for member in &world.members {
        member.await_condition(namespace, "Conflict", ["True", "TypeConflict"]);
        member.await_import(namespace, "the older type", |import| {
            import["spec"]["type"] == "ClusterSetIP"
        });
    }
}

fn endpoint_slices_follow(world: &World, namespace: &str) {
    let labels = json!({"app": "hello"});
    world.alpha().apply(&json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": namespace, "name": "hello"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "hello", "image": "none.invalid/hello"}]},
            },
        },
    }));
    exported(world.alpha(), namespace, &json!({}));
    let slices = |member: &Member| -> Vec<Value> {
        let selector = "multicluster.kubernetes.io/service-name=hello";
        let args = [
            "get",
            "endpointslices",
            "-o",
            "json",
            "-l",
            selector,
            "-n",
            namespace,
        ];
        let list: Value = serde_json::from_str(&member.servers.kubectl(&args).unwrap()).unwrap();
        list["items"].as_array().unwrap().clone()
    };
    for member in &world.members {
        let slice = wait_for("a slice with both endpoints", PATIENT, || {
            let slices = slices(member);
            let found = slices.iter().find(|slice| {
                slice["endpoints"]
                    .as_array()
                    .is_some_and(|endpoints| endpoints.len() == 2)
            });
            found.cloned()
        });
        let slice = slice.unwrap();
        let labels = &slice["metadata"]["labels"];
        assert_eq!(
            labels["multicluster.kubernetes.io/source-cluster"], "alpha",
            "{slice:#}"
        );
        assert_eq!(
            labels["endpointslice.kubernetes.io/managed-by"], "portolan.dev",
            "{slice:#}"
        );
        assert_eq!(
            labels["kubernetes.io/service-name"],
            Value::Null,
            "{slice:#}"
        );
        assert_eq!(
            slice["metadata"]["ownerReferences"][0]["kind"], "ServiceImport",
            "{slice:#}"
        );
        let address = slice["endpoints"][0]["addresses"][0].as_str().unwrap();
        assert!(address.starts_with("10.1.0."), "{slice:#}");
    }
    world.alpha().delete("serviceexport", namespace, "hello");
    for member in &world.members {
        wait_for("no slice", PATIENT, || {
            slices(member).is_empty().then_some(())
        })
        .unwrap();
    }
}
