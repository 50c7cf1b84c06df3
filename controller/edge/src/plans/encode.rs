// SPDX-License-Identifier: Apache-2.0

//! Plans to messages.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use portolan_federate::imports::ImportName;
use portolan_federate::merge::Affinity;
use portolan_federate::plans::{
    ClusterPlan, ExportName, GatewayPlan, ImportPlan, PlanEndpoint, PlanPort, ServicePlan,
};
use portolan_federate::shares::Tier;
use portolan_policy::spec::SpillOver;
use portolan_policy::{SchedulerName, Selector, Threshold};
use portolan_proto::v1;
use v1::plan_item::Plan as Message;

use super::{MAX_PARTS, PART_ENDPOINTS, PlanName};
use crate::wire::{encode_ip, encode_ips, encode_protocol};

/// Keeps the places of endpoints in parts apart from any other use of BLAKE3.
const PART_KEY: &[u8; 32] = b"portolan.v1 part of a plan (key)";

pub(super) fn id(name: &PlanName) -> v1::PlanId {
    let of_import = |kind: v1::PlanKind, cluster: &str, name: &ImportName| v1::PlanId {
        kind: kind.into(),
        cluster: cluster.to_owned(),
        namespace: (*name.namespace).to_owned(),
        name: (*name.name).to_owned(),
        part: 0,
    };
    match name {
        PlanName::Cluster(cluster) => v1::PlanId {
            kind: v1::PlanKind::Cluster.into(),
            cluster: (**cluster).to_owned(),
            ..v1::PlanId::default()
        },
        PlanName::Group(policy) => v1::PlanId {
            kind: v1::PlanKind::Group.into(),
            name: (**policy).to_owned(),
            ..v1::PlanId::default()
        },
        PlanName::Import(name) => of_import(v1::PlanKind::Import, "", name),
        PlanName::Service(ExportName { cluster, service }) => {
            of_import(v1::PlanKind::Service, cluster, service)
        }
        PlanName::Gateway(name) => of_import(v1::PlanKind::Gateway, "", name),
    }
}

pub(super) fn cluster(plan: &ClusterPlan) -> Message {
    let network = plan.network.as_ref();
    // Texts and numbers alone: they can be spelled.
    let json = network.and_then(|network| serde_json::to_vec(&network.to_spec()).ok());
    Message::Cluster(v1::PlanCluster {
        id: (*plan.id).to_owned(),
        state: plan.state.map(|state| v1::PlanState {
            step: state.step.into(),
            drained: state.drained,
            lost: state.lost,
        }),
        network: json.unwrap_or_default(),
        set: plan.set.map(|set| v1::PlanSet {
            endpoints_per_export: set.endpoints_per_export,
            keeps_last: set.keeps_last,
        }),
    })
}

pub(super) fn group(nodes: &Selector) -> Message {
    let nodes = serde_json::to_vec(&nodes.to_spec()).unwrap_or_default();
    Message::Group(v1::PlanGroup { nodes })
}

pub(super) fn import(plan: &ImportPlan) -> Message {
    // All fields by name: a new one must be handled here.
    let ImportPlan {
        ips,
        winner,
        ports,
        affinity,
        internal_local,
        traffic_distribution,
        sources,
        nodes,
        traffic,
        scheduling,
        drain_seconds,
    } = plan;
    let ports = ports.iter().map(|port| v1::PlanImportPort {
        port: Some(v1::EdgePort {
            name: (*port.port.name).to_owned(),
            protocol: encode_protocol(port.port.protocol).into(),
            port: port.port.number.into(),
            node_port: 0,
            app_protocol: port.port.app_protocol.as_deref().map(str::to_owned),
        }),
        clusters: port.clusters.iter().map(|id| id.to_string()).collect(),
    });
    let sources = sources.iter().map(|(cluster, source)| v1::PlanSource {
        cluster: cluster.to_string(),
        namespace: source.namespace.to_string(),
        name: source.name.to_string(),
    });
    let min_healthy = match traffic.min_healthy {
        Threshold::Number(number) => v1::plan_import::MinHealthy::MinReady(number),
        Threshold::Percent(percent) => v1::plan_import::MinHealthy::MinReadyPercent(percent.into()),
    };
    Message::Import(v1::PlanImport {
        ips: encode_ips(ips),
        winner: winner.to_string(),
        ports: ports.collect(),
        affinity_seconds: match affinity {
            Affinity::None => None,
            Affinity::ClientIp { timeout_seconds } => Some(*timeout_seconds),
        },
        internal_local: *internal_local,
        traffic_distribution: traffic_distribution.as_deref().map(str::to_owned),
        sources: sources.collect(),
        nodes: nodes.as_deref().map(str::to_owned),
        tiers: traffic.tiers.iter().map(tier).collect(),
        min_healthy: Some(min_healthy),
        proportional: traffic.spill_over == SpillOver::Proportional,
        panic_threshold: traffic.panic_threshold.into(),
        max_endpoints: traffic.max_endpoints,
        policy_scheduler: traffic
            .scheduler
            .map_or("", SchedulerName::as_str)
            .to_owned(),
        scheduler: scheduling
            .scheduler
            .as_deref()
            .unwrap_or_default()
            .to_owned(),
        scheduler_flags: scheduling.flags.map(|flags| flags.0),
        drain_seconds: *drain_seconds,
    })
}

