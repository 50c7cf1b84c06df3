// SPDX-License-Identifier: Apache-2.0

use super::disconnected::MAX_DISCONNECTED;
use super::*;

fn node(name: &str) -> NodeKey {
    NodeKey {
        cluster: "".into(),
        name: name.into(),
    }
}

fn connect(registry: &Arc<Registry>, name: &str) -> Session {
    let session = registry.connect(Connect {
        node: node(name),
        peer: Some(([127, 0, 0, 1], 1).into()),
        agent_version: "1.2.3".to_owned(),
        protocol_version: 1,
        now: SystemTime::UNIX_EPOCH,
        rate: None,
    });
    session.unwrap()
}

fn received(revision: u64) -> v1::Received {
    v1::Received {
        revision,
        ..v1::Received::default()
    }
}

fn programmed(revision: u64) -> v1::Programmed {
    v1::Programmed {
        revision,
        duration_us: 1_500,
        records_hash: vec![1; 16],
        own_hash: vec![],
        errors: vec![v1::RecordError {
            key: Some(v1::RecordKey {
                namespace: "ns".to_owned(),
                service: "svc".to_owned(),
                port: "http".to_owned(),
                protocol: 7,
            }),
            message: "no such scheduler".to_owned(),
        }],
        errors_total: 1,
    }
}

#[test]
fn a_nodes_progress_can_be_seen() {
    let registry = Arc::new(Registry::default());
    let session = connect(&registry, "a");
    session.sent(5);
    assert!(session.received(received(5)));
    assert!(session.programmed(programmed(4)));
    let status = registry.snapshot().remove(0);
    assert_eq!(
        (status.sent, status.received, status.programmed),
        (Some(5), Some(5), Some(4))
    );
    assert_eq!(status.programmed_duration_us, Some(1_500));
    assert!(status.records_hash.is_some() && status.own_hash.is_none());
    let error = &status.errors[0];
    assert_eq!(error.record.as_deref(), Some("ns/svc:http/protocol 7"));
    serde_json::to_string(&status).unwrap();
}

#[test]
fn an_agent_that_refused_a_record_lacks_a_part_of_its_table() {
    let registry = Arc::new(Registry::default());
    let session = connect(&registry, "a");
    session.sent(5);
    let refusing = |refused_total| v1::Received {
        refused_total,
        ..received(5)
    };
    assert!(session.received(refusing(1)));
    assert!(session.programmed(v1::Programmed {
        own_hash: vec![1; 16],
        ..programmed(5)
    }));
    let all = || registry.all_programmed("", 5).unwrap();
    // The kernel refused one too.
    assert_eq!((all().has_hashes, all().errors_total), (false, 2));
    assert!(session.received(refusing(0)));
    assert_eq!((all().has_hashes, all().errors_total), (true, 1));
}

#[test]
fn acknowledgements_of_revisions_that_were_not_sent_are_refused() {
    let registry = Arc::new(Registry::default());
    let session = connect(&registry, "a");
    assert!(!session.received(received(0)));
    session.sent(5);
    assert!(!session.received(received(6)));
    assert!(!session.programmed(programmed(6)));
    assert_eq!(registry.snapshot()[0].programmed, None);
}

#[test]
fn a_newer_stream_ends_the_older_and_states_anew_what_the_kernel_has() {
    let registry = Arc::new(Registry::default());
    let old = connect(&registry, "a");
    old.sent(5);
    old.programmed(programmed(5));
    let new = connect(&registry, "a");
    assert!(old.is_replaced() && !new.is_replaced());
    old.sent(6);
    drop(old);
    let status = registry.snapshot().remove(0);
    assert!(status.connected);
    assert_eq!((status.sent, status.programmed), (None, None));
    assert_eq!(status.sessions, 2);
    assert_eq!(registry.counters().replaced, 1);
    // A restarted agent may program nothing.
    assert_eq!(registry.all_programmed("", 5), None);
    new.sent(6);
    assert!(new.programmed(programmed(5)));
    assert!(registry.all_programmed("", 5).is_some());
    assert_eq!(registry.snapshot()[0].programmed, Some(5));
}

