// SPDX-License-Identifier: Apache-2.0

//! Names of imported Services.

use std::collections::BTreeSet;

use super::*;
use crate::testing::*;
use crate::{ConfigError, Endpoint, NamesChange, PodMode, Slice, Subject, ZoneConfig, zone_file};

pub(crate) fn config() -> ZoneConfig {
    ZoneConfig::clusterset("clusterset.local").unwrap()
}

fn of(cluster: &str, slice: Slice) -> NamesChange {
    NamesChange::Slice(Slice {
        cluster: Some(cluster.to_owned()),
        ..slice
    })
}

/// `web` has addresses, and slices too; `db` is headless, in two clusters, with one host in both.
pub(crate) fn changes() -> Vec<NamesChange> {
    let http = [port("http", 80)];
    let db = [port("db", 5432)];
    let unready = Endpoint {
        ready: false,
        ..hosted("10.1.0.9", "db-9")
    };
    let eu = [hosted("10.1.0.1", "db-0"), endpoint("10.1.0.2"), unready];
    let us = [hosted("10.2.0.1", "db-0"), endpoint("fd00:2::1")];
    vec![
        NamesChange::Namespace("testns".to_owned()),
        NamesChange::Namespace("emptyns".to_owned()),
        NamesChange::Service(cluster_ip("web", &["10.112.0.1", "fd00:112::1"])),
        NamesChange::Service(headless("db")),
        of(
            "eu-1",
            slice("web", "web-eu", &[hosted("10.1.0.5", "w")], &http),
        ),
        of("eu-1", slice("db", "db-eu", &eu, &db)),
        of("us-1", slice("db", "db-us", &us, &db)),
    ]
}

pub(crate) fn zone() -> Zone {
    zone_of(config(), changes())
}

const WEB: &str = "web.testns.svc.clusterset.local.";
const DB: &str = "db.testns.svc.clusterset.local.";

#[test]
fn an_import_with_addresses_is_them_and_has_no_hosts() {
    let zone = zone();
    is(
        &zone,
        WEB,
        RecordType::A,
        &[&format!("{WEB} 5 IN A 10.112.0.1")],
    );
    is(
        &zone,
        WEB,
        RecordType::AAAA,
        &[&format!("{WEB} 5 IN AAAA fd00:112::1")],
    );
    for name in [WEB.to_owned(), format!("_http._tcp.{WEB}")] {
        let srv = format!("{name} 5 IN SRV 0 50 80 {WEB}");
        let [one] = &text(&ask(&zone, &name, RecordType::SRV).answers)[..] else {
            panic!("one record: {name}")
        };
        assert_eq!(*one, srv);
    }
    for host in ["w.eu-1", "w", "eu-1", "10-1-0-5.eu-1"] {
        nxdomain(&zone, &format!("{host}.{WEB}"));
    }
}

#[test]
fn a_headless_import_is_the_ready_endpoints_of_all_clusters() {
    let zone = zone();
    is(
        &zone,
        DB,
        RecordType::A,
        &[
            &format!("{DB} 5 IN A 10.1.0.1"),
            &format!("{DB} 5 IN A 10.1.0.2"),
            &format!("{DB} 5 IN A 10.2.0.1"),
        ],
    );
    for (host, address) in [
        ("db-0.eu-1", "10.1.0.1"),
        ("db-0.us-1", "10.2.0.1"),
        ("10-1-0-2.eu-1", "10.1.0.2"),
    ] {
        let name = format!("{host}.{DB}");
        is(
            &zone,
            &name,
            RecordType::A,
            &[&format!("{name} 5 IN A {address}")],
        );
    }
    let v6 = format!("fd00-2--1.us-1.{DB}");
    is(
        &zone,
        &v6,
        RecordType::AAAA,
        &[&format!("{v6} 5 IN AAAA fd00:2::1")],
    );
    for name in [DB.to_owned(), format!("_db._tcp.{DB}")] {
        let targets = ["10-1-0-2.eu-1", "db-0.eu-1", "db-0.us-1", "fd00-2--1.us-1"];
        let targets = targets.map(|host| format!("{name} 5 IN SRV 0 25 5432 {host}.{DB}"));
        let targets: Vec<_> = targets.iter().map(String::as_str).collect();
        is(&zone, &name, RecordType::SRV, &targets);
    }
    // Neither a cluster's name, nor a host without one, nor a host of another cluster.
    for host in [
        "eu-1",
        "us-1",
        "db-0",
        "10-1-0-2.us-1",
        "db-9.eu-1",
        "x.db-0.eu-1",
    ] {
        nxdomain(&zone, &format!("{host}.{DB}"));
    }
}

