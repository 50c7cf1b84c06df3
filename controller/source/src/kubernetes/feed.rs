// SPDX-License-Identifier: Apache-2.0

//! Conversion of one watch's events into batches of changes, with a sweep at the end of a listing.
//! Changes for DNS go the same way to a sink of their own. Deletions of both pass the guard first.

mod seen;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use portolan_catalog::{Kind, ObjectChange, ObjectKey, ObjectRef};
use tracing::info;

use super::exports::Exports;
use super::kinds::Watchable;
use super::name_feed::NameFeed;
use super::stats::{KindStats, Stats};
use super::watched::Watched;
use crate::deletions::Verdict;
use crate::held::KindGuard;
use crate::objects::Scope;
use crate::sink::Closed;
use crate::{Event, Sink};
use seen::{News, gone};

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
    /// For Services and ServiceExports of a cluster that shares Services.
    exports: Option<Arc<Exports>>,
    stats: Arc<Stats>,
    pending: Arc<Pending>,
    listed: bool,
    /// Changes that were not sent yet.
    batch: Vec<ObjectChange>,
    /// The version after these changes, if it was not sent yet.
    version: Option<u64>,
    /// The objects of the listing in progress so far.
    keep: BTreeSet<ObjectKey>,
    /// The Services of the listing in progress that can be exported.
    keep_facts: BTreeSet<ObjectKey>,
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
            exports: None,
            stats,
            pending,
            listed: false,
            batch: Vec::new(),
            version: None,
            keep: BTreeSet::new(),
            keep_facts: BTreeSet::new(),
            warned_of_nameless: false,
        }
    }

    /// Joins Services with ServiceExports.
    pub(super) fn joining(mut self, exports: Option<Arc<Exports>>) -> Self {
        let is_joined = matches!(self.kind, Kind::Service | Kind::ServiceExport);
        self.exports = exports.filter(|_| is_joined);
        self
    }

    /// Returns `true` if the cluster shares Services.
    pub(super) fn shares(&self) -> bool {
        self.scope.shares
    }

    /// The server has no such kind: there are no objects of it to wait for. Those that the source before knew are gone, or
    /// held if they are too many. With `is_gone` those of an earlier listing are, too.
    pub(super) async fn absent(&mut self, is_gone: bool) -> Result<(), Closed> {
        let has_objects = self.guard.as_ref().is_some_and(KindGuard::has_objects);
        if is_gone || !self.listed && has_objects {
            self.begin();
            self.complete("", true).await?;
            return Ok(());
        }
        self.first_listed().await
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn cluster(&self) -> &Arc<str> {
        &self.scope.cluster
    }

    /// The selector of objects that the tables need; none if DNS needs others.
    pub(super) fn selector<T: Watchable>(&self) -> Option<String> {
        // Headless Services and those of another proxy have no table, but may be exported.
        let is_whole = self.scope.shares && self.kind == Kind::Service;
        (T::OF_SERVICES && self.names.is_none() && !is_whole).then(|| self.scope.selector())
    }

    pub(super) fn stats(&self) -> &KindStats {
        self.stats.of(self.kind)
    }

    /// Begins a listing. Nothing is deleted yet: the listing may still fail.
    pub(super) fn begin(&mut self) {
        self.keep.clear();
        self.keep_facts.clear();
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
        if seen.has_facts {
            self.keep_facts.insert(seen.key.clone());
        }
        // The end of the listing sweeps unneeded objects.
        if !seen.is_ours && !seen.has_names && !seen.has_facts {
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
        self.keep_facts.remove(&object.key);
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
        let is_there = seen.is_ours || seen.has_names || seen.has_facts;
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
        let news = self.gone(object);
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
        let mut keep_facts = std::mem::take(&mut self.keep_facts);
        self.stats().count_listing();
        if let Some(guard) = &mut self.guard {
            let (kind, with_names) = (self.kind, self.names.is_some());
            let with_facts = self.exports.is_some();
            let gone = |key: &ObjectKey| {
                let key = key.clone();
                gone(ObjectRef { kind, key }, with_names, with_facts)
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
                    keep_facts.extend(kept.iter().cloned());
                    keep.extend(kept);
                }
            }
        }
        info!(cluster = %self.scope.cluster, kind = %self.kind, objects = keep.len(), "listed");
        if let Some(exports) = &self.exports {
            if self.kind == Kind::Service {
                exports.retain(self.kind, &keep_facts).await;
            } else {
                keep = exports.retain(self.kind, &keep).await;
            }
        }
        self.batch.push(ObjectChange::Retain {
            kind: self.kind,
            cluster: Arc::clone(&self.scope.cluster),
            keep,
        });
        self.reached(version);
        self.flush().await?;
        self.first_listed().await?;
        if let Some(names) = &mut self.names {
            names.complete().await?;
        }
        Ok(true)
    }

    /// Tells that all kinds are listed, if this was the last one.
    async fn first_listed(&mut self) -> Result<(), Closed> {
        if let Some(sink) = &self.sink
            && !std::mem::replace(&mut self.listed, true)
            && self.pending.done()
        {
            sink.send(Event::Synced).await?;
        }
        Ok(())
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
        if let Some(exports) = &self.exports {
            exports.flush().await?;
        }
        match &mut self.names {
            Some(names) => names.flush().await,
            None => Ok(()),
        }
    }

    async fn push(&mut self, news: Option<News>) -> Result<(), Closed> {
        let Some(news) = news else {
            return Ok(());
        };
        let News {
            mut change,
            names,
            facts,
        } = news;
        if let Some(exports) = &self.exports {
            if let Some((key, facts)) = facts {
                exports.service(key, facts).await;
            }
            if let Some(of_export) = change.take() {
                change = exports.export(of_export).await;
            }
        }
        self.batch.extend(change);
        if let Some(feed) = &mut self.names {
            feed.push(names);
        }
        if self.batch.len() >= BATCH {
            self.flush().await?;
        }
        Ok(())
    }
}