fn tier(tier: &Tier) -> v1::PlanTier {
    match tier {
        Tier::Alike(ids) => v1::PlanTier {
            clusters: ids.iter().map(|id| id.to_string()).collect(),
            weighted: false,
            weights: Vec::new(),
        },
        Tier::Weighted(ids) => v1::PlanTier {
            clusters: ids.iter().map(|(id, _)| id.to_string()).collect(),
            weighted: true,
            weights: ids.iter().map(|(_, weight)| (*weight).into()).collect(),
        },
    }
}

pub(super) fn gateway(plan: &GatewayPlan) -> Message {
    let ports = plan.ports.iter();
    let ports = ports.map(|((name, protocol), number)| v1::PlanGatewayPort {
        name: name.to_string(),
        protocol: encode_protocol(*protocol).into(),
        port: (*number).into(),
    });
    Message::Gateway(v1::PlanGateway {
        importers: plan.importers.iter().map(|name| name.to_string()).collect(),
        ports: ports.collect(),
    })
}

/// The parts of a Service, in order. An endpoint stays in its part as long as their number is the same. The first part
/// has all ports, a later one those of its endpoints: many ports in each of many parts would be a gigabyte.
pub(super) fn service(plan: &ServicePlan) -> Vec<Message> {
    let endpoints = plan.ports.values().map(|port| port.endpoints.len());
    let wanted = endpoints.sum::<usize>().div_ceil(PART_ENDPOINTS);
    let wanted = u32::try_from(wanted.next_power_of_two()).unwrap_or(MAX_PARTS);
    let count = wanted.min(MAX_PARTS);
    let empty = v1::PlanService {
        by_gateways: plan.by_gateways,
        ports: Vec::new(),
    };
    let mut parts = vec![empty; count as usize];
    for (port, plan) in &plan.ports {
        let mut by_part: BTreeMap<usize, Vec<v1::PlanEndpoint>> = BTreeMap::new();
        for (address, endpoint) in &plan.endpoints {
            let endpoints = by_part.entry(place(address, count)).or_default();
            endpoints.push(of_endpoint(address, endpoint));
        }
        by_part.entry(0).or_default();
        for (number, endpoints) in by_part {
            let gateways = plan.gateways.iter().filter(|_| number == 0);
            let gateways = gateways.map(gateway_address).collect();
            let port = part_of_port(port, endpoints, gateways);
            parts[number].ports.push(port);
        }
    }
    parts.into_iter().map(Message::Service).collect()
}

fn part_of_port(
    port: &PlanPort,
    endpoints: Vec<v1::PlanEndpoint>,
    gateways: Vec<v1::PlanGatewayAddress>,
) -> v1::PlanPort {
    v1::PlanPort {
        name: port.name.to_string(),
        protocol: encode_protocol(port.protocol).into(),
        port: port.number.into(),
        endpoints,
        gateways,
    }
}

fn place(address: &SocketAddr, count: u32) -> usize {
    let hash = blake3::keyed_hash(PART_KEY, &encode_ip(address.ip()));
    let [first, second, ..] = *hash.as_bytes();
    (u32::from(u16::from_be_bytes([first, second])) % count.max(1)) as usize
}

fn of_endpoint(address: &SocketAddr, plan: &PlanEndpoint) -> v1::PlanEndpoint {
    v1::PlanEndpoint {
        address: encode_ip(address.ip()),
        port: address.port().into(),
        ready: plan.ready,
        serving: plan.serving,
        terminating: plan.terminating,
        weight: plan.weight,
        zone: plan.zone.as_deref().map(str::to_owned),
    }
}

fn gateway_address((address, zone): (&SocketAddr, &Option<Arc<str>>)) -> v1::PlanGatewayAddress {
    v1::PlanGatewayAddress {
        address: encode_ip(address.ip()),
        port: address.port().into(),
        zone: zone.as_deref().map(str::to_owned),
    }
}
