// SPDX-License-Identifier: Apache-2.0

//! Decisions that depend on time: of one replica, and the same at all of them.
//!
//! With an election the replica that leads decides on the steps of clusters and their drains, and tells them in the
//! Lease. The others show what it has told, and decide nothing. One that begins to lead goes on from there.
//!
//! An empty text says that nothing is shared, and each replica decides for itself. The same holds after a while in
//! which the Lease was renewed without a text.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use portolan_federate::Moment;
use portolan_federate::state::{LONGEST_TICK, Phase, SILENCE, Transition};
use portolan_policy::Drain;
use portolan_select::Pipeline;
use portolan_source::lease::{Board, LONGEST_NOTE};
use tokio::time::Instant;

use super::{Federated, TICK, now};
use crate::clusters::Decided;

/// Reason why an operator's drain is refused; each has the cluster's name.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DrainError {
    /// The policy has no such cluster.
    #[error("cluster {0}: no Cluster has this name")]
    NoCluster(String),
    /// The policy drains the cluster.
    #[error("Cluster {0}: spec.drain of the policy holds; change it there")]
    InPolicy(String),
    /// Another replica decides.
    #[error(
        "cluster {0}: nothing is done, since this replica does not lead; the one that leads decides"
    )]
    Follows(String),
}

/// State of a replica about what replicas share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// The last decisions that were read or told; `None` before the first ones.
    last: Option<Decided>,
    /// The order of the latest text that was read or told; 0 before the first one. A text before that is from a backup
    /// of the Lease, or of a replica whose clock is behind, and counts as none.
    order: u64,
    /// Time since the last text that counts, as far as the Lease could be read.
    stale: Duration,
    /// `true` if this replica led at the last tick.
    led: bool,
    /// All that is wrong; `is_news` until it is logged.
    problems: Vec<String>,
    is_news: bool,
    /// The reason if the last text could not be read.
    unread: Option<String>,
    /// The reason if the last decisions could not be told.
    untold: Option<String>,
    /// `true` if the replica that leads shares nothing.
    is_unshared: bool,
}

/// The part of a replica in decisions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// It decides for itself: there is no election, or nobody tells anything.
    Alone,
    /// It decides for all.
    Leads,
    /// It decides for all, and nothing more before its last decision is in the Lease: a replica that takes over would
    /// go back.
    Waits,
    /// It shows what another one decided, or what it decided itself when it led.
    Follows,
}

impl Shared {
    pub(super) fn problems(&self) -> impl Iterator<Item = &String> {
        self.problems.iter()
    }
}

impl Federated {
    /// Drains a cluster, or ends that.
    ///
    /// # Errors
    /// If there is no such cluster, its policy has a drain, or another replica decides.
    pub(in crate::writer) fn drain(
        &mut self,
        name: &str,
        drain: Option<Drain>,
    ) -> Result<(), DrainError> {
        // First, since drains that are read now take the place of those here.
        let part = self.part(now());
        let Some(cluster) = self.objects.clusters.get(name) else {
            return Err(DrainError::NoCluster(name.to_owned()));
        };
        if cluster.drain.is_some() {
            return Err(DrainError::InPolicy(name.to_owned()));
        }
        if part == Part::Follows {
            return Err(DrainError::Follows(name.to_owned()));
        }
        match drain {
            Some(drain) => _ = self.drains.insert(name.into(), drain),
            None => _ = self.drains.remove(name),
        }
        self.saver.drains(&self.drains);
        self.settle();
        Ok(())
    }

