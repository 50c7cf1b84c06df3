// SPDX-License-Identifier: Apache-2.0

//! `LoadBalancer` objects.

use portolan_model::check::{self, HealthPolicy};
use portolan_model::{Families, Family, Protocol};

use super::{check as checks, period, unless};
use crate::balancer::{Backend, Hooks, LoadBalancer, SorryServer};
use crate::document::{
    Announce, ApiVersion, BackendDocument, DEFAULT_NAMESPACE, FamilyName, ForwardingDocument,
    FrontendDocument, HealthDocument, HooksDocument, InitialState, LoadBalancerDocument,
    LoadBalancerKind, LoadBalancerSpec, Metadata, OnFailure, PersistenceDocument, ProtocolName,
    SchedulerFlag, SchedulerName, SorryServerDocument, TunnelChecksum, TunnelDocument, TunnelKind,
};
use crate::forwarding::{Forwarding, Persistence, Tunnel};
use crate::frontend::{Frontend, Packets, ranges_text};

pub(super) fn document(object: &LoadBalancer) -> LoadBalancerDocument {
    LoadBalancerDocument {
        api_version: ApiVersion::V1Alpha1,
        kind: LoadBalancerKind::LoadBalancer,
        metadata: Metadata {
            name: object.name.name.clone(),
            namespace: unless(object.name.namespace.clone(), &DEFAULT_NAMESPACE.to_owned()),
            labels: object.tags.labels.clone(),
            annotations: object.tags.annotations.clone(),
            resource_version: object.tags.resource_version.map(|it| it.to_string()),
        },
        spec: spec(object),
    }
}

fn spec(object: &LoadBalancer) -> LoadBalancerSpec {
    LoadBalancerSpec {
        frontends: object.frontends.iter().map(frontend).collect(),
        scheduler: unless(object.scheduler, &SchedulerName::Wlc),
        scheduler_flags: scheduler_flags(object),
        one_packet: object.one_packet,
        persistence: object.persistence.map(persistence),
        forwarding: unless(object.forwarding, &Forwarding::default()).map(forwarding),
        source_nat: object.source_nat,
        backends: object
            .backends
            .iter()
            .map(|one| backend(one, object.forwarding))
            .collect(),
        sorry_server: object
            .sorry_server
            .as_ref()
            .map(|sorry| sorry_server(sorry, object.forwarding)),
        checks: object.checks.iter().map(checks::document).collect(),
        health: unless(object.health, &HealthPolicy::default()).map(health),
        drain_timeout: object.drain_timeout.map(period),
        hooks: hooks(&object.hooks),
        announce: unless(object.announce, &Announce::WhenHealthy),
        node_selector: object.node_selector.clone(),
    }
}

fn scheduler_flags(object: &LoadBalancer) -> Option<Vec<SchedulerFlag>> {
    let flags: Vec<SchedulerFlag> = object.scheduler_flags.iter().copied().collect();
    let default = if object.scheduler.hashes_source() {
        vec![SchedulerFlag::Fallback]
    } else {
        Vec::new()
    };
    unless(flags, &default)
}

fn frontend(frontend: &Frontend) -> FrontendDocument {
    let packets = &frontend.packets;
    let mut document = FrontendDocument {
        name: unless(frontend.name.clone(), &packets.default_name()),
        addresses: packets.addresses().to_vec(),
        protocol: match packets.protocol() {
            None | Some(Protocol::Tcp) => None,
            Some(Protocol::Udp) => Some(ProtocolName::Udp),
            Some(Protocol::Sctp) => Some(ProtocolName::Sctp),
        },
        source_ranges: frontend
            .source_ranges
            .iter()
            .map(ToString::to_string)
            .collect(),
        ..FrontendDocument::default()
    };
    match packets {
        Packets::Port { port, .. } => document.port = Some(*port),
        Packets::Ranges { ports, .. } => document.ports = Some(ranges_text(ports)),
        Packets::Mark { mark, families } => {
            document.mark = Some(*mark);
            document.family = only_family(*families);
        }
    }
    document
}

fn only_family(families: Families) -> Option<FamilyName> {
    match (families.contains(Family::V4), families.contains(Family::V6)) {
        (true, false) => Some(FamilyName::V4),
        (false, true) => Some(FamilyName::V6),
        _ => None,
    }
}

fn persistence(persistence: Persistence) -> PersistenceDocument {
    let default = Persistence::default();
    PersistenceDocument {
        timeout: unless(persistence.timeout, &default.timeout).map(period),
        ipv4_prefix_length: unless(persistence.ipv4_prefix_length, &32),
        ipv6_prefix_length: unless(persistence.ipv6_prefix_length, &128),
        engine: persistence.engine,
    }
}

fn forwarding(forwarding: Forwarding) -> ForwardingDocument {
    ForwardingDocument {
        method: Some(forwarding.method()),
        tunnel: match forwarding {
            Forwarding::Tunnel(kind) => tunnel(kind),
            _ => None,
        },
    }
}

fn tunnel(tunnel: Tunnel) -> Option<TunnelDocument> {
    let document = match tunnel {
        Tunnel::Ipip => return None,
        Tunnel::Gue { port, checksum } => TunnelDocument {
            kind: Some(TunnelKind::Gue),
            port: Some(port),
            checksum: unless(checksum, &TunnelChecksum::None),
        },
        Tunnel::Gre { checksum } => TunnelDocument {
            kind: Some(TunnelKind::Gre),
            port: None,
            checksum: checksum.then_some(TunnelChecksum::Full),
        },
    };
    Some(document)
}

fn own_forwarding(own: Forwarding, inherited: Forwarding) -> Option<ForwardingDocument> {
    unless(own, &inherited).map(forwarding)
}

fn backend(backend: &Backend, inherited: Forwarding) -> BackendDocument {
    let default_name = Backend::default_name(backend.address, backend.port);
    BackendDocument {
        name: unless(backend.name.clone(), &default_name),
        address: backend.address,
        port: backend.port,
        weight: unless(backend.weight, &1),
        max_connections: backend.thresholds.maximum,
        resume_connections: backend.thresholds.resume,
        forwarding: own_forwarding(backend.forwarding, inherited),
        checks: backend
            .checks
            .as_ref()
            .map(|own| own.iter().map(checks::document).collect()),
        administrative_state: unless(backend.administrative_state, &<_>::default()),
    }
}

fn sorry_server(sorry: &SorryServer, inherited: Forwarding) -> SorryServerDocument {
    SorryServerDocument {
        address: sorry.address,
        port: sorry.port,
        forwarding: own_forwarding(sorry.forwarding, inherited),
        keep_idle: sorry.keep_idle,
    }
}

fn health(policy: HealthPolicy) -> HealthDocument {
    HealthDocument {
        initial_state: (policy.initial_state == check::InitialState::Up)
            .then_some(InitialState::Up),
        on_failure: (policy.on_failure == check::OnFailure::Remove).then_some(OnFailure::Remove),
        quorum: unless(policy.quorum, &1),
        hysteresis: policy.hysteresis,
        minimum_healthy_percent: u32::from(policy.minimum_healthy_percent),
        slow_start: unless(policy.slow_start, &std::time::Duration::ZERO).map(period),
    }
}

fn hooks(hooks: &Hooks) -> Option<HooksDocument> {
    let document = HooksDocument {
        on_quorum: hooks.on_quorum.clone(),
        on_backend: hooks.on_backend.clone(),
    };
    unless(document, &HooksDocument::default())
}
