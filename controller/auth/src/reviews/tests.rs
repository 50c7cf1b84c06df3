// SPDX-License-Identifier: Apache-2.0

use std::future::Future as _;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use tokio::time::advance;

use super::*;

const PERIOD: Duration = Duration::from_secs(600);
const SECOND: Duration = Duration::from_secs(1);
const HOUR: Duration = Duration::from_secs(3_600);

fn reviews() -> Arc<Reviews> {
    Reviews::new(PERIOD)
}

/// A stream of a node whose token is the node's name.
fn begin(reviews: &Arc<Reviews>, node: &str) -> Reviewed {
    reviews.watch(node, node, HOUR).unwrap()
}

/// Takes the turn that is due now, if there is one.
fn now(reviews: &Reviews) -> Option<Due> {
    reviews.lock().take_due(Instant::now(), PERIOD).ok()
}

fn node(reviews: &Reviews) -> Option<String> {
    now(reviews).map(|due| due.node().to_owned())
}

fn is_revoked(stream: &Reviewed) -> bool {
    stream.revoked.is_cancelled()
}

/// Number of entries. Asserts that the queue has the same.
fn known(reviews: &Reviews) -> usize {
    let state = reviews.lock();
    assert_eq!(state.queue.len(), state.entries.len());
    let entries = state.entries.iter();
    assert!(
        entries
            .map(|(id, entry)| (entry.due, *id))
            .all(|at| state.queue.contains(&at))
    );
    state.entries.len()
}

#[tokio::test(start_paused = true)]
async fn each_token_has_its_turn_once_in_a_period_and_the_oldest_is_first() {
    let reviews = reviews();
    let mut streams = Vec::new();
    for name in ["c", "a", "b"] {
        streams.push(begin(&reviews, name));
        advance(SECOND).await;
    }
    // No turn was taken until now: all three are due.
    for name in ["c", "a", "b"] {
        assert_eq!(node(&reviews).as_deref(), Some(name));
        advance(SECOND).await;
    }
    assert_eq!(node(&reviews), None);
    advance(PERIOD - 3 * SECOND + SECOND / 2).await;
    streams.push(begin(&reviews, "d"));
    for name in ["c", "d"] {
        assert_eq!(node(&reviews).as_deref(), Some(name));
    }
    assert_eq!(node(&reviews), None);
    let start = Instant::now();
    assert_eq!(reviews.next().await.node(), "a");
    assert_eq!(start.elapsed(), SECOND / 2);
}

#[tokio::test(start_paused = true)]
async fn a_new_stream_wakes_who_waits_for_a_turn() {
    let reviews = reviews();
    let mut next = pin!(reviews.next());
    let mut task = Context::from_waker(Waker::noop());
    assert!(next.as_mut().poll(&mut task).is_pending());
    let _stream = begin(&reviews, "a");
    let Poll::Ready(due) = next.poll(&mut task) else {
        panic!("not woken");
    };
    assert_eq!((due.node(), &*due.token()), ("a", "a"));
    let shown = format!("{due:?} {reviews:?}");
    assert!(!shown.contains("token"), "{shown}");
}

