// SPDX-License-Identifier: Apache-2.0

//! Names that need care in a zone file.

use hickory_proto::serialize::txt::Parser;

use super::super::render::{relative, render};
use super::compare;
use crate::name::absolute;
use crate::testing::{changes, config, endpoint, headless, hosted, port, slice, zone_of};
use crate::{Endpoint, NamesChange, Service, ServiceKey, ZoneConfig};

#[test]
fn a_name_of_a_pod_that_is_no_host_adds_no_lines() {
    let config = ZoneConfig {
        endpoint_pod_names: true,
        ..config()
    };
    let named = |address: &str, pod: &str| Endpoint {
        pod: Some(pod.to_owned()),
        ..endpoint(address)
    };
    let pods = [
        named("172.0.0.2", "x a 1.1.1.1\nweb.other.svc a 6.6.6.6\ny"),
        named("172.0.0.3", "web.0"),
        named("172.0.0.4", "web..0"),
    ];
    let all = [
        NamesChange::Service(headless("web")),
        NamesChange::Slice(slice("web", "web-a", &pods, &[port("http", 80)])),
    ];
    let zone = zone_of(config, all);
    let text = render(&zone, &absolute("cluster.local").unwrap(), 1);
    assert!(!text.contains("6.6.6.6"), "{text}");
    for line in [
        "172-0-0-2.web.testns.svc A 172.0.0.2\n",
        "web.0.web.testns.svc A 172.0.0.3\n",
        "172-0-0-4.web.testns.svc A 172.0.0.4\n",
    ] {
        assert!(text.contains(line), "{text}");
    }
    let problems: Vec<_> = zone.problems().map(ToString::to_string).collect();
    assert!(
        problems[0].contains("endpoints[0].targetRef.name"),
        "{problems:?}"
    );
    assert_eq!(problems.len(), 2);
}

#[test]
fn bytes_of_relative_names_that_mean_something_are_escaped() {
    let escaped = r"web\0320.\010ns\059.\064.svc";
    assert_eq!(relative("web 0.\nns;.@.svc"), escaped);
    assert_eq!(relative("@"), "@");
    assert_eq!(relative("_http._tcp"), "_http._tcp");
}

#[test]
fn a_reverse_zone_of_one_address_has_its_names() {
    let networks = ["172.0.0.2/32", "5678:abcd::1/128"];
    let networks = networks.map(|network| network.parse::<ipnet::IpNet>().unwrap());
    let zone = zone_of(config().with_networks(&networks), changes());
    assert!(compare(&zone) > 0);
    for origin in &zone.config().reverse {
        let text = render(&zone, origin, 1);
        assert!(text.contains("@ PTR "), "{text}");
    }
}

#[test]
fn names_that_are_too_long_are_left_out() {
    let long = "a".repeat(63);
    let config = ZoneConfig::new(&format!("{long}.local")).unwrap();
    let key = ServiceKey::new(long.as_str(), long.as_str());
    let endpoints = [hosted("172.0.0.2", &long), endpoint("172.0.0.3")];
    let mut slice = slice(&long, "a", &endpoints, &[port("http", 80)]);
    slice.key.namespace.clone_from(&long);
    let all = [
        NamesChange::Namespace(long.clone()),
        NamesChange::Service(Service {
            key,
            ..headless("web")
        }),
        NamesChange::Slice(slice),
    ];
    let zone = zone_of(config, all);
    let origin = absolute(&format!("{long}.local")).unwrap();
    let text = render(&zone, &origin, 1);
    let base = format!("{long}.{long}.svc");
    assert!(text.contains(&format!("{base} A 172.0.0.2\n")), "{text}");
    assert!(text.contains(&format!(" 80 172-0-0-3.{base}\n")), "{text}");
    assert!(!text.contains(&format!("{long}.{base}")), "{text}");
    let parsed = Parser::new(text, None, Some(origin)).parse();
    assert!(parsed.is_ok());
}
