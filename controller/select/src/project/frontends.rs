// SPDX-License-Identifier: Apache-2.0

//! The ways in to a Service port.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use portolan_catalog::{Catalog, Claim, Claimant, FieldProblem, Reason, Service, TrafficPolicy};
use portolan_model::{Family, Frontend, FrontendAddress, FrontendKind, Lists};

use crate::{SelectConfig, SourceRanges};

/// A Service with what is known of its claims.
#[derive(Debug, Clone, Copy)]
pub(super) struct Claiming<'s> {
    pub(super) service: &'s Service,
    /// True if the catalog has the claims of the Service as it is here. Then only contested ones are looked up.
    pub(super) is_noted: bool,
}

/// The ways in that the Service port holds; one that another holds becomes a problem.
pub(super) fn frontends(
    catalog: &Catalog,
    config: SelectConfig,
    Claiming { service, is_noted }: Claiming<'_>,
    port_index: usize,
    problems: &mut Vec<FieldProblem>,
) -> Vec<Frontend> {
    let port = &service.ports[port_index];
    let mut frontends = Vec::new();
    for (kind, claim) in service.claims_of(port) {
        let us = || Claimant::new(service, port_index, kind);
        let is_ours = is_noted && !catalog.is_contested(&claim);
        let holder = || catalog.holder(&claim).filter(|holder| *holder != us());
        if let Some(holder) = (!is_ours).then(holder).flatten() {
            problems.push(conflict(&us(), &holder, &claim));
            continue;
        }
        match claim.address {
            None => {
                let families = Family::ALL.into_iter().filter(|f| service.has_family(*f));
                frontends.extend(families.map(|family| {
                    let address = FrontendAddress::NodeAddresses(family);
                    open(config, service, kind, address, claim.port)
                }));
            }
            Some(ip) => {
                let address = FrontendAddress::Vip(ip);
                let mut frontend = open(config, service, kind, address, claim.port);
                if let Some(node) = catalog.node_with_address(&service.key.cluster, ip) {
                    frontend.bind = false;
                    problems.push(node_address(&us(), ip, node));
                }
                frontends.push(frontend);
            }
        }
    }
    frontends.sort();
    frontends.shrink_to_fit();
    frontends
}

fn open(
    config: SelectConfig,
    service: &Service,
    kind: FrontendKind,
    address: FrontendAddress,
    port: u16,
) -> Frontend {
    let external = kind != FrontendKind::ClusterIp;
    let policy = if external {
        service.external_policy
    } else {
        service.internal_policy
    };
    let mut frontend = Frontend {
        lists: match policy {
            TrafficPolicy::Cluster => Lists::Cluster,
            TrafficPolicy::Local => Lists::Local,
        },
        masquerade: external && policy == TrafficPolicy::Cluster,
        ..Frontend::new(kind, address, port)
    };
    if are_held_to_ranges(config, service, kind) {
        frontend.source_ranges = ranges(service, frontend.family());
    }
    frontend
}

/// Returns `true` if `spec.loadBalancerSourceRanges` apply to a kind of frontend.
///
/// Upstream applies them to load-balancer IPs only, so that refused clients can use a node port or
/// an external IP instead. [`SourceRanges::All`] closes these too, except behind a balancer that
/// declares itself a proxy: it forwards to node ports from its own addresses, which need not be in
/// the ranges.
fn are_held_to_ranges(config: SelectConfig, service: &Service, kind: FrontendKind) -> bool {
    match kind {
        FrontendKind::ClusterIp => false,
        FrontendKind::LoadBalancer | FrontendKind::Balanced | FrontendKind::BalancedRanges => true,
        FrontendKind::ExternalIp | FrontendKind::NodePort => {
            config.source_ranges == SourceRanges::All && service.balancer_keeps_sources
        }
    }
}

/// The source ranges of a family, sorted.
fn ranges(service: &Service, family: Family) -> Vec<IpNet> {
    let ranges = service.source_ranges.iter().copied();
    let of_family: BTreeSet<_> = ranges
        .filter(|range| Family::of(range.addr()) == family)
        .collect();
    of_family.into_iter().collect()
}

fn field(us: &Claimant) -> String {
    match us.kind {
        FrontendKind::ClusterIp => "spec.clusterIPs".to_owned(),
        FrontendKind::ExternalIp => "spec.externalIPs".to_owned(),
        FrontendKind::LoadBalancer => "status.loadBalancer.ingress".to_owned(),
        FrontendKind::NodePort => format!("spec.ports[{}].nodePort", us.port),
        FrontendKind::Balanced | FrontendKind::BalancedRanges => {
            format!("spec.frontends[{}]", us.port)
        }
    }
}

fn conflict(us: &Claimant, holder: &Claimant, claim: &Claim) -> FieldProblem {
    let what = match claim.address {
        Some(ip) => format!("{} {}", claim.protocol, SocketAddr::new(ip, claim.port)),
        None => format!("{} node port {}", claim.protocol, claim.port),
    };
    let whom = if holder.service == us.service {
        format!("port {} of the same Service", holder.port)
    } else {
        format!("Service {}", holder.service)
    };
    FieldProblem::new(
        field(us),
        Reason::Conflict,
        format!("{what} already belongs to {whom}"),
    )
}

fn node_address(us: &Claimant, ip: IpAddr, node: &str) -> FieldProblem {
    FieldProblem::new(
        field(us),
        Reason::NodeAddress,
        format!(
            "{ip} is an address of Node {node}: no node makes it its own, \
             other nodes reach it there"
        ),
    )
}
