// SPDX-License-Identifier: Apache-2.0

//! Services.

use portolan_model::Scheduling;

use super::*;

#[test]
fn a_service_has_all_that_counts() {
    let mut value = service_value(json!({
        "type": "LoadBalancer",
        "clusterIPs": ["10.96.0.1", "fd00:96::1"],
        "ipFamilies": ["IPv4", "IPv6"],
        "externalIPs": ["192.0.2.1", "192.0.2.1"],
        "loadBalancerSourceRanges": [" 10.1.2.3/8 ", "fd00::/8"],
        "healthCheckNodePort": 32000,
        "externalTrafficPolicy": "Local",
        "internalTrafficPolicy": "Local",
        "sessionAffinity": "ClientIP",
        "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 60}},
        "ports": [
            {"name": "http", "port": 80, "nodePort": 30080, "targetPort": "web"},
            {"name": "dns", "protocol": "UDP", "port": 53, "nodePort": 0},
            {"name": "dns", "protocol": "TCP", "port": 53},
        ],
        "unknown": {"field": 1},
    }));
    value["status"] = json!({"loadBalancer": {"ingress": [
        {"ip": "198.51.100.1", "ipMode": "VIP"},
        {"ip": "198.51.100.2", "ipMode": "Proxy"},
        {"hostname": "lb.example"},
        {"ip": "198.51.100.3"},
    ]}});
    let (service, problems) = service_of(&value);
    assert_problems(&problems, &[]);
    let port = |name: &str, protocol, port, node_port| catalog::ServicePort {
        name: name.into(),
        protocol,
        port,
        node_port,
    };
    let expected = catalog::Service {
        key: ObjectKey {
            cluster: "".into(),
            namespace: "prod".into(),
            name: "web".into(),
        },
        created: Some(1_767_323_045),
        cluster_ips: ips(&["10.96.0.1", "fd00:96::1"]),
        external_ips: ips(&["192.0.2.1"]),
        load_balancer_ips: ips(&["198.51.100.1", "198.51.100.3"]),
        balancer_keeps_sources: false,
        source_ranges: vec!["10.0.0.0/8".parse().unwrap(), "fd00::/8".parse().unwrap()],
        external_policy: TrafficPolicy::Local,
        internal_policy: TrafficPolicy::Local,
        affinity_seconds: Some(60),
        scheduling: Scheduling::default(),
        drain_seconds: None,
        health_check_port: Some(32000),
        ports: vec![
            port("http", Protocol::Tcp, 80, Some(30080)),
            port("dns", Protocol::Udp, 53, None),
            port("dns", Protocol::Tcp, 53, None),
        ],
    };
    assert_eq!(service, expected);
}

#[test]
fn services_of_others_are_not_ours() {
    let label = |key: &str| {
        let mut value = service_value(json!({}));
        value["metadata"]["labels"] = json!({key: null});
        value
    };
    let cases = [
        label("service.kubernetes.io/service-proxy-name"),
        label("service.kubernetes.io/headless"),
        service_value(json!({"clusterIP": "None", "clusterIPs": ["None"]})),
        service_value(json!({"clusterIP": "None", "clusterIPs": null})),
        service_value(json!({"clusterIP": "", "clusterIPs": []})),
        service_value(json!({"clusterIP": null, "clusterIPs": null})),
        service_value(json!({"type": "ExternalName"})),
        json!({"metadata": {"name": "web", "namespace": "prod"}}),
    ];
    for value in cases {
        let converted = convert(Kind::Service, &value, &Scope::default());
        assert!(matches!(converted, Converted::NotOurs(_)), "{converted:?}");
        assert!(matches!(
            converted.into_change(),
            Some(ObjectChange::Delete(_))
        ));
    }
}

/// As for any proxy but the default one (KEP-2447): the label's value is the proxy's name.
#[test]
fn a_named_proxy_serves_the_services_with_its_label() {
    let scope = Scope {
        proxy: Some("portolan".parse().unwrap()),
        ..Scope::default()
    };
    let proxy = "service.kubernetes.io/service-proxy-name";
    let headless = "service.kubernetes.io/headless";
    for (labels, is_ours) in [
        (json!({proxy: "portolan", "app": "web"}), true),
        (json!({proxy: "other"}), false),
        (json!({proxy: ""}), false),
        (json!({proxy: null}), false),
        (json!({"app": "portolan"}), false),
        (json!(null), false),
        (json!({proxy: "portolan", headless: ""}), false),
    ] {
        let mut value = service_value(json!({}));
        value["metadata"]["labels"] = labels.clone();
        let service = convert(Kind::Service, &value, &scope);
        let is_service = matches!(service, Converted::Put { .. });
        let mut value = slice_value(json!({}));
        let of = value["metadata"]["labels"].clone();
        value["metadata"]["labels"] = labels.clone();
        value["metadata"]["labels"]["kubernetes.io/service-name"] =
            of["kubernetes.io/service-name"].clone();
        let slice = convert(Kind::EndpointSlice, &value, &scope);
        let is_slice = matches!(slice, Converted::Put { .. });
        assert_eq!((is_service, is_slice), (is_ours, is_ours), "{labels}");
    }
}

