// SPDX-License-Identifier: Apache-2.0

//! The apex, names between names, aliases, spelling, and foreign names.

use hickory_proto::op::ResponseCode;

use super::{is, negative, nodata, nxdomain};
use crate::RecordType::{A, AAAA, ANY, AXFR, CNAME, HINFO, IXFR, MX, NS, PTR, SOA, SRV, TXT};
use crate::testing::{ask, changes, cluster_ip, config, text, zone, zone_of};
use crate::{NamesChange, ServiceKey, Zone, ZoneConfig};

#[test]
fn the_apex_has_soa_and_ns_and_nothing_else() {
    let zone = zone();
    let soa = format!(
        "cluster.local. 5 IN SOA ns.dns.cluster.local. hostmaster.cluster.local. {} 7200 1800 86400 5",
        zone.serial()
    );
    is(&zone, "cluster.local.", SOA, &[&soa]);
    is(
        &zone,
        "cluster.local.",
        NS,
        &["cluster.local. 5 IN NS ns.dns.cluster.local."],
    );
    for kind in [A, AAAA, SRV, CNAME, PTR, MX, HINFO, ANY] {
        nodata(&zone, "cluster.local.", kind);
    }
    negative(&zone, "cluster.local.", TXT, ResponseCode::NXDomain);
    assert_eq!(
        text(&ask(&zone, "svc1.testns.svc.cluster.local", AAAA).authorities),
        [soa]
    );
    nodata(&zone, "svc1.testns.svc.cluster.local.", SOA);
    nodata(&zone, "svc1.testns.svc.cluster.local.", NS);
    let reverse = ask(&zone, "in-addr.arpa", SOA);
    assert!(text(&reverse.answers)[0].starts_with("in-addr.arpa. 5 IN SOA ns.dns.in-addr.arpa. "));
    is(
        &zone,
        "in-addr.arpa.",
        NS,
        &["in-addr.arpa. 5 IN NS ns.dns.in-addr.arpa."],
    );
}

#[test]
fn the_name_server_is_the_service_if_it_exists() {
    let mut config = config();
    config.name_server = Some(ServiceKey::new("testns", "svc-dual-stack"));
    let mut zone = zone_of(config, changes());
    let host = "svc-dual-stack.testns.svc.cluster.local.";
    is(
        &zone,
        "cluster.local.",
        NS,
        &[&format!("cluster.local. 5 IN NS {host}")],
    );
    let glue = text(&ask(&zone, "cluster.local", NS).additionals);
    assert_eq!(
        glue,
        [
            format!("{host} 5 IN A 10.0.0.3"),
            format!("{host} 5 IN AAAA 10::3")
        ]
    );
    is(
        &zone,
        "ns.dns.cluster.local.",
        A,
        &["ns.dns.cluster.local. 5 IN A 10.0.0.3"],
    );
    zone.apply(NamesChange::ServiceRemoved(ServiceKey::new(
        "testns",
        "svc-dual-stack",
    )));
    is(
        &zone,
        "cluster.local.",
        NS,
        &["cluster.local. 5 IN NS ns.dns.cluster.local."],
    );
    for kind in [A, AAAA, SRV, CNAME, MX, NS] {
        nodata(&zone, "ns.dns.cluster.local.", kind);
    }
    for kind in [TXT, PTR] {
        let code = ResponseCode::NXDomain;
        negative(&zone, "ns.dns.cluster.local.", kind, code);
    }
    nxdomain(&zone, "dns.cluster.local.");
    nxdomain(&zone, "x.dns.cluster.local.");
}

#[test]
fn the_name_servers_of_a_headless_service_are_its_endpoints() {
    let mut config = config();
    config.name_server = Some(ServiceKey::new("testns", "zoned"));
    let zone = zone_of(config, changes());
    let hosts = ["172-0-1-1", "172-0-1-2"];
    for apex in ["cluster.local.", "in-addr.arpa."] {
        let servers = hosts.map(|host| format!("{apex} 5 IN NS {host}.zoned.testns.svc.{apex}"));
        is(&zone, apex, NS, &servers.each_ref().map(String::as_str));
        assert_eq!(ask(&zone, apex, NS).additionals.len(), 2);
        let name = format!("ns.dns.{apex}");
        let addresses = ["172.0.1.1", "172.0.1.2"].map(|ip| format!("{name} 5 IN A {ip}"));
        is(&zone, &name, A, &addresses.each_ref().map(String::as_str));
    }
}

#[test]
fn the_schema_version_is_served() {
    let zone = zone();
    is(
        &zone,
        "dns-version.cluster.local.",
        TXT,
        &["dns-version.cluster.local. 28800 IN TXT 1.1.0"],
    );
    is(
        &zone,
        "dns-version.in-addr.arpa.",
        TXT,
        &["dns-version.in-addr.arpa. 28800 IN TXT 1.1.0"],
    );
    for kind in [A, SRV, CNAME, PTR, MX, NS] {
        let code = ResponseCode::NXDomain;
        negative(&zone, "dns-version.cluster.local.", kind, code);
    }
    nxdomain(&zone, "version.cluster.local.");
    nxdomain(&zone, "x.dns-version.cluster.local.");
}

