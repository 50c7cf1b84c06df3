//! Turns the events of one watch into changes, in batches, and sweeps at the end of a listing.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use kube::runtime::watcher;
use portolan_catalog::{Change, Kind, ObjectKey, Problem};
use tracing::{info, warn};

use super::kinds::Watchable;
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
    fn done(&self) -> bool {
        self.0.fetch_sub(1, Ordering::AcqRel) == 1
    }
}

/// What one watch knows.
#[derive(Debug)]
pub(super) struct Feed {
    kind: Kind,
    cluster: Arc<str>,
    sink: Sink,
    stats: Arc<Stats>,
    pending: Arc<Pending>,
    listed: bool,
    listing: bool,
    /// Changes that were not sent yet.
    batch: Vec<Change>,
    /// What the listing in progress has had so far.
    keep: BTreeSet<ObjectKey>,
    warned_of_nameless: bool,
}

impl Feed {
    pub(super) fn new(
        kind: Kind,
        cluster: Arc<str>,
        sink: Sink,
        stats: Arc<Stats>,
        pending: Arc<Pending>,
    ) -> Self {
        Self {
            kind,
            cluster,
            sink,
            stats,
            pending,
            listed: false,
            listing: false,
            batch: Vec::new(),
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

    pub(super) fn stats(&self) -> &KindStats {
        self.stats.of(self.kind)
    }

    /// Whether a listing is under way: until it ends, its pages prove nothing.
    pub(super) fn is_listing(&self) -> bool {
        self.listing
    }

    /// Takes an event.
    pub(super) async fn take<T: Watchable>(
        &mut self,
        event: watcher::Event<Watched<T>>,
    ) -> Result<(), Closed> {
        match event {
            // Nothing is deleted here: the listing may still fail.
            watcher::Event::Init => {
                self.listing = true;
                self.keep.clear();
            }
            watcher::Event::InitApply(object) => self.put(object, true),
            watcher::Event::Apply(object) => self.put(object, false),
            watcher::Event::Delete(object) => self.delete(&object),
            watcher::Event::InitDone => self.sweep().await?,
        }
        if self.batch.len() >= BATCH {
            self.flush().await?;
        }
        Ok(())
    }

    /// Sends what is waiting.
    pub(super) async fn flush(&mut self) -> Result<(), Closed> {
        self.sink
            .send_changes(std::mem::take(&mut self.batch))
            .await
    }

    fn put<T: Watchable>(&mut self, object: Watched<T>, listing: bool) {
        let converted = object.convert(&self.cluster);
        let key = converted.reference().map(|object| object.key);
        if let Converted::Refused { problems, .. } = &converted {
            self.note_refused(key.as_ref(), problems);
        }
        if listing && !matches!(converted, Converted::NotOurs(_)) {
            self.keep.extend(key);
        }
        self.batch.extend(converted.into_change());
    }

    fn delete<T: Watchable>(&mut self, object: &Watched<T>) {
        if let Some(object) = object.reference(&self.cluster) {
            self.batch.push(Change::Delete(object));
        }
    }

    fn note_refused(&mut self, key: Option<&ObjectKey>, problems: &[Problem]) {
        self.stats().count_malformed();
        let (kind, cluster) = (self.kind, &self.cluster);
        // What is wrong with a known object is the catalog's to tell.
        if key.is_none() && !std::mem::replace(&mut self.warned_of_nameless, true) {
            warn!(%cluster, %kind, ?problems, "object without a name; counted from now on");
        }
    }

    /// The listing is complete: what it did not have is gone.
    async fn sweep(&mut self) -> Result<(), Closed> {
        let keep = std::mem::take(&mut self.keep);
        self.listing = false;
        self.stats().count_listing();
        info!(cluster = %self.cluster, kind = %self.kind, objects = keep.len(), "listed");
        self.batch.push(Change::Retain {
            kind: self.kind,
            cluster: Arc::clone(&self.cluster),
            keep,
        });
        self.flush().await?;
        if !std::mem::replace(&mut self.listed, true) && self.pending.done() {
            self.sink.send(Event::Synced).await?;
        }
        Ok(())
    }
}
