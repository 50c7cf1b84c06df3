// SPDX-License-Identifier: Apache-2.0

//! Relays between a controller and agents, over real connections.

#![allow(clippy::unwrap_used, reason = "a test")]

mod support;

use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_model::NodeTable;
use portolan_subscription::GuardConfig;
use portolan_tablelog::{Origin, Update};
use tokio::time::Instant;

use support::{Agent, Relay, Root, any_port, delete, directed, node, own, patiently, put, until};

fn some() -> [portolan_select::TableDelta; 3] {
    [
        put(&["x", "y", "z"], 1),
        own("a", "x", Some("east")),
        own("b", "y", Some("west")),
    ]
}

#[tokio::test]
async fn agents_of_a_relay_have_the_tables_of_the_controller_behind_it() {
    let mut root = Root::start(any_port(), &some());
    let relay = Relay::start(any_port(), &[root.server.address]);
    let mut agents =
        ["a", "b", "c"].map(|name| (name, Agent::start(name, &[relay.server.address])));
    for (name, agent) in &mut agents {
        agent.has(&root.table(name)).await;
    }
    for delta in [
        delete("x"),
        put(&["w"], 3),
        own("c", "y", Some("east")),
        own("a", "x", None),
        // Many destinations, then one more: a patch, if anything is.
        put(&["y"], 200),
        put(&["y"], 201),
    ] {
        root.publisher.publish(&delta);
        for (name, agent) in &mut agents {
            agent.has(&root.table(name)).await;
        }
    }
    let stats = &agents[0].1.stats;
    assert_eq!(stats.stream.snapshots.load(Ordering::Relaxed), 1);
    assert_eq!(stats.stream.hash_mismatches.load(Ordering::Relaxed), 0);
    assert_eq!(relay.stats.stream.snapshots.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn nothing_is_served_before_there_are_tables() {
    // A free address, for a controller that starts later.
    let root = Root::start(any_port(), &[]);
    let address = root.server.address;
    root.stop().await;
    let relay = Relay::start(any_port(), &[address]);
    let mut agent = Agent::start("a", &[relay.server.address]);
    let registry = relay.server.registry.clone();
    until("the agent connects", || registry.connected() == 1).await;
    assert!(!relay.server.tables.published().borrow().synced > 0);
    assert!(agent.has_nothing());
    let root = Root::start(address, &some());
    agent.has(&root.table("a")).await;
}

#[tokio::test]
async fn a_relay_serves_on_without_a_controller_and_goes_on_with_the_next() {
    let mut root = Root::start(any_port(), &some());
    let address = root.server.address;
    let relay = Relay::start(any_port(), &[address]);
    let mut agent = Agent::start("a", &[relay.server.address]);
    agent.has(&root.table("a")).await;
    root.publisher.publish(&put(&["last"], 2));
    agent.has(&root.table("a")).await;
    let last = root.table("b");
    root.stop().await;
    until("the relay is alone", || {
        !relay.stats.stream.connected.load(Ordering::Relaxed)
    })
    .await;
    let mut late = Agent::start("b", &[relay.server.address]);
    late.has(&last).await;

    let mut all = some().to_vec();
    all.extend([delete("z"), own("b", "y", None)]);
    let root = Root::start(address, &all);
    for (name, agent) in [("a", &mut agent), ("b", &mut late)] {
        agent.has(&root.table(name)).await;
        assert_eq!(agent.stats.stream.streams.load(Ordering::Relaxed), 1);
    }
}

#[tokio::test]
async fn an_agent_outlives_its_relay() {
    let mut root = Root::start(any_port(), &some());
    let relay = Relay::start(any_port(), &[root.server.address]);
    let address = relay.server.address;
    let mut agent = Agent::start("a", &[address]);
    agent.has(&root.table("a")).await;
    relay.stop().await;
    root.publisher.publish(&put(&["new"], 2));
    let _relay = Relay::start(address, &[root.server.address]);
    agent.has(&root.table("a")).await;

    assert_eq!(agent.stats.stream.streams.load(Ordering::Relaxed), 2);
}

/// The API server was restored while no controller ran: its versions are lower than the agents'.
#[tokio::test]
async fn agents_of_relays_take_the_tables_of_a_restored_source_at_once() {
    let from = |delta: &portolan_select::TableDelta, version| {
        Update::from(delta).from_origin(Origin::versions(&"".into(), vec![version, 3]))
    };
    let mut root = Root::start(any_port(), &[]);
    root.publisher.publish(from(&put(&["before"], 2), 9));
    let first = Relay::start(any_port(), &[root.server.address]);
    let second = Relay::start(any_port(), &[first.server.address]);
    let mut agent = Agent::start("a", &[second.server.address]);
    agent.has(&root.table("a")).await;
    let addresses = [&root.server, &first.server, &second.server].map(|server| server.address);
    second.stop().await;
    first.stop().await;
    root.stop().await;

    let mut root = Root::start(addresses[0], &[]);
    root.publisher.publish(from(&put(&["restored"], 2), 5));
    let doubts = root.publisher.source_doubts(&"".into());
    let (_first, _second) = (
        Relay::start(addresses[1], &addresses[..1]),
        Relay::start(addresses[2], &addresses[1..2]),
    );
    patiently(doubts.doubted()).await;
    doubts.stated(Instant::now(), vec![5, 3]);
    agent.has(&root.table("a")).await;
}

#[tokio::test]
async fn an_agent_that_moves_from_a_relay_to_a_controller_is_not_sent_what_it_has() {
    let root = Root::start(any_port(), &some());
    // The address of a controller that is not there yet.
    let other = Root::start(any_port(), &[]);
    let elsewhere = other.server.address;
    other.stop().await;
    let relay = Relay::start(any_port(), &[root.server.address]);
    let mut agent = Agent::start("a", &[relay.server.address, elsewhere]);
    agent.has(&root.table("a")).await;
    let mut other = Root::start(elsewhere, &some());
    relay.stop().await;
    let registry = other.server.registry.clone();
    until("it comes", || registry.counters().resumed_equal == 1).await;
    other.publisher.publish(&put(&["newer"], 2));
    agent.has(&other.table("a")).await;
    assert_eq!(agent.stats.stream.snapshots.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn relays_of_relays_serve_the_same_tables() {
    let mut root = Root::start(any_port(), &some());
    let first = Relay::start(any_port(), &[root.server.address]);
    let second = Relay::start(any_port(), &[first.server.address]);
    let mut agent = Agent::start("a", &[second.server.address]);
    agent.has(&root.table("a")).await;
    for destinations in 2..20 {
        root.publisher.publish(&put(&["x"], destinations));
        root.publisher.publish(&own("a", "z", Some("south")));
    }
    agent.has(&root.table("a")).await;
    let (ours, theirs) = (&second.server.tables, &root.server.tables);
    for name in ["a", "b", "c"] {
        assert_eq!(ours.table(&node(name)), theirs.table(&node(name)));
    }
}

#[tokio::test]
async fn a_relay_has_programmed_what_all_its_agents_have() {
    let mut root = Root::start(any_port(), &some());
    let relay = Relay::start(any_port(), &[root.server.address]);
    let mut agents = ["a", "b"].map(|name| Agent::start(name, &[relay.server.address]));
    for (name, agent) in ["a", "b"].iter().zip(&mut agents) {
        agent.has(&root.table(name)).await;
    }
    root.publisher.publish(&put(&["new"], 1));
    let revision = root.server.tables.head("");
    let registry = root.server.registry.clone();
    let status = || {
        let mut all = registry.snapshot().into_iter();
        all.find(|status| status.node == "relay/r").unwrap()
    };
    until("received", || status().received == Some(revision)).await;
    let first = agents[0].has(&root.table("a")).await;
    agents[0].program(&first);
    let ours = relay.server.registry.clone();
    let said = || {
        ours.snapshot()
            .iter()
            .any(|status| status.programmed.is_some())
    };
    until("the relay knows of the first", said).await;
    assert_eq!(ours.all_programmed("", relay.server.tables.head("")), None);
    assert!(status().programmed < Some(revision));
    let second = agents[1].has(&root.table("b")).await;
    agents[1].program(&second);
    until("programmed", || status().programmed == Some(revision)).await;
    let standing = status().standing(&root.server.tables);
    assert!(standing.records_equal && standing.own_equal);
}

fn services(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("s{n}")).collect()
}

fn all(names: &[String]) -> portolan_select::TableDelta {
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    put(&names, 1)
}

#[tokio::test]
async fn deletions_are_held_until_an_operator_confirms_and_additions_are_not() {
    let names = services(150);
    let lists = own("a", "s149", Some("east"));
    let root = Root::start(any_port(), &[all(&names), lists]);
    let address = root.server.address;
    let guard = GuardConfig {
        time: None,
        ..GuardConfig::default()
    };
    let relay = Relay::with(any_port(), &[address], guard);
    let mut agent = Agent::start("a", &[relay.server.address]);
    agent.has(&root.table("a")).await;
    let before: NodeTable = root.table("a");
    root.stop().await;
    // The controller restarts with little; the relay's agents keep all.
    let mut root = Root::start(address, &[all(&names[..10]), own("b", "s1", Some("west"))]);
    let held = || {
        let guard = &relay.stats.stream.guard;
        guard.deletions_held.load(Ordering::Relaxed)
    };
    until("deletions are held", || held() == 140).await;
    root.publisher.publish(&put(&["new"], 1));
    let registry = root.server.registry.clone();
    let head = root.server.tables.head("");
    let holds = || {
        let status = registry.snapshot().pop();
        status.is_some_and(|s| s.received == Some(head) && s.held.is_some_and(|h| h.deleted == 140))
    };
    until("the controller knows", holds).await;
    let mut expected = before.clone();
    let new = root.table("a").records;
    let (key, record) = new.iter().find(|(key, _)| &*key.service == "new").unwrap();
    expected.records.insert(key.clone(), record.clone());
    // A change of the node's facts is no deletion.
    expected.node = root.table("a").node;
    let in_force = agent.has(&expected).await;
    agent.program(&in_force);
    let programmed = || registry.snapshot().pop().unwrap().programmed == Some(head);
    until("the rest is programmed", programmed).await;
    assert_eq!(held(), 140);

    // Over another stream of the same controller, with one record back.
    root.publisher.publish(&all(&names[..11]));
    until("one returns", || held() == 139).await;
    root.stop().await;
    let mut root = Root::start(address, &[all(&names[..11]), put(&["new"], 1)]);
    root.publisher.publish(&put(&["newer"], 1));
    let newer = |relay: &Relay| {
        let table = relay.server.tables.table(&node("a"));
        table.records.keys().any(|key| &*key.service == "newer")
    };
    until("additions go on", || newer(&relay)).await;
    assert_eq!(held(), 139);
    let registry = root.server.registry.clone();
    until("the controller knows again", || {
        let status = registry.snapshot().pop();
        status.is_some_and(|status| status.held.is_some())
    })
    .await;
    registry.confirm(&node("relay/r")).unwrap();
    agent.has(&root.table("a")).await;
    assert_eq!(held(), 0);
    // It goes on with changes.
    root.publisher.publish(&delete("new"));
    agent.has(&root.table("a")).await;
    assert_eq!(
        relay.stats.stream.hash_mismatches.load(Ordering::Relaxed),
        0
    );
}

#[tokio::test]
async fn hosts_of_a_relay_keep_their_directors_until_an_operator_confirms_the_loss() {
    let root = Root::start(any_port(), &[put(&["x"], 1), directed("a")]);
    let address = root.server.address;
    let relay = Relay::start(any_port(), &[address]);
    let mut agent = Agent::start("a", &[relay.server.address]);
    let before = root.table("a");
    agent.has(&before).await;
    root.stop().await;
    // A controller of an earlier version has no Directors.
    let mut root = Root::start(address, &[put(&["x"], 1)]);
    let held = || {
        let guard = &relay.stats.stream.guard;
        guard.deletions_held.load(Ordering::Relaxed)
    };
    until("the Director is held", || held() == 1).await;
    root.publisher.publish(&put(&["new"], 1));
    let mut expected = root.table("a");
    expected.node = before.node;
    agent.has(&expected).await;
    let registry = root.server.registry.clone();
    until("the controller knows", || {
        let status = registry.snapshot().pop();
        status.is_some_and(|status| status.held.is_some())
    })
    .await;
    registry.confirm(&node("relay/r")).unwrap();
    agent.has(&root.table("a")).await;
    assert_eq!(held(), 0);
}

#[tokio::test]
async fn a_record_goes_at_once_while_a_director_is_held() {
    let root = Root::start(any_port(), &[put(&["x", "y"], 1), directed("a")]);
    let address = root.server.address;
    let relay = Relay::start(any_port(), &[address]);
    let mut agent = Agent::start("a", &[relay.server.address]);
    let before = root.table("a");
    agent.has(&before).await;
    let mut last = root;
    let held = || {
        let guard = &relay.stats.stream.guard;
        guard.deletions_held.load(Ordering::Relaxed)
    };
    // The hold goes over to the next stream, and holds no more there.
    for name in ["x", "z"] {
        last.stop().await;
        last = Root::start(address, &[put(&[name], 1)]);
        let mut expected = last.table("a");
        expected.node = before.node.clone();
        agent.has(&expected).await;
        until("the Director alone is held", || held() == 1).await;
    }
    last.stop().await;
    let root = Root::start(address, &[put(&["w"], 1), directed("a")]);
    agent.has(&root.table("a")).await;
    assert_eq!(held(), 0);
}

#[tokio::test]
async fn held_deletions_are_published_when_their_time_has_come() {
    let names = services(150);
    let root = Root::start(any_port(), &[all(&names)]);
    let address = root.server.address;
    let guard = GuardConfig {
        time: Some(Duration::from_millis(1_500)),
        ..GuardConfig::default()
    };
    let relay = Relay::with(any_port(), &[address], guard);
    let mut agent = Agent::start("a", &[relay.server.address]);
    agent.has(&root.table("a")).await;
    root.stop().await;
    let root = Root::start(address, &[all(&names[..10])]);
    until("deletions are held", || {
        let guard = &relay.stats.stream.guard;
        guard.deletions_held.load(Ordering::Relaxed) == 140
    })
    .await;
    agent.has(&root.table("a")).await;
}

#[tokio::test]
async fn a_relay_states_what_the_kernels_of_its_agents_lack() {
    let names = services(150);
    let root = Root::start(any_port(), &[all(&names)]);
    let relay = Relay::start(any_port(), &[root.server.address]);
    let mut agent = Agent::start("a", &[relay.server.address]);
    let before = root.table("a");
    agent.has(&before).await;
    let addresses = [&root.server, &relay.server].map(|server| server.address);
    relay.stop().await;
    root.stop().await;

    // The agent holds deletions, and not the relay, which has lost nothing.
    let root = Root::start(addresses[0], &[all(&names[..10])]);
    let relay = Relay::start(addresses[1], &addresses[..1]);
    let ours = &relay.server.registry;
    let holds = || ours.snapshot().iter().any(|agent| agent.held.is_some());
    until("the agent holds deletions", holds).await;
    let in_force = agent.has(&before).await;
    agent.program(&in_force);
    let head = root.server.tables.head("");
    let stated = |hash: bool, errors: u32| {
        let status = root.server.registry.snapshot().pop();
        status.is_some_and(|status| {
            let standing = status.standing(&root.server.tables);
            let has = (standing.records_equal, standing.own_equal);
            status.programmed == Some(head) && (has, status.errors_total) == ((hash, hash), errors)
        })
    };
    until("the relay states no hashes", || stated(false, 0)).await;
    ours.confirm(&node("a")).unwrap();
    let whole = agent.has(&root.table("a")).await;
    agent.program(&whole);
    until("the relay states the hashes", || stated(true, 0)).await;
    agent.program_with(&whole, &["no memory"]);
    until("the relay states the errors", || stated(true, 1)).await;
}
