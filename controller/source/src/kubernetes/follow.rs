// SPDX-License-Identifier: Apache-2.0

//! The follower of one kind: lists it, watches it from there, and lists it again when the server
//! has forgotten the version.
//!
//! Not kube's `watcher`, which hides bookmarks, the versions of listings, and watches that end as
//! soon as they begin.

use std::future::Future;
use std::pin::pin;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use portolan_catalog::ObjectKey;
use tokio::time::{Instant, sleep, sleep_until};
use tracing::{info, warn};

use super::feed::Feed;
use super::kinds::Watchable;
use super::population::Population;
use super::probe::Probe;
use super::trouble::{Stop, Trouble};
use super::watched::Watched;

/// Objects per page of a listing, client-go's figure.
const PAGE_SIZE: u32 = 500;
/// Time for which the server is asked to keep a watch open, in seconds.
const WATCH_SECONDS: u32 = 290;
/// A watch that is silent for longer than the server should keep it open is dead.
const SILENCE: Duration = Duration::from_secs(295);
/// A watch that ends sooner, and brought nothing, is not worth another one at once.
const SHORT: Duration = Duration::from_secs(1);
/// The silence after which a watch should have sent a bookmark.
const QUIET: Duration = Duration::from_secs(120);
/// The pause after a refusal that only a person changes.
const RARELY: Duration = Duration::from_secs(60);
/// Number of refusals without a success between them after which only a person changes that. A server that starts may
/// refuse for a moment.
const REFUSALS: u32 = 6;
/// A server that has no such kind for so long will not know it again soon.
const LATE: Duration = Duration::from_secs(600);
/// The annotation of the bookmark that ends a streamed listing.
const LISTING_ENDS: &str = "k8s.io/initial-events-end";

/// Way to ask for a listing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// As the beginning of a watch: the server needs no memory for it (1.32 and later).
    Streamed,
    /// Page by page.
    Paged,
}

/// Follows one kind.
pub(super) struct Follower<T> {
    api: Api<Watched<T>>,
    feed: Feed,
    /// Where the next watch begins; `None` if a listing is needed.
    version: Option<String>,
    /// The last version seen; empty if there was none.
    reached: String,
    /// Whether that is the version of a listing that has just ended.
    is_fresh: bool,
    /// Whether there was no way to the server the last time.
    is_unreachable: bool,
    /// Whether the last listing was doubted.
    is_doubted: bool,
    /// Whether the server had no such kind the last time.
    is_absent: bool,
    /// Since when all answers were that the server has no such kind.
    missing_since: Option<Instant>,
    /// `true` if there was a listing, and its objects were not given up since.
    is_listed: bool,
    /// Number of refusals since the last success.
    refusals: u32,
    probe: Probe<T>,
    population: Population,
    way: Way,
    can_stream: bool,
    backoff: DefaultBackoff,
}

impl<T: Watchable> Follower<T> {
    pub(super) fn new(
        api: Api<Watched<T>>,
        feed: Feed,
        population: Population,
        can_stream: bool,
    ) -> Self {
        let mut this = Self {
            probe: Probe::new(api.clone()),
            api,
            feed,
            version: None,
            reached: String::new(),
            is_fresh: false,
            is_unreachable: false,
            is_doubted: false,
            is_absent: false,
            missing_since: None,
            is_listed: false,
            refusals: 0,
            population,
            way: Way::Paged,
            can_stream,
            backoff: DefaultBackoff::default(),
        };
        this.way = this.best_way();
        this
    }

    /// Ends only when the sink's reader is gone.
    pub(super) async fn run(mut self) -> Result<(), crate::Closed> {
        loop {
            let result = if self.version.is_none() && self.way == Way::Paged {
                self.list().await
            } else {
                self.watch().await
            };
            match result {
                Ok(()) => {}
                Err(Stop::Closed(closed)) => return Err(closed),
                Err(Stop::Trouble(trouble)) => self.recover(trouble).await?,
            }
        }
    }

    /// Begins a listing.
    fn begin(&mut self) {
        self.population.begin();
        self.feed.begin();
    }

    /// Takes an object of a listing.
    async fn listed(&mut self, object: Watched<T>) -> Result<(), Stop> {
        self.population.list(self.key_of(&object))?;
        Ok(self.feed.listed(object).await?)
    }

    fn key_of(&self, object: &Watched<T>) -> Option<ObjectKey> {
        let named = object.reference(self.feed.cluster());
        named.map(|named| named.key)
    }

