// SPDX-License-Identifier: Apache-2.0

//! Inputs of imports that depend on time, or are kept over restarts: states of clusters, virtual
//! addresses, drains.

mod counts;
mod edges;
mod gateways;
mod planning;
mod shared;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, SystemTime};

use portolan_catalog::ObjectKey;
use portolan_federate::Moment;
use portolan_federate::gateway::Ports;
use portolan_federate::imports::ImportName;
use portolan_federate::state::{Fleet, Phase, Settings, Status};
use portolan_federate::vip::{Allocation, Claim, Range, Vips};
use portolan_model::Family;
use portolan_policy::{Cluster, Drain, Loss, Objects, Overlap, overlaps};
use portolan_select::{ClusterState, GatewayPorts, Kept, Pipeline, PlanBook, Wanted, import_key};
use tokio::time::Instant;

use super::objects::McsPlanner;
use super::policy_log;
use crate::clusters::{ClusterSources, ClusterStates, Saved, Saver, SourceContact};
use crate::dns::ClusterNames;
use crate::edges::EdgePlans;
pub(crate) use shared::DrainError;
use shared::Shared;

/// The time between two ticks.
pub(super) const TICK: Duration = Duration::from_secs(1);

/// The time after which the last contacts are written again, if nothing else changes.
const CONTACTS: Duration = Duration::from_secs(10);

/// Contacts closer together than that are one.
const LATER: Duration = Duration::from_millis(200);

/// State of the writer about clusters, beyond their objects.
#[derive(Debug, Default)]
pub(crate) struct Federated {
    sources: ClusterSources,
    states: ClusterStates,
    saver: Saver,
    mcs: McsPlanner,
    /// DNS of imports; `None` if it is off.
    names: Option<ClusterNames>,
    /// Plans for edges; `None` if there are none.
    plans: Option<EdgePlans>,
    /// Sources that the plans of each cluster were made of.
    books: BTreeMap<Arc<str>, PlanBook>,
    objects: Objects,
    /// Completeness of the Clusters in `objects`: none can be missing because it could not be read.
    is_complete: bool,
    loss: Loss,
    fleet: Fleet,
    drains: BTreeMap<Arc<str>, Drain>,
    /// The decisions that replicas share.
    shared: Shared,
    vips: BTreeMap<Arc<str>, Vips>,
    ports: BTreeMap<Arc<str>, Ports>,
    /// Ports of gateways as they were kept, until the policy is known.
    resumed_ports: BTreeMap<Arc<str>, GatewayPorts>,
    /// Imports as they were kept, until the policy is known.
    resumed: BTreeMap<ObjectKey, Kept>,
    ticked: Option<Instant>,
    /// The last contacts with API servers.
    contacts: BTreeMap<Arc<str>, Instant>,
    /// For how long this process has looked.
    waited: Duration,
    /// The statuses without contacts as they were written last, and when.
    written: Option<(BTreeMap<Arc<str>, Status>, Instant)>,
    /// All that is wrong with virtual addresses.
    problems: Vec<String>,
    /// Node ports among the ports of gateways.
    node_ports: Vec<String>,
}

impl Federated {
    pub(crate) fn new(
        sources: ClusterSources,
        states: ClusterStates,
        saved: Saved,
        saver: Saver,
        mcs: McsPlanner,
        names: Option<ClusterNames>,
    ) -> Self {
        Self {
            sources,
            states,
            saver,
            mcs,
            names,
            fleet: Fleet::resume(&saved.statuses, now()),
            drains: saved.drains,
            resumed: saved.imports,
            resumed_ports: saved.ports,
            ..Self::default()
        }
    }

    /// DNS of imports; `None` if it is off.
    pub(super) fn names(&self) -> Option<ClusterNames> {
        self.names.clone()
    }

    /// Returns `true` if there are clusters at all.
    pub(super) fn is_on(&self) -> bool {
        !self.objects.clusters.is_empty()
    }

    /// Returns the problems with virtual addresses, with ports of gateways, and with what replicas share.
    pub(super) fn problems(&self) -> impl Iterator<Item = &String> {
        let found = self.problems.iter().chain(&self.node_ports);
        found.chain(self.shared.problems())
    }