#[test]
fn disconnected_nodes_are_kept_up_to_a_bound() {
    let registry = Arc::new(Registry::default());
    for index in 0..MAX_DISCONNECTED + 10 {
        connect(&registry, &format!("{index:06}"));
    }
    let live = connect(&registry, "000010");
    let nodes = registry.snapshot();
    assert_eq!(nodes.len(), MAX_DISCONNECTED);
    assert_eq!(nodes[0].node, "000010");
    assert!(nodes[0].connected && nodes[0].disconnected_at_ms.is_none());
    assert!(!nodes[1].connected && nodes[1].disconnected_at_ms.is_some());
    assert!(nodes.is_sorted_by(|a, b| a.node < b.node));
    drop(live);
}

/// A report about one load balancer with these backends.
fn health(backends: u32) -> v1::Health {
    let key = v1::RecordKey {
        service: "svc".to_owned(),
        ..v1::RecordKey::default()
    };
    let backend = |ip| v1::BackendHealth {
        address: Some(v1::backend_health::Address::V4(ip)),
        ..v1::BackendHealth::default()
    };
    let record = v1::RecordHealth {
        key: Some(key),
        backends: (0..backends).map(backend).collect(),
        ..v1::RecordHealth::default()
    };
    v1::Health {
        put: vec![record],
        ..v1::Health::default()
    }
}

#[test]
fn health_of_disconnected_nodes_is_kept_up_to_a_bound() {
    let registry = Arc::new(Registry::default());
    registry.lock().disconnected = Disconnected::keeping(10);
    let report = |name, backends| {
        let session = connect(&registry, name);
        session.health_reported(health(backends));
        session
    };
    let kept = || {
        let all = registry.backend_health().into_iter();
        all.map(|health| health.node).collect::<Vec<_>>()
    };
    for name in ["a", "b", "c"] {
        drop(report(name, 4));
    }
    assert_eq!(kept(), ["b", "c"]);
    // What a connected node has reported does not count.
    let large = report("b", 30);
    drop(report("d", 4));
    assert_eq!(kept(), ["b", "c", "d"]);
    drop(large);
    assert_eq!(kept(), ["d"]);
    // Other facts about them are kept.
    assert_eq!(registry.snapshot().len(), 4);
    // Nodes that come and go do not use the room up.
    for _ in 0..10 {
        drop(report("d", 4));
        drop(report("e", 4));
    }
    assert_eq!(kept(), ["d", "e"]);
}

#[test]
fn held_deletions_end_by_received_alone() {
    let registry = Arc::new(Registry::default());
    let session = connect(&registry, "a");
    session.sent(5);
    let held = v1::Received {
        held: Some(v1::Held::default()),
        ..received(5)
    };
    assert!(session.received(held));
    assert!(session.programmed(programmed(5)));
    assert!(registry.snapshot()[0].held.is_some());
    assert_eq!(registry.confirm(&node("a")), Ok(5));
    assert!(session.received(received(5)));
    assert!(registry.snapshot()[0].held.is_none());
    assert_eq!(registry.confirm(&node("a")), Err(Unconfirmed::NothingHeld));
}

#[test]
fn only_a_table_that_is_held_on_a_live_stream_can_be_confirmed() {
    let registry = Arc::new(Registry::default());
    assert_eq!(registry.confirm(&node("a")), Err(Unconfirmed::Unknown));
    let session = connect(&registry, "a");
    session.sent(5);
    assert!(session.received(received(5)));
    assert_eq!(registry.confirm(&node("a")), Err(Unconfirmed::NothingHeld));
    let held = Some(v1::Held::default());
    assert!(session.received(v1::Received {
        held,
        ..received(5)
    }));
    assert_eq!(session.take_confirmed(), None);
    assert_eq!(registry.confirm(&node("a")), Ok(5));
    assert_eq!(session.take_confirmed(), Some(5));
    assert_eq!(session.take_confirmed(), None);
    drop(session);
    assert_eq!(registry.confirm(&node("a")), Err(Unconfirmed::Disconnected));
}
