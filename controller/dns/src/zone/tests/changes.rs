// SPDX-License-Identifier: Apache-2.0

//! Incremental changes equal a zone from scratch, and report the changed subjects.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use crate::testing::{
    changes, cluster_ip, config, endpoint, external, headless, hosted, pod, port, slice, zone_of,
};
use crate::walk;
use crate::{Endpoint, NamesChange, PodMode, ServiceKey, SliceKey, Subject, Zone, ZoneConfig};

fn full() -> ZoneConfig {
    ZoneConfig {
        pods: PodMode::Verified,
        zonal: true,
        ..config()
    }
}

fn key(name: &str) -> ServiceKey {
    ServiceKey::new("testns", name)
}

/// The hostname that counts.
fn named(endpoint: &Endpoint) -> Option<&str> {
    let hostname = endpoint.hostname.as_deref();
    hostname.filter(|name| !name.contains('_'))
}

/// Everything that can be asked, as text.
fn dump(zone: &Zone) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let objects = walk::objects(zone);
    let forward: Vec<_> = std::iter::once(Subject::Apex).chain(objects).collect();
    let origin = &zone.config().zones[0];
    for entry in forward.iter().flat_map(|one| zone.entries_of(origin, one)) {
        all.insert(entry.owner.clone(), format!("{:?}", entry.set));
    }
    for origin in &zone.config().reverse {
        let reverse = walk::addresses(zone, origin);
        for entry in reverse.flat_map(|one| zone.entries_of(origin, &one)) {
            all.insert(
                format!("{}.{origin}", entry.owner),
                format!("{:?}", entry.set),
            );
        }
    }
    for subject in &forward {
        let Subject::Service(key) = subject else {
            continue;
        };
        let (service, slices) = zone.service_object(key).unwrap();
        let records = zone.service(key);
        let zones = records.map(|records| (records.headless, records.zones.clone()));
        let alone: BTreeSet<_> = match service {
            Some(_) => BTreeSet::new(),
            None => slices
                .flat_map(|slice| &slice.endpoints)
                .filter(|endpoint| endpoint.ready)
                .map(|endpoint| (&endpoint.addresses, named(endpoint)))
                .collect(),
        };
        all.insert(format!("others of {key}"), format!("{zones:?} {alone:?}"));
    }
    all.retain(|_, what| what != "None {}");
    all
}

#[test]
fn a_change_reports_its_subjects() {
    let mut zone = zone_of(full(), changes());
    let mut subjects = |change| Vec::from_iter(zone.apply(change).subjects);
    assert_eq!(
        subjects(NamesChange::Service(cluster_ip("svc1", &["10.0.0.1"]))),
        []
    );
    let ip = |text: &str| Subject::Address(text.parse().unwrap());
    assert_eq!(
        subjects(NamesChange::Service(cluster_ip("svc1", &["10.0.0.2"]))),
        [
            Subject::Service(key("svc1")),
            ip("10.0.0.1"),
            ip("10.0.0.2")
        ]
    );
    let http = [port("http", 80)];
    assert_eq!(
        subjects(NamesChange::Slice(slice(
            "hdlsprtls",
            "hdlsprtls-a",
            &[endpoint("172.0.0.21")],
            &http
        ))),
        [
            Subject::Service(key("hdlsprtls")),
            ip("172.0.0.20"),
            ip("172.0.0.21")
        ]
    );
    assert_eq!(
        subjects(NamesChange::Namespace("new".to_owned())),
        [Subject::Namespace("new".to_owned())]
    );
    assert_eq!(subjects(NamesChange::Namespace("new".to_owned())), []);
    assert_eq!(
        subjects(NamesChange::Pod(pod("foo", &["10.240.0.1"]))).len(),
        0
    );
    assert_eq!(
        subjects(NamesChange::Pod(pod("foo", &["10.240.0.2"]))).len(),
        2
    );
    assert_eq!(subjects(NamesChange::Synced), []);
    assert_eq!(subjects(NamesChange::ServiceRemoved(key("ghost"))), []);
}

#[test]
fn the_serial_grows_when_something_shows() {
    let mut zone = zone_of(full(), changes());
    let before = zone.serial();
    zone.apply(NamesChange::Synced);
    zone.apply(NamesChange::Service(cluster_ip("svc1", &["10.0.0.1"])));
    assert_eq!(zone.serial(), before);
    zone.apply(NamesChange::ServiceRemoved(key("svc1")));
    assert_eq!(zone.serial(), before + 1);
}