#[tokio::test(start_paused = true)]
async fn tokens_without_a_stream_are_forgotten_without_a_review() {
    let reviews = reviews();
    drop(begin(&reviews, "a"));
    assert_eq!((known(&reviews), node(&reviews)), (0, None));
    // Two streams of an agent share a token.
    let (tables, names) = (begin(&reviews, "b"), begin(&reviews, "b"));
    assert_eq!(node(&reviews).as_deref(), Some("b"));
    drop(tables);
    advance(PERIOD).await;
    assert_eq!(node(&reviews).as_deref(), Some("b"));
    drop(names);
    // A token that comes back at once has no turn before its time.
    drop(begin(&reviews, "b"));
    assert_eq!((known(&reviews), node(&reviews)), (1, None));
    let back = begin(&reviews, "b");
    advance(PERIOD).await;
    assert_eq!(node(&reviews).as_deref(), Some("b"));
    drop(back);
    advance(PERIOD).await;
    assert_eq!((node(&reviews), known(&reviews)), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn only_a_revoked_token_ends_its_streams() {
    let reviews = reviews();
    let streams = [begin(&reviews, "a"), begin(&reviews, "a")];
    advance(SECOND).await;
    let other = begin(&reviews, "b");
    for verdict in [Verdict::Good, Verdict::Unknown] {
        let due = now(&reviews).unwrap();
        assert_eq!(due.node(), "a");
        assert!(!reviews.report(&due, verdict), "no news");
        assert!(!streams.iter().any(is_revoked), "{verdict:?}");
        advance(SECOND).await;
        assert_eq!(node(&reviews).as_deref(), Some("b"));
        advance(PERIOD).await;
    }
    let due = now(&reviews).unwrap();
    assert_eq!(due.node(), "a");
    assert!(reviews.report(&due, Verdict::Revoked));
    assert!(!reviews.report(&due, Verdict::Revoked));
    assert!(streams.iter().all(is_revoked) && !is_revoked(&other));
    assert_eq!(known(&reviews), 2);
}

/// Takes the turn of the only token, and reports it as revoked.
fn revoke(reviews: &Reviews) {
    reviews.report(&now(reviews).unwrap(), Verdict::Revoked);
}

fn comes_back(reviews: &Arc<Reviews>) -> bool {
    reviews.watch("a", "a", HOUR).is_some()
}

#[tokio::test(start_paused = true)]
async fn a_revoked_token_lets_nobody_in_before_a_review_finds_it_good() {
    let reviews = reviews();
    let stream = begin(&reviews, "a");
    revoke(&reviews);
    drop(stream);
    assert!(!comes_back(&reviews));
    // The next review is not at once, and presenting the token often does not delay it.
    assert_eq!(node(&reviews), None);
    for _ in 0..APPEAL.as_secs() {
        advance(SECOND).await;
        assert!(!comes_back(&reviews));
    }
    let due = now(&reviews).unwrap();
    assert!(!comes_back(&reviews), "while it is asked about");
    reviews.report(&due, Verdict::Unknown);
    assert!(!comes_back(&reviews));
    assert_eq!(node(&reviews), None);
    advance(APPEAL).await;
    reviews.report(&now(&reviews).unwrap(), Verdict::Good);
    let back = reviews.watch("a", "a", HOUR).unwrap();
    assert!(!is_revoked(&back));
    assert_eq!(node(&reviews), None, "before its next turn");
    advance(PERIOD).await;
    assert_eq!(node(&reviews).as_deref(), Some("a"));
}

#[tokio::test(start_paused = true)]
async fn revoked_tokens_are_remembered_until_they_expire() {
    let reviews = reviews();
    let stream = begin(&reviews, "a");
    let due = now(&reviews).unwrap();
    // The result arrives after the end of the stream.
    drop(stream);
    reviews.report(&due, Verdict::Revoked);
    for _ in 0..6 {
        assert!(!comes_back(&reviews));
        advance(PERIOD - SECOND).await;
        // One review for each time that it is presented.
        assert_eq!(node(&reviews).as_deref(), Some("a"));
        assert_eq!(node(&reviews), None);
    }
    advance(Duration::from_secs(6 + 30)).await;
    assert_eq!((node(&reviews), known(&reviews)), (None, 0));
}

#[tokio::test(start_paused = true)]
async fn expired_tokens_are_not_reviewed() {
    let reviews = reviews();
    let soon = reviews.watch("a", "a", PERIOD).unwrap();
    assert_eq!(node(&reviews).as_deref(), Some("a"));
    advance(PERIOD).await;
    assert_eq!((node(&reviews), known(&reviews)), (None, 1));
    advance(Duration::from_secs(30)).await;
    assert_eq!((node(&reviews), known(&reviews)), (None, 0));
    drop(soon);
    let _lasting = reviews.watch("b", "b", Duration::MAX).unwrap();
    assert_eq!(node(&reviews).as_deref(), Some("b"));
}