    /// Lets time pass: contact, loss, return, drains.
    pub(in crate::writer) fn tick(&mut self, pipeline: &mut Pipeline, synced: &BTreeSet<Arc<str>>) {
        let ticked = Instant::now();
        let since = self.ticked.replace(ticked).map(|last| ticked - last);
        let since = since.unwrap_or(TICK);
        self.waited += since.min(LONGEST_TICK);
        let heard = self.heard(ticked, since);
        let now = now();
        self.age(since);
        let part = self.part(now);
        for name in heard {
            if let Some(cluster) = self.objects.clusters.get(&*name) {
                self.fleet.contact(&cluster.id, synced.contains(&name), now);
            }
        }
        match part {
            Part::Alone | Part::Leads => log(&self.fleet.advance(now, self.loss.mass_loss)),
            // The time counts at the next tick.
            Part::Waits => {}
            Part::Follows => self.follow(now),
        }
        if part == Part::Leads {
            self.share(now);
        }
        self.find_problems(part);
        self.tell(pipeline, synced);
    }

    /// Notes the time without a text. As long as the Lease cannot be read, all stays as it is.
    fn age(&mut self, since: Duration) {
        let silence = self.mcs.board().and_then(Board::silence);
        if silence.is_some_and(|silence| silence < LONGEST_TICK) {
            self.shared.stale += since.min(LONGEST_TICK);
        }
    }

    /// The part of this replica now. What another one has decided since is taken over first.
    fn part(&mut self, now: Moment) -> Part {
        // In this order: a replica that leads has read by then what the one before it decided.
        let is_leading = self.mcs.is_leading();
        let Some(board) = self.mcs.board().cloned() else {
            return Part::Alone;
        };
        if let Some(text) = board.take() {
            self.take_decided(&text, now);
        }
        if is_leading {
            self.shared.stale = Duration::ZERO;
            self.shared.is_unshared = false;
        } else if self.shared.stale >= SILENCE {
            if self.shared.last.is_some() {
                self.unshare();
            }
            self.shared.unread = None;
            // The clock of the one that leads may be far behind.
            self.shared.order = 0;
        }
        if !is_leading {
            self.shared.untold = None;
        }
        if is_leading && !self.shared.led && self.shared.last.is_some() {
            self.fleet.take_over();
        }
        self.shared.led = is_leading;
        match is_leading {
            true if board.is_pending() => Part::Waits,
            true => Part::Leads,
            false if self.shared.last.is_some() => Part::Follows,
            false => Part::Alone,
        }
    }

    /// Decides for itself from now on, beginning with what was in force.
    fn unshare(&mut self) {
        if self.shared.last.take().is_some() {
            self.fleet.take_over();
        }
        self.shared.is_unshared = true;
        self.shared.unread = None;
    }

    /// Takes what another replica decided. A text that cannot be read changes nothing, nor does one that is older than
    /// what is known.
    fn take_decided(&mut self, text: &str, now: Moment) {
        if text.is_empty() {
            return self.unshare();
        }
        let mut decided = match Decided::read(text) {
            Ok(decided) => decided,
            Err(error) => {
                self.shared.unread = Some(format!(
                    "--mcs-lease: what the leading replica decided on clusters cannot be read, and what was in force \
                     stays: {error}"
                ));
                self.shared.stale = Duration::ZERO;
                return;
            }
        };
        // One of an earlier version has no order.
        if (1..self.shared.order).contains(&decided.order) {
            self.shared.unread = Some(String::from(
                "--mcs-lease: what the Lease says on clusters is older than what was read before, as after a restore \
                 from a backup, or with a clock that is behind; what was in force stays",
            ));
            return;
        }
        self.shared.order = self.shared.order.max(decided.order);
        self.shared.stale = Duration::ZERO;
        self.shared.is_unshared = false;
        self.shared.unread = None;
        let clusters = &self.objects.clusters;
        let is_complete = self.is_complete;
        let may_be_here = |name: &str| !is_complete || clusters.contains_key(name);
        decided.drains.retain(|name, _| may_be_here(name));
        if decided.drains != self.drains {
            self.drains.clone_from(&decided.drains);
            self.saver.drains(&self.drains);
            self.settle();
        }
        self.shared.last = Some(decided);
        self.follow(now);
    }