    async fn list(&mut self) -> Result<(), Stop> {
        self.begin();
        let mut params = ListParams {
            label_selector: self.feed.selector::<T>(),
            field_selector: T::FIELDS.map(str::to_owned),
            limit: Some(PAGE_SIZE),
            ..ListParams::default()
        };
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        loop {
            let page = tend(&mut self.feed, self.api.list(&params)).await??;
            self.heard();
            for object in page.items {
                self.listed(object).await?;
            }
            params.continue_token = given(page.metadata.continue_);
            if params.continue_token.is_none() {
                let version = given(page.metadata.resource_version);
                return self.complete(version.ok_or(Trouble::NoVersion)?).await;
            }
        }
    }

    /// Everything was listed that there was at this version.
    async fn complete(&mut self, version: String) -> Result<(), Stop> {
        // Pages without a version are read from the server's storage.
        let is_sure = self.is_doubted && self.way == Way::Paged;
        self.is_doubted = !self.feed.complete(&version, is_sure).await?;
        if self.is_doubted {
            self.version = None;
            self.way = Way::Paged;
            return Ok(());
        }
        self.population.complete();
        self.reached.clone_from(&version);
        self.version = Some(version);
        self.is_fresh = true;
        self.is_absent = false;
        self.missing_since = None;
        self.is_listed = true;
        self.way = self.best_way();
        Ok(())
    }

    /// The server lives.
    fn heard(&mut self) {
        self.probe.heard();
        self.refusals = 0;
        if std::mem::take(&mut self.is_unreachable) {
            // A success ends the series of failures.
            self.backoff.reset();
        }
        self.feed.stats().count_contact();
    }

    fn best_way(&self) -> Way {
        if self.can_stream {
            Way::Streamed
        } else {
            Way::Paged
        }
    }

    /// Watches from the last version; without one, a listing comes first.
    async fn watch(&mut self) -> Result<(), Stop> {
        match &self.version {
            None => self.begin(),
            // Between two watches the server may have become another one.
            Some(version) if !self.is_fresh => {
                tend(&mut self.feed, self.probe.check(version)).await??;
                self.heard();
            }
            Some(_) => {}
        }
        self.is_fresh = false;
        let params = WatchParams {
            label_selector: self.feed.selector::<T>(),
            field_selector: T::FIELDS.map(str::to_owned),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            send_initial_events: self.version.is_none(),
        };
        // A listing is not older than the last version seen; the first one, without a version, is
        // the most recent. A stale one would go back in time.
        let from = self.reached.clone();
        let begin = Instant::now();
        let events = tend(&mut self.feed, self.api.watch(&params, &from)).await??;
        let mut events = pin!(events);
        self.heard();
        self.missing_since = None;
        let mut brought_something = false;
        let mut last = begin;
        loop {
            self.feed.look().await?;
            // Events that have arrived already make one batch.
            let event = match events.next().now_or_never() {
                Some(event) => event,
                None => {
                    self.feed.flush().await?;
                    tokio::select! {
                        biased;
                        event = events.next() => event,
                        () = self.feed.wait() => continue,
                        answered = self.probe.answer(&self.reached) => {
                            if answered? {
                                self.feed.stats().count_contact();
                            }
                            continue;
                        }
                        () = sleep_until(last + SILENCE) => return Err(Trouble::Silent.into()),
                    }
                }
            };
            last = Instant::now();
            match event {
                Some(Ok(event)) => {
                    if !self.apply_event(event).await? {
                        return Ok(());
                    }
                }
                // One line is lost, but the lines after it are not.
                Some(Err(kube::Error::SerdeError(error))) => self.skip(&error),
                // An event of an unknown type, or an invalid status.
                Some(Err(kube::Error::Api(status))) => return Err(Trouble::Told(status).into()),
                Some(Err(error)) => return Err(error.into()),
                None => break,
            }
            self.heard();
            brought_something = true;
        }
        self.feed.flush().await?;
        if self.version.is_none() {
            return Err(Trouble::Unfinished.into());
        }
        if !brought_something && begin.elapsed() > QUIET {
            // Not even a bookmark: the server may have lost sight of this kind.
            self.version = None;
            return Ok(());
        }
        if !brought_something && begin.elapsed() < SHORT {
            return Err(Trouble::Short.into());
        }
        Ok(())
    }

