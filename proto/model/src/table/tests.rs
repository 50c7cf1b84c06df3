// SPDX-License-Identifier: Apache-2.0

use proptest::collection::btree_map;
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::{FrontendAddress, FrontendKind, ZoneMask};

fn destinations(addresses: &[&str]) -> Vec<Destination> {
    addresses
        .iter()
        .map(|a| Destination::new(a.parse().unwrap()))
        .collect()
}

fn frontend(vip: &str, lists: Lists) -> Frontend {
    Frontend {
        lists,
        ..Frontend::new(
            FrontendKind::ClusterIp,
            FrontendAddress::Vip(vip.parse().unwrap()),
            80,
        )
    }
}

fn record() -> Record {
    let key = RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: "svc".into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    Record {
        destinations: destinations(&["10.0.0.1:80", "10.0.0.2:80", "[fd00::1]:80"]),
        zone_mask: Some(ZoneMask {
            zones: vec!["a".into(), "b".into()],
            masks: vec![0b01, 0b10, 0b11],
        }),
        ..Record::new(key)
    }
}

fn table(zone: Option<&str>, lists: Option<NodeOverlay>) -> NodeTable {
    let record = record();
    NodeTable {
        node: NodeInfo {
            zone: zone.map(Into::into),
            ..NodeInfo::default()
        },
        lists: lists
            .map(|l| (record.key.clone(), Arc::new(l)))
            .into_iter()
            .collect(),
        health: OrdMap::new(),
        records: OrdMap::unit(record.key.clone(), Arc::new(record)),
    }
}

#[test]
fn only_imports_have_remote_endpoints() {
    let mut record = record();
    record.destinations = destinations(&["10.0.0.1:80", "10.0.0.2:80", "[fd00::1]:80"]);
    record.frontends = vec![frontend("10.96.0.1", Lists::Cluster)];
    let ends = |service: &str, protocol| {
        let mut record = record.clone();
        record.key.service = service.into();
        record.key.protocol = protocol;
        let found = NodeTable::default().remote_endpoints(&record).into_iter();
        found.map(|end| end.to_string()).collect::<Vec<_>>()
    };
    let all = ["10.0.0.1:80", "10.0.0.2:80"];
    assert_eq!(ends("web@clusterset", Protocol::Tcp), all);
    assert_eq!(ends("web@clusterset", Protocol::Udp), [""; 0]);
    assert_eq!(ends("web@gateway", Protocol::Tcp), [""; 0]);
    assert_eq!(ends("web", Protocol::Tcp), [""; 0]);
}

#[test]
fn a_zone_uses_its_destinations_of_the_frontends_family() {
    let v4 = frontend("10.96.0.1", Lists::Cluster);
    let v6 = frontend("fd00:96::1", Lists::Cluster);
    assert_eq!(
        table(Some("a"), None).destinations(&record(), &v4),
        destinations(&["10.0.0.1:80"])
    );
    assert_eq!(
        table(Some("b"), None).destinations(&record(), &v4),
        destinations(&["10.0.0.2:80"])
    );
    assert_eq!(
        table(Some("b"), None).destinations(&record(), &v6),
        destinations(&["[fd00::1]:80"])
    );
}

fn numbered(number: u16, weight: u32) -> (RecordKey, Arc<Record>) {
    let mut record = record();
    record.key.service = format!("s{number:03}").into();
    record.destinations[0].weight = weight;
    (record.key.clone(), Arc::new(record))
}

proptest! {
    #[test]
    fn changes_equal_those_of_a_full_comparison(
        before in btree_map(0..300u16, 0..3u32, 0..300),
        edits in btree_map(0..300u16, option::of(0..3u32), 0..9),
    ) {
        let mut old = NodeTable::default();
        for (number, weight) in before {
            old.records.extend([numbered(number, weight)]);
        }
        let mut new = old.clone();
        for (number, edit) in edits {
            let (key, record) = numbered(number, edit.unwrap_or_default());
            match edit {
                Some(2) => drop(new.lists.insert(key, Arc::default())),
                Some(_) => drop(new.records.insert(key, record)),
                None => drop(new.records.remove(&key)),
            }
        }
        let all = old.records.keys().chain(new.records.keys());
        let all = all.chain(old.lists.keys()).chain(new.lists.keys());
        let differs = |key: &&RecordKey| {
            old.records.get(*key) != new.records.get(*key)
                || old.lists.get(*key) != new.lists.get(*key)
        };
        let expected: BTreeSet<_> = all.filter(differs).cloned().collect();
        prop_assert_eq!(&new.changed_since(&old), &expected);
        prop_assert_eq!(&old.changed_since(&new), &expected);
    }
}

#[test]
fn a_zone_without_a_mask_and_a_node_without_a_zone_use_all() {
    let v4 = frontend("10.96.0.1", Lists::Cluster);
    for zone in [Some("c"), None] {
        let all = destinations(&["10.0.0.1:80", "10.0.0.2:80"]);
        assert_eq!(table(zone, None).destinations(&record(), &v4), all);
    }
}

#[test]
fn local_frontends_use_the_nodes_list_and_an_absent_list_is_empty() {
    let local = frontend("10.96.0.1", Lists::Local);
    assert!(table(None, None).destinations(&record(), &local).is_empty());
    let lists = NodeOverlay {
        local: destinations(&["10.0.0.2:80"]),
        ..NodeOverlay::default()
    };
    let got = table(None, Some(lists)).destinations(&record(), &local);
    assert_eq!(got, destinations(&["10.0.0.2:80"]));
}

#[test]
fn a_nodes_own_cluster_list_takes_the_place_of_the_shared_one_in_its_family() {
    let lists = NodeOverlay {
        cluster: destinations(&["10.0.0.9:80"]),
        ..NodeOverlay::default()
    };
    let table = table(Some("a"), Some(lists));
    let v4 = table.destinations(&record(), &frontend("10.96.0.1", Lists::Cluster));
    let v6 = table.destinations(&record(), &frontend("fd00:96::1", Lists::Cluster));
    assert_eq!(v4, destinations(&["10.0.0.9:80"]));
    assert_eq!(v6, destinations(&["[fd00::1]:80"]));
}