#[test]
fn a_slice_may_change_hands() {
    let mut zone = zone_of(full(), changes());
    let moved = slice("published", "hdls1-a", &[endpoint("172.0.0.2")], &[]);
    let subjects = zone.apply(NamesChange::Slice(moved)).subjects;
    assert!(subjects.contains(&Subject::Service(key("hdls1"))));
    assert!(subjects.contains(&Subject::Service(key("published"))));
    zone.apply(NamesChange::SliceRemoved(SliceKey {
        namespace: "testns".into(),
        name: "hdls1-b".into(),
    }));
    assert!(zone.service(&key("hdls1")).unwrap().names.is_empty());
}

#[test]
fn bad_input_is_named_once_and_costs_nothing_else() {
    let mut zone = zone_of(full(), changes());
    let mut odd = slice(
        "hdls1",
        "odd",
        &[hosted("172.0.7.1", "a_b"), endpoint("172.0.7.2")],
        &[port("x_y", 1)],
    );
    let applied = zone.apply(NamesChange::Slice(odd.clone()));
    let said: BTreeSet<_> = applied.problems.iter().map(ToString::to_string).collect();
    assert_eq!(
        Vec::from_iter(said),
        [
            r#"EndpointSlice testns/odd: endpoints[0].hostname: "a_b" has characters other than letters, digits and '-'; the endpoint is named after its address"#,
            r#"EndpointSlice testns/odd: ports[0].name: "x_y" has characters other than letters, digits and '-'; the port has no SRV name"#,
        ]
    );
    let records = zone.service(&key("hdls1")).unwrap();
    assert_eq!(records.names[""].addresses.len(), 8);
    assert!(records.names.contains_key("172-0-7-1"));
    odd.endpoints.pop();
    assert_eq!(zone.apply(NamesChange::Slice(odd)).problems, []);
    assert_eq!(zone.problems().count(), 2);

    for (service, field) in [
        (external("e", "1.2.3.4"), "spec.externalName"),
        (external("e", "a..b"), "spec.externalName"),
        (external("e", ""), "spec.externalName"),
        (cluster_ip("a.b", &["10.0.0.1"]), "metadata.name"),
    ] {
        let applied = zone.apply(NamesChange::Service(service.clone()));
        assert_eq!(applied.problems.len(), 1, "{service:?}");
        assert_eq!(applied.problems[0].field, field);
        assert!(zone.service(&service.key).is_none());
    }
}

#[test]
fn a_listing_removes_absent_objects() {
    let mut zone = zone_of(full(), changes());
    let before = zone.services().len();
    let mut all: BTreeSet<_> = zone.services().into_iter().collect();
    all.remove(&key("svc1"));
    // Slices whose Service is not known are no Services.
    all.insert(key("orphaned"));
    all.extend(["pending", "unready"].map(key));
    let applied = zone.apply(NamesChange::Listed(crate::Listing::Services(all)));
    assert!(applied.subjects.contains(&Subject::Service(key("svc1"))));
    assert_eq!(zone.services().len(), before - 1);

    let one = SliceKey {
        namespace: "testns".into(),
        name: "hdls1-b".into(),
    };
    zone.apply(NamesChange::Listed(crate::Listing::Slices([one].into())));
    assert_eq!(
        zone.service(&key("hdls1")).unwrap().names[""]
            .addresses
            .len(),
        1
    );
    assert!(
        zone.service(&key("zoned"))
            .is_none_or(|of| !of.names.contains_key(""))
    );

    let keep = ["testns".to_owned()].into();
    zone.apply(NamesChange::Listed(crate::Listing::Namespaces(keep)));
    // There is a Pod in podns.
    assert_eq!(zone.namespaces(), ["podns", "testns"]);
    zone.apply(NamesChange::Listed(crate::Listing::Pods(BTreeSet::new())));
    assert_eq!(zone.namespaces(), ["testns"]);
    assert_eq!(
        zone.addresses()
            .filter(|ip| ip.to_string() == "172.0.0.1")
            .count(),
        0
    );
}

