// SPDX-License-Identifier: Apache-2.0

//! A model of CoreDNS's etcd plugin, applied to the keys: its reads, its groups, and the records of
//! each message.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::op::ResponseCode;
use hickory_proto::rr::{Name, RecordType};

use proptest::prelude::*;
use tonic::transport::Endpoint;

use super::layout::Keys;
use super::{ExportConfig, Layout, Message, export};
use crate::name::absolute;
use crate::testing::{ask, changes, cluster_ip, config, hosted, port, slice, zone_of};
use crate::zone::listings;
use crate::zone::tests::changes::any_change;
use crate::{NamesChange, PodMode, Port, ServiceKey, SharedZone, Zone, ZoneConfig};

mod plugin;

use plugin::{Answer, Plugin};

fn layout() -> Layout {
    Layout::new("/skydns").unwrap()
}

fn all(zone: &Zone) -> Keys {
    let mut keys = Keys::new();
    for subject in Layout::subjects(zone) {
        for (key, message) in layout().keys(zone, &subject) {
            assert_eq!(
                keys.insert(key.clone(), message),
                None,
                "{key} belongs to two"
            );
        }
    }
    keys
}

fn direct(zone: &Zone, name: &Name, kind: RecordType) -> Answer {
    use hickory_proto::rr::RData;
    let answer = zone.answer(name, kind);
    let lines = answer.answers.iter().map(|record| match &record.data {
        RData::SRV(srv) => format!("{} {} {}", record.name, srv.port, srv.target),
        data => format!("{} {data}", record.name),
    });
    (answer.code, lines.collect())
}

fn fixture() -> (Zone, Plugin) {
    let zone = zone_of(
        ZoneConfig {
            pods: PodMode::Verified,
            ..config()
        },
        changes(),
    );
    let keys = all(&zone);
    (zone, Plugin { keys })
}

/// An export of all subjects would be quadratic in them.
#[test]
fn the_keys_of_one_subject_need_no_listing_of_others() {
    let (zone, _) = fixture();
    let subjects = Layout::subjects(&zone);
    let before = listings();
    let keys = subjects
        .iter()
        .map(|subject| layout().keys(&zone, subject).len());
    assert!(keys.sum::<usize>() > subjects.len());
    assert_eq!(listings(), before, "{} subjects", subjects.len());
}

#[test]
fn the_plugin_gives_the_zones_answers() {
    let (zone, plugin) = fixture();
    let services = "svc1 svc6 svc-dual-stack pending unnamed hdls1 hdlsprtls published zoned svc0 unready orphaned";
    let below = |service: &str| format!("{service}.testns.svc.cluster.local");
    let mut names: Vec<String> = services.split(' ').map(below).collect();
    let more = "ep1a.svc1 double-ep.svc1 bogus.svc1 dup-name.hdls1 172-0-0-2.hdls1 5678-abcd--1.hdls1 bogus.hdls1 \
        172-0-0-20.hdlsprtls external external-to-service external-twice x.external";
    names.extend(more.split_whitespace().map(below));
    for name in [
        "svc",
        "pod",
        "emptyns.svc",
        "nons.svc",
        "podns.pod",
        "nons.pod",
        "foo",
        "foo.svc",
        "",
        "10-240-0-1.podns.pod",
        "fd00--240-1.podns.pod",
        "172-0-0-2.podns.pod",
    ] {
        names.push(
            format!("{name}.cluster.local")
                .trim_start_matches('.')
                .to_owned(),
        );
    }
    let mut compared = 0;
    for name in &names {
        let name = absolute(name).unwrap();
        // The plugin leaves an alias out if there is no such address at its end.
        let inside = name.to_string().starts_with("external-");
        let kinds = if inside {
            &[RecordType::A][..]
        } else {
            &[RecordType::A, RecordType::AAAA]
        };
        for kind in kinds.iter().copied() {
            assert_eq!(
                plugin.answer(&name, kind),
                direct(&zone, &name, kind),
                "{name} {kind}"
            );
            compared += 1;
        }
    }
    for port in [
        "svc1",
        "svc6",
        "svc-dual-stack",
        "hdls1",
        "svc0",
        "hdlsprtls",
    ] {
        for label in ["_http._tcp", "_http._udp", "_https._tcp"] {
            let name = absolute(&format!("{label}.{port}.testns.svc.cluster.local")).unwrap();
            assert_eq!(
                plugin.srv(&name),
                direct(&zone, &name, RecordType::SRV),
                "{name}"
            );
            compared += 1;
        }
    }
    let endpoints = ["ep1a.svc1", "dup-name.hdls1", "5678-abcd--1.hdls1"];
    let bare = ["svc1", "svc-dual-stack", "unnamed", "hdls1", "hdlsprtls"];
    for bare in bare.into_iter().chain(endpoints) {
        let name = absolute(&below(bare)).unwrap();
        assert_eq!(
            plugin.srv(&name),
            direct(&zone, &name, RecordType::SRV),
            "{name}"
        );
        compared += 1;
    }
    assert!(compared > 90, "{compared}");
}

