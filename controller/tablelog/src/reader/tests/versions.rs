// SPDX-License-Identifier: Apache-2.0

//! Agents with later source versions than the controller's.

use std::time::Duration;

use tokio::time::Instant;

use super::*;
use crate::Origin;

#[test]
fn agents_with_later_versions_are_sent_nothing() {
    let (mut publisher, tables) = synced(Retention::default());
    let node = node(0, 0);
    let feed = tables.feed(&node.cluster);
    let from = |versions: &[u64]| Origin::versions(&node.cluster, versions.to_vec());
    publisher.publish(Update::from(&delta(&put([1], 0))).from_origin(from(&[5, 5, 5])));
    let agent = Agent {
        at: Some((1, 1)),
        ..Agent::default()
    };
    let is_behind = |versions: &[u64]| {
        let have = Have {
            source_versions: versions.to_vec(),
            ..agent.have()
        };
        matches!(
            tables.first(&feed, &Scope::from(&node), &have),
            First::Behind
        )
    };
    assert!(is_behind(&[5, 6, 5]));
    for (behind, versions) in [
        (false, &[5, 5, 5][..]),
        (false, &[]),
        (false, &[9]),
        (true, &[9, 1, 1]),
    ] {
        assert_eq!(is_behind(versions), behind, "{versions:?}");
    }
    publisher.publish(Update::from(&delta(&[])).from_origin(from(&[5, 6, 5])));
    assert!(!is_behind(&[5, 6, 5]));
}

#[tokio::test(start_paused = true)]
async fn later_versions_than_the_source_has_itself_are_from_before_a_restore() {
    let (mut publisher, tables) = synced(RETENTION);
    let node = node(0, 0);
    let feed = tables.feed(&node.cluster);
    let origin = Origin::versions(&node.cluster, vec![5, 5, 5]);
    publisher.publish(Update::from(&delta(&put([1], 0))).from_origin(origin));
    let agent = Agent {
        at: Some((1, 1)),
        ..Agent::default()
    };
    let since = Instant::now();
    let is_behind = || {
        let have = Have {
            source_versions: vec![9, 5, 7],
            since: Some(since),
            ..agent.have()
        };
        let first = tables.first(&feed, &Scope::from(&node), &have);
        matches!(first, First::Behind)
    };
    assert!(is_behind());
    feed.doubt_source();
    let doubts = publisher.source_doubts(&node.cluster);
    doubts.doubted().await;
    let raised = tables.raised();
    // The source was asked before the agent spoke: another controller may have seen more since.
    doubts.stated(since - Duration::from_secs(1), vec![6, 6, 6]);
    raised.await;
    assert!(is_behind());
    for (stated, behind) in [
        (vec![9, 9, 9], true),
        (vec![8, 8, 7], true),
        (vec![8, 8], true),
        (vec![6, 6, 6], false),
    ] {
        doubts.stated(since, stated.clone());
        assert_eq!(is_behind(), behind, "{stated:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_doubt_that_a_source_did_not_answer_is_put_to_the_next_one() {
    let (publisher, tables) = synced(RETENTION);
    let cluster = node(0, 0).cluster;
    tables.feed(&cluster).doubt_source();
    let doubts = publisher.source_doubts(&cluster);
    doubts.doubted().await;
    drop(doubts);
    let doubts = publisher.source_doubts(&cluster);
    doubts.doubted().await;
    doubts.stated(Instant::now(), vec![1, 1, 1]);
    drop(doubts);
    let doubts = publisher.source_doubts(&cluster);
    let again = tokio::time::timeout(Duration::from_secs(1), doubts.doubted());
    assert!(again.await.is_err(), "it is answered");
}
