// SPDX-License-Identifier: Apache-2.0

//! View models of Services, from the tables.

use std::sync::Arc;

use portolan_model::{
    Destination as Target, Frontend as Address, FrontendAddress, FrontendKind, Lists, NodeTable,
    Record, ZoneMask,
};
use portolan_status::{
    Destination, Frontend, ListQuery, Listed, Port, ServiceDetails, ServiceRow, Services,
};

use crate::debug::{Debug, Failure};

/// Frontends of a row.
const FRONTENDS: usize = 4;
/// Destinations of a port, on the page of a Service.
const DESTINATIONS: usize = 200;

/// The records of one Service, in the order of its ports.
type Group<'t> = &'t [&'t Arc<Record>];

/// One page of the Services of a cluster.
pub(super) fn list(debug: &Debug, query: ListQuery) -> Services {
    // The shared records are those of all nodes; a node of no name has no lists.
    let table = debug.tables.table(&debug.key(""));
    let records: Vec<_> = table.records.values().collect();
    let groups = records.chunk_by(|a, b| service(a) == service(b));
    let groups: Vec<Group<'_>> = groups.collect();
    let total = groups.len();
    let mut admitted: Vec<_> = groups.into_iter().filter(|it| admits(&query, it)).collect();
    if query.sort == "destinations" {
        admitted.sort_by_key(|group| destinations(group));
    }
    if query.descending {
        admitted.reverse();
    }
    Services {
        list: Listed::new(query, total, admitted.into_iter()).map(row),
    }
}

fn service(record: &Record) -> (&str, &str) {
    (&record.key.namespace, &record.key.service)
}

fn destinations(group: &[&Arc<Record>]) -> usize {
    group.iter().map(|record| record.destinations.len()).sum()
}

fn admits(query: &ListQuery, group: &[&Arc<Record>]) -> bool {
    if query.filter.is_empty() {
        return true;
    }
    let Some(first) = group.first() else {
        return false;
    };
    let (namespace, name) = service(first);
    let named = format!("{namespace}/{name}");
    let frontends = group.iter().flat_map(|record| &record.frontends);
    query.admits([&*named]) || frontends.map(address).any(|text| query.admits([&*text]))
}

/// Address and port of a frontend.
fn address(frontend: &Address) -> String {
    match frontend.address {
        FrontendAddress::Vip(ip) => std::net::SocketAddr::new(ip, frontend.port).to_string(),
        FrontendAddress::NodeAddresses(family) => format!("{family} node port {}", frontend.port),
        FrontendAddress::Mark { family, mark } => format!("{family} mark {mark:#x}"),
    }
}

fn row(group: Group<'_>) -> ServiceRow {
    let Some(first) = group.first() else {
        return ServiceRow::default();
    };
    let (namespace, name) = service(first);
    let frontends = group.iter().flat_map(|record| &record.frontends);
    let all: Vec<_> = frontends.collect();
    ServiceRow {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        ports: group.iter().map(|record| port_name(record)).collect(),
        frontends: all.iter().take(FRONTENDS).map(|it| address(it)).collect(),
        frontends_total: all.len(),
        destinations: destinations(group),
        policy: policy(all.into_iter()),
        hints: hints(first).unwrap_or_else(|| "–".to_owned()),
        affinity: affinity(first).unwrap_or_else(|| "–".to_owned()),
        scheduler: scheduler(first).unwrap_or_else(|| "–".to_owned()),
    }
}

fn port_name(record: &Record) -> String {
    match &*record.key.port {
        "" => record.key.protocol.to_string(),
        port => format!("{port}/{}", record.key.protocol),
    }
}

/// The traffic policies of frontends, in words.
fn policy<'t>(frontends: impl Iterator<Item = &'t Address>) -> String {
    let (mut internal, mut external) = (false, false);
    for frontend in frontends.filter(|it| it.lists == Lists::Local) {
        match frontend.kind {
            FrontendKind::ClusterIp => internal = true,
            _ => external = true,
        }
    }
    let words = match (internal, external) {
        (false, false) => "Cluster",
        (true, false) => "internal Local",
        (false, true) => "external Local",
        (true, true) => "Local",
    };
    words.to_owned()
}

