// SPDX-License-Identifier: Apache-2.0

//! The rules of KEP-1645, and requirements of its conformance suite (S10, S11, S15, C4, C5).

use proptest::prelude::*;
use proptest::sample::{select, subsequence};

use super::*;

/// An export of one unnamed TCP port 42 by a cluster, so many seconds after 1970.
fn export(cluster: &str, created: i64) -> Export {
    Export {
        cluster: cluster.into(),
        created: Some(created),
        kind: ImportKind::ClusterSetIp,
        ports: vec![tcp("tcp", 42)],
        affinity: Affinity::None,
        internal_local: false,
        traffic_distribution: None,
        cluster_selectors: Vec::new(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        families: vec![Family::V4],
    }
}

fn port(name: &str, protocol: Protocol, number: u16) -> Port {
    Port {
        name: name.into(),
        protocol,
        number,
        app_protocol: None,
    }
}

fn tcp(name: &str, number: u16) -> Port {
    port(name, Protocol::Tcp, number)
}

fn merged(exports: &[Export]) -> Import {
    merge(exports, None).unwrap()
}

fn reasons(import: &Import) -> String {
    condition(&import.conflicts).0
}

/// Ports with the clusters that expose them, as in `tcp TCP 42: a b`.
fn exposed(import: &Import) -> Vec<String> {
    let ports = import.ports.iter();
    ports
        .map(|ImportPort { port, clusters }| {
            let clusters: Vec<&str> = clusters.iter().map(|id| &**id).collect();
            let Port {
                name,
                protocol,
                number,
                ..
            } = port;
            format!("{name} {protocol} {number}: {}", clusters.join(" "))
        })
        .collect()
}

#[test]
fn the_oldest_export_wins_and_then_stays_the_winner() {
    let of = |exports: &[Export], last: Option<&str>| {
        let import = merge(exports, last);
        import.map(|import| import.winner.to_string())
    };
    let unknown = Export {
        created: None,
        ..export("0", 0)
    };
    let (a, b, c) = (export("a", 20), export("b", 10), export("c", 10));
    let all = [unknown.clone(), a.clone(), b.clone(), c.clone()];
    assert_eq!(of(&all, None).as_deref(), Some("b"));
    assert_eq!(of(&all, Some("a")).as_deref(), Some("a"));
    assert_eq!(of(&all, Some("gone")).as_deref(), Some("b"));
    assert_eq!(of(&[unknown.clone(), a], None).as_deref(), Some("a"));
    assert_eq!(of(&[unknown], None).as_deref(), Some("0"));
    assert_eq!(of(&[], Some("a")), None);
}

#[test]
fn s10_ports_are_united() {
    let first = Export {
        ports: vec![tcp("tcp", 42), port("stcp", Protocol::Sctp, 142)],
        ..export("a", 1)
    };
    let second = Export {
        ports: vec![tcp("tcp", 42), port("udp", Protocol::Udp, 42)],
        ..export("b", 2)
    };
    let import = merged(&[second, first]);
    assert_eq!(
        exposed(&import),
        ["tcp TCP 42: a b", "stcp SCTP 142: a", "udp UDP 42: b"]
    );
    let (reason, message) = condition(&import.conflicts);
    assert_eq!(reason, "PortConflict");
    assert_eq!(
        message,
        "ports: those of a come first; 1 of 2 exports differs"
    );
}

#[test]
fn s11_and_c4_of_ports_with_one_name_the_winners_counts() {
    let second = Export {
        ports: vec![tcp("tcp", 43)],
        ..export("b", 2)
    };
    let import = merged(&[export("a", 1), second.clone()]);
    assert_eq!(exposed(&import), ["tcp TCP 42: a"]);
    assert_eq!(reasons(&import), "PortConflict");
    // The same number under another name is as bad.
    let second = Export {
        ports: vec![tcp("other", 42), tcp("more", 44)],
        ..second
    };
    let import = merged(&[export("a", 1), second]);
    assert_eq!(exposed(&import), ["tcp TCP 42: a", "more TCP 44: b"]);
}

#[test]
fn s15_of_types_the_winners_counts() {
    let headless = |created| Export {
        kind: ImportKind::Headless,
        affinity: Affinity::ClientIp {
            timeout_seconds: 10,
        },
        ..export("b", created)
    };
    let import = merged(&[export("a", 1), headless(2)]);
    assert_eq!(import.kind, ImportKind::ClusterSetIp);
    assert_eq!(reasons(&import), "TypeConflict");
    let import = merged(&[export("a", 2), headless(1)]);
    assert_eq!(
        (import.kind, import.affinity),
        (ImportKind::Headless, Affinity::None)
    );
    assert_eq!(reasons(&import), "TypeConflict");
}

#[test]
fn c5_each_port_leads_to_its_cluster() {
    let second = Export {
        ports: vec![tcp("other", 43)],
        ..export("b", 2)
    };
    let import = merged(&[export("a", 1), second]);
    assert_eq!(exposed(&import), ["tcp TCP 42: a", "other TCP 43: b"]);
}

#[test]
fn a_port_of_another_protocol_with_the_same_number_is_another() {
    let first = Export {
        ports: vec![tcp("dns-tcp", 53), port("dns", Protocol::Udp, 53)],
        ..export("a", 1)
    };
    let second = Export {
        cluster: "b".into(),
        ..first.clone()
    };
    let import = merged(&[first, second]);
    assert_eq!(exposed(&import), ["dns-tcp TCP 53: a b", "dns UDP 53: a b"]);
    assert_eq!(reasons(&import), "NoConflicts");
}

/// A change of one field, the conflict that it makes, and whether the import has the value.
type Change = (fn(&mut Export), &'static str, fn(&Import, &Export) -> bool);

const CHANGES: [Change; 9] = [
    (
        |export| export.affinity = Affinity::ClientIp { timeout_seconds: 9 },
        "SessionAffinityConflict",
        |import, winner| import.affinity == winner.affinity,
    ),
    (
        |export| export.labels.extend([("a".into(), "b".into())]),
        "LabelsConflict",
        |import, winner| import.labels == winner.labels,
    ),
    (
        |export| export.annotations.extend([("a".into(), "b".into())]),
        "AnnotationsConflict",
        |import, winner| import.annotations == winner.annotations,
    ),
    (
        |export| export.internal_local = true,
        "InternalTrafficPolicyConflict",
        |import, winner| import.internal_local == winner.internal_local,
    ),
    (
        |export| export.traffic_distribution = Some("PreferClose".into()),
        "TrafficDistributionConflict",
        |import, winner| import.traffic_distribution == winner.traffic_distribution,
    ),
    (
        |export| export.families = vec![Family::V6],
        "IPFamilyConflict",
        |import, winner| import.families == winner.families,
    ),
    (
        |export| export.cluster_selectors = vec![Tier::Rest],
        "ClusterSelectorsConflict",
        |import, winner| import.cluster_selectors == winner.cluster_selectors,
    ),
    (
        |export| export.kind = ImportKind::Headless,
        "TypeConflict",
        |import, winner| import.kind == winner.kind,
    ),
    (
        |export| export.ports[0].app_protocol = Some("http".into()),
        "PortConflict",
        |import, winner| import.ports[0].port == winner.ports[0],
    ),
];

#[test]
fn a_field_that_differs_is_a_conflict_and_the_winners_counts() {
    for (change, reason, has_value) in CHANGES {
        for changes_winner in [false, true] {
            let mut exports = [export("a", 1), export("b", 2), export("c", 3)];
            change(&mut exports[usize::from(!changes_winner)]);
            let import = merged(&exports);
            assert_eq!(reasons(&import), reason);
            assert!(has_value(&import, &exports[0]), "{reason}");
            let others = &import.conflicts[0].others;
            let expected: &[&str] = if changes_winner { &["b", "c"] } else { &["b"] };
            assert!(others.iter().map(|id| &**id).eq(expected.iter().copied()));
        }
    }
}

#[test]
fn timeouts_are_compared_where_both_have_one() {
    let stays = |cluster, timeout_seconds| Export {
        affinity: Affinity::ClientIp { timeout_seconds },
        ..export(cluster, 1)
    };
    let import = merged(&[stays("a", 9), stays("b", 10)]);
    assert_eq!(reasons(&import), "SessionAffinityConfigConflict");
    assert_eq!(import.affinity, Affinity::ClientIp { timeout_seconds: 9 });
    let import = merged(&[stays("a", 9), stays("b", 9)]);
    assert_eq!(reasons(&import), "NoConflicts");
}

#[test]
fn several_conflicts_are_joined_in_order() {
    let other = Export {
        ports: vec![tcp("tcp", 1)],
        internal_local: true,
        kind: ImportKind::Headless,
        ..export("b", 2)
    };
    let import = merged(&[other, export("a", 1)]);
    let expected = "PortConflict,TypeConflict,InternalTrafficPolicyConflict";
    assert_eq!(reasons(&import), expected);
}

#[test]
fn families_are_the_winners_where_there_is_a_range() {
    let of = |families: &[Family]| Export {
        families: families.to_vec(),
        ..export("a", 1)
    };
    let (v4, v6) = (Family::V4, Family::V6);
    let dual = merged(&[of(&[v6, v4])]);
    assert_eq!(dual.families_in(Families::from_iter([v4, v6])), [v6, v4]);
    assert_eq!(dual.families_in(Families::from_iter([v4])), [v4]);
    assert_eq!(dual.families_in(Families::NONE), []);
    let headless = merged(&[Export {
        kind: ImportKind::Headless,
        ..of(&[v6])
    }]);
    assert_eq!(headless.families_in(Families::NONE), [v6]);
    // A cluster with one of the winner's families is reached.
    let single = Export {
        cluster: "b".into(),
        ..of(&[v4])
    };
    assert_eq!(reasons(&merged(&[of(&[v6, v4]), single])), "NoConflicts");
    // So is one that has another besides, which nobody has an address of.
    let more = Export {
        cluster: "b".into(),
        ..of(&[v6, v4])
    };
    assert_eq!(reasons(&merged(&[of(&[v4]), more])), "NoConflicts");
}

/// Returns `true` if clusters that expose one port serve connections to the other.
fn is_same(one: &Port, other: &Port) -> bool {
    (&one.name, one.protocol, one.number) == (&other.name, other.protocol, other.number)
}

/// Returns `true` if an import cannot have both.
fn excludes(one: &Port, other: &Port) -> bool {
    one.name == other.name || (one.protocol, one.number) == (other.protocol, other.number)
}

fn some_ports() -> impl Strategy<Value = Vec<Port>> {
    let all = vec![
        tcp("a", 1),
        tcp("b", 2),
        port("c", Protocol::Udp, 1),
        tcp("a", 3),
        tcp("d", 1),
    ];
    // Of ports that a Service cannot have together the first one.
    subsequence(all, 0..=5).prop_map(|ports| {
        ports.into_iter().fold(Vec::new(), |mut taken, port| {
            if !taken.iter().any(|other: &Port| excludes(other, &port)) {
                taken.push(port);
            }
            taken
        })
    })
}

proptest! {
    #[test]
    fn order_means_nothing_and_ports_never_exclude_each_other(
        exports in proptest::collection::vec((some_ports(), 0..3_i64), 1..5),
        last in select(&[None, Some("b"), Some("z")][..]),
        turn in 0..4_usize,
    ) {
        let ids = ["a", "b", "c", "d"];
        let mut exports: Vec<Export> = ids
            .iter()
            .zip(exports)
            .map(|(id, (ports, created))| Export { ports, ..export(id, created) })
            .collect();
        let import = merge(&exports, last).unwrap();
        let count = exports.len();
        exports.rotate_left(turn % count);
        prop_assert_eq!(merge(&exports, last), Some(import.clone()));
        for (index, one) in import.ports.iter().enumerate() {
            let others = &import.ports[index + 1..];
            prop_assert!(!others.iter().any(|other| excludes(&other.port, &one.port)));
            // Exactly those that expose it serve it.
            for export in &exports {
                let exposes = export.ports.iter().any(|port| is_same(port, &one.port));
                prop_assert_eq!(exposes, one.clusters.contains(&export.cluster));
            }
        }
        let winner = exports.iter().find(|export| export.cluster == import.winner).unwrap();
        let first: Vec<&Port> = import.ports.iter().map(|one| &one.port).collect();
        let own: Vec<&Port> = winner.ports.iter().collect();
        prop_assert_eq!(&first[..own.len()], &own[..]);
    }
}
