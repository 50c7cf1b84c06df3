// SPDX-License-Identifier: Apache-2.0

//! Held deletions of a source: shown to operators, confirmed by them, reported by the guards.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use portolan_catalog::{Kind, Object, ObjectKey};
use portolan_dns as dns;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::deletions::{DeletionGuard, Facts, GuardConfig, HeldLoss, Remains, Verdict};
use crate::estate::{Estate, Seat};
use crate::objects::{Converted, Names};

/// Objects whose deletions are held: those of a kind in a cluster.
pub type HeldKey = (Arc<str>, Kind);

/// The held deletions of all sources, shared by their guards and the admin server.
#[derive(Debug, Default)]
pub struct HeldDeletions {
    held: watch::Sender<BTreeMap<HeldKey, HeldLoss>>,
    begun: Mutex<BTreeMap<Kind, u64>>,
    confirmations: watch::Sender<u64>,
    /// State of guards, between two sources of a cluster.
    estate: Estate,
}

impl HeldDeletions {
    /// The losses that are held now.
    #[must_use]
    pub fn held(&self) -> BTreeMap<HeldKey, HeldLoss> {
        self.held.borrow().clone()
    }

    /// The losses that are held, and their changes.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<BTreeMap<HeldKey, HeldLoss>> {
        self.held.subscribe()
    }

    /// The number of times that deletions of a kind began to be held.
    #[must_use]
    pub fn begun(&self, kind: Kind) -> u64 {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.get(&kind).copied().unwrap_or_default()
    }

    /// Confirms all held losses; the guards release them soon. Returns them.
    pub fn confirm(&self) -> BTreeMap<HeldKey, HeldLoss> {
        let held = self.held();
        if !held.is_empty() {
            self.confirmations.send_modify(|count| *count += 1);
        }
        held
    }

    /// Forgets a cluster that is served no more, or is read in another way from now on: nothing of it is held, and the
    /// first listing of its next source is believed.
    pub fn forget(&self, cluster: &str) {
        self.estate.forget(cluster);
        self.held.send_if_modified(|all| {
            let before = all.len();
            all.retain(|(of, _), _| **of != *cluster);
            all.len() != before
        });
    }

    /// State that parts of a source leave to those of the next one.
    pub(crate) fn estate(&self) -> &Estate {
        &self.estate
    }

    fn report(&self, key: &HeldKey, held: Option<HeldLoss>) {
        self.held.send_if_modified(|all| match held {
            Some(held) => all.insert(key.clone(), held) != Some(held),
            None => all.remove(key).is_some(),
        });
    }

    fn count(&self, kind: Kind) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        *begun.entry(kind).or_default() += 1;
    }
}

/// The report of one guard, among the held deletions of all. Once it is dropped, as its source ends, nothing is held,
/// but for what the guard leaves to the next source of its cluster.
#[derive(Debug)]
pub struct HoldReport {
    key: HeldKey,
    holds: Arc<HeldDeletions>,
    confirmations: watch::Receiver<u64>,
    /// Whether the report stays as it is, for the guard of the next source.
    stays: bool,
}

impl HoldReport {
    /// A report that nothing is held. Only confirmations from now on count.
    #[must_use]
    pub fn new(key: HeldKey, holds: Arc<HeldDeletions>) -> Self {
        Self {
            key,
            confirmations: holds.confirmations.subscribe(),
            holds,
            stays: false,
        }
    }

    /// States what is held now, and logs its beginning and end.
    pub fn report(&self, held: Option<HeldLoss>) {
        let was_held = self.holds.held.borrow().contains_key(&self.key);
        let (cluster, kind) = (&self.key.0, self.key.1);
        match &held {
            Some(held) if !was_held => {
                self.holds.count(kind);
                let minutes = held
                    .until
                    .map(|until| (until - now()).as_secs().div_ceil(60));
                warn!(%cluster, %kind, lost = held.lost.objects, of = held.of.objects,
                    lost_ready_endpoints = held.lost.ready, of_ready_endpoints = held.of.ready,
                    ?minutes,
                    "deletions are held: a watch lost nearly all objects, or a listing many; \
                     `portolanctl confirm --deletions` releases them");
            }
            None if was_held => info!(%cluster, %kind, "held deletions released"),
            _ => {}
        }
        if was_held || held.is_some() {
            self.holds.report(&self.key, held);
        }
    }

    /// Returns `true` if an operator has confirmed the held deletions since the last call.
    pub fn take_confirmation(&mut self) -> bool {
        let is_confirmed = self.confirmations.has_changed().unwrap_or_default();
        self.confirmations.mark_unchanged();
        is_confirmed
    }

    /// Returns when an operator has confirmed the held deletions. [`Self::take_confirmation`] still sees it.
    pub async fn confirmed(&self) {
        let mut confirmations = self.confirmations.clone();
        if confirmations.changed().await.is_err() {
            std::future::pending().await
        }
    }
}

impl Drop for HoldReport {
    fn drop(&mut self) {
        if !self.stays {
            self.holds.report(&self.key, None);
        }
    }
}

