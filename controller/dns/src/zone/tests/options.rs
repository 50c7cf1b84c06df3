// SPDX-License-Identifier: Apache-2.0

//! The options of CoreDNS's plugin: `zonal`, `ignore empty_service`, `namespaces` and
//! `noendpoints`.

use super::{is, nodata, nxdomain};
use crate::RecordType::{A, CNAME, HTTPS, MX, NS, PTR, SRV, TXT};
use crate::testing::{ask, changes, config, zone_of};
use crate::{NamesChange, PodMode, ServiceKey, Zone, ZoneConfig};

#[test]
fn topology_zones_have_names_if_so_configured() {
    let zone = zone_of(
        ZoneConfig {
            zonal: true,
            ..config()
        },
        changes(),
    );
    let name = |label: &str| format!("{label}._zone.zoned.testns.svc.cluster.local.");
    let a = |label: &str, expected: &[&str]| {
        let name = name(label);
        let expected: Vec<_> = expected
            .iter()
            .map(|ip| format!("{name} 5 IN A {ip}"))
            .collect();
        is(
            &zone,
            &name,
            A,
            &expected.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    };
    a("us-west-2a.pin", &["172.0.1.1"]);
    a("us-west-2b.pin", &["172.0.1.2"]);
    a("us-west-2a.prefer", &["172.0.1.1"]);
    a("us-west-2c.prefer", &["172.0.1.1", "172.0.1.2"]);
    for kind in [A, SRV, MX, TXT, CNAME, PTR, HTTPS] {
        nodata(&zone, &name("us-west-2c.pin"), kind);
        nodata(&zone, &name("two.labels.pin"), kind);
    }
    nodata(&zone, &name("us-west-2a.pin"), TXT);
    let srv = ask(&zone, &name("us-west-2b.pin"), SRV);
    assert!(
        srv.answers[0]
            .to_string()
            .ends_with(" SRV 0 100 80 172-0-1-2.zoned.testns.svc.cluster.local.")
    );
    assert_eq!(srv.additionals.len(), 1);
    nxdomain(&zone, &name("us-west-2a.florp"));
    nxdomain(&zone, &name("pin"));
    nxdomain(&zone, "_zone.zoned.testns.svc.cluster.local.");
    nxdomain(&zone, "a.pin._zone.svc1.testns.svc.cluster.local.");
    nxdomain(&zone, "a.pin._zone.ghost.testns.svc.cluster.local.");
    nxdomain(&zone_of(config(), changes()), &name("us-west-2a.pin"));
}

#[test]
fn a_service_without_ready_endpoints_has_no_name_if_so_configured() {
    let config = ZoneConfig {
        ignore_empty: true,
        ..config()
    };
    let mut zone = zone_of(config, changes());
    let there = "svc1.testns.svc.cluster.local.";
    is(&zone, there, A, &[&format!("{there} 5 IN A 10.0.0.1")]);
    for gone in [
        "unnamed",
        "_._tcp.unnamed",
        "svc-dual-stack",
        "_http._tcp.svc-dual-stack",
    ] {
        nxdomain(&zone, &format!("{gone}.testns.svc.cluster.local."));
    }
    // Its address keeps its name.
    let pointer = "5.0.0.10.in-addr.arpa.";
    let name = "unnamed.testns.svc.cluster.local.";
    is(
        &zone,
        pointer,
        PTR,
        &[&format!("{pointer} 5 IN PTR {name}")],
    );
    let external = "external.testns.svc.cluster.local.";
    assert_eq!(ask(&zone, external, A).answers.len(), 1);

    let slice = crate::SliceKey {
        namespace: "testns".to_owned(),
        name: "svc1-a".to_owned(),
    };
    let applied = zone.apply(NamesChange::SliceRemoved(slice));
    let service = ServiceKey::new("testns", "svc1");
    assert!(applied.subjects.contains(&crate::Subject::Service(service)));
    nxdomain(&zone, there);
}

#[test]
fn only_the_namespaces_that_are_named_have_names() {
    let config = ZoneConfig {
        pods: PodMode::Verified,
        namespaces: ["podns".to_owned()].into(),
        name_server: Some(ServiceKey::new("testns", "svc1")),
        ..config()
    };
    let zone = zone_of(config, changes());
    assert_eq!(zone.namespaces(), ["podns"]);
    assert_eq!(zone.services(), []);
    assert_eq!(zone.addresses().count(), 0);
    for gone in ["testns", "emptyns", "svc1.testns", "_http._tcp.svc1.testns"] {
        nxdomain(&zone, &format!("{gone}.svc.cluster.local."));
    }
    let pod = "10-240-0-1.podns.pod.cluster.local.";
    is(&zone, pod, A, &[&format!("{pod} 5 IN A 10.240.0.1")]);
    // CoreDNS finds its own Service wherever it is.
    let apex = "cluster.local.";
    let server = format!("{apex} 5 IN NS svc1.testns.svc.cluster.local.");
    is(&zone, apex, NS, &[&server]);
}

#[test]
fn without_endpoints_only_services_have_names() {
    let config = ZoneConfig {
        endpoints: false,
        ..config()
    };
    let zone = zone_of(config.clone(), changes());
    let there = "svc1.testns.svc.cluster.local.";
    is(&zone, there, A, &[&format!("{there} 5 IN A 10.0.0.1")]);
    for gone in ["hdls1", "ep1a.svc1", "_http._tcp.hdls1"] {
        nxdomain(&zone, &format!("{gone}.testns.svc.cluster.local."));
    }
    assert_eq!(ask(&zone, "1.0.0.172.in-addr.arpa", PTR).answers, []);

    let zonal = ZoneConfig {
        zonal: true,
        ..config
    };
    let error = Zone::new(zonal, 0).unwrap_err().to_string();
    assert_eq!(error, "zonal needs the names of endpoints");
}