#[test]
fn namespaces_show_their_external_names_and_nothing_else() {
    let (_, plugin) = fixture();
    let name = absolute("testns.svc.cluster.local").unwrap();
    let (code, shown) = plugin.answer(&name, RecordType::AAAA);
    assert_eq!(code, ResponseCode::NoError);
    assert_eq!(
        Vec::from_iter(shown),
        ["testns.svc.cluster.local. ext.interwebs.test."]
    );

    let without = changes().into_iter().filter(|change| match change {
        NamesChange::Service(service) => !matches!(service.kind, crate::Kind::ExternalName { .. }),
        _ => true,
    });
    let zone = zone_of(config(), without);
    let plugin = Plugin { keys: all(&zone) };
    for kind in [RecordType::A, RecordType::AAAA] {
        assert_eq!(plugin.answer(&name, kind), direct(&zone, &name, kind));
    }
}

#[test]
fn names_that_exist_exist_for_every_type() {
    let (zone, plugin) = fixture();
    for name in [
        "svc1.testns.svc",
        "hdls1.testns.svc",
        "external.testns.svc",
        "testns.svc",
        "svc",
        "pod",
        "podns.pod",
    ] {
        let name = absolute(&format!("{name}.cluster.local")).unwrap();
        for kind in [RecordType::CNAME, RecordType::PTR, RecordType::TXT] {
            let (code, answers) = plugin.answer(&name, kind);
            assert_eq!(code, ResponseCode::NoError, "{name} {kind}");
            if kind == RecordType::CNAME {
                assert_eq!((code, answers), direct(&zone, &name, kind));
            }
        }
    }
    let version = absolute("dns-version.cluster.local").unwrap();
    assert_eq!(
        plugin.text(&version),
        direct(&zone, &version, RecordType::TXT)
    );
}

#[test]
fn an_address_has_one_name_at_most() {
    let (zone, plugin) = fixture();
    for (address, expected) in [("1.0.0.10", 1), ("4.0.0.172", 1), ("101.0.0.10", 0)] {
        let name = absolute(&format!("{address}.in-addr.arpa")).unwrap();
        assert_eq!(plugin.exact(&name), direct(&zone, &name, RecordType::PTR));
        assert_eq!(plugin.exact(&name).1.len(), expected);
    }
    let two = absolute("99.0.0.10.in-addr.arpa").unwrap();
    assert_eq!(plugin.exact(&two).1.len(), 1);
    assert!(
        plugin
            .exact(&two)
            .1
            .is_subset(&direct(&zone, &two, RecordType::PTR).1)
    );
}

