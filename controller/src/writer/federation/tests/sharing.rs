// SPDX-License-Identifier: Apache-2.0

use portolan_federate::state::FULL;
use portolan_source::lease::Board;
use tokio::sync::watch;

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
