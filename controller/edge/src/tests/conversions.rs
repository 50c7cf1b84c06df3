// SPDX-License-Identifier: Apache-2.0

//! Tests of conversions.

use portolan_catalog::CONDITIONS;

use super::*;

pub(super) fn service() -> Object {
    Object::Service(Service {
        created: Some(-5),
        cluster_ips: vec!["10.96.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        external_ips: vec!["192.0.2.1".parse().unwrap()],
        load_balancer_ips: vec!["192.0.2.2".parse().unwrap()],
        balancer_keeps_sources: true,
        source_ranges: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
        external_policy: TrafficPolicy::Local,
        internal_policy: TrafficPolicy::Cluster,
        affinity_seconds: Some(60),
        scheduling: Scheduling {
            scheduler: Some("mh".into()),
            flags: Some(portolan_model::ipvs::Flags(8)),
        },
        drain_seconds: Some(0),
        health_check_port: Some(30_000),
        ports: vec![ServicePort {
            name: "http".into(),
            protocol: Protocol::Sctp,
            port: 80,
            node_port: Some(31_000),
        }],
        key: key("shop", "web"),
    })
}

pub(super) fn export() -> ServiceExport {
    let facts = ServiceFacts {
        kind: ServiceType::Headless,
        labels: [("tier".to_owned(), "a".to_owned())].into(),
        ports: vec![ExportPort {
            name: "http".into(),
            protocol: Protocol::Udp,
            port: 53,
            app_protocol: Some("h2c".into()),
        }],
        families: vec![Family::V6, Family::V4],
        affinity_seconds: Some(1),
        internal_local: true,
        traffic_distribution: Some("PreferClose".into()),
    };
    ServiceExport {
        requested: true,
        created: Some(9),
        labels: [("a".to_owned(), String::new())].into(),
        annotations: [("b".to_owned(), "c".to_owned())].into(),
        weight: Some(1_000),
        service: Some(Arc::new(facts)),
        status: ExportStatus {
            generation: 3,
            conditions: CONDITIONS.map(|kind| condition(kind, "True")).into(),
        },
        ..ServiceExport::new(key("shop", "web"))
    }
}

fn condition(kind: &str, status: &str) -> Condition {
    Condition {
        kind: kind.into(),
        status: status.into(),
        reason: "Because".into(),
        message: "a message".into(),
        generation: 2,
        since: "2026-01-01T00:00:00Z".into(),
    }
}

fn import() -> ServiceImport {
    let spec = ImportSpec {
        headless: true,
        ports: vec![ExportPort {
            name: "http".into(),
            protocol: Protocol::Tcp,
            port: 80,
            app_protocol: Some("h2c".into()),
        }],
        ips: vec!["10.112.0.1".parse().unwrap(), "fd00::1".parse().unwrap()],
        families: vec![Family::V4, Family::V6],
        affinity_seconds: Some(0),
        internal_local: true,
        traffic_distribution: Some("PreferClose".into()),
    };
    let own = OwnImport {
        winner: "us-1".into(),
        labels: [("a".to_owned(), "b".to_owned())].into(),
        annotations: [("c".to_owned(), "d".to_owned())].into(),
        spec: Some(spec),
        clusters: ["eu-1".into(), "us-1".into()].into(),
        conditions: vec![condition("Ready", "True")],
    };
    ServiceImport {
        key: key("shop", "web"),
        uid: "1-2".into(),
        generation: 7,
        created: Some(1_700_000_000),
        own: Some(Box::new(own)),
    }
}

#[test]
fn each_kind_of_object_arrives_as_it_was_sent() {
    let mut endpoint = Endpoint::new("fd00::7".parse().unwrap());
    (endpoint.ready, endpoint.terminating) = (false, true);
    endpoint.node = Some("node-1".into());
    endpoint.pod = Some("web-0".into());
    endpoint.hostname = Some("host".into());
    endpoint.zone_hints = Some(vec!["a".into(), "b".into()]);
    endpoint.node_hints = Some(Vec::new());
    let Object::EndpointSlice(v4) = slice("web-2", 2) else {
        panic!("no slice");
    };
    let v6 = EndpointSlice {
        family: Family::V6,
        endpoints: vec![endpoint],
        key: key("shop", "web-6"),
        ..v4.clone()
    };
    let mut node = Node::new(key("", "node-1"));
    node.info.zone = Some("a".into());
    node.info.eligible = true;
    node.info.pod_cidrs = vec!["10.1.0.0/24".parse().unwrap()];
    node.addresses = ["192.168.0.1".parse().unwrap()].into();
    node.weight = Some(0);
    node.host = Some(Box::new(HostFacts {
        ready: true,
        labels: [("gateway".to_owned(), "true".to_owned())].into(),
        internal: ["192.168.0.1".parse().unwrap()].into(),
        external: ["2001:db8::1".parse().unwrap()].into(),
    }));
    let objects = [
        service(),
        Object::EndpointSlice(v4),
        Object::EndpointSlice(v6),
        Object::Node(Node::new(key("", "b"))),
        Object::Node(node),
        Object::Pod(Pod {
            key: key("shop", "web-0"),
            weight: 65_535,
        }),
        Object::Namespace(key("", "shop")),
        Object::ServiceExport(export()),
        Object::ServiceExport(ServiceExport::new(key("shop", "none"))),
        Object::ServiceImport(import()),
        Object::ServiceImport(ServiceImport {
            own: None,
            ..import()
        }),
        Object::ClusterProperty(ClusterProperty {
            key: key("", "region"),
            value: "eu".into(),
        }),
    ];
    for object in objects {
        let bytes = wire::encode(&object).unwrap().encode_to_vec();
        let message = v1::ClusterObject::decode(&*bytes).unwrap();
        assert_eq!(wire::decode(&message, &"eu".into()), Ok(Some(object)));
    }
}

#[test]
fn a_bad_field_is_named_and_an_unknown_kind_is_left_out() {
    let mut message = wire::encode(&slice("web-1", 1)).unwrap();
    let Some(v1::cluster_object::Object::Slice(bad)) = &mut message.object else {
        panic!("no slice");
    };
    bad.endpoints[0].address = vec![1, 2, 3];
    let error = wire::decode(&message, &"eu".into()).unwrap_err();
    assert_eq!(error.field, "slice.endpoints.address");
    message.id.as_mut().unwrap().kind = v1::ObjectKind::Node.into();
    message.id.as_mut().unwrap().namespace.clear();
    let error = wire::decode(&message, &"eu".into()).unwrap_err();
    assert_eq!(error.field, "object");
    message.id.as_mut().unwrap().kind = 99;
    assert_eq!(wire::decode(&message, &"eu".into()), Ok(None));
    message.id.as_mut().unwrap().kind = v1::ObjectKind::Pod.into();
    let error = wire::decode(&message, &"eu".into()).unwrap_err();
    assert_eq!(error.field, "id.namespace");
}

#[test]
fn a_name_that_no_api_server_accepts_is_named() {
    let export = Object::ServiceExport(export());
    for (namespace, name, field) in [
        ("shop", "web@clusterset", "id.name"),
        ("shop", "web@x", "id.name"),
        ("shop", "Web", "id.name"),
        ("shop", "a/b", "id.name"),
        ("shop", "", "id.name"),
        ("shop", "-web", "id.name"),
        ("shop", "a..b", "id.name"),
        ("sh@p", "web", "id.namespace"),
    ] {
        let mut message = wire::encode(&export).unwrap();
        let id = message.id.as_mut().unwrap();
        (id.namespace, id.name) = (namespace.into(), name.into());
        let error = wire::decode(&message, &"eu".into()).unwrap_err();
        assert_eq!(error.field, field, "{name}");
    }
    let mut message = wire::encode(&slice("web-1", 1)).unwrap();
    let Some(v1::cluster_object::Object::Slice(bad)) = &mut message.object else {
        panic!("no slice");
    };
    bad.service = "web@clusterset".into();
    let error = wire::decode(&message, &"eu".into()).unwrap_err();
    assert_eq!(error.field, "slice.service");
    let long = format!("{}.{}", "a".repeat(200), "0-1");
    let Object::EndpointSlice(named) = slice(&long, 1) else {
        panic!("no slice");
    };
    let good = wire::encode(&Object::EndpointSlice(named)).unwrap();
    assert!(wire::decode(&good, &"eu".into()).is_ok(), "{long}");
    // Only the object is refused: its id may be deleted, and the stream goes on.
    let id = v1::ObjectId {
        kind: v1::ObjectKind::ServiceExport.into(),
        namespace: "shop".into(),
        name: "web@clusterset".into(),
    };
    assert!(wire::decode_id(&id, &"eu".into()).is_ok());
}

/// As from a source: other versions than this encode what they like.
#[test]
fn addresses_and_networks_have_one_form_each() {
    let service = Object::Service(Service {
        cluster_ips: vec!["fd00::1".parse().unwrap()],
        source_ranges: vec!["203.0.113.0/24".parse().unwrap()],
        ..Service::new(key("shop", "web"))
    });
    let mut message = wire::encode(&service).unwrap();
    let Some(v1::cluster_object::Object::Service(sent)) = &mut message.object else {
        panic!("no Service");
    };
    sent.source_ranges[0].network = Some(v1::network::Network::V4(0xcb00_7104));
    assert_eq!(wire::decode(&message, &"eu".into()), Ok(Some(service)));
    let Some(v1::cluster_object::Object::Service(sent)) = &mut message.object else {
        panic!("no Service");
    };
    let mapped: std::net::Ipv6Addr = "::ffff:10.0.0.1".parse().unwrap();
    sent.cluster_ips[0] = mapped.octets().into();
    let error = wire::decode(&message, &"eu".into()).unwrap_err();
    assert_eq!(error.field, "service.cluster_ips");
}

#[test]
fn what_a_cluster_may_have_of_an_import_is_bounded() {
    let bad = |field: &str, change: &dyn Fn(&mut v1::EdgeOwnImport)| {
        let mut message = wire::encode(&Object::ServiceImport(import())).unwrap();
        let Some(v1::cluster_object::Object::Import(sent)) = &mut message.object else {
            panic!("no import");
        };
        change(sent.own.as_mut().unwrap());
        let error = wire::decode(&message, &"eu".into()).unwrap_err();
        assert_eq!(error.field, field);
    };
    bad("import.own.winner", &|own| own.winner = "x".repeat(4097));
    bad("import.own.labels", &|own| {
        own.labels = vec![v1::EdgeLabel::default(); 257];
    });
    bad("import.own.spec.ports", &|own| {
        let spec = own.spec.as_mut().unwrap();
        spec.ports = vec![spec.ports[0].clone(); 257];
    });
    bad("import.own.spec.ips", &|own| {
        own.spec.as_mut().unwrap().ips[0].pop();
    });
    bad("import.own.conditions", &|own| {
        own.conditions = vec![v1::EdgeCondition::default(); CONDITIONS.len() + 1];
    });
}

#[test]
fn an_export_with_too_many_ports_is_named() {
    let mut message = wire::encode(&Object::ServiceExport(export())).unwrap();
    let Some(v1::cluster_object::Object::Export(sent)) = &mut message.object else {
        panic!("no export");
    };
    let facts = sent.service.as_mut().unwrap();
    facts.ports = vec![facts.ports[0].clone(); 256];
    assert!(wire::decode(&message, &"eu".into()).is_ok());
    let Some(v1::cluster_object::Object::Export(sent)) = &mut message.object else {
        panic!("no export");
    };
    let facts = sent.service.as_mut().unwrap();
    facts.ports.push(facts.ports[0].clone());
    let error = wire::decode(&message, &"eu".into()).unwrap_err();
    assert_eq!(error.field, "export.service.ports");
}

#[test]
fn texts_of_an_export_are_bounded() {
    let decoded = |change: &dyn Fn(&mut v1::EdgeFacts)| {
        let mut message = wire::encode(&Object::ServiceExport(export())).unwrap();
        let Some(v1::cluster_object::Object::Export(sent)) = &mut message.object else {
            panic!("no export");
        };
        change(sent.service.as_mut().unwrap());
        let decoded = wire::decode(&message, &"eu".into());
        decoded.map(|_| ()).map_err(|error| error.field)
    };
    let (domain, label) = ("a".repeat(253), "b".repeat(63));
    let longest = format!("{domain}/{label}");
    for (protocol, distribution) in [
        ("kubernetes.io/h2c", "PreferClose"),
        (longest.as_str(), domain.as_str()),
    ] {
        let good = decoded(&|facts| {
            facts.ports[0].app_protocol = Some(protocol.to_owned());
            facts.traffic_distribution = Some(distribution.to_owned());
        });
        assert_eq!(good, Ok(()), "{protocol}");
    }
    let bad = decoded(&|facts| facts.ports[0].app_protocol = Some("x".repeat(318)));
    assert_eq!(bad, Err("export.service.ports.app_protocol"));
    let bad = decoded(&|facts| facts.traffic_distribution = Some("x".repeat(254)));
    assert_eq!(bad, Err("export.service.traffic_distribution"));
}
