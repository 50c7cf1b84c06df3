//! One Service port for all nodes at once: the shared record, and lists for the nodes that differ.
//!
//! Costs O(endpoints of the Service port), however many nodes there are: nodes appear only where
//! an endpoint or a hint names them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_catalog::{
    Catalog, Claim, Claimant, Endpoint, Problem, Reason, Service, TrafficPolicy,
};
use portolan_model::{
    Affinity, Destination, Families, Family, Frontend, FrontendAddress, FrontendKind, Lists,
    NodeKey, NodeLists, Record, RecordKey, ZoneMask,
};

use crate::categorize::still_serving;

/// What the nodes must program for one Service port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Projection {
    /// The shared record; `None` if no way in is left to the Service port.
    pub record: Option<Record>,
    /// What nodes have of their own.
    pub lists: BTreeMap<NodeKey, NodeLists>,
    /// What could not be done for the Service, by field.
    pub problems: Vec<Problem>,
}

/// Projects one port of a Service.
///
/// # Panics
/// If the Service has no port of that index.
#[must_use]
pub fn project(catalog: &Catalog, service: &Service, port_index: usize) -> Projection {
    let port = &service.ports[port_index];
    let mut projection = Projection::default();
    let frontends = frontends(catalog, service, port_index, &mut projection.problems);
    if frontends.is_empty() {
        return projection;
    }
    let endpoints = catalog.endpoints(service, port);
    let mut shared = Shared::default();
    let mut available = Families::NONE;
    for family in Family::ALL {
        let of_family: BTreeMap<_, _> = endpoints
            .iter()
            .filter(|(address, _)| Family::of(address.ip()) == family)
            .map(|(address, endpoint)| (*address, *endpoint))
            .collect();
        let uses = |lists| {
            frontends
                .iter()
                .any(|f| f.family() == family && f.lists == lists)
        };
        let mut nodes = Nodes {
            cluster: &service.key.cluster,
            lists: &mut projection.lists,
        };
        nodes.add_own(&of_family);
        let short_circuit = |f: &Frontend| f.family() == family && f.has_short_circuit();
        if of_family.values().any(|e| e.ready || still_serving(e)) {
            available.insert(family);
        }
        if uses(Lists::Cluster) || frontends.iter().any(short_circuit) {
            shared.add(&of_family);
            nodes.add_same_node_hints(&of_family);
        }
        if uses(Lists::Local) {
            nodes.add_local(&of_family);
        }
    }
    let (destinations, zone_mask) = shared.finish(&mut projection.problems);
    projection.record = Some(Record {
        frontends,
        destinations,
        zone_mask,
        available,
        affinity: service
            .affinity_seconds
            .map(|timeout_seconds| Affinity { timeout_seconds }),
        ..Record::new(record_key(service, port_index))
    });
    projection
}

/// The key of the record of one port of a Service.
pub(crate) fn record_key(service: &Service, port_index: usize) -> RecordKey {
    let port = &service.ports[port_index];
    RecordKey {
        cluster: Arc::clone(&service.key.cluster),
        namespace: Arc::clone(&service.key.namespace),
        service: Arc::clone(&service.key.name),
        port: Arc::clone(&port.name),
        protocol: port.protocol,
    }
}

/// The ways in that the Service port holds; one that another holds becomes a problem.
fn frontends(
    catalog: &Catalog,
    service: &Service,
    port_index: usize,
    problems: &mut Vec<Problem>,
) -> Vec<Frontend> {
    let mut frontends = Vec::new();
    for (_, kind, claim) in service.claims().filter(|(index, ..)| *index == port_index) {
        let us = Claimant::new(service, port_index, kind);
        match catalog.holder(&claim) {
            Some(holder) if *holder != us => problems.push(conflict(&us, holder, &claim)),
            _ => frontends.extend(open(service, kind, &claim)),
        }
    }
    frontends.sort();
    frontends
}

/// A way in, once per family for a node port.
fn open(service: &Service, kind: FrontendKind, claim: &Claim) -> Vec<Frontend> {
    let external = kind != FrontendKind::ClusterIp;
    let policy = if external {
        service.external_policy
    } else {
        service.internal_policy
    };
    let frontend = |address| {
        let mut frontend = Frontend {
            lists: match policy {
                TrafficPolicy::Cluster => Lists::Cluster,
                TrafficPolicy::Local => Lists::Local,
            },
            masquerade: external && policy == TrafficPolicy::Cluster,
            ..Frontend::new(kind, address, claim.port)
        };
        if kind == FrontendKind::LoadBalancer {
            let v4 = frontend.family() == Family::V4;
            let ranges = service
                .source_ranges
                .iter()
                .filter(|range| range.addr().is_ipv4() == v4);
            frontend.source_ranges = ranges
                .copied()
                .collect::<BTreeSet<_>>()
                .into_iter()
                .collect();
        }
        frontend
    };
    match claim.address {
        Some(ip) => vec![frontend(FrontendAddress::Vip(ip))],
        None => Family::ALL
            .into_iter()
            .filter(|family| service.has_family(*family))
            .map(|family| frontend(FrontendAddress::NodeAddresses(family)))
            .collect(),
    }
}

fn conflict(us: &Claimant, holder: &Claimant, claim: &Claim) -> Problem {
    let field = match us.kind {
        FrontendKind::ClusterIp => "spec.clusterIPs".to_owned(),
        FrontendKind::ExternalIp => "spec.externalIPs".to_owned(),
        FrontendKind::LoadBalancer => "status.loadBalancer.ingress".to_owned(),
        FrontendKind::NodePort => format!("spec.ports[{}].nodePort", us.port),
    };
    let what = match claim.address {
        Some(ip) => format!("{} {}", claim.protocol, SocketAddr::new(ip, claim.port)),
        None => format!("{} node port {}", claim.protocol, claim.port),
    };
    let whom = if holder.service == us.service {
        format!("port {} of the same Service", holder.port)
    } else {
        format!("Service {}", holder.service)
    };
    Problem::new(
        field,
        Reason::Conflict,
        format!("{what} already belongs to {whom}"),
    )
}

