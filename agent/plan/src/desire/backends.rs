// SPDX-License-Identifier: Apache-2.0

//! Real servers of a load balancer.

use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::check::{Probe, WeightFrom};
use portolan_model::ipvs::{
    ForwardingMethod, RealServerConfig, RealServers, Thresholds, VirtualServerKey,
};
use portolan_model::{
    AdministrativeState, Balancing, Family, Frontend, Profile, Record, SorryServer,
};

use super::{Builder, server};

impl Builder<'_> {
    /// The backends behind a frontend with the weights that their health gives them, and the sorry server.
    ///
    /// A backend whose checks have no result yet keeps the weight that it has in the kernel, so that a restart of
    /// the agent changes nothing; one that is new has its initial weight. The sorry server serves on until the quorum
    /// is known. Where no check will have one, a weight in the kernel says that the backend is up. With frontends of
    /// both families it also serves one of them alone, if no backend of that has a weight and the checks have judged
    /// all of them. A state that an operator has set by command is a part of the health, and hides that of the record.
    ///
    /// A scheduler that refuses the clients of weight 0 gets no server with it: the others have all clients.
    pub(super) fn backends(
        &self,
        record: &Record,
        balancing: &Balancing,
        frontend: &Frontend,
        key: &VirtualServerKey,
    ) -> Arc<RealServers> {
        let observed = self.observed.get(key).map(|server| &*server.real_servers);
        let health = self.table.health.get(&record.key).map(|health| &**health);
        let has_idle = !server::refuses_at_zero(server::scheduler_of_balanced(record));
        let mut real_servers = RealServers::new();
        let mut is_open = false;
        for (index, destination) in record.destinations.iter().enumerate() {
            let Some(profile) = balancing.profile(index) else {
                continue;
            };
            if !is_behind(record, frontend, destination.address, profile.forwarding) {
                continue;
            }
            let before = observed.and_then(|servers| servers.get(&destination.address));
            let judged = health.and_then(|health| health.backends.get(&destination.address));
            let is_commanded =
                health.is_some_and(|health| health.commanded.contains(&destination.address));
            let configured = match is_commanded {
                true => AdministrativeState::Enabled,
                false => profile.administrative_state,
            };
            let weight = match (configured, judged, before) {
                (AdministrativeState::Disabled, ..) => None,
                (AdministrativeState::Drain, ..) => Some(0),
                (AdministrativeState::Enabled, Some(judged), _) => judged.weight(),
                (_, None, Some(before)) if !profile.checks.is_empty() => {
                    Some(self.unjudged(before.weight, profile, destination.weight))
                }
                _ => Some(profile.initial_weight(*destination, &balancing.health)),
            };
            let may_serve = configured == AdministrativeState::Enabled && judged.is_none();
            is_open |= may_serve && !profile.checks.is_empty();
            if let Some(weight) = weight.filter(|weight| has_idle || *weight > 0) {
                real_servers.insert(destination.address, profile.real_server(weight));
            }
        }
        if let Some(sorry) = &balancing.sorry_server
            && is_behind(record, frontend, sorry.address, sorry.forwarding)
        {
            let told = health.and_then(|health| health.is_sorry);
            let serves = || {
                let before = observed.and_then(|servers| servers.get(&sorry.address));
                before.is_some_and(|before| before.weight > 0)
            };
            // The quorum is of both families, but backends of the other one serve no client of this one.
            let mut frontends = record.frontends.iter();
            let is_dual = frontends.any(|other| other.family() != frontend.family());
            let is_alone = is_dual && real_servers.values().all(|server| server.weight == 0);
            let is_sorry = match told {
                Some(true) => true,
                // Backends without a result may serve in a moment: until then all stays as it is.
                Some(false) => is_alone && (!is_open || serves()),
                None => serves(),
            };
            if is_sorry || sorry.keep_idle && has_idle {
                add_sorry_server(&mut real_servers, sorry, is_sorry);
            }
        }
        Arc::new(real_servers)
    }

    /// The weight of a backend that no check has judged, and that the kernel has with the weight `before`.
    fn unjudged(&self, before: u32, profile: &Profile, configured: u32) -> u32 {
        let mut checks = profile.checks.iter();
        let is_kept = self.config.awaits_checks || before == 0;
        match is_kept || checks.any(|check| gives_weight(&check.probe)) {
            true => before,
            false => configured,
        }
    }
}

/// Returns `true` if results of a check give a backend other weights than the configured one.
fn gives_weight(probe: &Probe) -> bool {
    match probe {
        Probe::Agent(_) => true,
        Probe::Exec(program) => program.weight_from != WeightFrom::None,
        Probe::File(file) => file.weight != 0,
        _ => false,
    }
}

/// Returns `true` if a backend serves a frontend: one of its family does; one of the other family
/// does by a tunnel if the load balancer has no frontend of that family.
#[must_use]
pub fn is_behind(
    record: &Record,
    frontend: &Frontend,
    backend: SocketAddr,
    forwarding: ForwardingMethod,
) -> bool {
    let family = Family::of(backend.ip());
    let has_own = || {
        record
            .frontends
            .iter()
            .any(|other| other.family() == family)
    };
    family == frontend.family() || matches!(forwarding, ForwardingMethod::Tunnel(_)) && !has_own()
}

/// A backend that is the sorry server too keeps its own settings.
fn add_sorry_server(real_servers: &mut RealServers, sorry: &SorryServer, is_sorry: bool) {
    let config = RealServerConfig {
        weight: is_sorry.into(),
        forwarding: sorry.forwarding,
        thresholds: Thresholds::default(),
    };
    if !real_servers.contains_key(&sorry.address) {
        real_servers.insert(sorry.address, config);
    }
}
