// SPDX-License-Identifier: Apache-2.0

//! Load balancers to be checked, from the records of a table.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use imbl::ordmap::DiffItem;
use portolan_health::{Administrative, Assigned, Backend, LoadBalancer, Way};
use portolan_model::check::{Check, CheckDefaults};
use portolan_model::ipvs::ForwardingMethod;
use portolan_model::{
    AdministrativeState, Balancing, ByRecord, FrontendAddress, Record, RecordKey,
};
use portolan_plan::{Ways, has_ways, is_behind, way_of};
use portolan_probe::Wanted;

/// Inputs of checks besides the records.
#[derive(Debug)]
pub(super) struct Host<'a> {
    /// The ways that the kernel has for checks by way of the service.
    pub(super) ways: &'a Ways,
    /// Values of the fields that checks leave to the host.
    pub(super) defaults: &'a CheckDefaults,
}

/// The load balancers of `after`, given those of `before`. Costs O(changed), and those of `through`, which have checks
/// by way of the service: these depend on the ways, and on records of other frontends.
pub(super) fn changed(
    before: &ByRecord<Record>,
    after: &ByRecord<Record>,
    mut wanted: Wanted<RecordKey>,
    through: &mut BTreeSet<RecordKey>,
    host: &Host<'_>,
) -> Wanted<RecordKey> {
    for change in before.diff(after) {
        let (key, record) = match change {
            DiffItem::Add(key, record) => (key, Some(record)),
            DiffItem::Update { new, .. } => (new.0, Some(new.1)),
            DiffItem::Remove(key, _) => (key, None),
        };
        through.remove(key);
        let balancing = record.and_then(|record| Some((record, record.balancing.as_ref()?)));
        match balancing {
            Some((record, _)) if has_ways(record) => drop(through.insert(key.clone())),
            Some((record, balancing)) => {
                let balancer = load_balancer(after, record, balancing, host);
                wanted.insert(key.clone(), Arc::new(balancer));
            }
            None => {
                wanted.remove(key);
            }
        }
    }
    for key in through.iter() {
        let record = after.get(key);
        let balancing = record.and_then(|record| Some((record, record.balancing.as_ref()?)));
        if let Some((record, balancing)) = balancing {
            let balancer = load_balancer(after, record, balancing, host);
            if wanted.get(key).is_none_or(|known| **known != balancer) {
                wanted.insert(key.clone(), Arc::new(balancer));
            }
        }
    }
    wanted
}

pub(super) fn load_balancer(
    records: &ByRecord<Record>,
    record: &Record,
    balancing: &Balancing,
    host: &Host<'_>,
) -> LoadBalancer {
    let destinations = record.destinations.iter().enumerate();
    let backends = destinations.filter_map(|(index, destination)| {
        let profile = balancing.profile(index)?;
        if !is_served(record, destination.address, profile.forwarding) {
            return None;
        }
        let backend = Backend {
            weight: u16::try_from(destination.weight).unwrap_or(u16::MAX),
            checks: profile
                .checks
                .iter()
                .map(|check| Assigned {
                    check: check
                        .on_host(host.defaults)
                        .map_or_else(|| Arc::clone(check), Arc::new),
                    way: way(records, record, index, check, host.ways),
                })
                .collect(),
            administrative: match profile.administrative_state {
                AdministrativeState::Enabled => Administrative::Enabled,
                AdministrativeState::Drain => Administrative::Drain,
                AdministrativeState::Disabled => Administrative::Disabled,
            },
            serves_already: false,
        };
        Some((destination.address, backend))
    });
    LoadBalancer {
        name: format!("{}/{}", record.key.namespace, record.key.service).into(),
        frontend: frontend(record).into(),
        policy: balancing.health,
        has_sorry_server: balancing.sorry_server.is_some(),
        backends: backends.collect(),
    }
}

/// Returns `true` if some frontend of a record is in front of a backend. Another backend is in no
/// virtual server, and must not count for the quorum.
pub(crate) fn is_served(
    record: &Record,
    backend: SocketAddr,
    forwarding: ForwardingMethod,
) -> bool {
    let mut frontends = record.frontends.iter();
    frontends.any(|frontend| is_behind(record, frontend, backend, forwarding))
}

/// The way of a check to a destination; `None` for a direct one, and while the kernel has none.
fn way(
    records: &ByRecord<Record>,
    record: &Record,
    index: usize,
    check: &Check,
    ways: &Ways,
) -> Option<Way> {
    let (to, address) = way_of(records, record, index, check)?;
    Some(Way {
        address,
        mark: *ways.marks.get(&to)?,
        source: ways.sources.get(&to.family).copied(),
    })
}

/// `TCP/192.0.2.10:80` or `FWM/7/IPv4`, of the first address or mark.
pub(super) fn frontend(record: &Record) -> String {
    let protocol = record.key.protocol;
    match record.frontends.first() {
        None => format!("{protocol}/"),
        Some(frontend) => match frontend.address {
            FrontendAddress::Mark { family, mark } => format!("FWM/{mark}/{family}"),
            _ => format!("{protocol}/{}", frontend.place()),
        },
    }
}
