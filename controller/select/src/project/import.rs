// SPDX-License-Identifier: Apache-2.0

//! One port of an import for all nodes of the importing cluster at once.
//!
//! Shares decide which endpoints of which cluster serve, and their weights. Rules of a single cluster
//! come after that: `internalTrafficPolicy: Local` knows the importing cluster's own endpoints alone, and
//! zones narrow down what the shares chose if all of it weighs the same.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_catalog::{Catalog, EndpointRef, ObjectKey, Service, TrafficPolicy};
use portolan_federate::imports::{ImportHere, ImportRecord};
use portolan_federate::shares::{self, Shares, Tier};
use portolan_model::{Destination, Families, Family, Frontend, FrontendKind, Record, import_group};

use super::candidates::Candidate;
use super::frontends::Claiming;
use super::nodes::Nodes;
use super::shared::Shared;
use super::{Projection, frontends, record_key, scheduling, settings};
use crate::rule::still_serving;
use crate::{ClusterState, SelectConfig};

/// `trafficDistribution` that prefers the node.
const SAME_NODE: &str = "PreferSameNode";

/// Bytes that most names of records have room in.
const NAME: usize = 100;

/// An import in one cluster, with what it is made of.
#[derive(Debug)]
pub(crate) struct Imported<'a> {
    /// The Service that the import is for clients: its virtual addresses as cluster IPs.
    pub(crate) service: &'a Service,
    /// True if the catalog has its claims.
    pub(crate) is_claimed: bool,
    /// Import in the plan.
    pub(crate) here: &'a ImportHere,
    /// The id of the importing cluster.
    pub(crate) importing: &'a str,
    /// The zones of the importing cluster's nodes, if zones count.
    pub(crate) zones: BTreeSet<Arc<str>>,
}

/// A cluster that exposes a port of an import.
#[derive(Debug)]
pub(crate) struct Exporter<'a> {
    /// Its id.
    pub(crate) id: Arc<str>,
    /// The Service there.
    pub(crate) service: ObjectKey,
    /// Its state.
    pub(crate) state: ClusterState,
    /// The endpoints of the port that may be exported, sorted by address.
    pub(crate) endpoints: Vec<(SocketAddr, Exported<'a>)>,
    /// The addresses of gateways that lead there, each with the zone of its Node, if pods are not reached themselves.
    pub(crate) gateways: Option<BTreeMap<SocketAddr, Option<Arc<str>>>>,
}

/// An endpoint of a cluster that exports it.
#[derive(Debug, Clone)]
pub(crate) struct Exported<'a> {
    pub(crate) endpoint: EndpointRef<'a>,
    /// Its own weight.
    pub(crate) weight: u32,
    /// The zone of its Node, if zones count.
    pub(crate) zone: Option<Arc<str>>,
}

impl<'a> Exporter<'a> {
    fn endpoint(&self, address: &SocketAddr) -> Option<&Exported<'a>> {
        let all = &self.endpoints;
        let found = all.binary_search_by(|(of, _)| of.cmp(address));
        Some(&all[found.ok()?].1)
    }

    /// Returns `true` if connections of a family can be sent there.
    fn is_reached(&self, family: Family) -> bool {
        let is_of = |address: &SocketAddr| Family::of(address.ip()) == family;
        match &self.gateways {
            Some(gateways) => gateways.keys().any(is_of),
            None => true,
        }
    }
}

/// Clusters that expose a port of an import: all of them, or those that decide.
#[derive(Debug, Default)]
pub(crate) struct Exporters<'a> {
    /// By name.
    all: Vec<Exporter<'a>>,
    /// Whether the last known endpoints serve, since all clusters that expose the port are lost.
    keeps: bool,
    /// Of IPv4 and IPv6, once it is asked for.
    found: [OnceCell<Found>; 2],
}

impl<'a> Exporters<'a> {
    /// Adds a cluster.
    pub(crate) fn add(&mut self, exporter: Exporter<'a>) {
        let name = &exporter.service.cluster;
        let place = self.all.partition_point(|one| one.service.cluster < *name);
        self.all.insert(place, exporter);
        self.found = Default::default();
    }

    /// The same if all clusters are lost, and the last known endpoints serve or not.
    pub(crate) fn keeping(self, keeps: bool) -> Self {
        Self {
            all: self.all,
            keeps,
            found: Default::default(),
        }
    }

