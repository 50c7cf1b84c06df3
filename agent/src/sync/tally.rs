// SPDX-License-Identifier: Apache-2.0

//! Counters and health checks of a table, kept up to date at a cost proportional to its changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::AddAssign;

use portolan_model::{Frontend, FrontendKind, Lists, NodeTable, Record, RecordKey};

use crate::health_check::{HealthCheck, ServiceKey, wanted_by};

/// Counters and health checks of one table.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    of: NodeTable,
    no_local_endpoints: NoLocalEndpoints,
    health_checks: BTreeMap<ServiceKey, HealthCheck>,
}

/// Numbers of records with a Local traffic policy that have endpoints, but none on this node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NoLocalEndpoints {
    /// By the internal policy.
    pub internal: usize,
    /// By the external policy.
    pub external: usize,
}

/// Numbers of changed records between two versions of a table.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct TableChanges {
    /// Records whose Service port was added, changed or deleted.
    pub services: usize,
    /// Records whose endpoints changed.
    pub endpoints: usize,
}

impl AddAssign for TableChanges {
    fn add_assign(&mut self, other: Self) {
        self.services += other.services;
        self.endpoints += other.endpoints;
    }
}

/// Changes of one record.
fn changes_of(before: &NodeTable, after: &NodeTable, key: &RecordKey) -> TableChanges {
    let services = |table: &NodeTable| {
        let record = table.records.get(key)?;
        let Record {
            key: _,
            destinations: _,
            zone_mask: _,
            available: _,
            frontends,
            affinity,
            scheduling,
            drain_seconds,
            health_check_port,
            balancing,
            node_group,
        } = Record::clone(record);
        let limits = (drain_seconds, health_check_port, balancing, node_group);
        Some((frontends, affinity, scheduling, limits))
    };
    let endpoints = |table: &NodeTable| {
        let record = table.records.get(key);
        let destinations = record.map(|record| record.destinations.clone());
        let shared = record.map(|record| (record.zone_mask.clone(), record.available));
        let overlay = table.lists.get(key).cloned();
        (
            destinations.unwrap_or_default(),
            shared.unwrap_or_default(),
            overlay,
        )
    };
    TableChanges {
        services: usize::from(services(before) != services(after)),
        endpoints: usize::from(endpoints(before) != endpoints(after)),
    }
}

impl Tally {
    /// Updates the counters for another version of the table, or another table. Returns the
    /// changes.
    pub(crate) fn follow(&mut self, table: &NodeTable) -> TableChanges {
        let changed = table.changed_since(&self.of);
        let mut changes = TableChanges::default();
        for key in &changed {
            changes += changes_of(&self.of, table, key);
            let (before, after) = (no_local(&self.of, key), no_local(table, key));
            let count = &mut self.no_local_endpoints;
            count.internal = count.internal - before.internal + after.internal;
            count.external = count.external - before.external + after.external;
        }
        let services: BTreeSet<ServiceKey> = changed.iter().map(ServiceKey::of).collect();
        for service in services {
            match wanted_by(table, &service) {
                Some(check) => drop(self.health_checks.insert(service, check)),
                None => drop(self.health_checks.remove(&service)),
            }
        }
        self.of = table.clone();
        changes
    }

    /// Numbers of records without an endpoint on this node.
    pub(crate) fn no_local_endpoints(&self) -> NoLocalEndpoints {
        self.no_local_endpoints
    }

    /// Services with a health check node port.
    pub(crate) fn health_checks(&self) -> &BTreeMap<ServiceKey, HealthCheck> {
        &self.health_checks
    }
}

/// Counts one record, once for each policy.
fn no_local(table: &NodeTable, key: &RecordKey) -> NoLocalEndpoints {
    let Some(record) = table.records.get(key) else {
        return NoLocalEndpoints::default();
    };
    let is_missing = |frontend: &&Frontend| {
        frontend.lists == Lists::Local
            && record.available.contains(frontend.family())
            && table.destinations(record, frontend).is_empty()
    };
    let missing = || record.frontends.iter().filter(is_missing);
    let internal = missing().any(|frontend| frontend.kind == FrontendKind::ClusterIp);
    let external = missing().any(|frontend| frontend.kind != FrontendKind::ClusterIp);
    NoLocalEndpoints {
        internal: usize::from(internal),
        external: usize::from(external),
    }
}

#[cfg(test)]
mod tests;
