// SPDX-License-Identifier: Apache-2.0

//! Edge controllers, at both ends: the service of the centre that takes the objects of clusters and sends what is to be
//! written there and plans of imports, and the uplink of an edge that sends the objects of its own cluster, writes, and
//! keeps the plans.

mod args;
mod desk;
mod downlink;
mod metrics;
mod objects;
mod plan_desk;
mod plan_file;
mod plan_hold;
mod plans;
mod refusals;
mod seats;
mod service;
#[cfg(test)]
mod tests;
mod uplink;

use std::hash::{BuildHasher as _, RandomState};
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use portolan_catalog::Kind;
use portolan_runtime::{CredentialCollector, Vital};
use portolan_source::{Event, HeldDeletions, HoldReport};
use portolan_tls::POLL;
use prometheus_client::registry::Registry;
use tokio::sync::mpsc;

use crate::args::Args;
use crate::mcs::{Executor, Leading, WriteCounts};
pub(crate) use args::EdgeArgs;
use desk::Desk;
pub(crate) use downlink::{send_plans, send_work};
pub(crate) use metrics::{UplinkCollector, UplinkStats};
use objects::Objects;
pub(crate) use plan_desk::PlanDesk;
pub(crate) use plans::EdgePlans;
pub(crate) use seats::EdgeSeats;
pub(crate) use service::federation;
use uplink::Uplink;

/// Length of the queue of events behind the uplink.
const EVENTS: usize = 8;

/// Starts to send the objects of this cluster to the centre, and to take plans of imports. With a client it writes what
/// the centre asks for. Returns the events of the source for the writer, and the plans.
///
/// # Errors
/// If a file of TLS cannot be used.
pub(crate) fn start_uplink(
    args: &Args,
    events: mpsc::Receiver<Event>,
    holds: &Arc<HeldDeletions>,
    silence: impl Fn() -> Option<Duration> + Send + Sync + 'static,
    client: Option<Client>,
    registry: &mut Registry,
    vital: &Vital,
) -> anyhow::Result<(mpsc::Receiver<Event>, Arc<PlanDesk>)> {
    let flags = &args.edge;
    let (security, files) = flags.identity().open("federation_tls")?;
    if let Some(files) = files {
        registry.register_collector(Box::new(CredentialCollector(vec![files.health()])));
        vital.spawn(
            "credentials for the centre",
            files.follow(POLL, vital.ending.clone()),
        );
    } else {
        tracing::warn!(
            "plaintext: everyone on the network path to --federation-upstream can change what other clusters know of \
             this one"
        );
    }
    let stats = Arc::new(UplinkStats::default());
    registry.register_collector(Box::new(UplinkCollector(Arc::clone(&stats))));
    let desk = Desk::new(Arc::clone(&stats));
    let objects = Objects::new(Arc::clone(&stats), Arc::clone(&desk));
    let (sender, receiver) = mpsc::channel(EVENTS);
    vital.spawn(
        "objects for the centre",
        Arc::clone(&objects).tee(events, sender),
    );
    let writes = client.is_some();
    if let Some(client) = client {
        let executor = Executor {
            client,
            cluster: args.cluster.as_str().into(),
            work: desk.work(),
            // Which replica of the centre leads is decided by the desk.
            leading: Leading::always(),
            counts: WriteCounts::register(registry),
        };
        vital.spawn_endless("MCS objects of this cluster", executor.run());
    }
    let plans = start_plans(args, holds, &stats, vital);
    let uplink = Uplink {
        desk: writes.then_some(desk),
        plans: Arc::clone(&plans),
        cluster: args.cluster.clone(),
        name: flags.name(),
        instance: RandomState::new().hash_one(()),
        security,
        objects,
        silence: Arc::new(silence),
        stats,
    };
    let upstreams = flags.upstreams()?;
    vital.spawn_endless("streams to the centre", uplink.run(upstreams));
    Ok((receiver, plans))
}

/// The plans of imports, with those of an earlier process if there is a directory for them.
fn start_plans(
    args: &Args,
    holds: &Arc<HeldDeletions>,
    stats: &Arc<UplinkStats>,
    vital: &Vital,
) -> Arc<PlanDesk> {
    let directory = args.clusters.state_dir.as_deref();
    let path = directory.map(|directory| plan_file::path(directory, &args.cluster));
    let saved = path.as_deref().and_then(plan_file::read);
    let plans = PlanDesk::new(saved, args.guard.upstream(), Arc::clone(stats));
    let key = (args.cluster.as_str().into(), Kind::ServiceImport);
    let report = HoldReport::new(key, Arc::clone(holds));
    vital.spawn_endless(
        "deletion guard of plans",
        plan_desk::release_held(Arc::clone(&plans), report),
    );
    if let Some(path) = path {
        let follow = plan_file::follow(path, Arc::clone(&plans), vital.ending.clone());
        vital.spawn("file of plans", follow);
    }
    plans
}
