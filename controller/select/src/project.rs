// SPDX-License-Identifier: Apache-2.0

//! One Service port for all nodes at once: the shared record, and lists for the nodes that differ.
//!
//! Costs O(endpoints of the Service port), however many nodes there are: nodes appear only where
//! an endpoint or a hint names them.

mod candidates;
mod frontends;
mod gateway;
mod import;
mod nodes;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_catalog::{Catalog, FieldProblem, Service};
use portolan_model::{
    Affinity, Families, Family, Frontend, Lists, NodeKey, NodeOverlay, Record, RecordKey,
    Scheduling,
};

use crate::SelectConfig;
use candidates::Candidates;
use frontends::Claiming;
pub(crate) use gateway::{GatewayExport, project_gateway};
pub(crate) use import::{
    Exported, Exporter, Exporters, Imported, OfFamily, is_settled, project_import,
};
use nodes::Nodes;
use shared::Shared;

/// The part of all tables for one Service port.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Projection {
    /// The shared record; `None` if no way in is left to the Service port.
    pub record: Option<Record>,
    /// The nodes' overlays.
    pub lists: BTreeMap<NodeKey, NodeOverlay>,
    /// Problems of the Service, by field.
    pub problems: Vec<FieldProblem>,
}

/// Projects one port of a Service of the catalog.
///
/// # Panics
/// If the Service has no port of that index.
#[must_use]
pub fn project(
    catalog: &Catalog,
    config: SelectConfig,
    service: &Service,
    port_index: usize,
) -> Projection {
    let mut problems = Vec::new();
    let claiming = Claiming {
        service,
        is_noted: true,
    };
    let frontends = frontends::frontends(catalog, config, claiming, port_index, &mut problems);
    if frontends.is_empty() {
        return Projection {
            problems,
            ..Projection::default()
        };
    }
    let candidates = Candidates::of(catalog, service, &service.ports[port_index]);
    let mut shared = Shared::default();
    let mut nodes = Nodes::new(&service.key.cluster);
    let mut available = Families::NONE;
    for family in Family::ALL {
        let of_family = candidates.of_family(family);
        if of_family.iter().any(|c| c.is_usable()) {
            available.insert(family);
        }
        nodes.add_own(of_family, |one| (one.address(), one.endpoint.node));
        if uses_cluster(&frontends, family) {
            shared.add(of_family);
            nodes.add_same_node_hints(of_family);
        }
        if uses_local(service, &frontends, family) {
            nodes.add_local(family, of_family);
        }
    }
    let (destinations, zone_mask) = shared.finish(&mut problems);
    let lists = nodes.finish();
    let in_lists = lists
        .values()
        .flat_map(|l| l.cluster.iter().chain(&l.local));
    let weights = destinations.iter().chain(in_lists).map(|d| d.weight);
    let record = Record {
        frontends,
        scheduling: scheduling(service, weights),
        destinations,
        zone_mask,
        available,
        ..settings(service, record_key(service, port_index))
    };
    Projection {
        record: Some(record),
        lists,
        problems,
    }
}

/// A record with the settings of its Service that are equal on all nodes.
fn settings(service: &Service, key: RecordKey) -> Record {
    // All fields by name: a new field must be handled here.
    let Service {
        key: _,
        created: _,
        cluster_ips: _,
        external_ips: _,
        load_balancer_ips: _,
        balancer_keeps_sources: _,
        source_ranges: _,
        external_policy: _,
        internal_policy: _,
        affinity_seconds,
        // `scheduling` depends on the weights too.
        scheduling: _,
        drain_seconds,
        health_check_port,
        ports: _,
    } = service;
    Record {
        affinity: affinity_seconds.map(|timeout_seconds| Affinity { timeout_seconds }),
        drain_seconds: *drain_seconds,
        health_check_port: *health_check_port,
        ..Record::new(key)
    }
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

/// Returns `true` if the cluster-wide list of a family is used: with `externalTrafficPolicy:
/// Local`, by a node's own pods.
fn uses_cluster(frontends: &[Frontend], family: Family) -> bool {
    let uses = |f: &Frontend| f.lists == Lists::Cluster || f.has_short_circuit();
    frontends.iter().any(|f| f.family() == family && uses(f))
}

/// Returns `true` if nodes need their local endpoints of a family: as destinations, or to count
/// them for a load balancer's health check.
fn uses_local(service: &Service, frontends: &[Frontend], family: Family) -> bool {
    let counts = service.health_check_port.is_some() && service.has_family(family);
    let forwards = |f: &Frontend| f.family() == family && f.lists == Lists::Local;
    counts || frontends.iter().any(forwards)
}

/// The Service's scheduling. Without a scheduler of its own, a Service whose destinations differ in
/// weight gets a weighted one.
///
/// Destinations of weight 0 make no difference: `rr` gives them nothing either (kernel:
/// `ip_vs_rr.c`).
fn scheduling(service: &Service, weights: impl Iterator<Item = u32>) -> Scheduling {
    let mut scheduling = service.scheduling.clone();
    let mut positive = weights.filter(|weight| *weight > 0);
    let first = positive.next();
    let differ = positive.any(|weight| Some(weight) != first);
    if differ && scheduling.scheduler.is_none() {
        scheduling.scheduler = Some("wrr".into());
    }
    scheduling
}
