// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::{Affinity, Family, FrontendKind, Lists, Protocol, ZoneMask};

fn record() -> Record {
    let key = RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: "svc".into(),
        port: "http".into(),
        protocol: Protocol::Tcp,
    };
    let vip = FrontendAddress::Vip("10.96.0.1".parse().unwrap());
    Record {
        frontends: vec![Frontend::new(FrontendKind::ClusterIp, vip, 80)],
        destinations: vec![Destination::new("10.0.0.1:80".parse().unwrap())],
        ..Record::new(key)
    }
}

fn ranges(record: &mut Record, first: u16, last: u16) {
    record.frontends[0].kind = FrontendKind::BalancedRanges;
    record.frontends[0].ranges = vec![crate::PortRange { first, last }];
}

/// Every field takes part: a change that the hash misses would never reach a node.
#[test]
fn every_change_changes_the_hash() {
    let changes: [fn(&mut Record); 25] = [
        |r| r.key.cluster = "other".into(),
        |r| r.key.namespace = "other".into(),
        |r| r.key.service = "other".into(),
        |r| r.key.port = "other".into(),
        |r| r.key.protocol = Protocol::Udp,
        |r| r.frontends[0].kind = FrontendKind::NodePort,
        |r| r.frontends[0].address = FrontendAddress::NodeAddresses(Family::V4),
        |r| {
            r.frontends[0].address = FrontendAddress::Mark {
                family: Family::V4,
                mark: 7,
            }
        },
        |r| {
            r.frontends[0].address = FrontendAddress::Mark {
                family: Family::V6,
                mark: 7,
            }
        },
        |r| r.frontends[0].port = 81,
        |r| ranges(r, 20, 21),
        |r| ranges(r, 20, 22),
        |r| r.frontends[0].lists = Lists::Local,
        |r| r.frontends[0].masquerade = true,
        |r| {
            r.frontends[0]
                .source_ranges
                .push("10.0.0.0/8".parse().unwrap())
        },
        |r| r.frontends[0].bind = false,
        |r| r.available.insert(Family::V6),
        |r| r.scheduling.scheduler = Some("lc".into()),
        |r| r.scheduling.flags = Some(crate::ipvs::Flags(0)),
        |r| r.drain_seconds = Some(0),
        |r| r.health_check_port = Some(0),
        |r| r.node_group = Some("g".into()),
        |r| r.destinations[0].weight = 2,
        |r| {
            r.zone_mask = Some(ZoneMask {
                zones: vec!["a".into()],
                masks: vec![1],
            })
        },
        |r| {
            r.affinity = Some(Affinity {
                timeout_seconds: 10,
            })
        },
    ];
    let mut seen = std::collections::BTreeSet::from([record().content_hash()]);
    for (index, change) in changes.iter().enumerate() {
        let mut changed = record();
        change(&mut changed);
        assert!(
            seen.insert(changed.content_hash()),
            "change {index} left the hash as it was"
        );
    }
}

#[test]
fn strings_do_not_run_into_each_other() {
    let mut a = record();
    let mut b = record();
    (a.key.namespace, a.key.service) = ("ab".into(), "c".into());
    (b.key.namespace, b.key.service) = ("a".into(), "bc".into());
    assert_ne!(a.content_hash(), b.content_hash());
}

/// Replicas of different versions compare hashes: a new field must be hashed so that its default
/// leaves old hashes as they are, or resume by hash resends every table once.
#[test]
fn the_hash_is_stable() {
    assert_eq!(
        record().content_hash().to_string(),
        "be8cb6ec2da59ccc082b303dd8219d34"
    );
    let lists = NodeOverlay {
        own: vec!["10.0.0.1:80".parse().unwrap()],
        ..NodeOverlay::default()
    };
    assert_eq!(
        lists.content_hash(&record().key).to_string(),
        "5151dd4fe9eddc459a8cdfb4c73e9182"
    );
}

#[test]
fn set_hash_ignores_order_and_forgets_what_is_removed() {
    let (a, b, c) = (
        ContentHash(u128::MAX),
        ContentHash(7),
        ContentHash(1 << 100),
    );
    let mut hash: SetHash = [c, a, b].into_iter().collect();
    assert_eq!(hash, [a, b, c].into_iter().collect());
    hash.remove(a);
    assert_eq!(hash, [b, c].into_iter().collect());
}

#[test]
fn every_change_of_a_node_changes_its_hash() {
    let key = record().key;
    let mut seen = std::collections::BTreeSet::new();
    let changes: [fn(&mut NodeOverlay); 5] = [
        |_| {},
        |l| {
            l.cluster
                .push(Destination::new("10.0.0.1:80".parse().unwrap()))
        },
        |l| {
            l.local
                .push(Destination::new("10.0.0.1:80".parse().unwrap()))
        },
        |l| l.own.push("10.0.0.1:80".parse().unwrap()),
        |l| l.terminating.insert(Family::V4),
    ];
    for change in changes {
        let mut lists = NodeOverlay::default();
        change(&mut lists);
        assert!(seen.insert(lists.content_hash(&key)), "{lists:?}");
    }
    let changes: [fn(&mut NodeInfo); 4] = [
        |_| {},
        |n| n.zone = Some("a".into()),
        |n| n.pod_cidrs.push("10.0.0.0/8".parse().unwrap()),
        |n| n.eligible = true,
    ];
    for change in changes {
        let mut node = NodeInfo::default();
        change(&mut node);
        assert!(seen.insert(node.content_hash()), "{node:?}");
    }
}

#[test]
fn a_node_is_its_name_and_what_it_has() {
    let all: std::collections::BTreeSet<_> = [("a", 1), ("a", 2), ("b", 1), ("", 1)]
        .map(|(name, own)| node_hash(name, SetHash(own)))
        .into();
    assert_eq!(all.len(), 4);
}