#[test]
fn cluster_ips_follow_the_families() {
    let cases = [
        (json!({"clusterIPs": null}), vec!["10.96.0.1"]),
        (json!({"clusterIP": null}), vec!["10.96.0.1"]),
        (
            json!({"clusterIPs": ["fd00::1", "10.96.0.1"]}),
            vec!["fd00::1", "10.96.0.1"],
        ),
        (
            json!({"clusterIPs": ["10.96.0.1", "fd00::1"], "ipFamilies": ["IPv4"]}),
            vec!["10.96.0.1"],
        ),
    ];
    for (spec, expected) in cases {
        let (service, problems) = service(spec);
        assert_eq!(service.cluster_ips, ips(&expected));
        assert_problems(&problems, &[]);
    }
}

#[test]
fn a_cluster_ip_of_the_wrong_family_is_left_out() {
    let (mismatch, problems) = service(json!({
        "clusterIPs": ["10.96.0.1", "10.96.0.2"],
        "ipFamilies": ["IPv4", "IPv6"],
    }));
    assert_eq!(mismatch.cluster_ips, ips(&["10.96.0.1"]));
    let field = "spec.clusterIPs[1]: wrong_family";
    assert_problems(&problems, &[(field, "10.96.0.2 is IPv4: expected IPv6")]);

    let (second, problems) = service(json!({"clusterIPs": ["10.96.0.1", "10.96.0.2"]}));
    assert_eq!(second.cluster_ips, ips(&["10.96.0.1"]));
    assert_problems(&problems, &[(field, "second IPv4 address")]);
}

#[test]
fn a_bad_port_is_left_out_and_the_others_stay() {
    let cases = [
        (
            json!({"port": 0}),
            "port",
            "0 is not a port: expected 1 to 65535",
        ),
        (json!({"port": 65536}), "port", "65536 is not a port"),
        (json!({"port": -1}), "port", "-1 is not a port"),
        (json!({"port": 4_294_967_376_i64}), "port", "4294967376"),
        (json!({}), "port", "missing"),
        (
            json!({"port": 1, "protocol": "SCTPX"}),
            "protocol",
            "\"SCTPX\"",
        ),
        (
            json!({"port": 1, "protocol": "tcp"}),
            "protocol",
            "expected TCP",
        ),
        (json!({"port": 1, "name": "http"}), "name", "\"http\""),
    ];
    for (port, field, part) in cases {
        let good = json!({"name": "http", "port": 80});
        let (service, problems) = service(json!({"ports": [good, port, {"name": "z", "port": 1}]}));
        let names: Vec<_> = service.ports.iter().map(|port| &*port.name).collect();
        assert_eq!(names, ["http", "z"]);
        let field = format!("spec.ports[1].{field}: invalid_value");
        assert_problems(&problems, &[(&field, part)]);
    }
}

#[test]
fn a_bad_node_port_is_dropped_and_its_port_stays() {
    for number in [65536, -1, 1_i64 << 40] {
        let (service, problems) = service(json!({"ports": [{"port": 80, "nodePort": number}]}));
        assert_eq!(service.ports[0].node_port, None);
        let field = "spec.ports[0].nodePort: invalid_value";
        assert_problems(&problems, &[(field, &number.to_string())]);
    }
}

