//! The source `kubernetes`: three watches on one API server, or four.
//!
//! Each watch lists its kind and follows it: it resumes broken connections where they were, and
//! lists again where the server forgot (410). Here live the guard against malformed objects,
//! batching, mark and sweep, and the pauses between attempts.

mod client;
mod feed;
mod follow;
mod kinds;
mod prune;
mod stats;
#[cfg(test)]
mod tests;
mod trouble;
mod watched;

use std::sync::Arc;

use kube::{Api, Client};
use portolan_catalog::Kind;
use tokio_util::sync::CancellationToken;

use crate::Sink;
use crate::objects::{EndpointSlice, Node, Pod, Service};
use feed::{Feed, Pending};
use follow::Follower;
use kinds::Watchable;

pub use client::{ClientError, client};
pub use stats::{KindStats, Stats};

/// What to watch beside Services, EndpointSlices and Nodes, and how.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Options {
    /// The metadata of all Pods, for the weights that their annotations say. Of what an API server
    /// has, Pods are the most, and change the most.
    pub pods: bool,
    /// List in pages also where the server can stream a listing.
    pub paged: bool,
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
            follower::<Pod>(&client, options, &feed).run().await?;
        }
        Ok(())
    };
    let watches = async {
        tokio::try_join!(
            follower::<Service>(&client, options, &feed).run(),
            follower::<EndpointSlice>(&client, options, &feed).run(),
            follower::<Node>(&client, options, &feed).run(),
            pods,
        )
    };
    // Ends early only with the sink's reader, whose end its owner knows best.
    let _ = token.run_until_cancelled(Box::pin(watches)).await;
}

fn follower<T: Watchable>(
    client: &Client,
    options: Options,
    feed: &impl Fn(Kind) -> Feed,
) -> Follower<T> {
    Follower::new(Api::all(client.clone()), feed(T::KIND), !options.paged)
}
