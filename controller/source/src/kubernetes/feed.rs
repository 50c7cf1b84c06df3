//! Turns the events of one watch into changes, in batches, and sweeps at the end of a listing.
//! Names go the same way, at the same moments, to a sink of their own.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use portolan_catalog::{Change, Kind, ObjectKey, Problem};
use tracing::{info, warn};

use super::kinds::Watchable;
use super::name_feed::NameFeed;
use super::stats::{KindStats, Stats};
use super::watched::Watched;
use crate::objects::Converted;
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

/// What one watch knows.
#[derive(Debug)]
pub(super) struct Feed {
    kind: Kind,
    cluster: Arc<str>,
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
    ) -> Self {
        Self {
            kind,
            cluster,
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
    }

    /// An object of a listing.
    pub(super) async fn listed<T: Watchable>(&mut self, object: Watched<T>) -> Result<(), Closed> {
        let converted = self.convert(object, true);
        if !matches!(converted, Converted::NotOurs(_)) {
            self.keep
                .extend(converted.reference().map(|object| object.key));
        }
        self.push(converted.into_change()).await
    }

    /// An object that is so now.
    pub(super) async fn put<T: Watchable>(&mut self, object: Watched<T>) -> Result<(), Closed> {
        let converted = self.convert(object, false);
        self.push(converted.into_change()).await
    }

    /// An object that is gone.
    pub(super) async fn delete<T: Watchable>(&mut self, object: &Watched<T>) -> Result<(), Closed> {
        let Some(object) = object.reference(&self.cluster) else {
            return Ok(());
        };
        // In a listing that is streamed the server may still delete what it had listed.
        self.keep.remove(&object.key);
        if let Some(names) = &mut self.names {
            names.delete(&object);
        }
        self.push(Some(Change::Delete(object))).await
    }

    /// The listing is complete, at this version: what it did not have is gone.
    pub(super) async fn complete(&mut self, version: &str) -> Result<(), Closed> {
        let keep = std::mem::take(&mut self.keep);
        self.stats().count_listing();
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
        Ok(())
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

    async fn push(&mut self, change: Option<Change>) -> Result<(), Closed> {
        self.batch.extend(change);
        if self.batch.len() >= BATCH {
            self.flush().await?;
        }
        Ok(())
    }

    fn convert<T: Watchable>(&mut self, object: Watched<T>, is_listing: bool) -> Converted {
        let named = self.names.is_some().then(|| object.names());
        let named = named.zip(object.reference(&self.cluster));
        let converted = object.convert(&self.cluster);
        if let Converted::Refused { object, problems } = &converted {
            let key = object.as_ref().map(|object| &object.key);
            self.note_refused(key, problems);
        }
        if let (Some(feed), Some((names, object))) = (&mut self.names, named) {
            let report = matches!(converted, Converted::NotOurs(_));
            feed.put(&object, names, is_listing, report);
        }
        converted
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