#[test]
fn source_ranges_are_as_upstream() {
    type Case<'t> = (&'t [&'t str], &'t [&'t str], &'t [(&'t str, &'t str)]);
    let cases: [Case<'_>; 5] = [
        (&["10.0.0.1/8", "10.0.0.0/8"], &["10.0.0.0/8"], &[]),
        (
            &["192.0.2.0/24", "0.0.0.0/0", "fd00::/8"],
            &["fd00::/8"],
            &[],
        ),
        (
            &["bad", "192.0.2.0/24"],
            &["192.0.2.0/24"],
            &[("[0]: invalid_value", "\"bad\"")],
        ),
        (
            &["192.0.2.1", "::ffff:1.2.3.4/120"],
            &[],
            &[
                ("[0]: invalid_value", "ignored"),
                ("[1]: invalid_value", "ignored"),
                (": invalid_value", "all sources may connect"),
            ],
        ),
        (&[], &[], &[]),
    ];
    for (given, expected, problems) in cases {
        let (service, found) = service(json!({"loadBalancerSourceRanges": given}));
        let ranges: Vec<_> = service
            .source_ranges
            .iter()
            .map(ToString::to_string)
            .collect();
        assert_eq!(ranges, expected);
        let problems: Vec<_> = problems
            .iter()
            .map(|(field, part)| (format!("spec.loadBalancerSourceRanges{field}"), *part))
            .collect();
        let problems: Vec<_> = problems
            .iter()
            .map(|(f, part)| (f.as_str(), *part))
            .collect();
        assert_problems(&found, &problems);
    }
}

#[test]
fn the_external_policy_needs_a_way_in_from_outside() {
    let cases = [
        (json!({"type": "NodePort"}), TrafficPolicy::Local),
        (json!({"type": "LoadBalancer"}), TrafficPolicy::Local),
        (json!({"externalIPs": ["192.0.2.1"]}), TrafficPolicy::Local),
        (json!({"type": "ClusterIP"}), TrafficPolicy::Cluster),
        (json!({}), TrafficPolicy::Cluster),
    ];
    for (mut spec, expected) in cases {
        spec["externalTrafficPolicy"] = json!("Local");
        let (service, problems) = service(spec);
        assert_eq!(service.external_policy, expected);
        assert_problems(&problems, &[]);
    }
}

#[test]
fn unknown_choices_are_the_default() {
    let (service, problems) = service(json!({
        "type": "Magic",
        "externalTrafficPolicy": "local",
        "internalTrafficPolicy": "Node",
        "sessionAffinity": "Cookie",
    }));
    assert_eq!(service.external_policy, TrafficPolicy::Cluster);
    assert_eq!(service.internal_policy, TrafficPolicy::Cluster);
    assert_eq!(service.affinity_seconds, None);
    assert_problems(
        &problems,
        &[
            (
                "spec.externalTrafficPolicy: invalid_value",
                "\"local\": expected Cluster or Local",
            ),
            ("spec.type: invalid_value", "\"Magic\""),
            ("spec.internalTrafficPolicy: invalid_value", "\"Node\""),
            ("spec.sessionAffinity: invalid_value", "\"Cookie\""),
        ],
    );
}

#[test]
fn the_affinity_timeout_has_a_default_and_a_range() {
    let config = |seconds| json!({"clientIP": {"timeoutSeconds": seconds}});
    let cases = [
        (Value::Null, 10_800, 0),
        (config(json!(null)), 10_800, 0),
        (config(json!(1)), 1, 0),
        (config(json!(86_400)), 86_400, 0),
        (config(json!(0)), 10_800, 1),
        (config(json!(86_401)), 10_800, 1),
        (config(json!(-5)), 10_800, 1),
    ];
    for (config, expected, count) in cases {
        let (service, problems) = service(json!({
            "sessionAffinity": "ClientIP",
            "sessionAffinityConfig": config,
        }));
        assert_eq!(service.affinity_seconds, Some(expected));
        assert_eq!(problems.len(), count, "{problems:?}");
    }
}

#[test]
fn a_bad_time_is_named_and_the_service_stays() {
    let mut value = service_value(json!({}));
    value["metadata"]["creationTimestamp"] = json!("yesterday");
    let (service, problems) = service_of(&value);
    assert_eq!(service.created, None);
    let field = "metadata.creationTimestamp: invalid_value";
    assert_problems(&problems, &[(field, "\"yesterday\"")]);
}

#[test]
fn fields_ignored_upstream_are_ignored_silently() {
    let (with, problems) = service(json!({
        "loadBalancerClass": "example.com/lb",
        "allocateLoadBalancerNodePorts": false,
        "loadBalancerIP": "not even an address",
        "trafficDistribution": "PreferClose",
        "publishNotReadyAddresses": true,
        "ports": [{"name": "http", "port": 80, "appProtocol": "kubernetes.io/h2c"}],
    }));
    assert_problems(&problems, &[]);
    assert_eq!(with, service(json!({})).0);
}
