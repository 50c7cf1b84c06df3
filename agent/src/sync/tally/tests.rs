// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use portolan_model::{
    Destination, Families, Family, FrontendAddress, NodeOverlay, Protocol, Record,
};
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;

fn key(service: u8, port: u8) -> RecordKey {
    RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: format!("s{service}").into(),
        port: format!("p{port}").into(),
        protocol: Protocol::Tcp,
    }
}

fn frontend(kind: FrontendKind, lists: Lists) -> Frontend {
    let address = FrontendAddress::NodeAddresses(Family::V4);
    Frontend {
        lists,
        ..Frontend::new(kind, address, 80)
    }
}

/// A put or a deletion of a record of one of a few Services.
fn edit() -> impl Strategy<Value = (RecordKey, Option<(Record, NodeOverlay)>)> {
    let kinds = vec![
        FrontendKind::ClusterIp,
        FrontendKind::NodePort,
        FrontendKind::LoadBalancer,
    ];
    let lists = select(vec![Lists::Cluster, Lists::Local]);
    let value = (
        subsequence(kinds, 0..=3),
        lists,
        any::<bool>(),
        prop::collection::btree_set(1..4u8, 0..3),
        prop::option::of(30_000..30_003u16),
    );
    ((0..4u8, 0..2u8), prop::option::weighted(0.8, value)).prop_map(|((service, port), value)| {
        let key = key(service, port);
        let value = value.map(|(kinds, lists, available, local, health_check_port)| {
            let frontends = kinds.into_iter().map(|kind| frontend(kind, lists));
            let record = Record {
                frontends: frontends.collect(),
                available: Some(Family::V4).into_iter().filter(|_| available).collect(),
                health_check_port,
                ..Record::new(key.clone())
            };
            let destination = |last| Destination::new(([10, 0, 0, last], 80).into());
            let lists = NodeOverlay {
                local: local.into_iter().map(destination).collect(),
                ..NodeOverlay::default()
            };
            (record, lists)
        });
        (key, value)
    })
}

proptest! {
    #[test]
    fn counters_equal_those_computed_from_scratch(
        rounds in prop::collection::vec(prop::collection::vec(edit(), 1..4), 1..8),
    ) {
        let (mut table, mut tally) = (NodeTable::default(), Tally::default());
        for edits in rounds {
            for (key, value) in edits {
                table.records.remove(&key);
                table.lists.remove(&key);
                if let Some((record, lists)) = value {
                    table.records.insert(key.clone(), Arc::new(record));
                    table.lists.insert(key, Arc::new(lists));
                }
            }
            tally.follow(&table);
            let mut anew = Tally::default();
            anew.follow(&table);
            prop_assert_eq!(tally.no_local_endpoints(), anew.no_local_endpoints());
            prop_assert_eq!(tally.health_checks(), anew.health_checks());
        }
    }
}

#[test]
fn changes_of_services_and_of_endpoints_are_told_apart() {
    let mut tally = Tally::default();
    let changes = |services, endpoints| TableChanges {
        services,
        endpoints,
    };
    let mut record = Record::new(key(0, 0));
    let mut follow = |record: Option<&Record>, overlay: Option<NodeOverlay>| {
        let mut table = NodeTable::default();
        table
            .records
            .extend(record.map(|r| (r.key.clone(), Arc::new(r.clone()))));
        table
            .lists
            .extend(overlay.map(|overlay| (key(0, 0), Arc::new(overlay))));
        tally.follow(&table)
    };
    assert_eq!(follow(Some(&record), None), changes(1, 0));
    assert_eq!(follow(Some(&record), None), changes(0, 0));
    record
        .destinations
        .push(Destination::new(([10, 0, 0, 1], 80).into()));
    assert_eq!(follow(Some(&record), None), changes(0, 1));
    record.drain_seconds = Some(1);
    assert_eq!(follow(Some(&record), None), changes(1, 0));
    let overlay = NodeOverlay {
        own: vec![([10, 0, 0, 1], 80).into()],
        ..NodeOverlay::default()
    };
    assert_eq!(follow(Some(&record), Some(overlay)), changes(0, 1));
    assert_eq!(follow(None, None), changes(1, 1));
}

#[test]
fn service_ports_without_local_endpoints_are_counted_by_policy() {
    let mut table = NodeTable::default();
    let mut add = |service, local: &[FrontendKind], here: bool| {
        let kinds = [
            FrontendKind::ClusterIp,
            FrontendKind::NodePort,
            FrontendKind::LoadBalancer,
        ];
        let lists = |kind| {
            if local.contains(&kind) {
                Lists::Local
            } else {
                Lists::Cluster
            }
        };
        let key = key(service, 0);
        let record = Record {
            frontends: kinds.map(|kind| frontend(kind, lists(kind))).into(),
            available: [Family::V4].into_iter().collect(),
            ..Record::new(key.clone())
        };
        if here {
            let lists = NodeOverlay {
                local: vec![Destination::new(([10, 0, 0, 1], 80).into())],
                ..NodeOverlay::default()
            };
            table.lists.insert(key.clone(), Arc::new(lists));
        }
        table.records.insert(key, Arc::new(record));
    };
    let external = [FrontendKind::NodePort, FrontendKind::LoadBalancer];
    add(0, &external, false);
    add(1, &external, true);
    add(2, &[FrontendKind::ClusterIp], false);
    add(3, &[], false);
    add(4, &[FrontendKind::ClusterIp, FrontendKind::NodePort], false);
    let mut tally = Tally::default();
    tally.follow(&table);
    let (internal, external) = (2, 2);
    assert_eq!(
        tally.no_local_endpoints(),
        NoLocalEndpoints { internal, external }
    );
    // Services without any endpoint do not count.
    for key in table.clone().records.keys() {
        Arc::make_mut(&mut table.records[key]).available = Families::NONE;
    }
    tally.follow(&table);
    assert_eq!(tally.no_local_endpoints(), NoLocalEndpoints::default());
}
