// SPDX-License-Identifier: Apache-2.0

use portolan_federate::state::FULL;
use portolan_source::lease::{Board, LONGEST_NOTE};
use tokio::sync::watch;
use tokio::time::advance;

use super::*;
use crate::clusters::Decided;
use crate::mcs::{Leading, Works};

/// A replica, whose Lease is in the hands of the test.
struct Replica {
    federated: Federated,
    pipeline: Pipeline,
    board: Board,
    leading: watch::Sender<bool>,
}

impl Replica {
    /// One with an empty state directory.
    fn new(is_leading: bool) -> Self {
        let (leading, told) = watch::channel(is_leading);
        let board = Board::default();
        let planner = McsPlanner::new(Works::default(), Leading::sharing(told, board.clone()));
        let (sources, states) = Default::default();
        let (saved, saver) = Default::default();
        let mut replica = Self {
            federated: Federated::new(sources, states, saved, saver, planner, None),
            pipeline: Pipeline::default(),
            board,
            leading,
        };
        let objects = policy(&["eu-1", "us-1"]);
        let (federated, pipeline) = (&mut replica.federated, &mut replica.pipeline);
        federated.take_policies(pipeline, objects, true);
        replica
    }

    fn tick(&mut self) {
        self.federated.tick(&mut self.pipeline, &BTreeSet::new());
    }

    /// Time in which the Lease is renewed. Returns the text in it.
    fn renew(&mut self) -> Arc<str> {
        self.tick();
        let (text, urgent) = self.board.told();
        self.board.wrote(urgent);
        text.unwrap()
    }

    fn drain(&mut self, drain: Option<Drain>) -> Result<(), DrainError> {
        let drained = self.federated.drain("eu-1", drain);
        self.tick();
        drained
    }

    /// Takes a text that another replica has written.
    fn read(&mut self, text: &Arc<str>) {
        self.board.read(Some(Arc::clone(text)));
        self.tick();
    }

    /// Reads the Lease each second, for a while.
    async fn pass(&mut self, seconds: u64, text: Option<&Arc<str>>) {
        for _ in 0..seconds {
            advance(TICK).await;
            self.board.read(text.cloned());
            self.tick();
        }
    }

    /// The only problem with what replicas share.
    fn problem(&self) -> &str {
        let problems: Vec<&String> = self.federated.problems().collect();
        assert_eq!(problems.len(), 1, "{problems:?}");
        problems[0]
    }

    /// The step of `eu-1`.
    fn step(&self) -> u8 {
        self.federated.fleet.status("eu-1").unwrap().step
    }
}

/// A drain of the whole share, at once.
fn all() -> Option<Drain> {
    Some(Drain {
        to: 0,
        over: Duration::ZERO,
    })
}

#[test]
fn a_replica_without_state_shows_the_drain_of_the_one_that_leads_and_leads_on_with_it() {
    let mut first = Replica::new(true);
    first.renew();
    assert_eq!(first.drain(all()), Ok(()));
    let text = first.renew();
    assert_eq!(first.step(), 0);

    let mut second = Replica::new(false);
    second.board.read(Some(text));
    second.tick();
    assert_eq!(second.step(), 0);
    assert!(second.federated.drains.contains_key("eu-1"));
    // The first one is gone.
    second.leading.send_replace(true);
    for _ in 0..3 {
        let text = second.renew();
        assert_eq!(second.step(), 0);
        assert_eq!(Decided::read(&text).unwrap().drains.len(), 1);
    }
    assert_eq!(second.drain(None), Ok(()));
    assert!(second.federated.drains.is_empty());
}

#[test]
fn a_replica_that_follows_refuses_drains() {
    let mut first = Replica::new(true);
    let text = first.renew();
    let mut second = Replica::new(false);
    second.board.read(Some(text));
    let refused = Err(DrainError::Follows("eu-1".into()));
    assert_eq!(second.drain(all()), refused);
    assert_eq!(second.step(), FULL);
    let unknown = second.federated.drain("xx", None);
    assert_eq!(unknown, Err(DrainError::NoCluster("xx".into())));
}

