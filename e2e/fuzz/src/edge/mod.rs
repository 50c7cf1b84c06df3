// SPDX-License-Identifier: Apache-2.0

//! The fuzz target of edge controllers: the objects that the centre receives, and the work and plans that an edge does.
//!
//! Invariants: a commit takes in what an independent ledger of the hashes expects, and nothing otherwise. An object that
//! was taken in is the same after it was encoded again. Plans are the same after they were saved.

mod ledger;
mod seeds;

use std::sync::Arc;

use portolan_edge::plans::{PlanInbox, Plans};
use portolan_edge::wire;
use portolan_edge::work::WorkInbox;
use portolan_edge::{Limits, Partition};
use portolan_proto::v1;
use prost::Message as _;
use v1::centre_message::Message as Told;
use v1::edge_message::Message as Said;

use self::ledger::{ITEM_KEY, Ledger, OBJECT_KEY, PLAN_KEY};
use crate::input::Pieces;

pub use seeds::seeds;

/// The first byte of a message: who sends it.
pub mod side {
    /// An `EdgeMessage` follows.
    pub const EDGE: u8 = b'e';
    /// A `CentreMessage` follows.
    pub const CENTRE: u8 = b'c';
}

/// Small enough for inputs to reach them.
const LIMITS: Limits = Limits {
    objects: 32,
    endpoints: 64,
    bytes: 8 << 10,
    staged_bytes: 8 << 10,
};

/// Outcome of an input.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// Objects that the centre took in.
    pub objects: usize,
    /// Objects, writes and plans that were refused.
    pub refused: usize,
    /// Writes that the edge is asked for.
    pub writes: usize,
    /// Plans that the edge has.
    pub plans: usize,
    /// Streams that ended with an error.
    pub ended: usize,
}

/// Runs an input.
///
/// # Panics
/// If an invariant is violated.
pub fn check(input: &[u8]) -> Outcome {
    let mut run = Run::default();
    for piece in Pieces(input) {
        match piece.split_first() {
            Some((&side::EDGE, bytes)) => {
                let message = v1::EdgeMessage::decode(bytes).unwrap_or_default();
                message.message.into_iter().for_each(|it| run.edge(it));
            }
            Some((&side::CENTRE, bytes)) => {
                let message = v1::CentreMessage::decode(bytes).unwrap_or_default();
                message.message.into_iter().for_each(|it| run.centre(it));
            }
            _ => {}
        }
    }
    run.outcome.plans = run.plans.plans().len();
    run.outcome
}

struct Run {
    cluster: Arc<str>,
    partition: Partition,
    objects: Ledger,
    is_listed: bool,
    work: WorkInbox,
    items: Ledger,
    work_number: u64,
    plans: PlanInbox,
    planned: Ledger,
    plan_number: u64,
    outcome: Outcome,
}

impl Default for Run {
    fn default() -> Self {
        let cluster: Arc<str> = "eu-1".into();
        Self {
            partition: Partition::new(Arc::clone(&cluster), LIMITS),
            cluster,
            objects: Ledger::new(OBJECT_KEY),
            is_listed: false,
            work: WorkInbox::default(),
            items: Ledger::new(ITEM_KEY),
            work_number: 0,
            plans: PlanInbox::default(),
            planned: Ledger::new(PLAN_KEY),
            plan_number: 0,
            outcome: Outcome::default(),
        }
    }
}

impl Run {
    fn edge(&mut self, message: Said) {
        match message {
            Said::Objects(part) => {
                self.objects.stage::<v1::ClusterObject>(&part.put);
                self.objects.delete(&part.delete);
                self.objects.replace(&part.replace_buckets);
                if self.partition.stage(part).is_err() {
                    self.end_edge();
                }
            }
            Said::Commit(commit) => self.edge_commit(commit),
            Said::Hello(_) | Said::Alive(_) => {}
        }
    }