#[test]
fn names_between_names_exist_but_for_txt() {
    let zone = zone();
    for name in ["svc", "pod", "testns.svc", "emptyns.svc", "podns.svc"] {
        let name = format!("{name}.cluster.local.");
        for kind in [A, AAAA, SRV, NS, SOA, PTR, MX, CNAME] {
            nodata(&zone, &name, kind);
        }
        negative(&zone, &name, TXT, ResponseCode::NXDomain);
    }
    for name in [
        "foo",
        "foo.svc",
        "svc0.svc-nons.svc",
        "nons.svc",
        "testns",
        "svc.svc",
    ] {
        nxdomain(&zone, &format!("{name}.cluster.local."));
    }
}

#[test]
fn a_namespace_exists_while_it_is_declared_or_used() {
    let mut zone = zone_of(
        config(),
        [NamesChange::Service(cluster_ip("a", &["10.0.0.1"]))],
    );
    let name = "testns.svc.cluster.local.";
    nodata(&zone, name, A);
    zone.apply(NamesChange::Namespace("TestNS".to_owned()));
    zone.apply(NamesChange::ServiceRemoved(ServiceKey::new("testns", "a")));
    nodata(&zone, name, A);
    zone.apply(NamesChange::NamespaceRemoved("testns".to_owned()));
    nxdomain(&zone, name);
}

#[test]
fn external_names_are_aliases_and_followed_inside() {
    let zone = zone();
    let name = "external.testns.svc.cluster.local.";
    let alias = format!("{name} 5 IN CNAME ext.interwebs.test.");
    for kind in [CNAME, A, AAAA] {
        is(&zone, name, kind, &[&alias]);
    }
    assert_eq!(
        ask(&zone, name, A).elsewhere,
        crate::name::absolute("ext.interwebs.test")
    );
    assert_eq!(ask(&zone, name, CNAME).elsewhere, None);
    let any = "_._.external.testns.svc.cluster.local.";
    let of_any = format!("{any} 5 IN CNAME ext.interwebs.test.");
    is(&zone, any, A, &[&of_any]);
    nxdomain(&zone, "endpoint.external.testns.svc.cluster.local.");
    nxdomain(&zone, "_http._tcp.external.testns.svc.cluster.local.");

    let inside = "external-to-service.testns.svc.cluster.local.";
    let to = format!("{inside} 5 IN CNAME svc1.testns.svc.cluster.local.");
    is(&zone, inside, CNAME, &[&to]);
    is(
        &zone,
        inside,
        A,
        &[&to, "svc1.testns.svc.cluster.local. 5 IN A 10.0.0.1"],
    );
    let twice = ask(&zone, "external-twice.testns.svc.cluster.local.", A);
    assert_eq!(twice.answers.len(), 3);
    // In the order in which they are followed.
    assert_eq!(twice.answers[1].name.to_string(), inside);
}

#[test]
fn aliases_that_lead_to_nothing_inside_are_left_out() {
    let zone = zone();
    for (name, kind) in [
        ("external-to-nothing", A),
        ("external-to-service", AAAA),
        ("loop-a", A),
        ("itself", A),
        ("external", SRV),
        ("external", TXT),
        ("external", PTR),
        ("external", MX),
    ] {
        nodata(&zone, &format!("{name}.testns.svc.cluster.local."), kind);
    }
    let name = "loop-a.testns.svc.cluster.local.";
    let alias = format!("{name} 5 IN CNAME loop-b.testns.svc.cluster.local.");
    is(&zone, name, CNAME, &[&alias]);
}

#[test]
fn aliases_are_followed_so_far_and_no_further() {
    let chain = |length: usize| {
        let link = |i: usize| {
            let to = format!("c{}.testns.svc.cluster.local", i + 1);
            NamesChange::Service(crate::testing::external(&format!("c{i}"), &to))
        };
        let end = cluster_ip(&format!("c{length}"), &["10.0.0.1"]);
        let zone = zone_of(
            config(),
            (0..length).map(link).chain([NamesChange::Service(end)]),
        );
        ask(&zone, "c0.testns.svc.cluster.local.", A).answers.len()
    };
    assert_eq!(chain(3), 4);
    assert_eq!(chain(11), 12);
    assert_eq!(chain(12), 0);
}