#[test]
fn the_schema_is_that_of_the_clusterset_and_there_is_no_reverse_tree() {
    let zone = zone();
    let version = "dns-version.clusterset.local.";
    is(
        &zone,
        version,
        RecordType::TXT,
        &[&format!("{version} 28800 IN TXT 1.0.0")],
    );
    for name in ["1.0.112.10.in-addr.arpa", "1.0.1.10.in-addr.arpa"] {
        let answer = ask(&zone, name, RecordType::PTR);
        assert_eq!(answer.code, ResponseCode::Refused);
    }
    assert_eq!(zone.addresses().count(), 0);
    nodata(&zone, "testns.svc.clusterset.local", RecordType::A);
    nodata(&zone, "emptyns.svc.clusterset.local", RecordType::A);
    nxdomain(&zone, "nons.svc.clusterset.local");
    nxdomain(&zone, "10-1-0-1.testns.pod.clusterset.local");
    let mut waiting = Zone::new(config(), 0).unwrap();
    changes()
        .into_iter()
        .for_each(|change| _ = waiting.apply(change));
    assert_eq!(
        ask(&waiting, WEB, RecordType::A).code,
        ResponseCode::ServFail
    );
}

#[test]
fn endpoints_without_a_cluster_that_is_a_label_have_no_names() {
    for cluster in [None, Some("a.b"), Some("")] {
        let slice = slice("db", "db-a", &[hosted("10.1.0.1", "db-0")], &[]);
        let slice = Slice {
            cluster: cluster.map(str::to_owned),
            ..slice
        };
        let changes = [
            NamesChange::Service(headless("db")),
            NamesChange::Slice(slice),
        ];
        let zone = zone_of(config(), changes);
        assert_eq!(zone.problems().count(), 1, "{cluster:?}");
        nxdomain(&zone, DB);
    }
}

#[test]
fn a_change_of_one_cluster_is_one_of_its_service() {
    let mut zone = zone();
    let eu = [hosted("10.1.0.1", "db-0")];
    let change = of("eu-1", slice("db", "db-eu", &eu, &[port("db", 5432)]));
    let subjects = zone.apply(change.clone()).subjects;
    let service = Subject::Service(crate::ServiceKey::new("testns", "db"));
    assert_eq!(subjects, BTreeSet::from([service]));
    assert_eq!(zone.apply(change).subjects, BTreeSet::new());
}

#[test]
fn settings_of_one_cluster_are_refused() {
    let pods = PodMode::Verified;
    for (config, field) in [
        (ZoneConfig { pods, ..config() }, "pods"),
        (
            ZoneConfig {
                zonal: true,
                ..config()
            },
            "zonal",
        ),
        (
            ZoneConfig {
                ignore_empty: true,
                ..config()
            },
            "ignore_empty",
        ),
        (
            config().with_networks(&["10.0.0.0/8".parse().unwrap()]),
            "reverse",
        ),
    ] {
        assert_eq!(config.validate(), Err(ConfigError::NotOfClusterSet(field)));
    }
}

#[test]
fn a_file_has_the_names() {
    let zone = zone();
    let text = zone_file::render(&zone, &zone.config().zones[0], 7);
    for line in [
        "dns-version 28800 TXT \"1.0.0\"",
        "web.testns.svc A 10.112.0.1",
        "db.testns.svc A 10.2.0.1",
        "db-0.eu-1.db.testns.svc A 10.1.0.1",
        "_db._tcp.db.testns.svc SRV 0 25 5432 db-0.us-1.db.testns.svc",
    ] {
        assert!(text.lines().any(|one| one == line), "{line}: {text}");
    }
    assert!(!text.contains("w.eu-1"), "{text}");
}
