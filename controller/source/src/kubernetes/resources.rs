// SPDX-License-Identifier: Apache-2.0

//! Cluster-scoped objects of a few kinds, followed as they are: the policy at the API server that the controller runs
//! at.
//!
//! They are few. Each kind is listed again from the server's storage when its watch ends, which is once a minute: a
//! server that was restored from a backup is found by that, and no cache is believed. A listing that fails changes
//! nothing. The deletions that a watch tells are believed; a listing in which all of a kind is missing is not, before
//! an operator confirms it.

mod gather;

use std::collections::{BTreeMap, BTreeSet};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::join_all;
use kube::api::{ApiResource, DynamicObject, ListParams, WatchEvent, WatchParams};
use kube::runtime::utils::Backoff as _;
use kube::runtime::watcher::DefaultBackoff;
use kube::{Api, Client};
use serde_json::Value;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, warn};

use crate::HeldDeletions;
use crate::deletions::GuardConfig;
use gather::Gatherer;

/// Time for which the server is asked to keep a watch open, in seconds.
const WATCH_SECONDS: u32 = 60;
/// A watch that is silent for longer is dead.
const SILENCE: Duration = Duration::from_secs(65);
/// A watch that ends sooner, and brought nothing or a version that is too old, is not worth another one at once.
const SHORT: Duration = Duration::from_secs(1);
/// Time limit of a request.
const PATIENCE: Duration = Duration::from_secs(20);
/// Objects of one page of a listing.
const PAGE: u32 = 500;
/// Length of the queue of news.
const NEWS: usize = 64;
/// Longest pause after a failure.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// A cluster-scoped kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[expect(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct ResourceKind {
    pub group: &'static str,
    pub version: &'static str,
    pub kind: &'static str,
    pub plural: &'static str,
}

/// An object of such a kind.
#[derive(Debug, Clone, Default, PartialEq)]
#[expect(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct Resource {
    /// `metadata.creationTimestamp` in seconds since 1970.
    pub created: Option<i64>,
    /// `metadata.uid`. An object that is created again has another one.
    pub uid: Option<String>,
    pub generation: Option<i64>,
    pub labels: BTreeMap<String, String>,
    pub spec: Value,
    pub status: Value,
}

/// All objects, as far as they are known.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Resources {
    /// The objects by kind and name.
    pub objects: BTreeMap<(&'static str, String), Resource>,
    /// The kinds that were listed since the start.
    pub listed: BTreeSet<&'static str>,
    /// Reasons why a kind cannot be followed at present, by kind.
    pub problems: BTreeMap<&'static str, String>,
}

/// News of one kind.
#[derive(Debug)]
enum News {
    /// These are all objects.
    Listed(BTreeMap<String, Resource>),
    Put(String, Resource),
    Deleted(String),
    Failed(String),
}

/// Follows these kinds, and tells the objects. Ends only if nobody wants to know them.
pub async fn follow_resources(
    client: Client,
    kinds: Vec<ResourceKind>,
    guard: GuardConfig,
    holds: Arc<HeldDeletions>,
    told: watch::Sender<Resources>,
) {
    let (sender, news) = mpsc::channel(NEWS);
    let followers = kinds.iter().map(|kind| {
        let resource = ApiResource {
            group: kind.group.to_owned(),
            version: kind.version.to_owned(),
            api_version: format!("{}/{}", kind.group, kind.version),
            kind: kind.kind.to_owned(),
            plural: kind.plural.to_owned(),
        };
        follow(
            Api::all_with(client.clone(), &resource),
            *kind,
            sender.clone(),
        )
    });
    let followers = join_all(followers.collect::<Vec<_>>());
    let gatherer = Gatherer::new(&kinds, guard, holds, told);
    tokio::select! {
        _ = followers => {}
        () = gatherer.run(news) => {}
    }
}

/// Reason why a round ended early.
enum Stop {
    Closed,
    Failed(String),
}

impl<T> From<mpsc::error::SendError<T>> for Stop {
    fn from(_: mpsc::error::SendError<T>) -> Self {
        Self::Closed
    }
}