/// The cluster-wide list as it grows, family by family.
#[derive(Debug, Default)]
struct Shared<'a> {
    destinations: Vec<Destination>,
    /// For each destination the zones that use it, or `None` if its family has no zone hints.
    hints: Vec<Option<&'a [Arc<str>]>>,
    /// The zones that some family narrows down.
    zones: BTreeSet<Arc<str>>,
    /// For each family that has zone hints, the zones that it narrows down.
    narrowed: BTreeMap<Family, BTreeSet<Arc<str>>>,
}

impl<'a> Shared<'a> {
    fn add(&mut self, endpoints: &BTreeMap<SocketAddr, &'a Endpoint>) {
        let ready: Vec<_> = endpoints.iter().filter(|(_, e)| e.ready).collect();
        if ready.is_empty() {
            for (address, _) in endpoints.iter().filter(|(_, e)| still_serving(e)) {
                self.push(*address, None);
            }
            return;
        }
        // Without a hint on each ready endpoint, hints do not count (KEP-2433's safety rule).
        let hinted = ready.iter().all(|(_, e)| e.zone_hints.is_some());
        for (address, endpoint) in ready {
            let zones = endpoint.zone_hints.as_deref().filter(|_| hinted);
            self.push(*address, zones);
        }
    }

    fn push(&mut self, address: SocketAddr, zones: Option<&'a [Arc<str>]>) {
        // The empty zone is no zone: a node without one uses everything.
        for zone in zones.into_iter().flatten().filter(|zone| !zone.is_empty()) {
            self.zones.insert(Arc::clone(zone));
            let family = self.narrowed.entry(Family::of(address.ip())).or_default();
            family.insert(Arc::clone(zone));
        }
        self.destinations.push(Destination::new(address));
        self.hints.push(zones);
    }

    fn finish(self, problems: &mut Vec<Problem>) -> (Vec<Destination>, Option<ZoneMask>) {
        if self.zones.is_empty() {
            return (self.destinations, None);
        }
        if self.zones.len() > ZoneMask::MAX_ZONES {
            problems.push(Problem::new(
                "endpoints[].hints.forZones",
                Reason::TooMany,
                format!(
                    "{} zones, at most {} can be told apart: hints are ignored",
                    self.zones.len(),
                    ZoneMask::MAX_ZONES
                ),
            ));
            return (self.destinations, None);
        }
        let zones: Vec<_> = self.zones.into_iter().collect();
        let uses = |zone: &Arc<str>, destination: &Destination, hints: Option<&[Arc<str>]>| {
            let narrowed = self.narrowed.get(&Family::of(destination.address.ip()));
            // A zone that this family does not narrow down uses all of the family's destinations.
            !narrowed.is_some_and(|zones| zones.contains(zone))
                || hints.is_some_and(|hints| hints.contains(zone))
        };
        let mask = |(destination, hints): (&Destination, &Option<&[Arc<str>]>)| {
            zones.iter().enumerate().fold(0, |mask, (bit, zone)| {
                mask | u64::from(uses(zone, destination, *hints)) << bit
            })
        };
        let masks = self
            .destinations
            .iter()
            .zip(&self.hints)
            .map(mask)
            .collect();
        (self.destinations, Some(ZoneMask { zones, masks }))
    }
}

/// The lists of single nodes as they grow, family by family.
#[derive(Debug)]
struct Nodes<'a> {
    cluster: &'a Arc<str>,
    lists: &'a mut BTreeMap<NodeKey, NodeLists>,
}

impl Nodes<'_> {
    fn of(&mut self, name: &Arc<str>) -> &mut NodeLists {
        let key = NodeKey {
            cluster: Arc::clone(self.cluster),
            name: Arc::clone(name),
        };
        self.lists.entry(key).or_default()
    }

    fn add_own(&mut self, endpoints: &BTreeMap<SocketAddr, &Endpoint>) {
        for (address, endpoint) in endpoints {
            if let Some(node) = &endpoint.node {
                self.of(node).own.push(*address);
            }
        }
    }

    fn add_local(&mut self, endpoints: &BTreeMap<SocketAddr, &Endpoint>) {
        let mut by_node: BTreeMap<&Arc<str>, Vec<(SocketAddr, &Endpoint)>> = BTreeMap::new();
        for (address, endpoint) in endpoints {
            if let Some(node) = &endpoint.node {
                by_node.entry(node).or_default().push((*address, endpoint));
            }
        }
        for (node, local) in by_node {
            let any_ready = local.iter().any(|(_, e)| e.ready);
            let usable = |e: &Endpoint| if any_ready { e.ready } else { still_serving(e) };
            let usable: Vec<_> = local.iter().filter(|(_, e)| usable(e)).collect();
            if !usable.is_empty() {
                self.of(node)
                    .local
                    .extend(usable.iter().map(|(a, _)| Destination::new(*a)));
            }
        }
    }

    fn add_same_node_hints(&mut self, endpoints: &BTreeMap<SocketAddr, &Endpoint>) {
        let ready = || endpoints.iter().filter(|(_, e)| e.ready);
        if !ready().all(|(_, e)| e.node_hints.is_some()) {
            return;
        }
        for (address, endpoint) in ready() {
            let names: BTreeSet<_> = endpoint.node_hints.iter().flatten().collect();
            for name in names {
                self.of(name).cluster.push(Destination::new(*address));
            }
        }
    }
}

#[cfg(test)]
mod tests;