    /// Shows the last decisions.
    fn follow(&mut self, now: Moment) {
        let Some(decided) = &mut self.shared.last else {
            return;
        };
        if self.is_complete {
            // Its Cluster is gone here already.
            let clusters = &self.objects.clusters;
            let is_here = |id: &str| clusters.values().any(|cluster| *cluster.id == *id);
            decided.statuses.retain(|id, _| is_here(id));
        }
        log(&self.fleet.follow(&decided.statuses, now));
    }

    /// Tells the other replicas what this one has decided; that nothing is shared, if a Lease has no room for it.
    fn share(&mut self, now: Moment) {
        let Some(board) = self.mcs.board() else {
            return;
        };
        // The clock orders the texts of leaders that do not know each other's.
        let clock = u64::try_from(now.0.as_micros()).unwrap_or(u64::MAX);
        let order = clock.max(self.shared.order.saturating_add(1));
        let decided = Decided {
            order,
            statuses: self.fleet.statuses(),
            drains: self.drains.clone(),
        };
        let text = decided.spell().map_err(|error| error.to_string());
        let was_told = self.shared.untold.is_none();
        // Lengths vary with the states: sharing does not end and begin with each.
        let most = match was_told {
            true => LONGEST_NOTE,
            false => LONGEST_NOTE / 10 * 9,
        };
        let text = text.and_then(|text| match text.len() <= most {
            true => Ok(text),
            false => Err(format!("a Lease has at most {LONGEST_NOTE} bytes of them")),
        });
        match text {
            Ok(text) => {
                let is_same = |last: &Decided| last.without_times() == decided.without_times();
                let is_known = self.shared.last.as_ref().is_some_and(is_same);
                // What the Lease has may be another replica's.
                let is_urgent = !is_known || !was_told || self.shared.unread.is_some();
                board.tell(&text, is_urgent);
                self.shared.untold = None;
            }
            Err(error) => {
                board.tell("", was_told);
                self.shared.untold = Some(format!(
                    "--mcs-lease: other replicas are not told the states of clusters and decide alone: {error}"
                ));
            }
        }
        self.shared.unread = None;
        self.shared.order = order;
        self.shared.last = Some(decided);
    }

    fn find_problems(&mut self, part: Part) {
        let board = self.mcs.board();
        let silence = board.map(|board| board.silence().unwrap_or(self.waited));
        let is_silent = silence.is_some_and(|silence| silence >= SILENCE);
        let silent = is_silent.then(|| {
            let meanwhile = match part {
                Part::Follows => "stay as they are",
                _ => "are those of this replica alone",
            };
            format!(
                "--mcs-lease: the Lease cannot be read; states and drains of clusters {meanwhile}"
            )
        });
        let shared = &mut self.shared;
        let unshared = shared.is_unshared.then(|| {
            String::from(
                "--mcs-lease: the replica that leads tells nothing on clusters, as one of an earlier version does, or \
                 one with too many clusters; their states and drains are those of this replica alone",
            )
        });
        let [unread, untold] = [shared.unread.clone(), shared.untold.clone()];
        let found = [silent, unread, untold, unshared];
        let problems: Vec<String> = found.into_iter().flatten().collect();
        shared.is_news |= problems != shared.problems;
        shared.problems = problems;
    }

    /// Returns `true` once after the problems with what replicas share have changed.
    pub(in crate::writer) fn has_other_problems(&mut self) -> bool {
        std::mem::take(&mut self.shared.is_news)
    }
}

fn log(changes: &[Transition]) {
    for change in changes {
        let (cluster, from, to) = (&change.cluster, change.from, change.to);
        match to {
            Phase::Stale | Phase::Lost => {
                tracing::warn!(%cluster, %from, %to, "cluster out of contact");
            }
            _ => tracing::info!(%cluster, %from, %to, "state of cluster"),
        }
    }
}
