// SPDX-License-Identifier: Apache-2.0

//! Consequences of all settings of a `virtual_server` together.

use super::Statement;
use super::correct::correct;
use super::service::Gathered;
use crate::document::{
    CheckDocument, FamilyName, ForwardingDocument, FrontendDocument, HealthDocument, InitialState,
    LoadBalancerSpec, Method, OnFailure, ProtocolName, SchedulerName,
};
use crate::import::{Class, Draft};

/// Fills in what keepalived has by default, and what its settings mean for each other. Returns the load balancer, and
/// one of its marks alone where these cannot be in the same.
pub(super) fn complete(
    draft: &mut Draft,
    service: &Statement,
    mut gathered: Gathered,
) -> (LoadBalancerSpec, Option<LoadBalancerSpec>) {
    let family = gathered
        .family
        .unwrap_or_else(|| family_of_servers(&gathered.spec));
    let spec = &mut gathered.spec;
    for frontend in &mut spec.frontends {
        if frontend.mark.is_some() {
            frontend.family = frontend.family.or(Some(family));
        } else {
            frontend.protocol = Some(gathered.protocol.unwrap_or(ProtocolName::Udp));
        }
    }
    if gathered.protocol.is_none() && spec.frontends.iter().any(|one| one.mark.is_none()) {
        draft.note(
            &service.origin,
            Class::Nearest,
            "protocol",
            "absent: UDP, as keepalived has it",
        );
    }
    correct(draft, service, &mut gathered);
    let spec = &mut gathered.spec;
    if spec.scheduler.is_some_and(SchedulerName::hashes_source) || !gathered.flags.is_empty() {
        spec.scheduler_flags = Some(gathered.flags.clone());
    }
    weights(draft, service, &mut gathered);
    health_and_hooks(&mut gathered);
    let mut spec = gathered.spec;
    let mut marks = marks_alone(draft, service, &mut spec);
    for spec in [&mut spec].into_iter().chain(&mut marks) {
        ports(draft, service, spec);
        share_checks(spec);
    }
    (spec, marks)
}

/// Fills in health and hooks.
fn health_and_hooks(gathered: &mut Gathered) {
    let spec = &mut gathered.spec;
    let health: &mut HealthDocument = spec.health.get_or_insert_default();
    if !gathered.is_alpha {
        health.initial_state = Some(InitialState::Up);
    }
    if !gathered.inhibits {
        health.on_failure = Some(OnFailure::Remove);
    }
    if spec.health.as_ref() == Some(&HealthDocument::default()) {
        spec.health = None;
    }
    let hooks = spec.hooks.get_or_insert_default();
    hooks.on_quorum = hook(&gathered.quorum_hooks);
    hooks.on_backend = hook(&gathered.backend_hooks);
    if hooks.on_quorum.is_empty() && hooks.on_backend.is_empty() {
        spec.hooks = None;
    }
}

/// Takes the marks out of a load balancer whose addresses need the ports of its servers: by mark with persistence, IPVS
/// translates no ports, and a server has one port for all frontends.
fn marks_alone(
    draft: &mut Draft,
    service: &Statement,
    spec: &mut LoadBalancerSpec,
) -> Option<LoadBalancerSpec> {
    spec.persistence.as_ref()?;
    let is_marked = |frontend: &FrontendDocument| frontend.mark.is_some();
    let (marks, addresses): (Vec<_>, Vec<_>) = spec.frontends.iter().cloned().partition(is_marked);
    let inherited = method_of(spec.forwarding.as_ref());
    let sorry = spec.sorry_server.iter();
    let sorry = sorry.map(|sorry| (sorry.port, sorry.forwarding.as_ref()));
    let backends = spec.backends.iter();
    let backends = backends.map(|backend| (backend.port, backend.forwarding.as_ref()));
    let is_needed = backends.chain(sorry).any(|(port, forwarding)| {
        let method = method_of(forwarding).or(inherited);
        let is_translated = method.is_none_or(|method| method == Method::Masquerade);
        let differs = |frontend: &FrontendDocument| frontend.port != port;
        port.is_some() && is_translated && addresses.iter().any(differs)
    });
    if marks.is_empty() || !is_needed {
        return None;
    }
    let message = "its marks became a load balancer of their own, with the same hooks: by mark with persistence no ports \
                   are translated";
    service.note(draft, Class::Nearest, message);
    spec.frontends = addresses;
    Some(LoadBalancerSpec {
        frontends: marks,
        ..spec.clone()
    })
}

/// The family of a mark that has none, as keepalived chooses it: that of the first server that is not behind a tunnel.
/// If all are, IPv6 only if all are IPv6.
fn family_of_servers(spec: &LoadBalancerSpec) -> FamilyName {
    let inherited = method_of(spec.forwarding.as_ref());
    let sorry = spec.sorry_server.iter();
    let sorry = sorry.map(|sorry| (sorry.address, sorry.forwarding.as_ref()));
    let backends = spec.backends.iter();
    let backends = backends.map(|backend| (backend.address, backend.forwarding.as_ref()));
    let is_tunnelled =
        |own: Option<&ForwardingDocument>| method_of(own).or(inherited) == Some(Method::Tunnel);
    let mut servers = sorry.chain(backends);
    let plain = servers.clone().find(|(_, own)| !is_tunnelled(*own));
    let is_v4 = match plain {
        Some((address, _)) => address.is_ipv4(),
        None => servers.any(|(address, _)| address.is_ipv4()),
    };
    match is_v4 {
        true => FamilyName::V4,
        false => FamilyName::V6,
    }
}

