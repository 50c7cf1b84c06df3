// SPDX-License-Identifier: Apache-2.0

use portolan_model::SetHash;
use portolan_serve::{ChangedRecord, Registry, ServedClusters};
use portolan_tablelog::{Publisher, Retention};

use super::*;
use crate::writer::SharedTrouble;

#[test]
fn targets_are_parsed_and_bad_ones_named() {
    assert_eq!(Target::parse("revision=7").unwrap(), Target::Revision(7));
    let service = Target::Service {
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        without: None,
    };
    assert_eq!(Target::parse("service=default%2Fweb").unwrap(), service);
    let without = |address: &str| {
        let target = Target::parse(&format!("without={address}&service=a/b"));
        match target.unwrap() {
            Target::Service { without, .. } => without.unwrap(),
            Target::Revision(_) => panic!("a revision"),
        }
    };
    let socket = "[fd00::1]:80".parse().unwrap();
    assert_eq!(without("[fd00::1]:80"), Address::Socket(socket));
    assert_eq!(without("10.0.0.1"), Address::Host([10, 0, 0, 1].into()));
    for (query, named) in [
        ("", "revision or service: "),
        ("revision=x", "revision: "),
        ("service=web", "service: "),
        ("node=a", "node: "),
        ("service=a/b&without=pod", "without: "),
        ("revision=1&without=10.0.0.1", "without: "),
    ] {
        let error = Target::parse(query).unwrap_err().message;
        assert!(error.starts_with(named), "{query}: {error}");
    }
}

#[test]
fn a_destination_of_weight_0_gets_no_new_connections() {
    let mut destination = Destination::new(([10, 0, 0, 1], 80).into());
    let of = |text: &str| Address::parse(text).unwrap();
    for (text, served) in [
        ("10.0.0.1", true),
        ("10.0.0.1:80", true),
        ("10.0.0.1:81", false),
        ("10.0.0.2", false),
    ] {
        assert_eq!(of(text).is_served_by(&destination), served, "{text}");
    }
    destination.weight = 0;
    assert!(!of("10.0.0.1").is_served_by(&destination));
}

/// The status of a node that has programmed revision 9.
fn status(node: &str, hash: Option<SetHash>) -> NodeStatus {
    NodeStatus {
        cluster: String::new(),
        node: node.to_owned(),
        connected: true,
        connected_at_ms: 0,
        disconnected_at_ms: None,
        sessions: 1,
        peer: None,
        agent_version: String::new(),
        protocol_version: 1,
        sent: Some(9),
        received: Some(9),
        programmed: Some(9),
        programmed_duration_us: None,
        lag: 0,
        behind_ms: None,
        held: None,
        records_hash: hash,
        own_hash: hash,
        refused: Vec::new(),
        refused_total: 0,
        errors: Vec::new(),
        errors_total: 0,
    }
}

#[test]
fn a_relay_whose_agents_hold_deletions_keeps_old_records() {
    let relay = format!("{RELAY}r");
    for (node, hash, keeps) in [
        (&*relay, None, true),
        (&*relay, Some(SetHash::default()), false),
        ("a", None, false),
    ] {
        let status = status(node, hash);
        assert_eq!(keeps_old_records(&status, "ns/web"), keeps, "{node}");
    }
}

#[test]
fn a_service_that_a_kernel_or_an_agent_refused_is_not_programmed() {
    let (_publisher, tables) = Publisher::new(Retention::default());
    let debug = Debug {
        cluster: "".into(),
        clusters: ServedClusters::default(),
        sources: Arc::default(),
        states: Default::default(),
        tables,
        sessions: Arc::new(Registry::default()),
        trouble: SharedTrouble::default(),
        questions: None,
        holds: None,
    };
    let has_programmed = |status: NodeStatus| {
        let target = Target::parse("service=ns/web").unwrap();
        debug.has_programmed(&status, &target)
    };
    let at_head = |node: &str| NodeStatus {
        programmed: Some(0),
        ..status(node, Some(SetHash::default()))
    };
    let problem = |record: &str| RecordProblem {
        record: Some(record.to_owned()),
        message: "refused".to_owned(),
    };
    assert!(has_programmed(at_head("a")));
    for (record, programmed) in [("ns/web:http/TCP", false), ("ns/web-2/TCP", true)] {
        let by_kernel = NodeStatus {
            errors: vec![problem(record)],
            errors_total: 1,
            ..at_head("a")
        };
        assert_eq!(has_programmed(by_kernel), programmed, "{record}");
        let by_agent = NodeStatus {
            refused: vec![problem(record)],
            refused_total: 1,
            ..at_head("a")
        };
        assert_eq!(has_programmed(by_agent), programmed, "{record}");
    }
    // A relay names no records.
    let relay = format!("{RELAY}r");
    assert!(has_programmed(at_head(&relay)));
    let of_relay = NodeStatus {
        errors_total: 1,
        ..at_head(&relay)
    };
    assert!(!has_programmed(of_relay));
}

#[test]
fn only_changes_of_the_service_itself_count() {
    let standing = |programmed, equal: bool, changed: Option<&[Option<&str>]>| Standing {
        revision: 9,
        programmed,
        records_equal: equal,
        own_equal: equal,
        changed: changed.map(|records| {
            let changed = records.iter().map(|record| ChangedRecord {
                record: record.map(str::to_owned),
                own: false,
                deleted: false,
            });
            changed.collect()
        }),
    };
    let other: &[_] = &[None, Some("ns/web-2/TCP"), Some("ns/we/TCP")];
    let own: &[_] = &[Some("ns/web:http/TCP")];
    let plain: &[_] = &[Some("ns/web/UDP")];
    for (standing, expected) in [
        (standing(Some(5), false, Some(other)), true),
        (standing(Some(5), false, Some(own)), false),
        (standing(Some(5), false, Some(plain)), false),
        (standing(Some(9), true, Some(&[])), true),
        // The log no longer knows the changes, or the agent has reported nothing.
        (standing(Some(1), false, None), false),
        (standing(Some(1), true, None), true),
        (standing(None, false, None), false),
        (standing(None, false, Some(&[])), false),
    ] {
        assert_eq!(
            has_programmed_service(&standing, "ns/web"),
            expected,
            "{standing:?}"
        );
    }
}
