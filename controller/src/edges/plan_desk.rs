// SPDX-License-Identifier: Apache-2.0

//! The edge's side of plans: those that replicas of the centre have sent, and those that imports are served by.
//!
//! Imports are served by the plans of one replica at a time: of those that lead, the one that said so last. Without one
//! the last plans hold, so that a cluster without its centre goes on; they are kept on disk for the next start.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_edge::plans::{PlanError, PlanInbox, Plans};
use portolan_federate::plans::PlanChanges;
use portolan_proto::v1;
use portolan_source::HoldReport;
use portolan_source::deletions::HeldLoss;
use portolan_subscription::GuardConfig;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::UplinkStats;
use super::plan_hold::PlanHold;
use super::refusals::Refusals;

/// Plans of the centre, shared by the streams to its replicas, the writer of tables, and the writer of the file.
#[derive(Debug)]
pub(crate) struct PlanDesk {
    state: Mutex<State>,
    /// Counts changes of the plans in force, and of whether they are known.
    news: watch::Sender<u64>,
    /// Losses of plans that are held.
    held: watch::Sender<Option<HeldLoss>>,
    refusals: Refusals,
    stats: Arc<UplinkStats>,
}

#[derive(Debug)]
struct State {
    /// By stream.
    streams: BTreeMap<u64, Told>,
    /// The number of the last stream, or of the last beginning of a lead.
    last: u64,
    /// The stream whose plans are in force; `None` for those of `kept`.
    holder: Option<u64>,
    /// Plans of a stream that has ended, or of the disk.
    kept: Plans,
    /// Whether anybody has said which plans there are, or that there are none.
    is_known: bool,
    hold: PlanHold,
    /// Changes that the writer of tables has not taken.
    pending: PlanChanges,
}

/// Plans that one replica has told.
#[derive(Debug, Default)]
struct Told {
    inbox: PlanInbox,
    /// Present while the replica leads: the larger, the later it began.
    leads: Option<u64>,
}

impl PlanDesk {
    /// A desk with plans of an earlier process; `None` if there are none.
    pub(super) fn new(
        saved: Option<Plans>,
        guard: GuardConfig,
        stats: Arc<UplinkStats>,
    ) -> Arc<Self> {
        stats.set_plans(saved.as_ref().map_or(0, Plans::len));
        let state = State {
            streams: BTreeMap::new(),
            last: 0,
            holder: None,
            hold: PlanHold::new(guard),
            is_known: saved.is_some(),
            pending: saved
                .as_ref()
                .map(|plans| plans.since(&Plans::default()))
                .unwrap_or_default(),
            kept: saved.unwrap_or_default(),
        };
        Arc::new(Self {
            state: Mutex::new(state),
            news: watch::Sender::default(),
            held: watch::Sender::default(),
            refusals: Refusals::new(
                Arc::clone(&stats),
                "not served for the centre (logged once)",
            ),
            stats,
        })
    }

    /// A desk without plans.
    #[cfg(test)]
    pub(crate) fn empty() -> Arc<Self> {
        Self::new(None, GuardConfig::default(), Arc::default())
    }

    /// Has it be known that there are no plans.
    #[cfg(test)]
    pub(crate) fn know(&self) {
        self.lock().is_known = true;
    }

    /// Tells of changes of the plans in force.
    pub(crate) fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// Returns `true` if it is known which plans there are: from a replica, or from an earlier
    /// process.
    pub(crate) fn is_known(&self) -> bool {
        self.lock().is_known
    }

    /// Changes of the plans in force since the last call.
    pub(crate) fn take(&self) -> PlanChanges {
        std::mem::take(&mut self.lock().pending)
    }

    /// Losses of plans that are held.
    pub(super) fn held(&self) -> watch::Receiver<Option<HeldLoss>> {
        self.held.subscribe()
    }

    /// Has imports be served by the plans of the centre, also where they lack what was before.
    pub(super) fn release(&self) {
        let mut state = self.lock();
        let released = state.hold.release();
        state.pending.extend(released);
        self.report(&state);
        drop(state);
        self.told();
    }

    fn report(&self, state: &State) {
        let held = state.hold.held();
        self.held.send_if_modified(|before| {
            let has_changed = *before != held;
            *before = held;
            has_changed
        });
    }

