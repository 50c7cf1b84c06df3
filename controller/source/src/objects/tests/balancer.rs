// SPDX-License-Identifier: Apache-2.0

//! Load balancers in front of Services.

use super::*;

#[test]
fn an_address_of_a_family_that_the_service_lacks_is_left_out() {
    let mut value = service_value(json!({"externalIPs": ["2001:db8::1", "192.0.2.1"]}));
    value["status"] = json!({"loadBalancer": {"ingress": [{"ip": "2001:db8::7"}]}});
    let (service, problems) = service_of(&value);
    assert_eq!(service.external_ips, ips(&["192.0.2.1"]));
    assert!(service.load_balancer_ips.is_empty());
    let what = "the Service has no IPv6 cluster IP";
    let expected = [
        ("spec.externalIPs[0]: wrong_family", what),
        ("status.loadBalancer.ingress[0].ip: wrong_family", what),
    ];
    assert_problems(&problems, &expected);
}

#[test]
fn a_balancer_keeps_sources_if_nodes_answer_for_all_of_it() {
    let vip = json!({"ip": "198.51.100.1"});
    let cases = [
        (json!([vip]), true, 0),
        (
            json!([vip, {"ip": "198.51.100.2", "ipMode": "VIP"}]),
            true,
            0,
        ),
        (
            json!([vip, {"ip": "198.51.100.2", "ipMode": "Proxy"}]),
            false,
            0,
        ),
        (json!([vip, {"hostname": "lb.example"}]), false, 0),
        (
            json!([vip, {"ip": "198.51.100.2", "ipMode": "?"}]),
            false,
            1,
        ),
        (json!([vip, {"ip": "127.0.0.1"}]), false, 1),
        (json!([]), false, 0),
        (json!(null), false, 0),
    ];
    for (ingress, expected, count) in cases {
        let mut value = service_value(json!({}));
        value["status"] = json!({"loadBalancer": {"ingress": ingress}});
        let (service, problems) = service_of(&value);
        assert_eq!(service.balancer_keeps_sources, expected, "{value}");
        assert_eq!(problems.len(), count, "{problems:?}");
    }
}

#[test]
fn a_health_check_port_counts_behind_a_balancer_with_local_policy() {
    let spec = |type_: &str, policy: &str, port: i64| {
        json!({
            "type": type_,
            "externalTrafficPolicy": policy,
            "healthCheckNodePort": port,
            "externalIPs": ["192.0.2.1"],
        })
    };
    let cases = [
        (spec("LoadBalancer", "Local", 32000), Some(32000)),
        (spec("LoadBalancer", "Local", 0), None),
        (spec("LoadBalancer", "Cluster", 32000), None),
        (spec("NodePort", "Local", 32000), None),
        (spec("ClusterIP", "Local", 32000), None),
    ];
    for (spec, expected) in cases {
        let (service, problems) = service(spec);
        assert_eq!(service.health_check_port, expected);
        assert_problems(&problems, &[]);
    }
    let (service, problems) = service(spec("LoadBalancer", "Local", 70000));
    assert_eq!(service.health_check_port, None);
    let field = "spec.healthCheckNodePort: invalid_value";
    assert_problems(&problems, &[(field, "70000 is not a port")]);
}
