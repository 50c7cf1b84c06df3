//! What a source holds back, for those who look at it and those who confirm it; and the guards of a
//! source, which report there.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher as _};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use portolan_catalog::{Kind, Object, ObjectKey};
use portolan_dns as dns;
use tokio::sync::watch;
use tracing::{info, warn};

use crate::deletions::{Facts, Guard, GuardConfig, Held, Verdict};
use crate::objects::{Converted, Names};

/// Shared by the guards of one source and by who looks at them.
#[derive(Debug, Default)]
pub struct Holds {
    held: watch::Sender<BTreeMap<Kind, Held>>,
    begun: Mutex<BTreeMap<Kind, u64>>,
    confirmations: watch::Sender<u64>,
}

impl Holds {
    /// What is held at present.
    #[must_use]
    pub fn held(&self) -> BTreeMap<Kind, Held> {
        self.held.borrow().clone()
    }

    /// What is held, and all changes of it.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<BTreeMap<Kind, Held>> {
        self.held.subscribe()
    }

    /// How often deletions of a kind began to be held.
    #[must_use]
    pub fn begun(&self, kind: Kind) -> u64 {
        let begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        begun.get(&kind).copied().unwrap_or_default()
    }

    /// Confirms everything that is held. The guards let go of it soon. Returns what it is.
    pub fn confirm(&self) -> BTreeMap<Kind, Held> {
        let held = self.held();
        if !held.is_empty() {
            self.confirmations.send_modify(|count| *count += 1);
        }
        held
    }

    fn report(&self, kind: Kind, held: Option<Held>) {
        self.held.send_if_modified(|all| match held {
            Some(held) => all.insert(kind, held) != Some(held),
            None => all.remove(&kind).is_some(),
        });
    }

    fn count(&self, kind: Kind) {
        let mut begun = self.begun.lock().unwrap_or_else(PoisonError::into_inner);
        *begun.entry(kind).or_default() += 1;
    }
}

/// The guard of one kind, which says what it holds.
#[derive(Debug)]
pub(crate) struct Warden<P> {
    kind: Kind,
    cluster: Arc<str>,
    guard: Guard<P>,
    holds: Arc<Holds>,
    confirmations: watch::Receiver<u64>,
}

impl<P> Warden<P> {
    pub(crate) fn new(
        kind: Kind,
        cluster: Arc<str>,
        config: GuardConfig,
        holds: Arc<Holds>,
    ) -> Self {
        Self {
            kind,
            cluster,
            guard: Guard::new(config),
            confirmations: holds.confirmations.subscribe(),
            holds,
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

    pub(crate) fn begin(&mut self) {
        self.guard.begin();
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
            let (cluster, kind) = (&self.cluster, self.kind);
            warn!(%cluster, %kind, lost = lost.objects, of = of.objects,
                lost_ready_endpoints = lost.ready, of_ready_endpoints = of.ready,
                "too much is absent from the listing, listing again");
        }
        self.report();
        verdict
    }

    /// What may be told now, because its time has come or somebody has confirmed it.
    pub(crate) fn look(&mut self) -> Vec<P> {
        let mut told = Vec::new();
        if self.confirmations.has_changed().unwrap_or_default() {
            self.confirmations.mark_unchanged();
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
        // Of the receiver itself, this would forget that there was a confirmation.
        let mut confirmations = self.confirmations.clone();
        tokio::select! {
            () = due => {}
            Ok(()) = confirmations.changed() => {}
        }
    }

    fn report(&mut self) {
        let held = self.guard.held();
        let was_held = self.holds.held.borrow().contains_key(&self.kind);
        let (cluster, kind) = (&self.cluster, self.kind);
        match &held {
            Some(held) if !was_held => {
                self.holds.count(kind);
                let minutes = held
                    .until
                    .map(|until| (until - now()).as_secs().div_ceil(60));
                warn!(%cluster, %kind, lost = held.lost.objects, of = held.of.objects,
                    lost_ready_endpoints = held.lost.ready, of_ready_endpoints = held.of.ready,
                    ?minutes,
                    "deletions are held: nearly nothing would be left, or much was absent from a \
                     listing; portolanctl confirm --deletions lets them through");
            }
            None if was_held => info!(%cluster, %kind, "deletions are held no longer"),
            _ => {}
        }
        if was_held || held.is_some() {
            self.holds.report(kind, held);
        }
    }
}

fn now() -> Instant {
    tokio::time::Instant::now().into_std()
}

/// What the guard looks at; `None` if the object cannot be read.
pub(crate) fn facts(converted: &Converted, names: Option<&Names>) -> Option<Facts> {
    match converted {
        Converted::Put { object, .. } => Some(match object {
            Object::EndpointSlice(slice) => {
                let ready = slice.endpoints.iter().filter(|one| one.ready);
                of_slice(Arc::clone(&slice.service), ready.map(|one| &one.address))
            }
            _ => Facts::default(),
        }),
        Converted::Refused { .. } => None,
        Converted::NotOurs(_) => Some(match names {
            Some(Names::Put { change, .. }) => match &**change {
                dns::Change::Slice(slice) => {
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
