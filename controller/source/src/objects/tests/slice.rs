// SPDX-License-Identifier: Apache-2.0

//! EndpointSlices.

use super::*;

#[test]
fn an_endpoint_of_the_wrong_family_is_left_out() {
    let (slice, problems) = slice(json!({"endpoints": [
        {"addresses": ["10.0.0.1"]},
        {"addresses": ["fd00::1"]},
        {"addresses": []},
        {"addresses": null},
        {"addresses": ["10.0.0.4"]},
    ]}));
    let addresses: Vec<_> = slice.endpoints.iter().map(|e| e.address).collect();
    assert_eq!(addresses, ips(&["10.0.0.1", "10.0.0.4"]));
    assert_problems(
        &problems,
        &[
            (
                "endpoints[1].addresses[0]: wrong_family",
                "fd00::1 is IPv6: expected IPv4",
            ),
            ("endpoints[2].addresses: invalid_value", "missing"),
            ("endpoints[3].addresses: invalid_value", "missing"),
        ],
    );
}

#[test]
fn a_bad_slice_port_is_left_out_and_one_without_a_name_has_the_empty_one() {
    let (slice, problems) = slice(json!({"ports": [
        {"name": "a", "port": 1},
        {"name": "b", "port": null},
        {"port": 2},
        {"name": "c", "port": 0},
        {"name": "d", "port": 70000},
        {"name": "e", "port": 3, "protocol": "ICMP"},
        {"name": "", "port": 4, "protocol": "SCTP"},
    ]}));
    let ports: Vec<_> = slice.ports.iter().map(|p| (&*p.name, p.port)).collect();
    assert_eq!(ports, [("a", 1), ("", 2), ("", 4)]);
    assert_problems(
        &problems,
        &[
            ("ports[3].port: invalid_value", "0 is not a port"),
            ("ports[4].port: invalid_value", "70000 is not a port"),
            ("ports[5].protocol: invalid_value", "\"ICMP\""),
        ],
    );
}

#[test]
fn a_slice_has_all_that_counts() {
    let (slice, problems) = slice(json!({
        "addressType": "IPv6",
        "endpoints": [
            {"addresses": ["fd00::1"]},
            {
                "addresses": ["fd00::2"],
                "hostname": "web-0",
                "conditions": {"ready": false, "serving": null, "terminating": true},
                "nodeName": "n1",
                "targetRef": {"kind": "Pod", "name": "web-0", "namespace": "prod"},
                "hints": {"forZones": [{"name": "b"}, {"name": "a"}], "forNodes": []},
            },
            {
                "addresses": ["fd00::3"],
                "conditions": {"serving": false},
                "nodeName": "",
                "targetRef": {"kind": "Machine", "name": "m"},
                "hints": {"forZones": null, "forNodes": [{"name": "n1"}]},
            },
        ],
    }));
    assert_problems(&problems, &[]);
    assert_eq!((&*slice.service, slice.family), ("web", Family::V6));
    let endpoint = |address: &str| catalog::Endpoint::new(address.parse().unwrap());
    let expected = [
        endpoint("fd00::1"),
        catalog::Endpoint {
            ready: false,
            terminating: true,
            node: Some("n1".into()),
            pod: Some("web-0".into()),
            hostname: Some("web-0".into()),
            zone_hints: Some(vec!["a".into(), "b".into()]),
            ..endpoint("fd00::2")
        },
        catalog::Endpoint {
            serving: false,
            node_hints: Some(vec!["n1".into()]),
            ..endpoint("fd00::3")
        },
    ];
    assert_eq!(slice.endpoints, expected);
}

#[test]
fn slices_of_others_are_not_ours_and_unknown_address_types_are_refused() {
    let labels = |labels: Value| {
        let mut value = slice_value(json!({}));
        value["metadata"]["labels"] = labels;
        value
    };
    let service = "kubernetes.io/service-name";
    let cases = [
        labels(json!(null)),
        labels(json!({service: ""})),
        labels(json!({service: "web", "service.kubernetes.io/headless": ""})),
        labels(json!({service: "web", "service.kubernetes.io/service-proxy-name": "x"})),
        slice_value(json!({"addressType": "FQDN"})),
    ];
    for value in cases {
        let converted = convert(Kind::EndpointSlice, &value, &Scope::default());
        assert!(matches!(converted, Converted::NotOurs(_)), "{converted:?}");
    }
    let value = slice_value(json!({"addressType": "IPX"}));
    let problems = refused(
        Kind::EndpointSlice,
        &value,
        Some("EndpointSlice prod/web-1"),
    );
    assert_problems(&problems, &[("addressType: malformed", "\"IPX\"")]);
}

/// Only a cluster that shares Services may export a headless one.
#[test]
fn slices_of_headless_services_are_ours_where_services_are_shared() {
    let mut value = slice_value(json!({}));
    value["metadata"]["labels"] =
        json!({"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""});
    for (shares, is_ours) in [(true, true), (false, false)] {
        let scope = Scope {
            shares,
            ..Scope::default()
        };
        let converted = convert(Kind::EndpointSlice, &value, &scope);
        assert_eq!(matches!(converted, Converted::Put { .. }), is_ours);
        let mut other = value.clone();
        other["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"] = "x".into();
        let converted = convert(Kind::EndpointSlice, &other, &scope);
        assert!(matches!(converted, Converted::NotOurs(_)));
        #[cfg(feature = "kubernetes")]
        assert_eq!(!scope.selector().contains("headless"), is_ours);
    }
}

#[test]
fn lists_that_are_null_are_empty() {
    let (slice, problems) = slice(json!({"ports": null, "endpoints": null}));
    assert!(slice.ports.is_empty() && slice.endpoints.is_empty());
    assert_problems(&problems, &[]);
}

#[test]
fn a_slice_has_its_trigger_time() {
    let at = |text: Value| {
        let mut value = slice_value(json!({}));
        value["metadata"]["annotations"] =
            json!({"endpoints.kubernetes.io/last-change-trigger-time": text});
        let (object, problems) = put(Kind::EndpointSlice, &value);
        let Object::EndpointSlice(slice) = object else {
            panic!("expected a slice: {object:?}")
        };
        (slice.triggered_ms, problems)
    };
    let (time, problems) = at(json!("2026-01-31T12:00:00.25Z"));
    assert_eq!(time, Some(1_769_860_800_250));
    assert_problems(&problems, &[]);
    assert_eq!(at(json!("1969-01-01T00:00:00Z")).0, None);
    let (time, problems) = at(json!("noon"));
    assert_eq!(time, None);
    let field = "metadata.annotations[endpoints.kubernetes.io/last-change-trigger-time]";
    assert_problems(
        &problems,
        &[(&format!("{field}: invalid_value"), "\"noon\" is not a time")],
    );
}