    /// Takes the policy in force. Until it is `complete`, a Cluster that is missing may be in a file that
    /// is late, or be a bad one.
    pub(super) fn take_policies(
        &mut self,
        pipeline: &mut Pipeline,
        objects: Objects,
        is_complete: bool,
    ) {
        self.loss = objects
            .set
            .as_ref()
            .map_or_else(Loss::default, |set| set.loss.clone());
        policy_log::note(&self.objects, &objects);
        (self.objects, self.is_complete) = (objects, is_complete);
        self.settle();
        if is_complete {
            for id in self.fleet.statuses().into_keys() {
                if !self.clusters().any(|cluster| *cluster.id == *id) {
                    self.fleet.remove(&id);
                }
            }
            let (clusters, before) = (&self.objects.clusters, self.drains.len());
            self.drains.retain(|name, _| clusters.contains_key(&**name));
            if self.drains.len() != before {
                // Otherwise a restart drains a later Cluster of this name.
                self.saver.drains(&self.drains);
            }
        }
        let resumed = std::mem::take(&mut self.resumed);
        if !resumed.is_empty() {
            pipeline.set_kept(resumed);
        }
        for (cluster, ports) in std::mem::take(&mut self.resumed_ports) {
            pipeline.set_gateway_ports(&cluster, ports);
        }
        for (name, cluster) in &self.objects.clusters {
            let gateway = cluster.network.gateway.as_ref();
            let ports = self.ports.entry(name.as_str().into()).or_default();
            ports.set_range(gateway.map(|gateway| gateway.ports));
            let ranges = cluster.network.cluster_set_ips.iter();
            let ranges = ranges.map(|range| Range::new(*range));
            self.vips
                .entry(name.as_str().into())
                .or_default()
                .set_ranges(ranges);
        }
        if is_complete {
            self.forget_gone(pipeline);
        }
        pipeline.set_policies(self.objects.clone());
    }

    /// Forgets what was kept for clusters that were gone when this process began. One that leaves while it runs keeps
    /// its addresses until the end of the process: it may return.
    fn forget_gone(&self, pipeline: &mut Pipeline) {
        let imports = pipeline.kept().keys();
        let imports = imports.filter(|import| !self.vips.contains_key(&import.cluster));
        let imports: Vec<ObjectKey> = imports.cloned().collect();
        for import in &imports {
            pipeline.forget_import(import);
        }
        let exporters = pipeline.gateway_ports().keys();
        let exporters = exporters.filter(|cluster| !self.ports.contains_key(*cluster));
        let exporters: Vec<Arc<str>> = exporters.cloned().collect();
        for cluster in &exporters {
            pipeline.set_gateway_ports(cluster, GatewayPorts::new());
        }
    }

    /// Gives the clusters their settings.
    fn settle(&mut self) {
        for (name, cluster) in &self.objects.clusters {
            let mut settings = Settings::new(&self.loss, cluster);
            // What the policy says comes before an operator's command.
            settings.drain = settings.drain.or_else(|| self.drains.get(&**name).copied());
            self.fleet.set(&Arc::from(cluster.id.as_str()), settings);
        }
    }

    /// The names of all clusters of the policy.
    pub(super) fn cluster_names(&self) -> Vec<Arc<str>> {
        let names = self.objects.clusters.keys();
        names.map(|name| name.as_str().into()).collect()
    }

    fn clusters(&self) -> impl Iterator<Item = &Cluster> {
        self.objects.clusters.values()
    }

