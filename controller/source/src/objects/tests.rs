// SPDX-License-Identifier: Apache-2.0

//! Conversion of objects, and the problem of each mistake.

mod annotations;
mod balancer;
mod node;
mod property;
mod service;
mod slice;

use std::net::IpAddr;

use portolan_catalog::{self as catalog, TrafficPolicy};
use portolan_model::{Family, Protocol};
use serde_json::json;

use super::*;

/// `field: reason`, and the message.
type Found = (String, String);

fn found(problems: Vec<FieldProblem>) -> Vec<Found> {
    problems
        .into_iter()
        .map(|p| (format!("{}: {}", p.field, p.reason.as_str()), p.message))
        .collect()
}

fn put(kind: Kind, value: &Value) -> (Object, Vec<Found>) {
    match convert(kind, value, &Scope::default()) {
        Converted::Put { object, problems } => (object, found(problems)),
        other => panic!("expected a usable object: {other:?}"),
    }
}

/// A Service with a cluster IP, a port, and these fields in its spec.
fn service_value(spec: Value) -> Value {
    let mut value = json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            "name": "web",
            "namespace": "prod",
            "creationTimestamp": "2026-01-02T03:04:05Z",
        },
        "spec": {
            "clusterIP": "10.96.0.1",
            "clusterIPs": ["10.96.0.1"],
            "ports": [{"name": "http", "port": 80}],
        },
    });
    let fields = value["spec"].as_object_mut().unwrap();
    for (name, field) in spec.as_object().unwrap() {
        fields.insert(name.clone(), field.clone());
    }
    value
}

fn service(spec: Value) -> (catalog::Service, Vec<Found>) {
    service_of(&service_value(spec))
}

fn service_of(value: &Value) -> (catalog::Service, Vec<Found>) {
    match put(Kind::Service, value) {
        (Object::Service(service), problems) => (service, problems),
        other => panic!("expected a Service: {other:?}"),
    }
}

fn slice_value(fields: Value) -> Value {
    let mut value = json!({
        "metadata": {
            "name": "web-1",
            "namespace": "prod",
            "labels": {"kubernetes.io/service-name": "web"},
        },
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": [{"addresses": ["10.0.0.1"]}],
    });
    for (name, field) in fields.as_object().unwrap() {
        value[name] = field.clone();
    }
    value
}

fn slice(fields: Value) -> (catalog::EndpointSlice, Vec<Found>) {
    match put(Kind::EndpointSlice, &slice_value(fields)) {
        (Object::EndpointSlice(slice), problems) => (slice, problems),
        other => panic!("expected an EndpointSlice: {other:?}"),
    }
}

fn ips(texts: &[&str]) -> Vec<IpAddr> {
    texts.iter().map(|text| text.parse().unwrap()).collect()
}

#[track_caller]
fn assert_problems(problems: &[Found], expected: &[(&str, &str)]) {
    let fields: Vec<_> = problems.iter().map(|(field, _)| field.as_str()).collect();
    let expected_fields: Vec<_> = expected.iter().map(|(field, _)| *field).collect();
    assert_eq!(fields, expected_fields, "{problems:?}");
    for ((_, message), (_, part)) in problems.iter().zip(expected) {
        assert!(message.contains(part), "{message:?} lacks {part:?}");
    }
}

