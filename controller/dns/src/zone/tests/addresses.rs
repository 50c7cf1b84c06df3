// SPDX-License-Identifier: Apache-2.0

//! Services, endpoints, Pods, and the reverse tree.

use hickory_proto::op::ResponseCode;

use super::{is, negative, nodata, nxdomain};
use crate::RecordType::{A, AAAA, CNAME, PTR, SRV, TXT};
use crate::testing::{ask, changes, config, headless, text, zone, zone_of};
use crate::{NamesChange, PodMode, ServiceKey, ZoneConfig};

#[test]
fn a_cluster_ip_service_has_its_addresses_by_family() {
    let zone = zone();
    let name = "svc1.testns.svc.cluster.local.";
    is(&zone, name, A, &[&format!("{name} 5 IN A 10.0.0.1")]);
    nodata(&zone, name, AAAA);
    nodata(&zone, name, TXT);
    nodata(&zone, name, CNAME);
    nodata(&zone, name, PTR);
    let name = "svc6.testns.svc.cluster.local.";
    is(
        &zone,
        name,
        AAAA,
        &[&format!("{name} 5 IN AAAA 1234:abcd::1")],
    );
    nodata(&zone, name, A);
    let name = "svc-dual-stack.testns.svc.cluster.local.";
    is(&zone, name, A, &[&format!("{name} 5 IN A 10.0.0.3")]);
    is(&zone, name, AAAA, &[&format!("{name} 5 IN AAAA 10::3")]);
    nodata(&zone, "pending.testns.svc.cluster.local.", A);
    nxdomain(&zone, "svc0.testns.svc.cluster.local.");
    nxdomain(&zone, "svc1.emptyns.svc.cluster.local.");
    nxdomain(&zone, "svc1.testns.cluster.local.");
    nxdomain(&zone, "svc1.testns.pod.cluster.local.");
}

#[test]
fn named_ports_have_srv_records_with_glue() {
    let zone = zone();
    for name in [
        "_http._tcp.svc1.testns.svc.cluster.local.",
        "svc1.testns.svc.cluster.local.",
    ] {
        is(
            &zone,
            name,
            SRV,
            &[&format!(
                "{name} 5 IN SRV 0 100 80 svc1.testns.svc.cluster.local."
            )],
        );
        let glue = text(&ask(&zone, name, SRV).additionals);
        assert_eq!(glue, ["svc1.testns.svc.cluster.local. 5 IN A 10.0.0.1"]);
    }
    // CoreDNS gives the name of a port addresses too, and takes it without its underscores, or with
    // nothing else.
    for name in [
        "_http._tcp",
        "http.tcp",
        "_HTTP.tcp",
        "_._tcp",
        "_http._",
        "_._",
    ] {
        let name = format!("{name}.svc1.testns.svc.cluster.local.");
        is(&zone, &name, A, &[&format!("{name} 5 IN A 10.0.0.1")]);
        nodata(&zone, &name, AAAA);
        nodata(&zone, &name, TXT);
        let srv = format!("{name} 5 IN SRV 0 100 80 svc1.testns.svc.cluster.local.");
        is(&zone, &name, SRV, &[&srv]);
        assert_eq!(ask(&zone, &name, SRV).additionals.len(), 1);
    }
    for missing in [
        "_http._udp.svc1",
        "_https._tcp.svc1",
        "_udp.svc1",
        "_http._tcp.svc0",
        "x._http._tcp.svc1",
        "_tcp.svc1",
        "__http._tcp.svc1",
        "_._udp.svc1",
        "_._tcp.svc0",
        "_._tcp.external",
        "_http._tcp.external",
    ] {
        nxdomain(&zone, &format!("{missing}.testns.svc.cluster.local."));
    }
    // An unnamed port has no name of its own.
    let name = "unnamed.testns.svc.cluster.local.";
    is(
        &zone,
        name,
        SRV,
        &[&format!("{name} 5 IN SRV 0 100 81 {name}")],
    );
    nxdomain(&zone, &format!("_tcp.{name}"));
}

#[test]
fn a_dual_stack_service_has_one_srv_record_and_half_its_weight() {
    let zone = zone();
    let name = "svc-dual-stack.testns.svc.cluster.local.";
    is(
        &zone,
        name,
        SRV,
        &[&format!("{name} 5 IN SRV 0 50 80 {name}")],
    );
    let glue = text(&ask(&zone, name, SRV).additionals);
    assert_eq!(
        glue,
        [
            format!("{name} 5 IN A 10.0.0.3"),
            format!("{name} 5 IN AAAA 10::3")
        ]
    );
}