    /// The exported Services.
    pub(crate) fn services(&self) -> impl Iterator<Item = &ObjectKey> {
        self.all.iter().map(|exporter| &exporter.service)
    }

    fn found(&self, family: Family) -> &Found {
        let [v4, v6] = &self.found;
        let found = match family {
            Family::V4 => v4,
            Family::V6 => v6,
        };
        found.get_or_init(|| Found::new(self, family))
    }
}

/// The clusters that expose a port as the shares see them, by id.
pub(crate) type Clusters = BTreeMap<Arc<str>, shares::Cluster>;

/// Clusters and shares of an import's port in one family.
#[derive(Debug)]
pub(crate) struct OfFamily {
    /// The clusters.
    pub(crate) clusters: Arc<Clusters>,
    /// The shares.
    pub(crate) shares: Shares,
}

/// Projects one port of an import. Returns the shares of each family beside it.
pub(crate) fn project_import(
    catalog: &Catalog,
    config: SelectConfig,
    import: &Imported<'_>,
    port_index: usize,
    exporters: &Exporters<'_>,
) -> (Projection, Vec<(Family, OfFamily)>) {
    let service = import.service;
    let mut problems = Vec::new();
    let claiming = Claiming {
        service,
        is_noted: import.is_claimed,
    };
    let mut frontends = frontends::frontends(catalog, config, claiming, port_index, &mut problems);
    if frontends.is_empty() {
        let none = Projection {
            problems,
            ..Projection::default()
        };
        return (none, Vec::new());
    }
    let key = record_key(service, port_index);
    let mut name = String::with_capacity(NAME);
    // Writing to a string cannot fail.
    let _ = write!(name, "{key}");
    let is_local = service.internal_policy == TrafficPolicy::Local;
    let mut nodes = Nodes::new(&service.key.cluster);
    let mut families = Vec::with_capacity(Family::ALL.len());
    let mut available = Families::NONE;
    let mut chosen = Vec::new();
    for family in Family::ALL {
        if !frontends.iter().any(|frontend| frontend.family() == family) {
            continue;
        }
        let found = of_family(import, name.as_bytes(), family, exporters);
        let own = || exporters.all.iter().filter(|one| is_own(import, one));
        for exporter in own() {
            nodes.add_own(of(exporter, family), |(address, one)| {
                (*address, one.endpoint.node)
            });
        }
        if is_local {
            let own: Vec<_> = own().flat_map(|one| candidates(one, family)).collect();
            nodes.add_local(family, &own);
            if found.clusters.values().any(is_serving) {
                available.insert(family);
            }
        } else {
            let of_family = choose(import, &exporters.all, &found.shares);
            if of_family.iter().any(|one| one.is_gateway) {
                masquerade(&mut frontends, family);
            }
            if !of_family.is_empty() {
                available.insert(family);
            }
            chosen.push(of_family);
        }
        families.push((family, found));
    }
    let mut shared = Hinted::default();
    shared.add(&chosen, &mut nodes);
    let (destinations, zone_mask) = shared.0.finish(&mut problems);
    let lists = nodes.finish();
    let in_lists = lists
        .values()
        .flat_map(|l| l.cluster.iter().chain(&l.local));
    let weights = destinations.iter().chain(in_lists).map(|d| d.weight);
    let mut scheduling = scheduling(service, weights);
    let mut of_families = families.iter();
    let named = of_families.find_map(|(_, of): &(_, OfFamily)| of.shares.scheduler.as_deref());
    if let Some(named) = named.filter(|_| !is_local) {
        scheduling.scheduler = Some(named.into());
    }
    let record = Record {
        frontends,
        scheduling,
        destinations,
        zone_mask,
        available,
        node_group: import.here.nodes.as_deref().map(import_group),
        ..settings(service, key)
    };
    let projection = Projection {
        record: Some(record),
        lists,
        problems,
    };
    (projection, families)
}

/// Gives connections of a family the address of the node as their source: gateways admit nodes, and answer those.
fn masquerade(frontends: &mut [Frontend], family: Family) {
    let of_family = frontends.iter_mut();
    for frontend in of_family.filter(|frontend| frontend.family() == family) {
        // Those of a cluster IP would be masqueraded for clients outside of the cluster alone.
        frontend.kind = FrontendKind::ExternalIp;
        frontend.masquerade = true;
    }
    frontends.sort();
}

