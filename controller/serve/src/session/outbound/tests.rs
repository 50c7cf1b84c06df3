// SPDX-License-Identifier: Apache-2.0

use std::sync::OnceLock;
use std::time::SystemTime;

use portolan_tablelog::testing::{TestChange, delta, node};
use portolan_tablelog::{Publisher, Retention, TableReader};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::registry::Connect;
use crate::session::token_checks;
use crate::{Registry, ServeConfig};

/// The outbound half of a stream that has sent nothing, in the cluster `c0`.
fn outbound(tables: TableReader) -> Outbound {
    let config = ServeConfig::default();
    let registry = Arc::new(Registry::default());
    let session = registry.connect(Connect {
        node: node(0, 0),
        peer: None,
        agent_version: String::new(),
        protocol_version: 1,
        now: SystemTime::UNIX_EPOCH,
        rate: None,
    });
    let context = Context {
        snapshots: Arc::new(Semaphore::new(1)),
        token_checks: token_checks(config.token_checks),
        tables,
        registry,
        config,
        shutdown: CancellationToken::new(),
        spread: OnceLock::new(),
    };
    let hello = Hello {
        name: "n0".into(),
        scope: Scope::Node(node(0, 0)),
        version: 1,
        agent_version: String::new(),
        cluster_id: String::new(),
        have: Have::default(),
    };
    let (session, control) = (Arc::new(session.unwrap()), Arc::default());
    let inbound = Inbound::silent();
    Outbound::new(Arc::new(context), session, control, inbound, hello)
}

/// The writer forgets the cluster between a stream's look at its state and the reading of the log.
#[tokio::test]
async fn a_transition_of_a_cluster_that_leaves_meanwhile_is_not_sent() {
    let (mut publisher, tables) = Publisher::new(Retention::default());
    publisher.publish(&delta(&[TestChange::Record(0, 0, Some(0))]));
    publisher.set_synced(&"c0".into());
    let mut outbound = outbound(tables);
    outbound.position = Position::At(1);
    let before = outbound.next(0);
    publisher.withhold(&"c0".into());
    publisher.publish(&delta(&[TestChange::Record(0, 0, None)]));
    for read in [before, outbound.next(1)] {
        let Next::Deliver(delivery) = read else {
            panic!("nothing to deliver");
        };
        assert!(!outbound.deliver(delivery));
        assert!(matches!(outbound.position, Position::At(1)));
        assert!(outbound.sending.is_none());
    }
    // The next agent may have the turn.
    let mut waker = task::Context::from_waker(Waker::noop());
    assert!(!outbound.snapshot(&mut waker));
    assert_eq!(outbound.context.snapshots.available_permits(), 1);
    // It returns.
    publisher.publish(&delta(&[TestChange::Record(0, 0, Some(0))]));
    publisher.set_synced(&"c0".into());
    let Next::Deliver(delivery) = outbound.next(1) else {
        panic!("nothing to deliver");
    };
    assert!(outbound.deliver(delivery));
    assert!(matches!(outbound.position, Position::At(3)));
    assert!(outbound.sending.is_some());
}