    fn edge_commit(&mut self, mut commit: v1::EdgeCommit) {
        // An empty hash stands for the right one, and the kind of transition that is due.
        if commit.hash.is_empty() {
            commit.hash = self.objects.hash();
            commit.listing = !self.is_listed;
        }
        let is_due = commit.listing != self.is_listed;
        let is_right = commit.hash == self.objects.hash();
        match self.partition.commit(&commit) {
            Ok(received) => {
                assert!(is_due && is_right, "a false commit was taken");
                self.is_listed = true;
                self.objects.commit();
                self.outcome.objects += received.put.len();
                self.outcome.refused += received.refused.len();
                for object in received.put {
                    let message = wire::encode(&object).expect("a kind that was sent");
                    let again = wire::decode(&message, &self.cluster);
                    assert_eq!(again, Ok(Some(object)));
                }
            }
            Err(error) => {
                let is_full = error.reason() == "quota";
                assert!(!is_due || !is_right || is_full, "refused: {error}");
                if is_due && !is_right {
                    // Everything is asked for again.
                    self.objects.clear();
                }
                self.end_edge();
            }
        }
    }

    fn end_edge(&mut self) {
        self.objects.begin(&self.partition.begin());
        self.is_listed = false;
        self.outcome.ended += 1;
    }

    fn centre(&mut self, message: Told) {
        match message {
            Told::Work(part) => {
                self.items.delete(&part.delete);
                self.items.stage::<v1::WorkItem>(&part.put);
                match self.work.stage(part) {
                    Ok(refused) => self.outcome.refused += refused.len(),
                    Err(_) => self.end_work(),
                }
            }
            Told::WorkCommit(commit) => self.work_commit(commit),
            Told::Plans(part) => {
                self.planned.stage::<v1::PlanItem>(&part.put);
                self.planned.delete(&part.delete);
                self.planned.replace(&part.replace_buckets);
                match self.plans.stage(part) {
                    Ok(refused) => self.outcome.refused += refused.len(),
                    Err(_) => self.end_plans(),
                }
            }
            Told::PlanCommit(commit) => self.plan_commit(commit),
            Told::Welcome(_) | Told::Accepted(_) | Told::Standby(_) => {}
        }
    }

    fn work_commit(&mut self, mut commit: v1::CentreWorkCommit) {
        if commit.hash.is_empty() {
            commit.hash = self.items.hash();
            commit.number = self.work_number + 1;
        }
        let is_due = commit.number == self.work_number + 1;
        let is_right = commit.hash == self.items.hash();
        match self.work.commit(&commit) {
            Ok(work) => {
                assert!(is_due && is_right, "a false commit was taken");
                self.work_number += 1;
                self.items.commit();
                self.outcome.writes = work.writes.len();
            }
            Err(error) => {
                assert!(!is_due || !is_right, "refused: {error}");
                self.end_work();
            }
        }
    }

    /// Work lives as long as its stream.
    fn end_work(&mut self) {
        self.work = WorkInbox::default();
        self.work_number = 0;
        self.items = Ledger::new(ITEM_KEY);
        self.outcome.ended += 1;
    }

    fn plan_commit(&mut self, mut commit: v1::CentrePlanCommit) {
        if commit.hash.is_empty() {
            commit.hash = self.planned.hash();
            commit.number = self.plan_number + 1;
            commit.listing = self.plan_number == 0;
        }
        let is_due = commit.number == self.plan_number + 1;
        let is_due = is_due && commit.listing == (self.plan_number == 0);
        let is_right = commit.hash == self.planned.hash();
        let before = self.plans.plans().bucket_hashes();
        match self.plans.commit(&commit) {
            Ok(_) => {
                assert!(is_due && is_right, "a false commit was taken");
                self.plan_number += 1;
                self.planned.commit();
                saved(self.plans.plans());
            }
            Err(error) => {
                assert!(!is_due || !is_right, "refused: {error}");
                assert_eq!(self.plans.plans().bucket_hashes(), before);
                self.end_plans();
            }
        }
    }

    fn end_plans(&mut self) {
        let plans = std::mem::take(&mut self.plans).into_plans();
        self.planned.begin(&plans.bucket_hashes());
        self.plans = PlanInbox::new(plans);
        self.plan_number = 0;
        self.outcome.ended += 1;
    }
}

/// Checks that plans are the same after they were saved.
fn saved(plans: &Plans) {
    let (again, _) = Plans::from_bytes(plans.to_bytes()).expect("what was saved");
    assert_eq!(again.bucket_hashes(), plans.bucket_hashes());
    // Of a plan that is refused the last good version too.
    assert!(again.since(plans).is_empty(), "other plans were read");
}
