// SPDX-License-Identifier: Apache-2.0

//! What is to be checked, from the records of a table.

use std::sync::Arc;

use imbl::ordmap::DiffItem;
use portolan_health::{Administrative, Assigned, Backend, LoadBalancer};
use portolan_model::{
    AdministrativeState, Balancing, ByRecord, FrontendAddress, Record, RecordKey,
};
use portolan_probe::Wanted;

/// The load balancers of `after`, given those of `before`. Costs O(changed).
pub(super) fn changed(
    before: &ByRecord<Record>,
    after: &ByRecord<Record>,
    wanted: &Wanted<RecordKey>,
) -> Wanted<RecordKey> {
    let mut wanted = wanted.clone();
    for change in before.diff(after) {
        let (key, record) = match change {
            DiffItem::Add(key, record) => (key, Some(record)),
            DiffItem::Update { new, .. } => (new.0, Some(new.1)),
            DiffItem::Remove(key, _) => (key, None),
        };
        let balancing = record.and_then(|record| Some((record, record.balancing.as_ref()?)));
        match balancing {
            Some((record, balancing)) => {
                let balancer = load_balancer(record, balancing);
                wanted.insert(key.clone(), Arc::new(balancer));
            }
            None => {
                wanted.remove(key);
            }
        }
    }
    wanted
}

pub(super) fn load_balancer(record: &Record, balancing: &Balancing) -> LoadBalancer {
    let destinations = record.destinations.iter().enumerate();
    let backends = destinations.filter_map(|(index, destination)| {
        let profile = balancing.profile(index)?;
        let backend = Backend {
            weight: u16::try_from(destination.weight).unwrap_or(u16::MAX),
            checks: profile
                .checks
                .iter()
                .map(|check| Assigned::direct(Arc::clone(check)))
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