    /// The plans in force as they are saved.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let state = self.lock();
        // Shared parts: what takes time is done without the lock.
        let plans = state.in_force().clone();
        drop(state);
        plans.to_bytes()
    }

    /// A place for what one replica tells over one stream, and the hashes of the plans that it begins with.
    pub(super) fn open(self: &Arc<Self>) -> (PlanPlace, Vec<u8>) {
        let mut state = self.lock();
        state.last += 1;
        let stream = state.last;
        let plans = state.in_force().clone();
        let hashes = plans.bucket_hashes();
        let told = Told {
            inbox: PlanInbox::new(plans),
            leads: None,
        };
        state.streams.insert(stream, told);
        drop(state);
        let desk = Arc::clone(self);
        (PlanPlace { stream, desk }, hashes)
    }

    fn told(&self) {
        self.news.send_modify(|news| *news += 1);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn in_force(&self) -> &Plans {
        let told = self.holder.and_then(|holder| self.streams.get(&holder));
        told.map_or(&self.kept, |told| told.inbox.plans())
    }

    /// The stream of the replica that leads, and said so last.
    fn leader(&self) -> Option<u64> {
        let leading = self.streams.iter();
        let leading = leading.filter(|(_, told)| told.leads.is_some());
        let latest = leading.max_by_key(|(_, told)| told.leads);
        latest.map(|(stream, _)| *stream)
    }

    /// The stream whose plans should be in force, after one has told all of its plans: without a leader the one that is,
    /// or any if there are no plans at all.
    fn holder(&self, after: u64) -> Option<u64> {
        let any = || (!self.is_known).then_some(after);
        self.leader().or(self.holder).or_else(any)
    }

    /// Takes in a commit of a stream. Returns whether the plans in force have changed.
    fn commit(&mut self, stream: u64, commit: &v1::CentrePlanCommit) -> Result<bool, PlanError> {
        self.last += 1;
        let now = self.last;
        let Some(told) = self.streams.get_mut(&stream) else {
            return Ok(false);
        };
        let changes = told.inbox.commit(commit)?;
        told.leads = told.leads.or(Some(now)).filter(|_| commit.leading);
        let holder = self.holder(stream);
        let is_same = holder == self.holder;
        let changes = match (is_same, holder == Some(stream)) {
            (true, true) => self.hold.follow(changes),
            (true, false) => PlanChanges::default(),
            (false, _) => self.pass(holder),
        };
        let has_changed = !changes.is_empty() || !self.is_known;
        self.is_known |= holder.is_some();
        self.pending.extend(changes);
        Ok(has_changed)
    }

    /// Has the plans of another stream be in force. Returns what differs, without losses that are held.
    fn pass(&mut self, holder: Option<u64>) -> PlanChanges {
        let before = self.in_force().clone();
        self.holder = holder;
        let now = self.in_force();
        let (changes, former) = (now.since(&before), before.since(now));
        let now = Instant::now().into_std();
        self.hold.replace(changes, former, before.size(), now)
    }

    /// Forgets a stream that ends. Its plans stay in force if they are.
    fn end(&mut self, stream: u64) -> bool {
        let Some(told) = self.streams.remove(&stream) else {
            return false;
        };
        if self.holder != Some(stream) {
            return false;
        }
        self.kept = told.inbox.into_plans();
        self.holder = None;
        let Some(next) = self.leader() else {
            self.hold.pause();
            return false;
        };
        let changes = self.pass(Some(next));
        let has_changed = !changes.is_empty();
        self.pending.extend(changes);
        has_changed
    }
}

/// Reports losses of plans that are held, and releases them when an operator confirms them, or their time has come.
pub(super) async fn release_held(desk: Arc<PlanDesk>, mut report: HoldReport) {
    let mut changes = desk.held();
    loop {
        let held = *changes.borrow_and_update();
        report.report(held);
        let until = held.and_then(|held| held.until);
        let due = async {
            match until {
                Some(until) => sleep_until(until.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            // The sender is in the desk.
            _ = changes.changed() => {}
            () = due => desk.release(),
            () = report.confirmed() => {
                report.take_confirmation();
                desk.release();
            }
        }
    }
}

/// The place of one stream.
#[derive(Debug)]
pub(super) struct PlanPlace {
    stream: u64,
    desk: Arc<PlanDesk>,
}

impl PlanPlace {
    /// Stages a part of a transition, and names the plans that are refused.
    ///
    /// # Errors
    /// Reason why the stream is to be ended.
    pub(super) fn stage(&self, part: v1::CentrePlans) -> Result<(), PlanError> {
        let mut state = self.desk.lock();
        let Some(told) = state.streams.get_mut(&self.stream) else {
            return Ok(());
        };
        let refused = told.inbox.stage(part)?;
        drop(state);
        refused
            .iter()
            .for_each(|plan| self.desk.refusals.note(plan));
        Ok(())
    }

    /// Takes in what is staged.
    ///
    /// # Errors
    /// Reason why the stream is to be ended.
    pub(super) fn commit(&self, commit: &v1::CentrePlanCommit) -> Result<(), PlanError> {
        let mut state = self.desk.lock();
        let has_changed = state.commit(self.stream, commit)?;
        let count = state.in_force().len();
        self.desk.report(&state);
        drop(state);
        self.desk.stats.plans_taken(count);
        if has_changed {
            self.desk.told();
        }
        Ok(())
    }

    /// Notes that the replica, of an earlier version, sends no plans.
    pub(super) fn without_plans(&self) {
        self.desk.lock().is_known = true;
        self.desk.told();
    }
}

impl Drop for PlanPlace {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        let has_changed = state.end(self.stream);
        self.desk.report(&state);
        drop(state);
        if has_changed {
            self.desk.told();
        }
    }
}
