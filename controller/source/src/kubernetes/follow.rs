//! Follows one kind: lists it, watches it from there, and lists it again where the server forgot.
//!
//! Not kube's `watcher`, which hides what we need: bookmarks and the versions of listings (how far
//! we are), and watches that end as soon as they begin.

use std::pin::pin;
use std::time::Duration;

use futures_util::{FutureExt, StreamExt};
use kube::Api;
use kube::api::{ListParams, WatchEvent, WatchParams};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::DefaultBackoff;
use tokio::time::{Instant, timeout};
use tracing::{info, warn};

use super::feed::Feed;
use super::kinds::Watchable;
use super::trouble::{Stop, Trouble};
use super::watched::Watched;

/// Objects per page of a listing, client-go's figure.
const PAGE_SIZE: u32 = 500;
/// How long the server is asked to keep a watch open, in seconds.
const WATCH_SECONDS: u32 = 290;
/// A watch that is silent for longer than the server should keep it open is dead.
const SILENCE: Duration = Duration::from_secs(295);
/// A watch that ends sooner, and brought nothing, is not worth another one at once.
const SHORT: Duration = Duration::from_secs(1);
/// The annotation of the bookmark that ends a streamed listing.
const LISTING_ENDS: &str = "k8s.io/initial-events-end";

/// How a listing is asked for.
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
    /// The last version that we were at; empty if there was none.
    reached: String,
    way: Way,
    can_stream: bool,
    backoff: DefaultBackoff,
}

impl<T: Watchable> Follower<T> {
    pub(super) fn new(api: Api<Watched<T>>, feed: Feed, can_stream: bool) -> Self {
        let mut this = Self {
            api,
            feed,
            version: None,
            reached: String::new(),
            way: Way::Paged,
            can_stream,
            backoff: DefaultBackoff::default(),
        };
        this.way = this.best_way();
        this
    }

    /// Ends only when nobody reads the sink.
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

    async fn list(&mut self) -> Result<(), Stop> {
        self.feed.begin();
        let mut params = ListParams {
            label_selector: self.feed.selector::<T>(),
            field_selector: T::FIELDS.map(str::to_owned),
            limit: Some(PAGE_SIZE),
            ..ListParams::default()
        };
        let given = |text: Option<String>| text.filter(|text| !text.is_empty());
        loop {
            let page = self.api.list(&params).await?;
            for object in page.items {
                self.feed.listed(object).await?;
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
        self.feed.complete(&version).await?;
        self.reached.clone_from(&version);
        self.version = Some(version);
        self.way = self.best_way();
        Ok(())
    }

    fn best_way(&self) -> Way {
        if self.can_stream {
            Way::Streamed
        } else {
            Way::Paged
        }
    }

    /// Watches from where we are; if that is nowhere, a listing comes first.
    async fn watch(&mut self) -> Result<(), Stop> {
        if self.version.is_none() {
            self.feed.begin();
        }
        let params = WatchParams {
            label_selector: self.feed.selector::<T>(),
            field_selector: T::FIELDS.map(str::to_owned),
            timeout: Some(WATCH_SECONDS),
            bookmarks: true,
            send_initial_events: self.version.is_none(),
        };
        // A listing is not older than what we had; the first one, without a version, is as new as
        // anything that there is. A stale one would take us back in time.
        let from = self.reached.clone();
        let begin = Instant::now();
        let mut events = pin!(self.api.watch(&params, &from).await?);
        let mut brought_something = false;
        loop {
            // What has arrived already goes in one batch.
            let event = match events.next().now_or_never() {
                Some(event) => event,
                None => {
                    self.feed.flush().await?;
                    let next = timeout(SILENCE, events.next()).await;
                    next.map_err(|_| Trouble::Silent)?
                }
            };
            match event {
                Some(Ok(event)) => self.take(event).await?,
                // One line is lost, but the lines after it are not.
                Some(Err(kube::Error::SerdeError(error))) => self.skip(&error),
                // An event of a type that we do not know, or a status that is none.
                Some(Err(kube::Error::Api(status))) => return Err(Trouble::Told(status).into()),
                Some(Err(error)) => return Err(error.into()),
                None => break,
            }
            brought_something = true;
        }
        self.feed.flush().await?;
        if self.version.is_none() {
            return Err(Trouble::Unfinished.into());
        }
        if !brought_something && begin.elapsed() < SHORT {
            return Err(Trouble::Short.into());
        }
        Ok(())
    }

    async fn take(&mut self, event: WatchEvent<Watched<T>>) -> Result<(), Stop> {
        let is_listing = self.version.is_none();
        match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) if is_listing => {
                self.feed.listed(object).await?;
            }
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                self.advance(object.version())?;
                self.feed.put(object).await?;
            }
            WatchEvent::Deleted(object) => {
                if !is_listing {
                    self.advance(object.version())?;
                }
                self.feed.delete(&object).await?;
            }
            WatchEvent::Bookmark(bookmark) => {
                let metadata = bookmark.metadata;
                if !is_listing {
                    self.advance(Some(&metadata.resource_version))?;
                } else if metadata.annotations.contains_key(LISTING_ENDS) {
                    self.feed.stats().count_streamed_listing();
                    self.complete(metadata.resource_version).await?;
                }
            }
            WatchEvent::Error(status) => return Err(Trouble::Told(status).into()),
        }
        Ok(())
    }

    /// We are at this version now; without one, only a listing says where we are.
    fn advance(&mut self, version: Option<&str>) -> Result<(), Trouble> {
        let version = version.filter(|version| !version.is_empty());
        let version = version.ok_or(Trouble::NoVersion)?;
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
            // Whatever is wrong with one way may not be with the other.
            self.way = match self.way {
                Way::Streamed => Way::Paged,
                Way::Paged => self.best_way(),
            };
        }
        if trouble.needs_listing() {
            self.version = None;
        }
        self.feed.stats().count_watch_error();
        let delay = self.backoff.next().unwrap_or_default();
        warn!(%cluster, %kind, error = %trouble, retry_in = ?delay, "watch failed, retrying");
        tokio::time::sleep(delay).await;
        Ok(())
    }
}