#[test]
fn a_replica_that_has_read_nothing_or_has_no_lease_decides_for_itself() {
    let mut alone = Replica::new(false);
    assert_eq!(alone.drain(all()), Ok(()));
    assert_eq!(alone.step(), 0);
    assert_eq!(alone.board.told().0, None);

    let mut federated = resumed(Saved::default(), Saver::default());
    let mut pipeline = Pipeline::default();
    federated.take_policies(&mut pipeline, policy(&["eu-1"]), true);
    federated.drain("eu-1", all()).unwrap();
    federated.tick(&mut pipeline, &BTreeSet::new());
    assert_eq!(federated.fleet.status("eu-1").unwrap().step, 0);
}

#[test]
fn a_text_that_cannot_be_read_changes_nothing_and_is_a_problem() {
    let mut first = Replica::new(true);
    first.renew();
    first.drain(all()).unwrap();
    let text = first.renew();
    let mut second = Replica::new(false);
    second.board.read(Some(text));
    second.tick();
    second.board.read(Some("no JSON".into()));
    second.tick();
    assert_eq!(second.step(), 0);
    assert!(second.federated.has_other_problems());
    assert!(!second.federated.has_other_problems());
    let problems: Vec<&String> = second.federated.problems().collect();
    assert!(
        problems[0].contains("cannot be read, and what was in force stays"),
        "{problems:?}"
    );
    second.board.read(Some(first.renew()));
    second.tick();
    assert_eq!(second.federated.problems().count(), 0);
}

#[test]
fn a_leader_decides_nothing_more_before_its_last_decision_is_in_the_lease() {
    let mut replica = Replica::new(true);
    replica.tick();
    assert!(replica.board.is_pending());
    assert_eq!(replica.drain(all()), Ok(()));
    replica.tick();
    assert_eq!(replica.step(), FULL);
    replica.renew();
    replica.tick();
    assert_eq!(replica.step(), 0);
}

#[test]
fn a_leader_whose_lease_is_taken_keeps_its_steps_until_it_reads_others() {
    let mut replica = Replica::new(true);
    replica.renew();
    replica.drain(all()).unwrap();
    replica.renew();
    replica.leading.send_replace(false);
    replica.tick();
    assert_eq!(replica.step(), 0);
    let refused = Err(DrainError::Follows("eu-1".into()));
    assert_eq!(replica.drain(None), refused);
    let text = Replica::new(true).renew();
    replica.board.read(Some(text));
    replica.tick();
    assert_eq!(replica.step(), FULL);
    assert!(replica.federated.drains.is_empty());
}

/// Replicas of which the first one leads and has drained a cluster, and the second one follows.
fn drained() -> [Replica; 2] {
    let mut first = Replica::new(true);
    first.renew();
    first.drain(all()).unwrap();
    let mut second = Replica::new(false);
    second.read(&first.renew());
    assert_eq!(second.step(), 0);
    [first, second]
}

fn refused() -> Result<(), DrainError> {
    Err(DrainError::Follows("eu-1".into()))
}

#[test]
fn a_replica_is_told_that_nothing_is_shared_when_a_lease_has_no_room_for_it() {
    let [mut first, mut second] = drained();
    let long: Arc<str> = "x".repeat(LONGEST_NOTE).into();
    let drains = &mut first.federated.drains;
    drains.extend(all().map(|drain| (Arc::clone(&long), drain)));
    let text = first.renew();
    assert_eq!(&*text, "");
    assert!(first.problem().contains("are not told"));
    second.read(&text);
    assert!(second.problem().contains("tells nothing"));
    assert_eq!(second.step(), 0, "as it was");
    assert_eq!(second.drain(None), Ok(()));

    first.federated.drains.remove(&long);
    first.tick();
    assert!(first.board.is_pending(), "it is told at once");
    second.read(&first.renew());
    assert_eq!(second.drain(None), refused());
    assert!(second.federated.drains.contains_key("eu-1"));
    for replica in [first, second] {
        assert_eq!(replica.federated.problems().count(), 0);
    }
}