    /// The clusters that were in contact since the last tick.
    fn heard(&mut self, ticked: Instant, since: Duration) -> BTreeSet<Arc<str>> {
        let sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        let contacts = &mut self.contacts;
        contacts.retain(|name, _| sources.contains_key(name));
        let heard = sources.iter().filter(|(name, contact)| {
            let Some(silence) = contact.silence() else {
                return false;
            };
            if matches!(contact, SourceContact::Files(_)) {
                return silence <= since;
            }
            // The watch that is silent for longest was heard again, or another one is that now. An edge tells the
            // time of its last contact every ten seconds.
            let at = ticked.checked_sub(silence).unwrap_or(ticked);
            let last = contacts.get(*name);
            let is_news = last.is_none_or(|last| at > *last + LATER);
            if is_news {
                contacts.insert(Arc::clone(name), at);
            }
            is_news
        });
        heard.map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Tells the states of clusters to the pipeline, and to whoever looks.
    pub(super) fn tell(&mut self, pipeline: &mut Pipeline, synced: &BTreeSet<Arc<str>>) {
        let statuses = self.clusters().filter_map(|cluster| {
            let status = self.fleet.status(&cluster.id)?;
            Some((Arc::<str>::from(cluster.meta.name.as_str()), status))
        });
        let statuses: BTreeMap<_, _> = statuses.collect();
        let members = statuses.iter().filter(|(name, _)| synced.contains(*name));
        let members = members.map(|(name, status)| (Arc::clone(name), state(status)));
        pipeline.set_states(members.collect());
        // First, since what is given up is noted at once.
        pipeline.await_absent(self.absent());
        pipeline.expect_no_more(self.overdue(synced));
        pipeline.give_up(self.given_up(synced));
        self.save_statuses();
        let mut shown = self.states.lock();
        shown.statuses = statuses;
        shown.preserving = self.fleet.is_preserving();
    }

    /// Keeps the statuses: at once if one is another, and otherwise for the times of contact.
    fn save_statuses(&mut self) {
        let all = self.fleet.statuses();
        let without = |(id, status): (&Arc<str>, &Status)| {
            let status = Status {
                last_contact: None,
                ..status.clone()
            };
            (Arc::clone(id), status)
        };
        let bare: BTreeMap<_, _> = all.iter().map(without).collect();
        let is_fresh = self
            .written
            .as_ref()
            .is_some_and(|(last, at)| *last == bare && at.elapsed() < CONTACTS);
        if !is_fresh {
            self.saver.statuses(&all);
            self.written = Some((bare, Instant::now()));
        }
    }

    /// Whether the agents of a cluster must wait for another one, whose endpoints they had before this
    /// process began and may still need. Returns the name of that, or its id if no Cluster has it.
    pub(super) fn waits_for<'a>(
        &'a self,
        pipeline: &'a Pipeline,
        name: &str,
        synced: &BTreeSet<Arc<str>>,
    ) -> Option<&'a str> {
        let imports = pipeline.kept().iter();
        let imports = imports.filter(|(key, _)| *key.cluster == *name);
        let exporters = imports.flat_map(|(_, kept)| &*kept.clusters);
        let exporters: BTreeSet<&str> = exporters.map(|id| &**id).collect();
        let mut awaited = self.clusters().filter(|cluster| {
            let is_away = !synced.contains(cluster.meta.name.as_str());
            is_away && cluster.meta.name != name && exporters.contains(&*cluster.id)
        });
        let is_needed = |cluster: &&Cluster| {
            let ttl = Settings::new(&self.loss, cluster).stale_ttl;
            // One that was never in contact had no endpoints.
            let status = self.fleet.status(&cluster.id);
            let status = status.filter(|status| status.last_contact.is_some());
            status.is_some_and(|status| !self.is_over(&status, ttl))
        };
        let needed = awaited.find(is_needed);
        let needed = needed.map(|cluster| &*cluster.meta.name);
        needed.or_else(|| exporters.iter().copied().find(|id| self.is_absent(id)))
    }

    /// Gives imports virtual addresses. Returns whether anything is wrong with them that was not before.
    pub(super) fn allocate(
        &mut self,
        pipeline: &mut Pipeline,
        synced: &BTreeSet<Arc<str>>,
    ) -> bool {
        let Some(wanted) = pipeline.wanted() else {
            return false;
        };
        let overlapping = overlaps(&self.objects.clusters);
        let is_frozen = |cluster: &str| {
            let mut found = overlapping.get(cluster).into_iter().flatten();
            found.any(|overlap| matches!(overlap, Overlap::Vips { .. }))
        };
        let kept = pipeline.kept().clone();
        let is_complete = self.awaited(synced).ids.is_empty();
        let mut problems = Vec::new();
        let now = now();
        for (cluster, vips) in &mut self.vips {
            let wanted = wanted.get(cluster).map_or(&[][..], Vec::as_slice);
            let mut claims: BTreeMap<ObjectKey, Claim> = wanted
                .iter()
                .map(|wanted| claim(pipeline, cluster, wanted, &kept))
                .filter(|(_, claim)| !claim.ips.is_empty() || !is_frozen(cluster))
                .collect();
            // Imports of clusters that have not sent their objects yet are on their way.
            let is_here = is_complete && synced.contains(cluster);
            let awaited = kept
                .iter()
                .filter(|(key, _)| !is_here && key.cluster == *cluster);
            for (key, kept) in awaited {
                if let Some(claim) = kept_claim(pipeline, key, kept) {
                    claims.entry(key.clone()).or_insert(claim);
                }
            }
            let given: Vec<Claim> = claims.values().cloned().collect();
            let allocations = vips.allocate(&given, now);
            problems.extend(found(cluster, &allocations));
            for (key, claim) in &claims {
                let allocation = allocations.get(&claim.name);
                let ips = allocation.map(|allocation| allocation.ips.clone());
                pipeline.set_address(key.clone(), ips.unwrap_or_default());
            }
            let gone = kept.keys().filter(|key| key.cluster == *cluster);
            for key in gone.filter(|key| !claims.contains_key(*key)) {
                pipeline.forget_import(key);
            }
        }
        let is_news = problems != self.problems;
        self.problems = problems;
        is_news
    }

    /// Saves addresses and winners of imports, and ports of gateways, if any changed.
    pub(super) fn save(&self, pipeline: &mut Pipeline) {
        if !self.is_on() {
            return;
        }
        if let Some(kept) = pipeline.changed_kept() {
            self.saver.imports(kept);
        }
        if let Some(ports) = pipeline.changed_gateway_ports() {
            self.saver.gateways(ports);
        }
        self.count_gateways(pipeline);
        self.count_exports(pipeline);
    }
}