impl From<kube::Error> for Stop {
    fn from(error: kube::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<tokio::time::error::Elapsed> for Stop {
    fn from(_: tokio::time::error::Elapsed) -> Self {
        Self::Failed(format!("no answer in {PATIENCE:?}"))
    }
}

type Sender = mpsc::Sender<(&'static str, News)>;

/// Follows one kind. Ends only if nobody wants to know it.
async fn follow(api: Api<DynamicObject>, kind: ResourceKind, sender: Sender) {
    let mut backoff = DefaultBackoff::default();
    loop {
        let failure = match round(&api, kind, &sender).await {
            Ok(()) => {
                backoff.reset();
                continue;
            }
            Err(Stop::Closed) => return,
            Err(Stop::Failed(text)) => text,
        };
        let pause = backoff.next().unwrap_or(LONGEST_PAUSE);
        warn!(kind = kind.kind, error = failure, retry_in = ?pause, "cannot follow the policy, retrying");
        let text = format!("{}.{}: {failure}", kind.plural, kind.group);
        if sender.send((kind.kind, News::Failed(text))).await.is_err() {
            return;
        }
        sleep(pause).await;
    }
}

/// Lists a kind, and watches it from there until the watch ends.
async fn round(api: &Api<DynamicObject>, kind: ResourceKind, sender: &Sender) -> Result<(), Stop> {
    let (objects, version) = list(api).await?;
    debug!(kind = kind.kind, objects = objects.len(), "listed");
    sender.send((kind.kind, News::Listed(objects))).await?;
    let params = WatchParams {
        timeout: Some(WATCH_SECONDS),
        bookmarks: false,
        ..WatchParams::default()
    };
    let begin = Instant::now();
    let mut events = pin!(timeout(PATIENCE, api.watch(&params, &version)).await??);
    let mut has_brought = false;
    loop {
        let event = match timeout(SILENCE, events.next()).await {
            Ok(Some(event)) => event?,
            Ok(None) if !has_brought && begin.elapsed() < SHORT => {
                let text = "a watch that ended as soon as it began";
                return Err(Stop::Failed(text.to_owned()));
            }
            // The next listing says what is so.
            Ok(None) | Err(_) => return Ok(()),
        };
        has_brought = true;
        let news = match event {
            WatchEvent::Added(object) | WatchEvent::Modified(object) => {
                read(object).map(|(name, object)| News::Put(name, object))
            }
            WatchEvent::Deleted(object) => read(object).map(|(name, _)| News::Deleted(name)),
            WatchEvent::Bookmark(_) => None,
            // The version is too old: the listing is again the way. One that is too old at once may be so each time.
            WatchEvent::Error(status) if status.code == 410 && begin.elapsed() >= SHORT => {
                return Ok(());
            }
            WatchEvent::Error(status) => return Err(Stop::Failed(status.message)),
        };
        if let Some(news) = news {
            sender.send((kind.kind, news)).await?;
        }
    }
}

/// All objects of a kind, from the server's storage, and their version.
async fn list(api: &Api<DynamicObject>) -> Result<(BTreeMap<String, Resource>, String), Stop> {
    let mut params = ListParams {
        limit: Some(PAGE),
        ..ListParams::default()
    };
    let mut objects = BTreeMap::new();
    loop {
        let page = timeout(PATIENCE, api.list(&params)).await??;
        objects.extend(page.items.into_iter().filter_map(read));
        params.continue_token = page.metadata.continue_.filter(|token| !token.is_empty());
        if params.continue_token.is_none() {
            let version = page.metadata.resource_version;
            let version = version.filter(|version| !version.is_empty());
            let none = || Stop::Failed(String::from("a listing without a version"));
            return Ok((objects, version.ok_or_else(none)?));
        }
    }
}

/// The name of an object, and what is kept of it.
fn read(mut object: DynamicObject) -> Option<(String, Resource)> {
    let metadata = object.metadata;
    let mut take = |field: &str| {
        object
            .data
            .get_mut(field)
            .map(Value::take)
            .unwrap_or_default()
    };
    let resource = Resource {
        created: metadata.creation_timestamp.map(|time| time.0.as_second()),
        uid: metadata.uid,
        generation: metadata.generation,
        labels: metadata.labels.unwrap_or_default(),
        spec: take("spec"),
        status: take("status"),
    };
    Some((metadata.name?, resource))
}