fn hints(record: &Record) -> Option<String> {
    let mask = record.zone_mask.as_ref()?;
    Some(format!("{} zones", mask.zones.len()))
}

fn affinity(record: &Record) -> Option<String> {
    let affinity = record.affinity?;
    Some(format!("ClientIP, {} s", affinity.timeout_seconds))
}

fn scheduler(record: &Record) -> Option<String> {
    record.scheduling.scheduler.as_deref().map(str::to_owned)
}

/// One Service, with the destinations of a node if one is named.
pub(super) fn details(
    debug: &Debug,
    namespace: &str,
    name: &str,
    node: &str,
) -> Result<ServiceDetails, Failure> {
    let table = match node {
        "" => debug.tables.table(&debug.key("")),
        node => debug.table(node)?,
    };
    let records = table.records.values();
    let records = records.filter(|record| service(record) == (namespace, name));
    let ports: Vec<_> = records
        .map(|it| port(&table, it, !node.is_empty()))
        .collect();
    if ports.is_empty() {
        let message = format!("Service {namespace}/{name}: not in the tables");
        return Err(Failure::not_found(message));
    }
    Ok(ServiceDetails {
        cluster: debug.cluster.to_string(),
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        node: node.to_owned(),
        ports,
    })
}

fn port(table: &NodeTable, record: &Record, is_of_node: bool) -> Port {
    let notes = [
        Some(format!("Policy {}", policy(record.frontends.iter()))),
        hints(record).map(|hints| format!("Hints for {hints}")),
        affinity(record).map(|affinity| format!("Affinity {affinity}")),
        scheduler(record).map(|scheduler| format!("Scheduler {scheduler}")),
        record
            .drain_seconds
            .map(|time| format!("Connections to removed destinations are kept for {time} s")),
        record
            .health_check_port
            .map(|port| format!("Health check node port {port}")),
    ];
    let frontends = record.frontends.iter().map(|one| Frontend {
        kind: format!("{:?}", one.kind),
        address: address(one),
        question: match one.address {
            FrontendAddress::Vip(_) => address(one),
            FrontendAddress::NodeAddresses(_) | FrontendAddress::Mark { .. } => String::new(),
        },
        protocol: record.key.protocol.to_string(),
        is_local: one.lists == Lists::Local,
        sources: one
            .source_ranges
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", "),
        on_node: is_of_node.then(|| table.destinations(record, one).len()),
    });
    let all = match is_of_node {
        true => on_node(table, record),
        false => record.destinations.clone(),
    };
    let destinations = all.iter().take(DESTINATIONS).map(|one| Destination {
        address: one.address.to_string(),
        weight: one.weight,
        zones: zones(record, one),
    });
    Port {
        name: port_name(record),
        notes: notes.into_iter().flatten().collect(),
        frontends: frontends.collect(),
        destinations: destinations.collect(),
        destinations_total: all.len(),
    }
}

/// The destinations that a node has for any frontend of a record.
fn on_node(table: &NodeTable, record: &Record) -> Vec<Target> {
    let of_frontend = |one: &Address| {
        let mut found = table.destinations(record, one);
        if one.has_short_circuit() {
            found.extend(table.list(record, one.family(), Lists::Cluster));
        }
        found
    };
    let mut all: Vec<_> = record.frontends.iter().flat_map(of_frontend).collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// The zones that use a destination, in words.
fn zones(record: &Record, target: &Target) -> String {
    let Some(ZoneMask { zones, masks }) = &record.zone_mask else {
        return "all".to_owned();
    };
    let at = record
        .destinations
        .binary_search_by(|it| it.address.cmp(&target.address));
    let mask = at.ok().and_then(|at| masks.get(at)).copied().unwrap_or(0);
    let used = zones
        .iter()
        .enumerate()
        .filter(|(bit, _)| mask & (1 << bit) != 0);
    let used: Vec<_> = used.map(|(_, zone)| &**zone).collect();
    match used.is_empty() {
        true => "none with hints".to_owned(),
        false => used.join(", "),
    }
}