#[test]
fn a_bad_address_is_left_out_and_named() {
    let bad = [
        ("10.0.0.300", "not an address"),
        ("010.0.0.1", "not an address"),
        ("fe80::1%eth0", "not an address"),
        (" 10.0.0.1", "not an address"),
        ("", "not an address"),
        ("::ffff:1.2.3.4", "IPv4-mapped"),
        ("127.0.0.1", "loopback"),
        ("::1", "loopback"),
        ("0.0.0.0", "unspecified"),
        ("::", "unspecified"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("169.254.169.254", "link-local"),
        ("fe80::1", "link-local"),
        ("255.255.255.255", "broadcast"),
    ];
    for (ip, what) in bad {
        let (external, problems) = service(json!({"externalIPs": ["192.0.2.1", ip]}));
        assert_eq!(external.external_ips, ips(&["192.0.2.1"]), "{ip}");
        assert_problems(&problems, &[("spec.externalIPs[1]: invalid_value", what)]);
        assert!(problems[0].1.contains(&format!("{ip:?}")), "{problems:?}");

        let (slice, problems) = slice(json!({"endpoints": [
            {"addresses": [ip]},
            {"addresses": ["10.0.0.2", ip]},
        ]}));
        assert_eq!(slice.endpoints.len(), 1);
        let field = "endpoints[0].addresses[0]: invalid_value";
        assert_problems(&problems, &[(field, what)]);
        if ip.is_empty() {
            continue;
        }

        let (cluster, problems) = service(json!({"clusterIP": ip, "clusterIPs": [ip]}));
        assert!(cluster.cluster_ips.is_empty());
        assert_problems(&problems, &[("spec.clusterIPs[0]: invalid_value", what)]);

        let mut value = service_value(json!({}));
        value["status"] = json!({"loadBalancer": {"ingress": [{"hostname": "a"}, {"ip": ip}]}});
        let (balancer, problems) = service_of(&value);
        assert!(balancer.load_balancer_ips.is_empty());
        let field = "status.loadBalancer.ingress[1].ip: invalid_value";
        assert_problems(&problems, &[(field, what)]);
    }
}

fn refused(kind: Kind, value: &Value, object: Option<&str>) -> Vec<Found> {
    match convert(kind, value, &Scope::default()) {
        Converted::Refused {
            object: of,
            problems,
        } => {
            assert_eq!(of.map(|of| of.to_string()).as_deref(), object);
            found(problems)
        }
        other => panic!("expected a refusal: {other:?}"),
    }
}

#[test]
fn no_service_and_no_export_has_the_name_of_an_import() {
    let value = json!({"metadata": {"namespace": "prod", "name": "web@clusterset"}});
    for kind in [Kind::Service, Kind::ServiceExport] {
        let name = format!("{kind} prod/web@clusterset");
        let problems = refused(kind, &value, Some(&name));
        assert_problems(
            &problems,
            &[("metadata.name: malformed", "'@' in its name")],
        );
    }
    let spec = json!({"clusterIP": "10.96.0.1", "ports": [{"port": 80}]});
    let mut service = service_value(spec);
    assert!(facts(&service, &Scope::default()).is_some());
    service["metadata"]["name"] = json!("web@b");
    assert_eq!(facts(&service, &Scope::default()), None);
}

#[test]
fn an_object_without_a_name_or_with_a_wrong_type_is_refused() {
    let nameless = json!({"metadata": {"namespace": "prod"}});
    let homeless = json!({"metadata": {"name": "web"}});
    for kind in [Kind::Service, Kind::EndpointSlice] {
        let problems = refused(kind, &nameless, None);
        assert_problems(&problems, &[("metadata.name: malformed", "needs a name")]);
        let problems = refused(kind, &homeless, None);
        assert_problems(&problems, &[("metadata.namespace: malformed", "namespace")]);
    }
    let value = service_value(json!({"ports": [{"port": 80, "nodePort": "30080"}]}));
    let problems = refused(Kind::Service, &value, Some("Service prod/web"));
    let field = "spec.ports[0].nodePort: malformed";
    assert_problems(&problems, &[(field, "invalid type: string \"30080\"")]);
    let problems = refused(Kind::Node, &json!("text"), None);
    assert_problems(&problems, &[(": malformed", "invalid type: string")]);
}

#[test]
fn an_export_has_a_bounded_number_of_ports() {
    let ports: Vec<Value> = (1..=257)
        .map(|port| json!({"name": format!("p{port}"), "port": port}))
        .collect();
    let service = service_value(json!({"clusterIP": "10.96.0.1", "ports": ports}));
    let facts = facts(&service, &Scope::default()).unwrap();
    assert_eq!(facts.ports.len(), 256);
    let shared = Scope {
        shares: true,
        ..Scope::default()
    };
    let Converted::Put { problems, .. } = convert(Kind::Service, &service, &shared) else {
        panic!("no Service");
    };
    let what = "257 ports: an export has the first 256";
    assert_problems(&found(problems), &[("spec.ports: unsupported", what)]);
    let (_, problems) = service_of(&service);
    assert_problems(&problems, &[]);
}