#[test]
fn keys_and_values_are_as_specified() {
    let (zone, _) = fixture();
    let of = |name: &str| {
        let key = ServiceKey::new("testns", name);
        let keys = layout().keys(&zone, &crate::Subject::Service(key));
        let strip = format!("/skydns/local/cluster/svc/testns/{name}");
        let short = |key: String| key.strip_prefix(&strip).unwrap().to_owned();
        keys.into_iter()
            .map(|(key, message)| (short(key), message.to_json()))
            .collect::<BTreeMap<_, _>>()
    };
    let marker = |name: &str| {
        format!(
            r#"{{"host":"_.{name}.testns.svc.cluster.local","port":-1,"priority":65535,"group":"s"}}"#
        )
    };
    let svc1 = of("svc1");
    assert_eq!(svc1[""], "{}");
    assert_eq!(svc1["/_"], marker("svc1"));
    assert_eq!(
        svc1["/_tcp/_http/_x0"],
        r#"{"host":"10.0.0.1","port":80,"ttl":5,"targetstrip":3,"group":"s"}"#
    );
    assert_eq!(
        svc1["/ep1a/_x0"],
        r#"{"host":"172.0.0.1","port":80,"ttl":5,"targetstrip":1,"group":"e"}"#
    );
    for shadow in ["/ep1a", "/double-ep", "/_tcp/_http"] {
        assert_eq!(svc1[shadow], "{}");
    }
    assert_eq!(svc1.len(), 8);
    let hdls1 = of("hdls1");
    assert_eq!(
        hdls1["/_tcp/_http/_s0"],
        r#"{"host":"172-0-0-2.hdls1.testns.svc.cluster.local","port":80,"ttl":5,"group":"p"}"#
    );
    assert_eq!(
        hdls1["/dup-name/_x1"],
        r#"{"host":"172.0.0.5","port":80,"ttl":5,"targetstrip":1,"group":"s"}"#
    );
    let external = of("external");
    assert_eq!(
        Vec::from_iter(external),
        [(
            String::new(),
            r#"{"host":"ext.interwebs.test","port":-1,"ttl":5,"group":"n"}"#.to_owned()
        )]
    );
    assert_eq!(of("unready").len(), 0);
}

#[test]
fn an_endpoint_with_the_name_of_a_record_takes_no_address_away() {
    let with_ports = |name: &str, ports: &[Port]| {
        let mut service = cluster_ip(name, &["10.0.1.1"]);
        service.ports = ports.to_vec();
        NamesChange::Service(service)
    };
    let unnamed = [port("", 81)];
    let hosts = [hosted("172.0.1.1", "x0"), hosted("172.0.1.2", "s0")];
    let of = |name: &str, ports: &[Port]| NamesChange::Slice(slice(name, name, &hosts, ports));
    let changes = [
        with_ports("bare", &[]),
        of("bare", &[]),
        with_ports("open", &unnamed),
        of("open", &unnamed),
    ];
    let zone = zone_of(config(), changes);
    let plugin = Plugin { keys: all(&zone) };
    for name in ["bare", "x0.bare", "s0.bare", "open", "x0.open", "s0.open"] {
        let name = absolute(&format!("{name}.testns.svc.cluster.local")).unwrap();
        let (code, addresses) = plugin.answer(&name, RecordType::A);
        assert_eq!(
            (code, addresses.len()),
            (ResponseCode::NoError, 1),
            "{name}"
        );
        for kind in [RecordType::A, RecordType::SRV] {
            assert_eq!(
                plugin.answer(&name, kind),
                direct(&zone, &name, kind),
                "{name} {kind}"
            );
        }
    }
}

#[test]
fn keys_outside_of_the_zones_are_foreign() {
    let (zone, _) = fixture();
    let roots = layout().roots(&zone);
    assert_eq!(
        Vec::from_iter(&roots),
        [
            "/skydns/arpa/in-addr",
            "/skydns/arpa/ip6",
            "/skydns/local/cluster"
        ]
    );
    let own = |key: &String| {
        roots
            .iter()
            .any(|root| key == root || key.starts_with(&format!("{root}/")))
    };
    assert!(all(&zone).keys().all(own));
    let mut outside = zone_of(
        config().with_networks(&["10.0.0.0/24".parse().unwrap()]),
        changes(),
    );
    assert!(all(&outside).keys().all(|key| !key.contains("/172/")));
    outside.apply(NamesChange::NamespaceRemoved("emptyns".to_owned()));
    assert_eq!(
        ask(&outside, "emptyns.svc.cluster.local", RecordType::A).code,
        ResponseCode::NXDomain
    );
    assert!(all(&outside).keys().all(|key| !key.contains("emptyns")));
}

