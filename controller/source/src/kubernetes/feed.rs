// SPDX-License-Identifier: Apache-2.0

//! Conversion of one watch's events into batches of changes, with a sweep at the end of a listing.
//! Changes for DNS go the same way to a sink of their own. Deletions of both pass the guard first.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use portolan_catalog::{FieldProblem, Kind, ObjectChange, ObjectKey, ObjectRef};
use portolan_dns as dns;
use tracing::{info, warn};

use super::kinds::Watchable;
use super::name_feed::NameFeed;
use super::stats::{KindStats, Stats};
use super::watched::Watched;
use crate::deletions::{Facts, Verdict};
use crate::held::{KindGuard, facts};
use crate::objects::{self, Converted, Names, Scope};
use crate::sink::Closed;
use crate::{Event, Sink};

/// The most changes that go in one event.
const BATCH: usize = 500;

/// The number of kinds that have not been listed yet.
#[derive(Debug)]
pub(super) struct Pending(AtomicUsize);

impl Pending {
    pub(super) fn new(kinds: usize) -> Self {
        Self(AtomicUsize::new(kinds))
    }

    /// Records that one more kind is listed; returns whether it was the last one.
    pub(super) fn done(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// An event about one object.
#[derive(Debug, Default)]
pub(super) struct News {
    change: Option<ObjectChange>,
    names: Option<dns::NamesChange>,
}

/// A converted object.
struct Seen {
    key: ObjectKey,
    /// Whether the catalog has it.
    is_ours: bool,
    /// Whether DNS has it.
    has_names: bool,
    /// `None` if it cannot be read.
    facts: Option<Facts>,
    news: News,
}

/// The state of one watch.
#[derive(Debug)]
pub(super) struct Feed {
    kind: Kind,
    scope: Arc<Scope>,
    /// `None` for a kind whose deletions are always believed.
    guard: Option<KindGuard<News>>,
    /// `None` for kinds that only DNS has.
    sink: Option<Sink>,
    names: Option<NameFeed>,
    stats: Arc<Stats>,
    pending: Arc<Pending>,
    listed: bool,
    /// Changes that were not sent yet.
    batch: Vec<ObjectChange>,
    /// The version after these changes, if it was not sent yet.
    version: Option<u64>,
    /// The objects of the listing in progress so far.
    keep: BTreeSet<ObjectKey>,
    warned_of_nameless: bool,
}

impl Feed {
    pub(super) fn new(
        kind: Kind,
        scope: Arc<Scope>,
        sink: Option<Sink>,
        names: Option<NameFeed>,
        stats: Arc<Stats>,
        pending: Arc<Pending>,
        guard: Option<KindGuard<News>>,
    ) -> Self {
        Self {
            kind,
            scope,
            guard,
            sink,
            names,
            stats,
            pending,
            listed: false,
            batch: Vec::new(),
            version: None,
            keep: BTreeSet::new(),
            warned_of_nameless: false,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn cluster(&self) -> &str {
        &self.scope.cluster
    }

    /// The selector of objects that the tables need; none if DNS needs others.
    pub(super) fn selector<T: Watchable>(&self) -> Option<String> {
        (T::OF_SERVICES && self.names.is_none()).then(|| self.scope.selector())
    }

    pub(super) fn stats(&self) -> &KindStats {
        self.stats.of(self.kind)
    }

    /// Begins a listing. Nothing is deleted yet: the listing may still fail.
    pub(super) fn begin(&mut self) {
        self.keep.clear();
        if let Some(names) = &mut self.names {
            names.begin();
        }
        if let Some(guard) = &mut self.guard {
            guard.begin();
        }
    }

    /// An object of a listing.
    pub(super) async fn listed<T: Watchable>(&mut self, object: Watched<T>) -> Result<(), Closed> {
        let Some(seen) = self.see(object) else {
            return Ok(());
        };
        if seen.is_ours {
            self.keep.insert(seen.key.clone());
        }
        if let Some(names) = &mut self.names
            && seen.has_names
        {
            names.keep(&seen.key);
        }
        // The end of the listing sweeps unneeded objects.
        if !seen.is_ours && !seen.has_names {
            return Ok(());
        }
        let news = match &mut self.guard {
            Some(guard) => guard.listed(seen.key, seen.facts, seen.news),
            None => Some(seen.news),
        };
        self.push(news).await
    }

    /// Takes in the deletion of an object that a streamed listing had already. The end of the
    /// listing sweeps it.
    pub(super) fn unlisted<T: Watchable>(&mut self, object: &Watched<T>) {
        let Some(object) = object.reference(&self.scope.cluster) else {
            return;
        };
        self.keep.remove(&object.key);
        if let Some(names) = &mut self.names {
            names.forget(&object.key);
        }
        if let Some(guard) = &mut self.guard {
            guard.unlisted(&object.key);
        }
    }

    /// An object that is so now.
    pub(super) async fn put<T: Watchable>(&mut self, object: Watched<T>) -> Result<(), Closed> {
        let Some(seen) = self.see(object) else {
            return Ok(());
        };
        let is_there = seen.is_ours || seen.has_names;
        let news = match &mut self.guard {
            Some(guard) if is_there => guard.put(seen.key, seen.facts, seen.news),
            Some(guard) => guard.delete(seen.key, seen.news),
            None => Some(seen.news),
        };
        self.push(news).await
    }

    /// An object that is gone.
    pub(super) async fn delete<T: Watchable>(&mut self, object: &Watched<T>) -> Result<(), Closed> {
        let Some(object) = object.reference(&self.scope.cluster) else {
            return Ok(());
        };
        let key = object.key.clone();
        let news = gone(object, self.names.is_some());
        let news = match &mut self.guard {
            Some(guard) => guard.delete(key, news),
            None => Some(news),
        };
        self.push(news).await
    }

    /// Sends events that waited for their time or for a confirmation.
    pub(super) async fn look(&mut self) -> Result<(), Closed> {
        let news = self.guard.as_mut().map(KindGuard::look).unwrap_or_default();
        if news.is_empty() {
            return Ok(());
        }
        for news in news {
            self.push(Some(news)).await?;
        }
        self.flush().await
    }

    /// Returns when [`Self::look`] may have events to send.
    pub(super) async fn wait(&self) {
        match &self.guard {
            Some(guard) => guard.wait().await,
            None => std::future::pending().await,
        }
    }

    /// Completes a listing at this version, and deletes absent objects. Returns whether the listing
    /// is believed; if not, it must be repeated. A listing is sure if no cache can have answered
    /// it.
    pub(super) async fn complete(&mut self, version: &str, is_sure: bool) -> Result<bool, Closed> {
        let mut keep = std::mem::take(&mut self.keep);
        self.stats().count_listing();
        if let Some(guard) = &mut self.guard {
            let (kind, with_names) = (self.kind, self.names.is_some());
            let gone = |key: &ObjectKey| {
                let key = key.clone();
                gone(ObjectRef { kind, key }, with_names)
            };
            match guard.complete(is_sure, gone) {
                Verdict::Doubted { .. } => {
                    self.flush().await?;
                    return Ok(false);
                }
                Verdict::Settled { told, kept } => {
                    for news in told {
                        self.push(Some(news)).await?;
                    }
                    if let Some(names) = &mut self.names {
                        kept.iter().for_each(|key| names.keep(key));
                    }
                    keep.extend(kept);
                }
            }
        }
        info!(cluster = %self.scope.cluster, kind = %self.kind, objects = keep.len(), "listed");
        self.batch.push(ObjectChange::Retain {
            kind: self.kind,
            cluster: Arc::clone(&self.scope.cluster),
            keep,
        });
        self.reached(version);
        self.flush().await?;
        if let Some(sink) = &self.sink
            && !std::mem::replace(&mut self.listed, true)
            && self.pending.done()
        {
            sink.send(Event::Synced).await?;
        }
        if let Some(names) = &mut self.names {
            names.complete().await?;
        }
        Ok(true)
    }

    /// Records the version after the changes so far. Versions of an API server are numbers and can
    /// be compared (KEP-5504); others are ignored.
    pub(super) fn reached(&mut self, version: &str) {
        self.version = version.parse().ok().or(self.version);
    }

    /// Sends the waiting batch.
    pub(super) async fn flush(&mut self) -> Result<(), Closed> {
        self.batch
            .extend(self.version.take().map(|version| ObjectChange::Reached {
                kind: self.kind,
                cluster: Arc::clone(&self.scope.cluster),
                version,
            }));
        let batch = std::mem::take(&mut self.batch);
        if let Some(sink) = &self.sink {
            sink.send_changes(batch).await?;
        }
        match &mut self.names {
            Some(names) => names.flush().await,
            None => Ok(()),
        }
    }

    async fn push(&mut self, news: Option<News>) -> Result<(), Closed> {
        let Some(News { change, names }) = news else {
            return Ok(());
        };
        self.batch.extend(change);
        if let Some(feed) = &mut self.names {
            feed.push(names);
        }
        if self.batch.len() >= BATCH {
            self.flush().await?;
        }
        Ok(())
    }

    /// Reads an object; `None` for one without a name.
    fn see<T: Watchable>(&mut self, object: Watched<T>) -> Option<Seen> {
        let names = self.names.is_some().then(|| object.names());
        let reference = object.reference(&self.scope.cluster);
        let converted = object.convert(&self.scope);
        if let Converted::Refused { object, problems } = &converted {
            let key = object.as_ref().map(|object| &object.key);
            self.note_refused(key, problems);
        }
        let object = reference?;
        let is_ours = !matches!(converted, Converted::NotOurs(_));
        if let Some(Names::Put { problems, .. }) = &names
            && !is_ours
            && !problems.is_empty()
        {
            // Problems with other objects are reported by the catalog.
            warn!(%object, ?problems, "left out of the object's DNS records");
        }
        let has_names = matches!(names, Some(Names::Put { .. } | Names::Refused));
        let facts = facts(&converted, names.as_ref());
        let names = match names {
            Some(Names::Put { change, .. }) => Some(*change),
            Some(Names::None) => objects::removed(&object),
            Some(Names::Refused) | None => None,
        };
        let change = converted.into_change();
        Some(Seen {
            key: object.key,
            is_ours,
            has_names,
            facts,
            news: News { change, names },
        })
    }

    fn note_refused(&mut self, key: Option<&ObjectKey>, problems: &[FieldProblem]) {
        self.stats().count_malformed();
        let (kind, cluster) = (self.kind, &self.scope.cluster);
        // Problems with named objects are reported by the catalog.
        if key.is_none() && !std::mem::replace(&mut self.warned_of_nameless, true) {
            warn!(%cluster, %kind, ?problems, "object without a name; counted from now on");
        }
    }
}

/// The event of a deleted object.
fn gone(object: ObjectRef, with_names: bool) -> News {
    let names = with_names.then(|| objects::removed(&object)).flatten();
    let change = Some(ObjectChange::Delete(object));
    News { change, names }
}
