// SPDX-License-Identifier: Apache-2.0

//! A relay: a controller whose source is another one.

mod args;
mod metrics;

use std::sync::Arc;

use portolan_relay::{Outlets, RelayConfig, Stats, run};
use portolan_runtime::{BlockReady, CredentialCollector, Liveness, Readiness, Vital};
use portolan_serve::Registry as Sessions;
use portolan_subscription::FIRST_COMMIT_TIMEOUT;
use portolan_tablelog::{ClusterIdentity, Forwarder, Publisher, TableReader};
use portolan_tls::POLL;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::args::Args;
use crate::metrics::CatalogMetrics;
use crate::publishing::{WRITER_STUCK, follow_contact};
pub(crate) use args::UpstreamArgs;
pub(crate) use metrics::RelayCollector;

/// The parts of a relay.
pub(crate) struct RelayParts {
    pub(crate) publisher: Publisher,
    pub(crate) identity: ClusterIdentity,
    pub(crate) tables: TableReader,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) metrics: CatalogMetrics,
    /// Not ready until there are tables.
    pub(crate) unready: BlockReady,
    pub(crate) liveness: Liveness,
    pub(crate) readiness: Readiness,
    pub(crate) cores: u32,
}

/// Starts the relay.
pub(crate) fn start(
    args: &Args,
    parts: RelayParts,
    registry: &mut Registry,
    vital: &Vital,
) -> anyhow::Result<()> {
    let flags = &args.upstream;
    flags.validate()?;
    let (security, files) = flags.identity().open("upstream_tls")?;
    if let Some(files) = files {
        registry.register_collector(Box::new(CredentialCollector(vec![files.health()])));
        vital.spawn("credentials", files.follow(POLL, vital.ending.clone()));
    } else {
        tracing::warn!(
            "plaintext: everyone on the network path to --upstream can change the tables of all nodes"
        );
    }
    let config = RelayConfig {
        upstreams: flags.upstreams()?,
        security,
        cluster: args.cluster.clone(),
        name: flags.name(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        guard: args.guard.upstream(),
        first_commit_timeout: FIRST_COMMIT_TIMEOUT,
        cores: parts.cores,
    };
    let stats = Arc::new(Stats::default());
    registry.register_collector(Box::new(RelayCollector(Arc::clone(&stats))));
    let stream = Arc::clone(&stats.stream);
    let silence = move || stream.silence();
    follow_contact(silence, args, parts.readiness, registry, vital);
    let ending = vital.ending.clone();
    vital
        .tasks
        .spawn(ready(parts.tables.clone(), parts.unready, ending));
    let doubts = parts.publisher.source_doubts(&args.cluster.as_str().into());
    let outlets = Outlets {
        forwarder: Forwarder::new(&args.cluster, parts.publisher, parts.tables),
        identity: parts.identity,
        doubts,
        sessions: parts.sessions,
        stats,
    };
    let metrics = parts.metrics;
    let published = move |revision, took| metrics.published(revision, took);
    let run = run(config, outlets, published, vital.ending.clone());
    let liveness = parts.liveness;
    let watched = async move { liveness.watch("source", WRITER_STUCK, run).await };
    vital.spawn("source", watched);
    Ok(())
}

/// Waits until there are tables.
async fn ready(tables: TableReader, unready: BlockReady, token: CancellationToken) {
    let mut published = tables.published();
    let synced = published.wait_for(|published| published.synced > 0);
    if let Some(Ok(_)) = token.run_until_cancelled(synced).await {
        tracing::info!("tables received, serving");
    }
    drop(unready);
}

#[cfg(test)]
mod tests;
