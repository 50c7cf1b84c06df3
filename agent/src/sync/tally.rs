//! What metrics and load balancers want to know of a table: kept with it, at a cost that depends on
//! what changes and not on what there is.

use std::collections::{BTreeMap, BTreeSet};

use portolan_model::{Frontend, FrontendKind, Lists, NodeTable, RecordKey};

use crate::health_check::{HealthCheck, ServiceKey, wanted_by};

/// What is known of one table.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    of: NodeTable,
    no_local_endpoints: NoLocalEndpoints,
    health_checks: BTreeMap<ServiceKey, HealthCheck>,
}

/// How many records with a Local traffic policy nothing on this node serves although something
/// elsewhere does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NoLocalEndpoints {
    /// By the internal policy.
    pub internal: usize,
    /// By the external policy.
    pub external: usize,
}

impl Tally {
    /// Goes on to another version of the table, or to another table.
    pub(crate) fn follow(&mut self, table: &NodeTable) {
        let changed = table.changed_since(&self.of);
        for key in &changed {
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
    }

    /// What nothing on this node serves.
    pub(crate) fn no_local_endpoints(&self) -> NoLocalEndpoints {
        self.no_local_endpoints
    }

    /// All Services that want to be asked for.
    pub(crate) fn health_checks(&self) -> &BTreeMap<ServiceKey, HealthCheck> {
        &self.health_checks
    }
}

/// Of one record: it counts once for each policy.
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
