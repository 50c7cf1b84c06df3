// SPDX-License-Identifier: Apache-2.0

//! One port of an export at the gateways of its cluster.

use std::net::SocketAddr;

use ipnet::IpNet;
use portolan_catalog::{Catalog, EndpointRef, Endpoints, ObjectKey, Reason, Service, Weights};
use portolan_model::{Destination, Families, Family, FrontendKind, Record};

use super::candidates::Candidate;
use super::frontends::Claiming;
use super::shared::Shared;
use super::{Projection, frontends, record_key, scheduling, settings};
use crate::SelectConfig;

/// One port of an export at gateways.
#[derive(Debug)]
pub(crate) struct GatewayExport<'a> {
    /// The Service that the export is at the gateways: their addresses as cluster IPs.
    pub(crate) service: &'a Service,
    /// The exported Service.
    pub(crate) exported: &'a ObjectKey,
    /// The endpoints of the port that may be exported, by address.
    pub(crate) endpoints: Endpoints<'a>,
    /// The networks that may connect; some of each family of the addresses.
    pub(crate) ranges: &'a [IpNet],
}

/// Projects one port of an export at gateways.
///
/// Connections have the address of a node of the importing cluster, so affinity and hints have nothing to go by: all
/// usable endpoints of the cluster serve. They are masqueraded, so that answers return by the gateway.
pub(crate) fn project_gateway(
    catalog: &Catalog,
    config: SelectConfig,
    export: &GatewayExport<'_>,
    port_index: usize,
) -> Projection {
    let service = export.service;
    let mut problems = Vec::new();
    let claiming = Claiming {
        service,
        is_noted: false,
    };
    let mut frontends = frontends::frontends(catalog, config, claiming, port_index, &mut problems);
    // That they are addresses of Nodes is meant.
    problems.retain(|problem| problem.reason != Reason::NodeAddress);
    for frontend in &mut frontends {
        frontend.kind = FrontendKind::ExternalIp;
        frontend.masquerade = true;
        let ranges = export.ranges.iter().copied();
        let family = frontend.family();
        let of_family = ranges.filter(|range| Family::of(range.addr()) == family);
        frontend.source_ranges = of_family.collect();
    }
    frontends.retain(|frontend| !frontend.source_ranges.is_empty());
    if frontends.is_empty() {
        return Projection {
            problems,
            ..Projection::default()
        };
    }
    let weights = catalog.weights(export.exported);
    let mut shared = Shared::default();
    let mut available = Families::NONE;
    for family in Family::ALL {
        let of_family = export.endpoints.iter();
        let of_family = of_family.filter(|(address, _)| Family::of(address.ip()) == family);
        let candidates: Vec<_> = of_family
            .map(|(address, endpoint)| candidate(weights, *address, endpoint))
            .collect();
        if candidates.iter().any(Candidate::is_usable) {
            available.insert(family);
        }
        shared.add(&candidates);
    }
    let (destinations, _) = shared.finish(&mut problems);
    let record = Record {
        frontends,
        scheduling: scheduling(service, destinations.iter().map(|one| one.weight)),
        destinations,
        available,
        ..settings(service, record_key(service, port_index))
    };
    Projection {
        record: Some(record),
        problems,
        ..Projection::default()
    }
}

fn candidate<'a>(
    weights: Weights<'_>,
    address: SocketAddr,
    endpoint: &EndpointRef<'a>,
) -> Candidate<'a> {
    Candidate {
        destination: Destination {
            address,
            weight: weights.of(endpoint),
        },
        endpoint: EndpointRef {
            zone_hints: None,
            node_hints: None,
            ..*endpoint
        },
    }
}