fn is_serving(cluster: &shares::Cluster) -> bool {
    cluster.step > 0 && cluster.ready > 0
}

/// Returns `true` if some exporters decide about the shares in all families, so that the others need not be looked at.
/// They are those of the first tiers, so many, and maybe others; not all of them are lost.
pub(crate) fn is_settled(import: &Imported<'_>, exporters: &Exporters<'_>, tiers: usize) -> bool {
    let ips = import.service.cluster_ips.iter();
    let families: Families = ips.map(|ip| Family::of(*ip)).collect();
    Family::ALL.into_iter().all(|family| {
        if !families.contains(family) {
            return true;
        }
        let found = exporters.found(family);
        found.ready && import.here.traffic.is_settled(tiers, &found.clusters)
    })
}

/// The shares of a family.
fn of_family(
    import: &Imported<'_>,
    record: &[u8],
    family: Family,
    exporters: &Exporters<'_>,
) -> OfFamily {
    let clusters = Arc::clone(&exporters.found(family).clusters);
    let record = ImportRecord {
        importing: import.importing,
        key: record,
        affinity: import.service.affinity_seconds.is_some(),
        scheduler: import.service.scheduling.scheduler.as_deref(),
    };
    OfFamily {
        shares: import.here.traffic.shares(record, &clusters),
        clusters,
    }
}

/// The exporters in one family.
#[derive(Debug)]
struct Found {
    /// Whether any endpoint is ready. If none is, those that serve while they terminate are usable.
    ready: bool,
    clusters: Arc<Clusters>,
}

impl Found {
    fn new(exporters: &Exporters<'_>, family: Family) -> Self {
        let all = || exporters.all.iter();
        let state = |exporter: &Exporter<'_>| match exporters.keeps {
            true => ClusterState::default(),
            false => exporter.state,
        };
        let ready = all().any(|exporter| {
            let state = state(exporter);
            let serves = state.step > 0 && !state.lost;
            let serves = serves && exporter.is_reached(family);
            serves
                && of(exporter, family)
                    .iter()
                    .any(|(_, one)| one.endpoint.ready)
        });
        let clusters = all().map(|exporter| {
            let cluster = cluster(exporter, family, state(exporter), ready);
            (Arc::clone(&exporter.id), cluster)
        });
        Self {
            ready,
            clusters: Arc::new(clusters.collect()),
        }
    }
}

/// A cluster as shares see it, if any endpoint is ready anywhere or none is.
fn cluster(
    exporter: &Exporter<'_>,
    family: Family,
    state: ClusterState,
    ready: bool,
) -> shares::Cluster {
    let all = || of(exporter, family).iter();
    let is_usable = |one: &Exported<'_>| match ready {
        true => one.endpoint.ready,
        false => still_serving(&one.endpoint),
    };
    let expected = all().filter(|(_, one)| !one.endpoint.terminating).count();
    let mut cluster = shares::Cluster {
        expected: count(expected),
        step: state.step,
        drained: state.drained,
        ..shares::Cluster::default()
    };
    if state.lost {
        cluster.step = 0;
        return cluster;
    }
    if !exporter.is_reached(family) {
        return cluster;
    }
    cluster.ready = count(all().filter(|(_, one)| is_usable(one)).count());
    if let Some(gateways) = &exporter.gateways {
        let of_family = gateways.keys();
        let of_family = of_family.filter(|address| Family::of(address.ip()) == family);
        cluster.gateway = true;
        cluster.endpoints = of_family
            .map(|address| shares::Endpoint {
                address: *address,
                weight: 1,
                usable: true,
            })
            .collect();
        return cluster;
    }
    let endpoints = all().map(|(address, one)| shares::Endpoint {
        address: *address,
        weight: one.weight,
        usable: is_usable(one),
    });
    cluster.endpoints = endpoints.collect();
    cluster
}