#[test]
fn an_alias_into_another_zone_of_ours_is_followed_there() {
    let mut config = config();
    config.add_zone("other.example").unwrap();
    let to = |name, target| NamesChange::Service(crate::testing::external(name, target));
    let own = [
        to("across", "svc1.testns.svc.other.example"),
        to("across-to-nothing", "svc0.testns.svc.other.example"),
    ];
    let zone = zone_of(config, changes().into_iter().chain(own));
    let name = "across.testns.svc.cluster.local.";
    assert_eq!(ask(&zone, name, A).answers.len(), 2);
    // An alias into another zone is given without a lookup there.
    let name = "across-to-nothing.testns.svc.cluster.local.";
    let alias = format!("{name} 5 IN CNAME svc0.testns.svc.other.example.");
    is(&zone, name, A, &[&alias]);
}

#[test]
fn names_are_spelled_as_in_the_question() {
    let zone = zone();
    let name = "SvC1.TeStNs.SvC.cLuStEr.LoCaL.";
    is(&zone, name, A, &[&format!("{name} 5 IN A 10.0.0.1")]);
    let name = "_HtTp._TcP.sVc1.TeStNs.SvC.cLuStEr.LoCaL.";
    is(
        &zone,
        name,
        SRV,
        &[&format!(
            "{name} 5 IN SRV 0 100 80 svc1.testns.svc.cLuStEr.LoCaL."
        )],
    );
    let glue = text(&ask(&zone, name, SRV).additionals);
    assert_eq!(glue, ["svc1.testns.svc.cLuStEr.LoCaL. 5 IN A 10.0.0.1"]);
    let soa = text(&ask(&zone, "Cluster.local.", SOA).answers);
    assert!(
        soa[0].starts_with(
            "Cluster.local. 5 IN SOA ns.dns.Cluster.local. hostmaster.Cluster.local. "
        )
    );
    // With capitals in the zone's name CoreDNS does not know its name servers.
    nodata(&zone, "Cluster.local.", NS);
    nxdomain(&zone, "ns.dns.Cluster.local.");
    nodata(&zone, "NS.dns.cluster.local.", A);
}

#[test]
fn until_synced_every_answer_is_servfail() {
    let mut zone = Zone::new(config(), 7).unwrap();
    for change in changes() {
        zone.apply(change);
    }
    for name in [
        "svc1.testns.svc.cluster.local",
        "svc0.testns.svc.cluster.local",
        "cluster.local",
    ] {
        assert_eq!(ask(&zone, name, A).code, ResponseCode::ServFail);
    }
    assert_eq!(ask(&zone, "example.org", A).code, ResponseCode::Refused);
}

#[test]
fn other_zones_and_whole_zones_are_refused() {
    let zone = zone();
    for (name, kind) in [
        ("example.org", A),
        ("local", A),
        (".", NS),
        ("xcluster.local", A),
        ("cluster.local", AXFR),
        ("cluster.local", IXFR),
    ] {
        let answer = ask(&zone, name, kind);
        assert_eq!(answer.code, ResponseCode::Refused, "{name}");
        assert_eq!((answer.answers.len(), answer.authorities.len()), (0, 0));
    }
}

#[test]
fn several_zones_and_networks_can_be_served() {
    let networks = ["10.0.0.0/16", "1234:abcd::/64"].map(|net| net.parse().unwrap());
    let mut config = config().with_networks(&networks);
    config.add_zone("Other.Example").unwrap();
    config.ttl = 30;
    let zone = zone_of(config, changes());
    let name = "svc1.testns.svc.other.example.";
    is(&zone, name, A, &[&format!("{name} 30 IN A 10.0.0.1")]);
    let name = "1.0.0.10.in-addr.arpa.";
    is(
        &zone,
        name,
        PTR,
        &[&format!("{name} 30 IN PTR svc1.testns.svc.cluster.local.")],
    );
    let soa = ask(&zone, "101.0.0.10.in-addr.arpa", PTR).authorities;
    assert_eq!(soa[0].name.to_string(), "0.10.in-addr.arpa.");
    assert_eq!(
        ask(&zone, "2.0.0.172.in-addr.arpa", PTR).code,
        ResponseCode::Refused
    );
}

#[test]
fn the_soa_is_kept_for_5_minutes_at_most() {
    let zone = zone_of(
        ZoneConfig {
            ttl: 3600,
            ..config()
        },
        changes(),
    );
    let soa = text(&ask(&zone, "cluster.local", SOA).answers);
    assert!(soa[0].starts_with("cluster.local. 300 IN SOA "), "{soa:?}");
    assert!(soa[0].ends_with(" 3600"), "{soa:?}");
}

#[test]
fn settings_out_of_range_are_named() {
    let bad = ZoneConfig {
        ttl: 3601,
        ..config()
    };
    assert_eq!(
        Zone::new(bad, 0).unwrap_err().to_string(),
        "ttl: 3601 is not in 0..=3600 seconds"
    );
    for zone in ["", ".", "a..b"] {
        assert!(ZoneConfig::new(zone).is_err(), "{zone:?}");
    }
    let mut bad = config();
    bad.reverse = config().zones;
    assert!(
        Zone::new(bad, 0)
            .unwrap_err()
            .to_string()
            .contains("cluster.local")
    );
}