/// The loop of an export without a pause would take a whole processor until the source has synced.
#[tokio::test(start_paused = true)]
async fn an_export_pauses_while_the_zone_is_not_synced() {
    let zone = Arc::new(SharedZone::new(Zone::new(config(), 0).unwrap()));
    let period = Duration::from_millis(10);
    let config = ExportConfig {
        layout: layout(),
        interval: period,
        retry: period,
        resync: period,
        timeout: period,
        user: None,
    };
    let etcd = Endpoint::from_static("http://127.0.0.1:1").connect_lazy();
    let never = std::future::pending();
    let exporting = export(Arc::clone(&zone), vec![etcd], config, never);
    let before = zone.reads();
    let task = tokio::spawn(exporting);
    // Time that advances by itself would not as long as the export takes no pause.
    for _ in 0..20 {
        tokio::time::advance(period).await;
    }
    let looks = zone.reads() - before;
    assert!((1..50).contains(&looks), "{looks}");
    task.abort();
}

#[test]
fn a_path_is_one_label() {
    for bad in ["", "/", "/a/b", "a.b"] {
        assert!(Layout::new(bad).is_err(), "{bad}");
    }
    assert_eq!(Layout::new("portolan"), Layout::new("/portolan"));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// An exporter that updates the reported subjects only has every key right.
    #[test]
    fn all_subjects_with_changed_keys_are_reported(
        changes in prop::collection::vec(any_change(), 0..30),
    ) {
        let config = ZoneConfig {
            pods: PodMode::Verified,
            zonal: true,
            ignore_empty: true,
            name_server: Some(ServiceKey::new("testns", "a")),
            ..config()
        };
        let mut zone = zone_of(config, []);
        let mut written = BTreeMap::new();
        for subject in Layout::subjects(&zone) {
            written.insert(subject.clone(), layout().keys(&zone, &subject));
        }
        for change in changes {
            for subject in zone.apply(change).subjects {
                written.insert(subject.clone(), layout().keys(&zone, &subject));
            }
        }
        let written: Keys = written.into_values().flatten().collect();
        prop_assert_eq!(written, all(&zone));
    }
}

/// Hosts below a cluster's name do not show at the name itself; etcd has no way to say that the name does not exist.
#[test]
fn hosts_of_imports_show_below_their_clusters_alone() {
    let zone = crate::zone::tests::clusterset::zone();
    let plugin = Plugin { keys: all(&zone) };
    let names = [
        "web",
        "db",
        "db-0.eu-1.db",
        "db-0.us-1.db",
        "10-1-0-2.eu-1.db",
        "fd00-2--1.us-1.db",
        "db-0.db",
        "x.eu-1.db",
        "w.eu-1.web",
    ];
    for name in names {
        let name = absolute(&format!("{name}.testns.svc.clusterset.local")).unwrap();
        for kind in [RecordType::A, RecordType::AAAA, RecordType::SRV] {
            assert_eq!(
                plugin.answer(&name, kind),
                direct(&zone, &name, kind),
                "{name} {kind}"
            );
        }
    }
    for label in ["_db._tcp.db", "_http._tcp.web"] {
        let name = absolute(&format!("{label}.testns.svc.clusterset.local")).unwrap();
        assert_eq!(plugin.srv(&name), direct(&zone, &name, RecordType::SRV));
    }
    for cluster in ["eu-1", "us-1"] {
        let name = absolute(&format!("{cluster}.db.testns.svc.clusterset.local")).unwrap();
        for kind in [RecordType::A, RecordType::SRV] {
            let nothing = (ResponseCode::NoError, BTreeSet::new());
            assert_eq!(plugin.answer(&name, kind), nothing, "{name} {kind}");
        }
    }
    let version = absolute("dns-version.clusterset.local").unwrap();
    assert_eq!(
        plugin.text(&version),
        direct(&zone, &version, RecordType::TXT)
    );
}