pub(crate) fn any_change() -> impl Strategy<Value = NamesChange> {
    let name = || prop::sample::select(vec!["a", "b", "c"]);
    let address = || {
        let addresses = ["10.0.0.1", "10.0.0.2", "172.0.0.1", "fd00::1", "fd00::2"];
        prop::sample::select(addresses.to_vec())
    };
    let host = prop::option::of(prop::sample::select(vec!["a", "web-0", "b_d"]));
    let zone = prop::option::of(prop::sample::select(vec!["z1", "Z2"]));
    let endpoint =
        (address(), host, any::<bool>(), zone).prop_map(|(ip, host, ready, zone)| Endpoint {
            hostname: host.map(str::to_owned),
            ready,
            zone: zone.map(str::to_owned),
            ..endpoint(ip)
        });
    let ports = prop::collection::vec(
        prop::sample::select(vec![port("http", 80), port("", 81), port("x", 82)]),
        0..3,
    );
    let slices = (name(), name(), prop::collection::vec(endpoint, 0..4), ports)
        .prop_map(|(service, name, endpoints, ports)| {
            NamesChange::Slice(slice(service, name, &endpoints, &ports))
        })
        .boxed();
    prop_oneof![
        (name(), prop::collection::vec(address(), 0..3))
            .prop_map(|(n, ips)| NamesChange::Service(cluster_ip(n, &ips))),
        (name(), any::<bool>()).prop_map(|(n, publish)| {
            let mut service = headless(n);
            service.publish_not_ready = publish;
            NamesChange::Service(service)
        }),
        (name(), name()).prop_map(|(n, to)| NamesChange::Service(external(
            n,
            &format!("{to}.testns.svc.cluster.local")
        ))),
        name().prop_map(|n| NamesChange::ServiceRemoved(key(n))),
        slices.clone(),
        slices.clone(),
        slices,
        name().prop_map(|n| NamesChange::SliceRemoved(SliceKey {
            namespace: "testns".into(),
            name: n.into()
        })),
        (name(), prop::collection::vec(address(), 0..3))
            .prop_map(|(n, ips)| NamesChange::Pod(pod(n, &ips))),
        name().prop_map(|n| NamesChange::PodRemoved(pod(n, &[]).key)),
        Just(NamesChange::Namespace("testns".into())),
        Just(NamesChange::NamespaceRemoved("testns".into())),
        Just(NamesChange::Namespace("other".into())),
        Just(NamesChange::NamespaceRemoved("other".into())),
    ]
}

/// The last state of each object, in an order of its own.
fn final_state(changes: &[NamesChange]) -> Vec<NamesChange> {
    let mut last: BTreeMap<String, NamesChange> = BTreeMap::new();
    for change in changes {
        let (key, there) = match change {
            NamesChange::Namespace(name) => (format!("namespace {name}"), true),
            NamesChange::NamespaceRemoved(name) => (format!("namespace {name}"), false),
            NamesChange::Service(service) => (format!("service {}", service.key), true),
            NamesChange::ServiceRemoved(key) => (format!("service {key}"), false),
            NamesChange::Slice(slice) => (format!("slice {}", slice.key.name), true),
            NamesChange::SliceRemoved(key) => (format!("slice {}", key.name), false),
            NamesChange::Pod(pod) => (format!("pod {}", pod.key.name), true),
            NamesChange::PodRemoved(key) => (format!("pod {}", key.name), false),
            NamesChange::Whole { .. }
            | NamesChange::PodAddress { .. }
            | NamesChange::Listed(_)
            | NamesChange::Synced => continue,
        };
        if there {
            last.insert(key, change.clone());
        } else {
            last.remove(&key);
        }
    }
    last.into_values().rev().collect()
}

/// The subject that a name's change must have been reported as.
fn subject_of(zone: &Zone, owner: &str) -> Subject {
    let name = crate::name::absolute(owner).unwrap();
    if let Some(range) = crate::name::reverse_range(&name) {
        return Subject::Address(*range.start());
    }
    if let Some(service) = owner.strip_prefix("others of testns/") {
        return Subject::Service(key(service));
    }
    let labels: Vec<_> = owner.rsplit('.').collect();
    match labels.as_slice() {
        ["svc", namespace] => Subject::Namespace((*namespace).to_owned()),
        ["pod", namespace] => Subject::Namespace((*namespace).to_owned()),
        ["svc", namespace, service, ..] => Subject::Service(ServiceKey::new(*namespace, *service)),
        ["pod", namespace, pod] => Subject::Pod {
            namespace: (*namespace).to_owned(),
            address: crate::label::undashed(pod).unwrap(),
        },
        _ => panic!("{owner} changed in {zone:?}"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn incremental_equals_rebuilt(changes in prop::collection::vec(any_change(), 0..40)) {
        let one_at_a_time = zone_of(full(), changes.clone());
        let rebuilt = zone_of(full(), final_state(&changes));
        prop_assert_eq!(dump(&one_at_a_time), dump(&rebuilt));
        let problems = |zone: &Zone| zone.problems().cloned().collect::<BTreeSet<_>>();
        prop_assert_eq!(problems(&one_at_a_time), problems(&rebuilt));
    }

    #[test]
    fn every_difference_is_reported_and_nothing_else(
        before in prop::collection::vec(any_change(), 0..20),
        change in any_change(),
    ) {
        let mut zone = zone_of(full(), before);
        let old = dump(&zone);
        let reported = zone.apply(change).subjects;
        let new = dump(&zone);
        let names = old.keys().chain(new.keys()).filter(|name| old.get(*name) != new.get(*name));
        let different: BTreeSet<_> = names.map(|name| subject_of(&zone, name)).collect();
        prop_assert_eq!(reported, different);
    }
}