fn of<'e, 'a>(exporter: &'e Exporter<'a>, family: Family) -> &'e [(SocketAddr, Exported<'a>)] {
    // All of IPv4 sort before all of IPv6.
    let all = &exporter.endpoints;
    let (v4, v6) = all.split_at(all.partition_point(|(address, _)| address.is_ipv4()));
    match family {
        Family::V4 => v4,
        Family::V6 => v6,
    }
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn is_own(import: &Imported<'_>, exporter: &Exporter<'_>) -> bool {
    exporter.service.cluster == import.service.key.cluster
}

/// The endpoints of a family with their own weights.
fn candidates<'a>(exporter: &Exporter<'a>, family: Family) -> impl Iterator<Item = Candidate<'a>> {
    of(exporter, family).iter().map(|(address, one)| Candidate {
        destination: Destination {
            address: *address,
            weight: one.weight,
        },
        endpoint: one.endpoint,
    })
}

/// A destination that the shares chose.
#[derive(Debug)]
struct Chosen {
    destination: Destination,
    /// The zones and nodes that it is for, if such things count.
    zones: Option<Vec<Arc<str>>>,
    nodes: Option<Vec<Arc<str>>>,
    /// Whether it is a gateway.
    is_gateway: bool,
}

/// The destinations that the shares chose, by address.
fn choose(import: &Imported<'_>, exporters: &[Exporter<'_>], shares: &Shares) -> Vec<Chosen> {
    let distribution = import.here.import.traffic_distribution.as_deref();
    let mut chosen = Vec::new();
    for exporter in exporters {
        let Some(share) = shares.clusters.get(&exporter.id) else {
            continue;
        };
        chosen.reserve(share.weights.len());
        for (address, weight) in &share.weights {
            let gateways = exporter.gateways.as_ref();
            let found = match gateways {
                None => {
                    let found = exporter.endpoint(address);
                    found.map(|one| (one.endpoint.node, one.zone.clone()))
                }
                Some(all) => all.get(address).map(|zone| (None, zone.clone())),
            };
            let Some((node, zone)) = found else {
                continue;
            };
            let is_ours = |zone: &Arc<str>| import.zones.contains(zone);
            let node = || node.filter(|_| is_own(import, exporter));
            let nodes = || node().cloned().into_iter().collect();
            chosen.push(Chosen {
                destination: Destination {
                    address: *address,
                    weight: *weight,
                },
                is_gateway: gateways.is_some(),
                zones: zone.map(|zone| Some(zone).filter(is_ours).into_iter().collect()),
                nodes: (distribution == Some(SAME_NODE)).then(nodes),
            });
        }
    }
    // Two clusters with one address are kept apart by their networks; else the first one has it.
    chosen.sort_by_key(|one| one.destination.address);
    chosen.dedup_by_key(|one| one.destination.address);
    let is_weighted = |tier: &Tier| matches!(tier, Tier::Weighted(_));
    let differ = chosen.iter().any(|one| one.destination.weight != 1);
    let weighted = differ || import.here.traffic.tiers.iter().any(is_weighted);
    if distribution.is_none() || weighted {
        for one in &mut chosen {
            (one.zones, one.nodes) = (None, None);
        }
    }
    chosen
}

/// The shared list, of destinations with hints of their own.
#[derive(Debug, Default)]
struct Hinted<'a>(Shared<'a>);

impl<'a> Hinted<'a> {
    /// Adds the destinations of each family, IPv4 first.
    fn add(&mut self, chosen: &'a [Vec<Chosen>], nodes: &mut Nodes<'_>) {
        for of_family in chosen {
            let is_hinted = |one: &Chosen| one.zones.is_some() || one.nodes.is_some();
            if !of_family.iter().any(is_hinted) {
                let destinations = of_family.iter().map(|one| one.destination);
                self.0.add_ready(destinations);
                continue;
            }
            let candidates = of_family.iter().map(Chosen::hinted);
            let candidates: Vec<_> = candidates.collect();
            self.0.add(&candidates);
            nodes.add_same_node_hints(&candidates);
        }
    }
}

impl Chosen {
    /// It takes connections, with the hints of the shares in place of its own.
    fn hinted(&self) -> Candidate<'_> {
        Candidate {
            destination: self.destination,
            endpoint: EndpointRef {
                address: self.destination.address.ip(),
                ready: true,
                serving: true,
                terminating: false,
                node: None,
                pod: None,
                hostname: None,
                zone_hints: self.zones.as_deref(),
                node_hints: self.nodes.as_deref(),
            },
        }
    }
}
