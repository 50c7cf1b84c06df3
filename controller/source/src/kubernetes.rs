//! The source `kubernetes`: three watches on one API server, or four.
//!
//! Each watch lists its kind and follows it; kube's watcher resumes broken connections and lists
//! again where the server forgot (410). Here live the guard against malformed objects, batching,
//! mark and sweep, and the pauses between attempts.

mod client;
mod feed;
mod kinds;
mod stats;
#[cfg(test)]
mod tests;
mod watched;

use std::pin::pin;
use std::sync::Arc;

use futures_util::{FutureExt, StreamExt};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, DefaultBackoff, watcher};
use kube::{Api, Client};
use portolan_catalog::Kind;
use tokio_util::sync::CancellationToken;
use tracing::warn;

use crate::Sink;
use crate::objects::{EndpointSlice, Node, Pod, Service};
use crate::sink::Closed;
use feed::{Feed, Pending};
use kinds::Watchable;
use watched::Watched;

pub use client::{ClientError, client};
pub use stats::{KindStats, Stats};

/// Objects per page of a listing, client-go's figure.
const PAGE_SIZE: u32 = 500;

/// What to watch beside Services, EndpointSlices and Nodes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// The metadata of all Pods, for the weights that their annotations say. Of what an API server
    /// has, Pods are the most, and change the most.
    pub pods: bool,
}

/// Watches Services, EndpointSlices and Nodes until `token` is cancelled or nobody reads the sink.
///
/// [`Event::Synced`](crate::Event::Synced) follows the first complete listing of all that is
/// watched.
pub async fn watch(
    client: Client,
    cluster: Arc<str>,
    options: Options,
    sink: Sink,
    stats: Arc<Stats>,
    token: CancellationToken,
) {
    let pending = Arc::new(Pending::new(3 + usize::from(options.pods)));
    let feed = |kind| {
        let (cluster, sink) = (Arc::clone(&cluster), sink.clone());
        Feed::new(
            kind,
            cluster,
            sink,
            Arc::clone(&stats),
            Arc::clone(&pending),
        )
    };
    let pods = async {
        if options.pods {
            watch_kind::<Pod>(client.clone(), feed(Kind::Pod)).await?;
        }
        Ok(())
    };
    let watches = async {
        tokio::try_join!(
            watch_kind::<Service>(client.clone(), feed(Kind::Service)),
            watch_kind::<EndpointSlice>(client.clone(), feed(Kind::EndpointSlice)),
            watch_kind::<Node>(client.clone(), feed(Kind::Node)),
            pods,
        )
    };
    // Ends early only with the sink's reader, whose end its owner knows best.
    let _ = token.run_until_cancelled(Box::pin(watches)).await;
}

/// Watches one kind; ends only when nobody reads the sink.
async fn watch_kind<T: Watchable>(client: Client, mut feed: Feed) -> Result<(), Closed> {
    let api = Api::<Watched<T>>::all(client);
    // Applied here and not by kube's stream adapter, which starts over at every `Init`: listings
    // that fail one after the other would never be spaced further apart.
    let mut backoff = DefaultBackoff::default();
    loop {
        let mut events = pin!(watcher(api.clone(), config::<T>()));
        loop {
            // What has arrived already goes in one batch.
            let event = match events.next().now_or_never() {
                Some(event) => event,
                None => {
                    feed.flush().await?;
                    events.next().await
                }
            };
            match event {
                Some(Ok(event)) => {
                    feed.take(event).await?;
                    if !feed.is_listing() {
                        backoff.reset();
                    }
                }
                Some(Err(error)) => {
                    feed.flush().await?;
                    pause(&feed, &error, &mut backoff).await;
                    if is_stuck(&error) {
                        break;
                    }
                }
                None => break,
            }
        }
    }
}

fn config<T: Watchable>() -> watcher::Config {
    let config = watcher::Config::default().page_size(PAGE_SIZE);
    match T::SELECTOR {
        Some(selector) => config.labels(selector),
        None => config,
    }
}

async fn pause(feed: &Feed, error: &watcher::Error, backoff: &mut DefaultBackoff) {
    feed.stats().count_watch_error();
    let delay = backoff.next().unwrap_or_default();
    warn!(
        cluster = %feed.cluster(), kind = %feed.kind(), %error, retry_in = ?delay,
        "watch failed, retrying"
    );
    tokio::time::sleep(delay).await;
}

/// Whether kube's watcher would retry forever what can only be mended by a new listing: a watch
/// that was refused with status 410 instead of an event.
fn is_stuck(error: &watcher::Error) -> bool {
    matches!(
        error,
        watcher::Error::WatchStartFailed(kube::Error::Api(status)) if status.code == 410
    )
}