#[test]
fn a_headless_service_has_its_ready_endpoints() {
    let zone = zone();
    let name = "hdls1.testns.svc.cluster.local.";
    let expected = ["172.0.0.2", "172.0.0.3", "172.0.0.4", "172.0.0.5"];
    let expected = expected.map(|ip| format!("{name} 5 IN A {ip}"));
    is(&zone, name, A, &expected.each_ref().map(String::as_str));
    let expected = ["5678:abcd::1", "5678:abcd::2"].map(|ip| format!("{name} 5 IN AAAA {ip}"));
    is(&zone, name, AAAA, &expected.each_ref().map(String::as_str));
    let name = "hdlsprtls.testns.svc.cluster.local.";
    is(&zone, name, A, &[&format!("{name} 5 IN A 172.0.0.20")]);
    nodata(&zone, name, SRV);
    nodata(&zone, name, AAAA);
    nxdomain(&zone, "_tcp.hdlsprtls.testns.svc.cluster.local.");
    // None ready: the name does not exist.
    nxdomain(&zone, "unready.testns.svc.cluster.local.");
    nxdomain(&zone, "172-0-0-40.unready.testns.svc.cluster.local.");
    nxdomain(&zone, "orphaned.testns.svc.cluster.local.");
    let name = "published.testns.svc.cluster.local.";
    is(&zone, name, A, &[&format!("{name} 5 IN A 172.0.0.40")]);
}