/// The state of a member, as far as shares are concerned. It is drained as long as its drain leaves it nothing: also
/// after the drain until the first step, and never by a drain to a part of its share.
fn state(status: &Status) -> ClusterState {
    ClusterState {
        step: status.step,
        drained: status.drain_step == 0,
        lost: status.phase == Phase::Lost,
    }
}

fn claim(
    pipeline: &Pipeline,
    cluster: &Arc<str>,
    wanted: &Wanted,
    kept: &BTreeMap<ObjectKey, Kept>,
) -> (ObjectKey, Claim) {
    let key = import_key(cluster, &wanted.name);
    let ips = kept.get(&key).map(|kept| kept.ips.clone());
    let claim = Claim {
        created: created(pipeline, cluster, &wanted.name),
        name: wanted.name.clone(),
        families: wanted.families.clone(),
        ips: ips.unwrap_or_default(),
    };
    (key, claim)
}

/// The claim of an import that is not there, on what it had.
fn kept_claim(pipeline: &Pipeline, key: &ObjectKey, kept: &Kept) -> Option<Claim> {
    let name = portolan_select::import_name(key)?;
    let families = kept.ips.iter().map(|ip| Family::of(*ip));
    Some(Claim {
        created: created(pipeline, &key.cluster, &name),
        name,
        families: families.collect(),
        ips: kept.ips.clone(),
    })
}

/// When the ServiceImport of an import was created; `None` if it is not there, or not ours.
fn created(pipeline: &Pipeline, cluster: &Arc<str>, name: &ImportName) -> Option<i64> {
    let key = ObjectKey {
        cluster: Arc::clone(cluster),
        namespace: Arc::clone(&name.namespace),
        name: Arc::clone(&name.name),
    };
    let observed = pipeline.catalog().observed_import(&key)?;
    observed.own.as_ref().and(observed.created)
}

fn found<'a>(
    cluster: &'a str,
    allocations: &'a BTreeMap<ImportName, Allocation>,
) -> impl Iterator<Item = String> + 'a {
    allocations.iter().flat_map(move |(name, allocation)| {
        let problems = allocation.problems.iter();
        problems.map(move |problem| format!("Cluster {cluster}: import {name}: {problem}"))
    })
}

/// Now, since 1970.
fn now() -> Moment {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Moment(since.unwrap_or_default())
}

#[cfg(test)]
mod tests;
