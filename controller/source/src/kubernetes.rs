// SPDX-License-Identifier: Apache-2.0

//! The source `kubernetes`: three watches on one API server, or four.
//!
//! Each watch lists its kind and follows it: it resumes broken connections where they were, and
//! lists again where the server forgot (410). Here live the guard against malformed objects,
//! batching, mark and sweep, and the pauses between attempts.

mod client;
mod events;
mod exports;
mod feed;
mod follow;
mod identity;
mod kinds;
mod member;
mod name_feed;
mod population;
mod probe;
mod prune;
mod report;
mod resources;
mod stats;
#[cfg(test)]
mod tests;
mod trouble;
mod watched;

use std::sync::Arc;

use kube::{Api, Client};
use portolan_catalog::Kind;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::deletions::GuardConfig;
use crate::held::KindGuard;
use crate::objects::{
    ClusterProperty, EndpointSlice, Namespace, Node, Pod, ProxyName, Scope, Service, ServiceExport,
    ServiceImport,
};
use crate::{NameSink, Sink};
use exports::Exports;
use feed::{Feed, Pending};
use follow::Follower;
use kinds::{NamedPod, Watchable};
use name_feed::NameFeed;
use population::Population;

pub use client::{ClientError, check_kubeconfig, client, own_client};
pub use events::{problem_channel, report_problems};
pub use identity::{ClusterId, cluster_id};
pub use member::{MemberConfig, MemberError, MemberId, may_replace};
pub use probe::{VersionError, newest_versions};
pub use report::report_held;
pub use resources::{Resource, ResourceKind, Resources, follow_resources};
pub use stats::{KindStats, Stats};

/// Options of the watches.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Watch the metadata of all Pods too, for the weights in their annotations. Pods are an API
    /// server's most numerous objects, and change the most.
    pub pods: bool,
    /// List in pages also where the server can stream a listing.
    pub paged: bool,
    /// The limits of the deletion guard. Pods are not guarded: they come and go.
    pub guard: GuardConfig,
    /// The proxy whose Services are ours; `None` for the default one. DNS has all Services.
    pub proxy: Option<ProxyName>,
    /// The most objects of each kind; `None` for a cluster that is trusted with the memory of this
    /// process. Beyond it the last objects stay.
    pub most_objects: Option<usize>,
}

/// Options of the watches for DNS.
#[derive(Debug, Clone)]
pub struct NameOptions {
    /// The sink of DNS.
    pub sink: NameSink,
    /// Watch the addresses of all Pods, for names of verified Pods. Weights then come from the same
    /// watch.
    pub pods: bool,
}

/// Watches Services, EndpointSlices and Nodes until `token` is cancelled or the sink's reader is
/// gone.
///
/// [`Event::Synced`](crate::Event::Synced) follows the first complete listing of all watched kinds.
pub async fn watch(
    client: Client,
    cluster: Arc<str>,
    options: Options,
    sink: Sink,
    stats: Arc<Stats>,
    token: CancellationToken,
) {
    let besides = Besides::default();
    watch_with(client, cluster, options, besides, sink, stats, token).await;
}

/// Objects that are watched beside Services, EndpointSlices and Nodes.
#[derive(Debug, Default)]
pub struct Besides {
    /// Watches for DNS: the same without selectors, and Namespaces.
    pub names: Option<NameOptions>,
    /// Objects that clusters share: Namespaces, ServiceExports, ServiceImports and ClusterProperties. The value says
    /// whether Services may be exported without a ServiceExport. Kinds that the server lacks are looked for every
    /// minute.
    pub shares: Option<watch::Receiver<bool>>,
}