#[test]
fn endpoints_have_names_of_hostname_or_address() {
    let zone = zone();
    for (host, kind, expected) in [
        ("dup-name.hdls1", A, &["172.0.0.4", "172.0.0.5"][..]),
        ("172-0-0-2.hdls1", A, &["172.0.0.2"]),
        ("5678-abcd--1.hdls1", AAAA, &["5678:abcd::1"]),
        ("172-0-0-20.hdlsprtls", A, &["172.0.0.20"]),
        // A Service with a cluster IP has them too.
        ("ep1a.svc1", A, &["172.0.0.1"]),
    ] {
        let name = format!("{host}.testns.svc.cluster.local.");
        let expected: Vec<_> = expected
            .iter()
            .map(|ip| format!("{name} 5 IN {kind} {ip}"))
            .collect();
        is(
            &zone,
            &name,
            kind,
            &expected.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    }
    nodata(&zone, "172-0-0-2.hdls1.testns.svc.cluster.local.", AAAA);
    for missing in [
        "172-0-0-4.hdls1",
        "bogus.hdls1",
        "172-0-0-1.svc1",
        "ep1a.svc6",
        "x.ep1a.svc1",
    ] {
        nxdomain(&zone, &format!("{missing}.testns.svc.cluster.local."));
    }
}

#[test]
fn headless_srv_records_lead_to_each_endpoint() {
    let zone = zone();
    // As in CoreDNS an endpoint that is in two slices for a moment is counted twice: 7, not 6.
    let name = "_http._tcp.hdls1.testns.svc.cluster.local.";
    let hosts = [
        "172-0-0-2",
        "172-0-0-3",
        "5678-abcd--1",
        "5678-abcd--2",
        "dup-name",
    ];
    let expected =
        hosts.map(|h| format!("{name} 5 IN SRV 0 14 80 {h}.hdls1.testns.svc.cluster.local."));
    is(&zone, name, SRV, &expected.each_ref().map(String::as_str));
    let glue = text(&ask(&zone, name, SRV).additionals);
    assert_eq!(glue.len(), 6);
    assert!(glue.contains(&"dup-name.hdls1.testns.svc.cluster.local. 5 IN A 172.0.0.5".to_owned()));
    assert!(glue.contains(
        &"5678-abcd--2.hdls1.testns.svc.cluster.local. 5 IN AAAA 5678:abcd::2".to_owned()
    ));
    let name = "dup-name.hdls1.testns.svc.cluster.local.";
    is(
        &zone,
        name,
        SRV,
        &[&format!("{name} 5 IN SRV 0 50 80 {name}")],
    );
}

#[test]
fn the_smallest_weight_is_1() {
    let endpoints: Vec<_> = (1..=101)
        .map(|i| crate::testing::endpoint(&format!("172.1.0.{i}")))
        .collect();
    let http = [crate::testing::port("http", 80)];
    let slice = crate::testing::slice("many", "many-a", &endpoints, &http);
    let zone = zone_of(
        config(),
        [
            NamesChange::Service(headless("many")),
            NamesChange::Slice(slice),
        ],
    );
    let answer = ask(&zone, "_http._tcp.many.testns.svc.cluster.local.", SRV);
    assert_eq!(answer.answers.len(), 101);
    assert!(answer.answers[7].to_string().contains(" SRV 0 1 80 "));
}

#[test]
fn endpoints_are_named_after_their_pod_if_so_configured() {
    let mut config = config();
    config.endpoint_pod_names = true;
    let pods =
        [("web-0", "172.2.0.1"), ("with.dot", "172.2.0.2")].map(|(pod, ip)| crate::Endpoint {
            pod: Some(pod.to_owned()),
            ..crate::testing::endpoint(ip)
        });
    let slice = crate::testing::slice("web", "web-a", &pods, &[]);
    let all = [
        NamesChange::Service(headless("web")),
        NamesChange::Slice(slice),
    ];
    let zone = zone_of(config, all.clone());
    let name = "web-0.web.testns.svc.cluster.local.";
    is(&zone, name, A, &[&format!("{name} 5 IN A 172.2.0.1")]);
    nxdomain(&zone, "172-2-0-1.web.testns.svc.cluster.local.");
    // CoreDNS lists a name with a dot in it, and does not find it.
    nxdomain(&zone, "172-2-0-2.web.testns.svc.cluster.local.");
    nxdomain(&zone, "with.dot.web.testns.svc.cluster.local.");
    let name = "2.0.2.172.in-addr.arpa.";
    let dotted = format!("{name} 5 IN PTR with.dot.web.testns.svc.cluster.local.");
    is(&zone, name, PTR, &[&dotted]);
    nxdomain(
        &zone_of(crate::testing::config(), all),
        "web-0.web.testns.svc.cluster.local.",
    );
}

#[test]
fn addresses_have_the_names_of_their_service_or_else_of_their_endpoints() {
    let zone = zone();
    let ptr = |name: &str, targets: &[&str]| {
        let expected: Vec<_> = targets
            .iter()
            .map(|to| format!("{name} 5 IN PTR {to}.svc.cluster.local."))
            .collect();
        is(
            &zone,
            name,
            PTR,
            &expected.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    };
    ptr("1.0.0.10.in-addr.arpa.", &["svc1.testns"]);
    ptr("4.0.0.172.in-addr.arpa.", &["dup-name.hdls1.testns"]);
    ptr(
        "99.0.0.10.in-addr.arpa.",
        &["double-ep.svc1.testns", "double-ep.svc6.testns"],
    );
    ptr(
        "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.c.b.a.4.3.2.1.ip6.arpa.",
        &["svc6.testns"],
    );
    ptr(
        "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.c.b.a.8.7.6.5.ip6.arpa.",
        &["5678-abcd--1.hdls1.testns"],
    );
    for kind in [A, SRV, TXT, CNAME] {
        let code = ResponseCode::NXDomain;
        negative(&zone, "1.0.0.10.in-addr.arpa.", kind, code);
    }
    // Slices whose Service does not exist have names too.
    ptr("9.9.0.172.in-addr.arpa.", &["172-0-9-9.orphaned.testns"]);
    let full = "1.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.c.b.a.8.7.6.5.ip6.arpa.";
    // CoreDNS reads 32 labels, and up to 3 that are left.
    for more in ["x", "x.y", "x.y.z"] {
        ptr(&format!("{more}.{full}"), &["5678-abcd--1.hdls1.testns"]);
    }
    nxdomain(&zone, &format!("w.x.y.z.{full}"));
    nxdomain(&zone, "0.0.10.in-addr.arpa.");
    nxdomain(&zone, "4.3.2.1.ip6.arpa.");
    nodata(&zone, "svc.in-addr.arpa.", PTR);
    let missing = [
        "101.0.0.10",
        "1.0.10",
        "9.9.1.172",
        "01.0.0.10",
        "1.1.0.0.10",
        "11",
        "x",
    ];
    for missing in missing {
        nxdomain(&zone, &format!("{missing}.in-addr.arpa."));
    }
    nxdomain(
        &zone,
        "2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.d.c.b.a.4.3.2.1.ip6.arpa.",
    );
    nxdomain(&zone, "svc1.testns.svc.0.10.in-addr.arpa.");
    nxdomain(&zone, "100.0.0.10.cluster.local.");
}

#[test]
fn an_endpoint_with_the_address_of_a_service_hides_behind_it() {
    let http = [crate::testing::port("http", 80)];
    let slice = crate::testing::slice(
        "hdls1",
        "hdls1-c",
        &[crate::testing::endpoint("10.0.0.1")],
        &http,
    );
    let mut zone = zone_of(
        config(),
        changes().into_iter().chain([NamesChange::Slice(slice)]),
    );
    let name = "1.0.0.10.in-addr.arpa.";
    is(
        &zone,
        name,
        PTR,
        &[&format!("{name} 5 IN PTR svc1.testns.svc.cluster.local.")],
    );
    zone.apply(NamesChange::ServiceRemoved(ServiceKey::new(
        "testns", "svc1",
    )));
    is(
        &zone,
        name,
        PTR,
        &[&format!(
            "{name} 5 IN PTR 10-0-0-1.hdls1.testns.svc.cluster.local."
        )],
    );
}

fn with_pods(pods: PodMode) -> ZoneConfig {
    ZoneConfig { pods, ..config() }
}

#[test]
fn pods_have_no_names_when_disabled() {
    let zone = zone_of(with_pods(PodMode::Disabled), changes());
    nxdomain(&zone, "10-240-0-1.podns.pod.cluster.local.");
    nxdomain(&zone, "podns.pod.cluster.local.");
    nodata(&zone, "pod.cluster.local.", A);
}

#[test]
fn any_address_is_a_pod_when_insecure() {
    let zone = zone_of(with_pods(PodMode::Insecure), changes());
    for (label, kind, address) in [
        ("10-240-0-1", A, "10.240.0.1"),
        ("172-0-0-2", A, "172.0.0.2"),
        ("1234-abcd--1", AAAA, "1234:abcd::1"),
    ] {
        let name = format!("{label}.podns.pod.cluster.local.");
        is(
            &zone,
            &name,
            kind,
            &[&format!("{name} 5 IN {kind} {address}")],
        );
    }
    nodata(&zone, "172-0-0-2.podns.pod.cluster.local.", AAAA);
    nodata(&zone, "podns.pod.cluster.local.", A);
    nxdomain(&zone, "blah.podns.pod.cluster.local.");
    // Names up to two labels below a Pod's name stand for the Pod, which has an SRV record.
    for below in ["", "x.", "_http._tcp."] {
        let name = format!("{below}172-0-0-2.podns.pod.cluster.local.");
        is(&zone, &name, A, &[&format!("{name} 5 IN A 172.0.0.2")]);
        let srv = format!("{name} 5 IN SRV 0 100 0 172-0-0-2.podns.pod.cluster.local.");
        is(&zone, &name, SRV, &[&srv]);
        assert_eq!(ask(&zone, &name, SRV).additionals.len(), 1);
    }
    nxdomain(&zone, "x.y.z.172-0-0-2.podns.pod.cluster.local.");
    nxdomain(&zone, "172-0-0-2.pod-nons.pod.cluster.local.");
    nxdomain(&zone, "pod-nons.pod.cluster.local.");
}

#[test]
fn pods_that_exist_have_names_when_verified() {
    let mut zone = zone_of(with_pods(PodMode::Verified), changes());
    let name = "10-240-0-1.podns.pod.cluster.local.";
    is(&zone, name, A, &[&format!("{name} 5 IN A 10.240.0.1")]);
    let v6 = "fd00--240-1.podns.pod.cluster.local.";
    is(&zone, v6, AAAA, &[&format!("{v6} 5 IN AAAA fd00::240:1")]);
    nodata(&zone, "podns.pod.cluster.local.", A);
    nodata(&zone, "testns.pod.cluster.local.", A);
    nxdomain(&zone, "172-0-0-2.podns.pod.cluster.local.");
    nxdomain(&zone, "10-240-0-1.testns.pod.cluster.local.");
    nxdomain(&zone, "pod-nons.pod.cluster.local.");
    // Another Pod has the address for a moment; the name stays for as long as one of them does.
    zone.apply(NamesChange::Pod(crate::testing::pod(
        "bar",
        &["10.240.0.1"],
    )));
    let halves = format!("{name} 5 IN SRV 0 50 0 {name}");
    is(&zone, name, SRV, &[&halves]);
    zone.apply(NamesChange::PodRemoved(crate::testing::pod("foo", &[]).key));
    is(&zone, name, A, &[&format!("{name} 5 IN A 10.240.0.1")]);
    zone.apply(NamesChange::PodRemoved(
        crate::testing::pod("foo6", &[]).key,
    ));
    nxdomain(&zone, v6);
    zone.apply(NamesChange::PodRemoved(crate::testing::pod("bar", &[]).key));
    nxdomain(&zone, name);
}
