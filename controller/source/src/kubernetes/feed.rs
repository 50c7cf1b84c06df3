//! Turns the events of one watch into changes, in batches, and sweeps at the end of a listing.
//! Names go the same way, at the same moments, to a sink of their own. Deletions pass a guard, which
//! stands before both.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use portolan_catalog::{Change, Kind, ObjectKey, ObjectRef, Problem};
use portolan_dns as dns;
use tracing::{info, warn};

use super::kinds::Watchable;
use super::name_feed::NameFeed;
use super::stats::{KindStats, Stats};
use super::watched::Watched;
use crate::deletions::{Facts, Verdict};
use crate::held::{KindGuard, facts};
use crate::objects::{self, Converted, Names};
use crate::sink::Closed;
use crate::{Event, Sink};

/// The most changes that go in one event.
const BATCH: usize = 500;

/// How many kinds have not been listed yet.
#[derive(Debug)]
pub(super) struct Pending(AtomicUsize);

impl Pending {
    pub(super) fn new(kinds: usize) -> Self {
        Self(AtomicUsize::new(kinds))
    }

    /// Notes that one more kind is listed; whether it was the last one.
    pub(super) fn done(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// What is told of one object.
#[derive(Debug, Default)]
pub(super) struct News {
    change: Option<Change>,
    names: Option<dns::Change>,
}

/// What one object turned out to be.
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

/// What one watch knows.
#[derive(Debug)]
pub(super) struct Feed {
    kind: Kind,
    cluster: Arc<str>,
    /// `None` for a kind whose deletions are always believed.
    guard: Option<KindGuard<News>>,
    /// `None` for what only DNS has.
    sink: Option<Sink>,
    names: Option<NameFeed>,
    stats: Arc<Stats>,
    pending: Arc<Pending>,
    listed: bool,
    /// Changes that were not sent yet.
    batch: Vec<Change>,
    /// How far we are with them, if that was not said yet.
    version: Option<u64>,
    /// What the listing in progress has had so far.
    keep: BTreeSet<ObjectKey>,
    warned_of_nameless: bool,
}

impl Feed {
    pub(super) fn new(
        kind: Kind,
        cluster: Arc<str>,
        sink: Option<Sink>,
        names: Option<NameFeed>,
        stats: Arc<Stats>,
        pending: Arc<Pending>,
        guard: Option<KindGuard<News>>,
    ) -> Self {
        Self {
            kind,
            cluster,
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
        &self.cluster
    }

    /// What the server need not send: nothing, if DNS has a use for it.
    pub(super) fn selector<T: Watchable>(&self) -> Option<String> {
        let selector = T::SELECTOR.filter(|_| self.names.is_none());
        selector.map(str::to_owned)
    }

    pub(super) fn stats(&self) -> &KindStats {
        self.stats.of(self.kind)
    }

    /// A listing begins. Nothing is deleted here: it may still fail.
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
        // The end of the listing sweeps what nobody wants.
        if !seen.is_ours && !seen.has_names {
            return Ok(());
        }
        let news = match &mut self.guard {
            Some(guard) => guard.listed(seen.key, seen.facts, seen.news),
            None => Some(seen.news),
        };
        self.push(news).await
    }

    /// An object that a listing in progress had is gone again: the server may delete what it
    /// streamed. The end of the listing sweeps it.
    pub(super) fn unlisted<T: Watchable>(&mut self, object: &Watched<T>) {
        let Some(object) = object.reference(&self.cluster) else {
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
        let Some(object) = object.reference(&self.cluster) else {
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

    /// Tells what waited for its time or for a confirmation.
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

    /// Returns when [`Self::look`] may have something to tell.
    pub(super) async fn wait(&self) {
        match &self.guard {
            Some(guard) => guard.wait().await,
            None => std::future::pending().await,
        }
    }

    /// The listing is complete, at this version: what it did not have is gone. Whether it is
    /// believed; if not, it must be repeated. What no cache can have answered is sure.
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
        info!(cluster = %self.cluster, kind = %self.kind, objects = keep.len(), "listed");
        self.batch.push(Change::Retain {
            kind: self.kind,
            cluster: Arc::clone(&self.cluster),
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

    /// With everything until now, we are at this version. Versions that are no numbers say nothing:
    /// those of an API server are, and can be compared (KEP-5504).
    pub(super) fn reached(&mut self, version: &str) {
        self.version = version.parse().ok().or(self.version);
    }

    /// Sends what is waiting.
    pub(super) async fn flush(&mut self) -> Result<(), Closed> {
        self.batch
            .extend(self.version.take().map(|version| Change::Reached {
                kind: self.kind,
                cluster: Arc::clone(&self.cluster),
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
        let reference = object.reference(&self.cluster);
        let converted = object.convert(&self.cluster);
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
            // Of others the catalog tells what is wrong.
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

    fn note_refused(&mut self, key: Option<&ObjectKey>, problems: &[Problem]) {
        self.stats().count_malformed();
        let (kind, cluster) = (self.kind, &self.cluster);
        // What is wrong with a known object is the catalog's to tell.
        if key.is_none() && !std::mem::replace(&mut self.warned_of_nameless, true) {
            warn!(%cluster, %kind, ?problems, "object without a name; counted from now on");
        }
    }
}

/// What is told of an object that is gone.
fn gone(object: ObjectRef, with_names: bool) -> News {
    let names = with_names.then(|| objects::removed(&object)).flatten();
    let change = Some(Change::Delete(object));
    News { change, names }
}