/// Weights above the most that there is are scaled, all of them alike. Quorum and hysteresis are weights too: without
/// them, healthy servers could miss a quorum that they had in keepalived.
fn weights(draft: &mut Draft, service: &Statement, gathered: &mut Gathered) {
    let most = gathered.weights.iter().copied().max().unwrap_or_default();
    let limit = u32::from(u16::MAX);
    if most <= limit {
        for (backend, weight) in gathered.spec.backends.iter_mut().zip(&gathered.weights) {
            backend.weight = u16::try_from(*weight).ok().filter(|weight| *weight != 1);
        }
        return;
    }
    let message = format!("{most} is above {limit}: all weights are scaled");
    draft.note(&service.origin, Class::Nearest, "weight", message);
    let (limit, most) = (u64::from(limit), u64::from(most));
    let scaled = |weight: u32| (u64::from(weight) * limit).div_ceil(most);
    for (backend, weight) in gathered.spec.backends.iter_mut().zip(&gathered.weights) {
        backend.weight = u16::try_from(scaled(*weight))
            .ok()
            .filter(|weight| *weight != 1);
    }
    let Some(health) = &mut gathered.spec.health else {
        return;
    };
    // Rounded up as the weights are: servers that have the quorum in keepalived have it here.
    if let Some(quorum) = health.quorum.filter(|quorum| *quorum > 1) {
        let became = u32::try_from(scaled(quorum)).unwrap_or(u32::MAX);
        health.quorum = Some(became);
        if became != quorum {
            let message = format!("{quorum} is scaled as the weights are: {became}");
            draft.note(&service.origin, Class::Nearest, "quorum", message);
        }
    }
    // Rounded down: it stays below the quorum.
    if health.hysteresis > 0 {
        let given = health.hysteresis;
        health.hysteresis = u32::try_from(u64::from(given) * limit / most).unwrap_or(u32::MAX);
        let became = health.hysteresis;
        if became != given {
            let message = format!("{given} is scaled as the weights are: {became}");
            draft.note(&service.origin, Class::Nearest, "hysteresis", message);
        }
    }
}

/// Takes away ports that have no effect, which checks still go to.
fn ports(draft: &mut Draft, service: &Statement, spec: &mut LoadBalancerSpec) {
    let wanted = spec.frontends.first().and_then(|frontend| frontend.port);
    let is_one = spec
        .frontends
        .iter()
        .all(|frontend| frontend.port == wanted);
    let ports = Ports {
        frontends: &spec.frontends,
        inherited: method_of(spec.forwarding.as_ref()),
        is_persistent: spec.persistence.is_some(),
    };
    for backend in &mut spec.backends {
        let Some(reason) = ports.without_effect(backend.port, backend.forwarding.as_ref()) else {
            continue;
        };
        if backend.port != wanted {
            let message = format!("{}: {reason}", backend.address);
            draft.note(&service.origin, Class::Nearest, "real_server", message);
        }
        let checked = backend.port.take();
        if !is_one || checked != wanted {
            let checks = backend.checks.iter_mut().flatten();
            for check in checks.filter(|check| has_port(check)) {
                check.port = check.port.or(checked);
            }
        }
    }
    if let Some(sorry) = &mut spec.sorry_server
        && let Some(reason) = ports.without_effect(sorry.port, sorry.forwarding.as_ref())
    {
        if sorry.port != wanted {
            let message = format!("{}: {reason}", sorry.address);
            draft.note(&service.origin, Class::Nearest, "sorry_server", message);
        }
        sorry.port = None;
    }
}

/// Settings of a service that decide whether the ports of its servers have an effect.
struct Ports<'a> {
    frontends: &'a [FrontendDocument],
    inherited: Option<Method>,
    is_persistent: bool,
}

impl Ports<'_> {
    /// The reason why a server's port has no effect.
    fn without_effect(
        &self,
        port: Option<u16>,
        forwarding: Option<&ForwardingDocument>,
    ) -> Option<&'static str> {
        port?;
        let method = method_of(forwarding).or(self.inherited);
        // keepalived silently gives servers that it does not masquerade the frontend's port.
        if method.is_some_and(|method| method != Method::Masquerade) {
            return Some("its port became the frontend's");
        }
        // By mark with persistence, IPVS translates no ports. A frontend with a port of its own may need the server's.
        let is_marked = |frontend: &FrontendDocument| frontend.mark.is_some();
        let fits = |frontend: &FrontendDocument| is_marked(frontend) || frontend.port == port;
        let is_ignored = self.is_persistent
            && self.frontends.iter().any(is_marked)
            && self.frontends.iter().all(fits);
        is_ignored.then_some("its port has no effect by mark with persistence")
    }
}

fn method_of(forwarding: Option<&ForwardingDocument>) -> Option<Method> {
    forwarding.and_then(|forwarding| forwarding.method)
}

/// Returns `true` if a check connects to a port.
fn has_port(check: &CheckDocument) -> bool {
    check.icmp.is_none() && check.exec.is_none() && check.file.is_none()
}

/// One program for both changes, which tells them apart by its environment.
fn hook(commands: &[Option<String>; 2]) -> Vec<String> {
    let cases: Vec<String> = ["up", "down"]
        .iter()
        .zip(commands)
        .filter_map(|(state, command)| Some(format!("{state}) {} ;;", command.as_ref()?)))
        .collect();
    if cases.is_empty() {
        return Vec::new();
    }
    let script = format!("case \"$PORTOLAN_STATE\" in {} esac", cases.join(" "));
    ["/bin/sh", "-c", &script].map(String::from).to_vec()
}

/// Checks that all backends have alike become the object's.
fn share_checks(spec: &mut LoadBalancerSpec) {
    let first = spec
        .backends
        .first()
        .and_then(|backend| backend.checks.clone());
    if spec.backends.iter().all(|backend| backend.checks == first) {
        spec.checks = first.unwrap_or_default();
        for backend in &mut spec.backends {
            backend.checks = None;
        }
    }
}
