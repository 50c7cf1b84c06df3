// SPDX-License-Identifier: Apache-2.0

use super::*;

#[test]
fn only_addresses_of_declared_networks_may_be_exported() {
    let texts = |texts: &[&str]| texts.iter().map(ToString::to_string).collect();
    let spec = NetworkSpec {
        pod_cidrs: texts(&["10.0.0.0/8", "fd00::/16"]),
        node_cidrs: texts(&["192.168.1.0/24", "127.0.0.0/8", "169.254.0.0/16"]),
        service_cidrs: texts(&["10.96.0.0/16"]),
        cluster_set_ips: texts(&["10.112.0.0/16", "fd00:112::/108"]),
        ..NetworkSpec::default()
    };
    let mut faults = Faults::default();
    let network = Network::new(&spec, &Path::default(), &mut faults);
    let network = faults.into_result(network).unwrap();
    let cases = [
        ("10.1.2.3", Ok(())),
        ("192.168.1.7", Ok(())),
        ("192.168.2.7", Err(NotAdmitted::Outside)),
        ("10.96.0.1", Err(NotAdmitted::ServiceAddress)),
        ("10.112.0.1", Err(NotAdmitted::ServiceAddress)),
        ("127.0.0.1", Err(NotAdmitted::Special)),
        ("169.254.169.254", Err(NotAdmitted::Special)),
        ("0.0.0.1", Err(NotAdmitted::Special)),
        ("224.0.0.1", Err(NotAdmitted::Special)),
        ("fd00::1", Ok(())),
        ("fd01::1", Err(NotAdmitted::Outside)),
        ("fd00:112::1", Err(NotAdmitted::ServiceAddress)),
        ("fe80::1", Err(NotAdmitted::Special)),
        ("::ffff:10.1.2.3", Err(NotAdmitted::Special)),
    ];
    for (address, expected) in cases {
        let address: IpAddr = address.parse().unwrap();
        assert_eq!(network.admits(address), expected, "{address}");
    }
}

#[test]
fn a_spec_made_of_networks_gives_them_again() {
    let text = r#"{"mode": "Gateway", "podCIDRs": ["10.1.0.0/16", "fd00:1::/32"], "nodeCIDRs": ["192.168.1.0/24"],
            "serviceCIDRs": ["10.96.0.0/16"], "clusterSetIPs": ["10.112.0.0/16"], "gateway": {"ports": "20000-29999",
            "address": "ExternalIP", "nodes": {"names": ["a*", "b"], "matchLabels": {"edge": "true"},
            "matchExpressions": [{"key": "zone", "operator": "NotIn", "values": ["x", "y"]},
            {"key": "old", "operator": "DoesNotExist"}]}}}"#;
    let spec: NetworkSpec = serde_json::from_str(text).unwrap();
    let network = Network::of(&spec).unwrap();
    let again = network.to_spec();
    assert_eq!(Network::of(&again).unwrap(), network);
    assert_eq!(again.gateway.unwrap().nodes.names, ["a*", "b"]);
    assert!(Network::of(&NetworkSpec::default()).is_err());
}

#[test]
fn a_range_of_ports_goes_upwards() {
    let range = |first, last| Ok(PortRange { first, last });
    let cases = [
        ("20000-29999", range(20_000, 29_999)),
        ("1-1", range(1, 1)),
        ("0-1", Err(PortRangeError)),
        ("2-1", Err(PortRangeError)),
        ("1", Err(PortRangeError)),
        ("+1-2", Err(PortRangeError)),
        ("1-65536", Err(PortRangeError)),
        ("1-2-3", Err(PortRangeError)),
    ];
    for (text, expected) in cases {
        assert_eq!(text.parse(), expected, "{text}");
    }
}