    /// Whether the watch can go on after this event.
    async fn apply_event(&mut self, event: WatchEvent<Watched<T>>) -> Result<bool, Stop> {
        let is_listing = self.version.is_none();
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) if is_listing => {
                self.listed(object).await?;
            }
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.advance(object.version())?;
                self.population.put(self.key_of(&object))?;
                self.feed.put(object).await?;
            }
            WatchEvent::Deleted(object) if is_listing => {
                self.population.unlist(self.key_of(&object));
                self.feed.unlisted(&object);
            }
            WatchEvent::Deleted(object) => {
                self.advance(object.version())?;
                self.population.delete(self.key_of(&object));
                self.feed.delete(&object).await?;
            }
            WatchEvent::Bookmark(bookmark) => {
                let metadata = bookmark.metadata;
                if !is_listing {
                    self.advance(Some(&metadata.resource_version))?;
                } else if metadata.annotations.contains_key(LISTING_ENDS) {
                    self.feed.stats().count_streamed_listing();
                    self.complete(metadata.resource_version).await?;
                    return Ok(!self.is_doubted);
                }
            }
            WatchEvent::Error(status) => return Err(Trouble::Told(status).into()),
        }
        Ok(true)
    }

    /// Moves on to this version; without one, only a listing finds it.
    fn advance(&mut self, version: Option<&str>) -> Result<(), Trouble> {
        let version = version.filter(|version| !version.is_empty());
        let version = version.ok_or(Trouble::NoVersion)?;
        if let (Ok(ours), Ok(theirs)) = (self.reached.parse(), version.parse())
            && theirs < ours
        {
            return Err(Trouble::WentBack { ours, theirs });
        }
        self.feed.reached(version);
        version.clone_into(&mut self.reached);
        self.version = Some(version.to_owned());
        // A listing alone proves nothing: the watch after it may be refused every time.
        self.backoff.reset();
        Ok(())
    }

    fn skip(&self, error: &serde_json::Error) {
        self.feed.stats().count_watch_error();
        let (cluster, kind) = (self.feed.cluster(), self.feed.kind());
        warn!(%cluster, %kind, %error, "event that cannot be read, skipped");
    }

    async fn recover(&mut self, trouble: Trouble) -> Result<(), crate::Closed> {
        self.feed.flush().await?;
        let (cluster, kind) = (self.feed.cluster(), self.feed.kind());
        let was_listing = self.version.is_none();
        if was_listing && self.way == Way::Streamed && trouble.is_refusal() {
            info!(%cluster, %kind, error = %trouble, "the server streams no listings, using pages");
            self.can_stream = false;
            self.way = Way::Paged;
            return Ok(());
        }
        if was_listing {
            // The other way to list may work.
            self.way = match self.way {
                Way::Streamed => Way::Paged,
                Way::Paged => self.best_way(),
            };
        }
        if trouble.needs_listing() {
            self.version = None;
        }
        if let Trouble::WentBack { .. } = trouble {
            // Its cache may not have reached the last version yet.
            self.reached.clear();
            self.way = Way::Paged;
        }
        self.is_unreachable = trouble.is_unreachable();
        let is_dispensed = T::DISPENSABLE && trouble.is_forbidden();
        if is_dispensed || T::OPTIONAL && trouble.is_missing() {
            return self.absent(&trouble).await;
        }
        self.missing_since = None;
        self.feed.stats().count_watch_error();
        let mut delay = self.backoff.next().unwrap_or_default();
        if self.feed.shares() && trouble.is_forbidden() {
            self.refusals = self.refusals.saturating_add(1);
            if self.refusals >= REFUSALS {
                // Another cluster's operator has to act.
                delay = RARELY;
            }
        }
        warn!(%cluster, %kind, error = %trouble, retry_in = ?delay, "watch failed, retrying");
        tend(&mut self.feed, sleep(delay)).await
    }

    /// The server has no such kind now, or does not permit one that can be done without. What was listed of it before
    /// stays for a while: a server that starts may know its CRDs late.
    async fn absent(&mut self, trouble: &Trouble) -> Result<(), crate::Closed> {
        self.heard();
        let (cluster, kind) = (self.feed.cluster(), self.feed.kind());
        if !std::mem::replace(&mut self.is_absent, true) {
            info!(%cluster, %kind, answer = %trouble, retry_in = ?RARELY, "done without this kind");
        }
        let missing = trouble.is_missing();
        self.missing_since = missing.then(|| self.missing_since.unwrap_or_else(Instant::now));
        let is_late = self
            .missing_since
            .is_some_and(|since| since.elapsed() >= LATE);
        let is_gone = self.is_listed && is_late;
        if is_gone {
            info!(%cluster, %kind, "no such kind for long: its objects are gone");
        }
        self.feed.absent(is_gone).await?;
        if is_gone {
            self.is_listed = false;
            // A watch from there would not send again what is gone now.
            self.version = None;
        }
        tend(&mut self.feed, sleep(RARELY)).await
    }
}

/// Waits for a future, and sends released events meanwhile.
async fn tend<F: Future>(feed: &mut Feed, work: F) -> Result<F::Output, crate::Closed> {
    let mut work = pin!(work);
    loop {
        tokio::select! {
            biased;
            output = &mut work => return Ok(output),
            () = feed.wait() => feed.look().await?,
        }
    }
}