/// Like [`watch`], but watches more, until `token` is cancelled or a sink's reader is gone.
pub async fn watch_with(
    client: Client,
    cluster: Arc<str>,
    options: Options,
    besides: Besides,
    sink: Sink,
    stats: Arc<Stats>,
    token: CancellationToken,
) {
    let Besides { names, shares } = besides;
    let with_names = names.is_some();
    let named_pods = names.as_ref().is_some_and(|names| names.pods);
    let is_shared = shares.is_some();
    let kinds = 3 + usize::from(options.pods) + if is_shared { 4 } else { 0 };
    let exports = shares.as_ref();
    let exports = exports.map(|automatic| {
        let (sink, automatic) = (sink.clone(), *automatic.borrow());
        Arc::new(Exports::new(&cluster, sink, automatic, stats.holds()))
    });
    let feeds = Feeds {
        pending: Arc::new(Pending::new(kinds)),
        pending_names: Arc::new(Pending::new(3 + usize::from(named_pods))),
        scope: Arc::new(Scope {
            cluster,
            proxy: options.proxy,
            shares: is_shared,
        }),
        sink,
        names,
        exports: exports.clone(),
        stats,
        guard: options.guard,
    };
    let follower = Followers {
        client,
        streamed: !options.paged,
        most_objects: options.most_objects,
        feeds,
    };
    let pods = async {
        match (named_pods, options.pods) {
            (true, weights) => follower.of::<NamedPod>(weights, true).run().await,
            (false, true) => follower.of::<Pod>(true, false).run().await,
            (false, false) => Ok(()),
        }
    };
    let namespaces = async {
        if with_names || is_shared {
            let namespaces = follower.of::<Namespace>(is_shared, with_names);
            namespaces.run().await?;
        }
        Ok(())
    };
    let shared = async {
        let (Some(exports), Some(automatic)) = (exports, shares) else {
            return Ok(());
        };
        tokio::try_join!(
            follower.of::<ServiceExport>(true, false).run(),
            follower.of::<ServiceImport>(true, false).run(),
            follower.of::<ClusterProperty>(true, false).run(),
            exports.follow(automatic),
        )?;
        Ok(())
    };
    let watches = async {
        tokio::try_join!(
            follower.of::<Service>(true, with_names).run(),
            follower.of::<EndpointSlice>(true, with_names).run(),
            follower.of::<Node>(true, false).run(),
            pods,
            namespaces,
            shared,
        )
    };
    // Ends early only with the sink's reader, whose owner deals with its end.
    let _ = token.run_until_cancelled(Box::pin(watches)).await;
}

/// The shared parts of all watches.
struct Feeds {
    scope: Arc<Scope>,
    sink: Sink,
    names: Option<NameOptions>,
    exports: Option<Arc<Exports>>,
    stats: Arc<Stats>,
    guard: GuardConfig,
    pending: Arc<Pending>,
    pending_names: Arc<Pending>,
}

impl Feeds {
    fn of(&self, kind: Kind, tables: bool, names: bool) -> Feed {
        let names = self.names.as_ref().filter(|_| names).map(|names| {
            let pending = Arc::clone(&self.pending_names);
            NameFeed::new(kind, names.sink.clone(), pending)
        });
        // Pods come and go, no table depends on ServiceImports, and properties are few.
        let is_guarded = !matches!(
            kind,
            Kind::Pod | Kind::ServiceImport | Kind::ClusterProperty
        );
        let guard = is_guarded.then(|| {
            let holds = Arc::clone(self.stats.holds());
            KindGuard::new(kind, Arc::clone(&self.scope.cluster), self.guard, holds)
        });
        Feed::new(
            kind,
            Arc::clone(&self.scope),
            tables.then(|| self.sink.clone()),
            names,
            Arc::clone(&self.stats),
            Arc::clone(&self.pending),
            guard,
        )
        .joining(self.exports.clone())
    }
}

struct Followers {
    client: Client,
    /// Whether listings are streamed where the server can.
    streamed: bool,
    most_objects: Option<usize>,
    feeds: Feeds,
}

impl Followers {
    /// Follows a kind, for the tables, for DNS or for both.
    fn of<T: Watchable>(&self, tables: bool, names: bool) -> Follower<T> {
        let feed = self.feeds.of(T::KIND, tables, names);
        let population = Population::new(self.most_objects);
        let api = Api::all(self.client.clone());
        Follower::new(api, feed, population, self.streamed)
    }
}