/// The guard of one kind, with clock, log and report. It begins with what the guard of the source before has left, and
/// leaves that to the next one.
#[derive(Debug)]
pub(crate) struct KindGuard<P: Send + 'static> {
    guard: DeletionGuard<P>,
    report: HoldReport,
    seat: Seat,
}

/// State that a guard leaves.
#[derive(Debug)]
struct Left<P> {
    remains: Remains<P>,
    /// With those that it has not seen yet.
    confirmations: watch::Receiver<u64>,
}

impl<P: Send + 'static> Drop for KindGuard<P> {
    fn drop(&mut self) {
        let nothing = DeletionGuard::new(GuardConfig::OFF);
        let remains = std::mem::replace(&mut self.guard, nothing).into_remains();
        let is_held = remains.is_held();
        let left = Left {
            remains,
            confirmations: self.report.confirmations.clone(),
        };
        let is_left = self.report.holds.estate.leave(&self.seat, left);
        self.report.stays = is_held && is_left;
    }
}

#[cfg_attr(
    not(feature = "kubernetes"),
    allow(
        dead_code,
        reason = "files are listed as a whole; the other sources follow single objects"
    )
)]
impl<P: Send + 'static> KindGuard<P> {
    pub(crate) fn new(
        kind: Kind,
        cluster: Arc<str>,
        config: GuardConfig,
        holds: Arc<HeldDeletions>,
    ) -> Self {
        let (seat, left) = holds.estate.take::<Left<P>>(&cluster, Some(kind));
        let mut report = HoldReport::new((cluster, kind), holds);
        let guard = match left {
            Some(left) => {
                report.confirmations = left.confirmations;
                DeletionGuard::seeded(config, left.remains, now())
            }
            None => DeletionGuard::new(config),
        };
        Self {
            guard,
            report,
            seat,
        }
    }

    pub(crate) fn put(&mut self, key: ObjectKey, facts: Option<Facts>, news: P) -> Option<P> {
        let told = self.guard.put(key, facts, news, now());
        self.report();
        told
    }

    pub(crate) fn delete(&mut self, key: ObjectKey, news: P) -> Option<P> {
        let told = self.guard.delete(key, news, now());
        self.report();
        told
    }

    /// Returns `true` if objects are in force.
    pub(crate) fn has_objects(&self) -> bool {
        self.guard.has_objects()
    }

    pub(crate) fn begin(&mut self) {
        self.guard.begin(now());
    }

    pub(crate) fn listed(&mut self, key: ObjectKey, facts: Option<Facts>, news: P) -> Option<P> {
        self.guard.listed(key, facts, news, now())
    }

    pub(crate) fn unlisted(&mut self, key: &ObjectKey) {
        self.guard.unlisted(key);
    }

    pub(crate) fn complete(&mut self, is_sure: bool, gone: impl Fn(&ObjectKey) -> P) -> Verdict<P> {
        let verdict = self.guard.complete(is_sure, gone, now());
        if let Verdict::Doubted { lost, of } = &verdict {
            let (cluster, kind) = &self.report.key;
            warn!(%cluster, %kind, lost = lost.objects, of = of.objects,
                lost_ready_endpoints = lost.ready, of_ready_endpoints = of.ready,
                "too much is absent from the listing; listing again");
        }
        self.report();
        verdict
    }

    /// Events to pass on now, because their time has come or an operator confirmed them.
    pub(crate) fn look(&mut self) -> Vec<P> {
        let mut told = Vec::new();
        if self.report.take_confirmation() {
            told.extend(self.guard.confirm(now()));
        }
        told.extend(self.guard.look(now()));
        self.report();
        told
    }

    /// Returns when [`Self::look`] may have something to do.
    pub(crate) async fn wait(&self) {
        let due = async {
            match self.guard.due(now()) {
                Some(due) => tokio::time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            () = due => {}
            () = self.report.confirmed() => {}
        }
    }

    fn report(&mut self) {
        self.report.report(self.guard.held());
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// The facts of an object; `None` if it cannot be read.
pub(crate) fn facts(converted: &Converted, names: Option<&Names>) -> Option<Facts> {
    match converted {
        Converted::Put { object, .. } => Some(facts_of(object)),
        Converted::Refused { .. } => None,
        Converted::NotOurs(_) => Some(match names {
            Some(Names::Put { change, .. }) => match &**change {
                dns::NamesChange::Slice(slice) => {
                    let ready = slice.endpoints.iter().filter(|one| one.ready);
                    of_slice(
                        slice.service.as_str().into(),
                        ready.map(|one| &one.addresses),
                    )
                }
                _ => Facts::default(),
            },
            _ => Facts::default(),
        }),
    }
}

/// The facts of an object that can be read.
pub(crate) fn facts_of(object: &Object) -> Facts {
    match object {
        Object::EndpointSlice(slice) => {
            let ready = slice.endpoints.iter().filter(|one| one.ready);
            of_slice(Arc::clone(&slice.service), ready.map(|one| &one.address))
        }
        _ => Facts::default(),
    }
}

/// The facts of a slice with these ready endpoints.
fn of_slice(service: Arc<str>, ready: impl Iterator<Item = impl Hash>) -> Facts {
    let addresses: Arc<[u64]> = ready.map(hash).collect();
    Facts {
        ready: addresses.len(),
        service: Some(service),
        addresses,
    }
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