#[test]
fn the_text_of_a_lease_that_was_restored_replaces_no_later_one() {
    let mut first = Replica::new(true);
    let old = first.renew();
    first.drain(all()).unwrap();
    let mut second = Replica::new(false);
    second.read(&first.renew());
    second.read(&old);
    assert_eq!(second.step(), 0);
    assert!(second.problem().contains("is older"));
    // Its holder is gone, and this replica takes the Lease as it is.
    second.board.read(Some(Arc::clone(&old)));
    second.leading.send_replace(true);
    second.tick();
    assert_eq!(second.step(), 0);
    assert!(second.board.is_pending(), "it is told at once");
    let text = second.renew();
    assert_eq!(Decided::read(&text).unwrap().drains.len(), 1);
    assert_eq!(second.federated.problems().count(), 0);
    // A text of an earlier version has no order, and counts.
    let mut earlier: serde_json::Value = serde_json::from_str(&old).unwrap();
    earlier.as_object_mut().unwrap().remove("order").unwrap();
    first.leading.send_replace(false);
    first.read(&text);
    first.read(&earlier.to_string().into());
    assert_eq!(first.step(), FULL);
    assert!(first.federated.drains.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_text_that_is_renewed_no_more_counts_for_a_while() {
    let [mut first, mut second] = drained();
    // The API server is away: all stays as it is.
    for _ in 0..100 {
        advance(TICK).await;
        second.tick();
    }
    assert_eq!(second.drain(None), refused());
    second.read(&first.renew());
    // A replica of an earlier version leads.
    second.pass(29, None).await;
    assert_eq!(second.drain(None), refused());
    second.pass(2, None).await;
    assert!(second.problem().contains("tells nothing"));
    assert_eq!(second.step(), 0, "as it was");
    assert_eq!(second.drain(None), Ok(()));
    second.read(&first.renew());
    assert_eq!(second.federated.problems().count(), 0);
    assert_eq!(second.drain(None), refused());
}

/// A replica that follows, and a text from before the last one that it has read.
fn with_older_text() -> (Replica, Arc<str>) {
    let mut first = Replica::new(true);
    let old = first.renew();
    let mut second = Replica::new(false);
    second.read(&first.renew());
    (second, old)
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_clock_is_behind_is_followed_after_a_while() {
    let (mut second, old) = with_older_text();
    second.pass(29, Some(&old)).await;
    assert!(second.problem().contains("is older"));
    second.pass(3, Some(&old)).await;
    assert_eq!(second.federated.problems().count(), 0);
    assert_eq!(second.drain(None), refused());
}

#[tokio::test(start_paused = true)]
async fn a_leader_whose_clock_is_behind_is_followed_after_one_that_told_nothing() {
    let (mut second, old) = with_older_text();
    second.read(&"".into());
    second.pass(29, Some(&old)).await;
    assert_eq!(second.drain(None), Ok(()), "it decides for itself");
    second.pass(3, Some(&old)).await;
    assert_eq!(second.federated.problems().count(), 0);
    assert_eq!(second.drain(None), refused());
}

#[tokio::test(start_paused = true)]
async fn a_text_that_cannot_be_read_is_no_problem_once_nothing_is_told() {
    let mut replica = Replica::new(false);
    replica.read(&"{".into());
    assert!(replica.problem().contains("cannot be read"));
    replica.pass(31, None).await;
    let problems: Vec<&String> = replica.federated.problems().collect();
    assert!(
        !problems
            .iter()
            .any(|problem| problem.contains("cannot be read")),
        "{problems:?}"
    );
}

#[test]
fn a_replica_that_leads_no_more_has_told_nobody_too_little() {
    let [mut first, _] = drained();
    let long: Arc<str> = "x".repeat(LONGEST_NOTE).into();
    let drains = &mut first.federated.drains;
    drains.extend(all().map(|drain| (Arc::clone(&long), drain)));
    first.renew();
    assert!(first.problem().contains("are not told"));
    first.leading.send_replace(false);
    first.tick();
    assert_eq!(first.federated.problems().count(), 0);
}
