// SPDX-License-Identifier: Apache-2.0

//! Messages to plans. Everything that a centre can send is checked: what breaks a rule is refused with the field.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_catalog::MAX_WEIGHT;
use portolan_federate::imports::{ImportName, Traffic, TrafficReason};
use portolan_federate::merge::{Affinity, ImportPort, Port};
use portolan_federate::plans::{
    ClusterPlan, ExportName, GatewayPlan, ImportPlan, PlanEndpoint, PlanPort, PortPlan,
    ServicePlan, SetPlan, StatePlan,
};
use portolan_federate::shares::Tier;
use portolan_model::{Family, Scheduling};
use portolan_policy::spec::{NetworkSpec, SelectorSpec, SpillOver};
use portolan_policy::{MAX_TIERS, Network, SchedulerName, Selector, Threshold};
use portolan_proto::v1;
use serde::de::DeserializeOwned;
use v1::plan_item::Plan as Message;

use super::{MAX_PARTS, PlanName};
use crate::wire::{WireError, affinity, decode_ip, name, number, protocol, scheduler};

type Result<T> = std::result::Result<T, WireError>;

/// The greatest step of a cluster.
const FULL: u32 = 20;
/// The most tiers: those of a policy, or of selectors of an owner and the rest.
const TIERS: usize = MAX_TIERS + 1;

/// A plan, or a part of one.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Item {
    Cluster(ClusterPlan),
    Group(Selector),
    Import(Box<ImportPlan>),
    Service(ServicePlan),
    Gateway(GatewayPlan),
}

impl Item {
    /// Number of its endpoints.
    pub(super) fn endpoints(message: Option<&Message>) -> usize {
        match message {
            Some(Message::Service(service)) => {
                service.ports.iter().map(|port| port.endpoints.len()).sum()
            }
            _ => 0,
        }
    }
}

/// Returns the name of the object that a plan is of; `None` for a kind that this version does not know.
pub(super) fn plan_name(id: &v1::PlanId) -> Result<Option<PlanName>> {
    let filled = |field, text: &str| match text.is_empty() {
        true => Err(WireError::new(field, "missing")),
        false => name(field, text),
    };
    let absent = |field, text: &str| match text.is_empty() {
        true => Ok(()),
        false => Err(WireError::new(
            field,
            format!("{text:?} is none of this kind"),
        )),
    };
    let cluster = || filled("id.cluster", &id.cluster);
    let named = || {
        Ok(ImportName {
            namespace: filled("id.namespace", &id.namespace)?,
            name: filled("id.name", &id.name)?,
        })
    };
    let kind = v1::PlanKind::try_from(id.kind).unwrap_or_default();
    let most = match kind {
        v1::PlanKind::Service => MAX_PARTS,
        _ => 1,
    };
    if kind != v1::PlanKind::Unspecified && id.part >= most {
        return Err(WireError::range("id.part", id.part));
    }
    Ok(Some(match kind {
        v1::PlanKind::Unspecified => return Ok(None),
        v1::PlanKind::Cluster => {
            absent("id.namespace", &id.namespace)?;
            absent("id.name", &id.name)?;
            PlanName::Cluster(cluster()?)
        }
        v1::PlanKind::Group => {
            absent("id.cluster", &id.cluster)?;
            absent("id.namespace", &id.namespace)?;
            PlanName::Group(filled("id.name", &id.name)?)
        }
        v1::PlanKind::Import => {
            absent("id.cluster", &id.cluster)?;
            PlanName::Import(named()?)
        }
        v1::PlanKind::Service => PlanName::Service(ExportName {
            cluster: cluster()?,
            service: named()?,
        }),
        v1::PlanKind::Gateway => {
            absent("id.cluster", &id.cluster)?;
            PlanName::Gateway(named()?)
        }
    }))
}

/// A plan, or a part of one.
///
/// # Errors
/// If it breaks a rule.
pub(super) fn item(name: &PlanName, message: Option<&Message>) -> Result<Item> {
    Ok(match (name, message) {
        (PlanName::Cluster(_), Some(Message::Cluster(from))) => Item::Cluster(cluster(from)?),
        (PlanName::Group(_), Some(Message::Group(from))) => {
            let spec: SelectorSpec = json("group.nodes", &from.nodes)?;
            let selector = Selector::of(&spec);
            Item::Group(selector.map_err(|faults| refused("group.nodes", &faults))?)
        }
        (PlanName::Import(_), Some(Message::Import(from))) => Item::Import(Box::new(import(from)?)),
        (PlanName::Service(_), Some(Message::Service(from))) => Item::Service(service(from)?),
        (PlanName::Gateway(_), Some(Message::Gateway(from))) => Item::Gateway(gateway(from)?),
        _ => return Err(WireError::new("plan", "not that of the id's kind")),
    })
}

fn cluster(from: &v1::PlanCluster) -> Result<ClusterPlan> {
    let state = from.state.as_ref().map(|state| {
        let step = u8::try_from(state.step).ok();
        let step = step.filter(|_| state.step <= FULL);
        Ok(StatePlan {
            step: step.ok_or_else(|| WireError::range("cluster.state.step", state.step))?,
            drained: state.drained,
            lost: state.lost,
        })
    });
    let network = (!from.network.is_empty()).then(|| {
        let spec: NetworkSpec = json("cluster.network", &from.network)?;
        Network::of(&spec).map_err(|faults| refused("cluster.network", &faults))
    });
    Ok(ClusterPlan {
        id: filled("cluster.id", &from.id)?,
        state: state.transpose()?,
        network: network.transpose()?,
        set: from.set.as_ref().map(|set| SetPlan {
            endpoints_per_export: set.endpoints_per_export,
            keeps_last: set.keeps_last,
        }),
    })
}

fn import(from: &v1::PlanImport) -> Result<ImportPlan> {
    let sources = from.sources.iter().map(|source| {
        let service = ImportName {
            namespace: filled("import.sources.namespace", &source.namespace)?,
            name: filled("import.sources.name", &source.name)?,
        };
        Ok((filled("import.sources.cluster", &source.cluster)?, service))
    });
    let affinity = match affinity(from.affinity_seconds)? {
        None => Affinity::None,
        Some(timeout_seconds) => Affinity::ClientIp { timeout_seconds },
    };
    let distribution = from.traffic_distribution.as_deref();
    let distribution = distribution.map(|text| name("import.traffic_distribution", text));
    let nodes = from.nodes.as_deref().map(|text| name("import.nodes", text));
    Ok(ImportPlan {
        ips: addresses(&from.ips)?,
        winner: filled("import.winner", &from.winner)?,
        ports: ports(&from.ports)?,
        affinity,
        internal_local: from.internal_local,
        traffic_distribution: distribution.transpose()?,
        sources: sources.collect::<Result<_>>()?,
        nodes: nodes.transpose()?,
        traffic: traffic(from)?,
        scheduling: Scheduling {
            scheduler: scheduler("import.scheduler", &from.scheduler)?,
            flags: from.scheduler_flags.map(portolan_model::ipvs::Flags),
        },
        drain_seconds: from.drain_seconds,
    })
}

/// One address of a family, or of both.
fn addresses(all: &[Vec<u8>]) -> Result<Vec<IpAddr>> {
    let mut ips: Vec<IpAddr> = Vec::new();
    for octets in all.iter().take(3) {
        let ip = decode_ip("import.ips", octets)?;
        if ips.iter().any(|other| Family::of(*other) == Family::of(ip)) {
            return Err(WireError::new(
                "import.ips",
                format!("{ip}: a second one of its family"),
            ));
        }
        ips.push(ip);
    }
    match ips.is_empty() {
        true => Err(WireError::new("import.ips", "missing")),
        false => Ok(ips),
    }
}

fn ports(all: &[v1::PlanImportPort]) -> Result<Vec<ImportPort>> {
    let ports = all.iter().map(|from| {
        let missing = || WireError::new("import.ports.port", "missing");
        let port = from.port.as_ref().ok_or_else(missing)?;
        let clusters = from.clusters.iter();
        let clusters = clusters.map(|id| filled("import.ports.clusters", id));
        Ok(ImportPort {
            port: Port {
                name: name("import.ports.port.name", &port.name)?,
                protocol: protocol(port.protocol)?,
                number: number("import.ports.port.port", port.port)?,
                app_protocol: port.app_protocol.as_deref().map(Arc::from),
            },
            clusters: clusters.collect::<Result<_>>()?,
        })
    });
    ports.collect()
}

fn traffic(from: &v1::PlanImport) -> Result<Traffic> {
    if from.tiers.len() > TIERS {
        let why = format!("{}, at most {TIERS}", from.tiers.len());
        return Err(WireError::new("import.tiers", why));
    }
    let min_healthy = match from.min_healthy {
        Some(v1::plan_import::MinHealthy::MinReady(number @ 1..)) => Threshold::Number(number),
        Some(v1::plan_import::MinHealthy::MinReadyPercent(percent @ 1..=100)) => {
            Threshold::Percent(u8::try_from(percent).unwrap_or(100))
        }
        _ => {
            return Err(WireError::new(
                "import.min_healthy",
                "missing, or out of range",
            ));
        }
    };
    let panic = u8::try_from(from.panic_threshold).ok();
    let panic = panic.filter(|percent| *percent <= 100);
    let panic =
        panic.ok_or_else(|| WireError::range("import.panic_threshold", from.panic_threshold))?;
    if from.max_endpoints == 0 {
        return Err(WireError::range("import.max_endpoints", from.max_endpoints));
    }
    let named = &from.policy_scheduler;
    let scheduler = match named.is_empty() {
        true => None,
        false => {
            let unknown =
                || WireError::new("import.policy_scheduler", format!("{named:?}: unknown"));
            Some(SchedulerName::of(named).ok_or_else(unknown)?)
        }
    };
    Ok(Traffic {
        // The centre explains it.
        reason: TrafficReason::Alike,
        shadowed: Vec::new(),
        tiers: from.tiers.iter().map(tier).collect::<Result<_>>()?,
        min_healthy,
        spill_over: match from.proportional {
            true => SpillOver::Proportional,
            false => SpillOver::AllAtOnce,
        },
        panic_threshold: panic,
        max_endpoints: from.max_endpoints,
        scheduler,
    })
}

fn tier(from: &v1::PlanTier) -> Result<Tier> {
    let ids = from.clusters.iter();
    let ids = ids.map(|id| filled("import.tiers.clusters", id));
    let ids: Vec<Arc<str>> = ids.collect::<Result<_>>()?;
    if !from.weighted {
        return Ok(Tier::Alike(ids));
    }
    if from.weights.len() != ids.len() {
        let why = format!("{} of {} clusters", from.weights.len(), ids.len());
        return Err(WireError::new("import.tiers.weights", why));
    }
    let weighted = ids.into_iter().zip(&from.weights).map(|(id, weight)| {
        let good = u16::try_from(*weight).ok();
        let good = good.filter(|weight| *weight <= portolan_policy::MAX_WEIGHT);
        let weight = good.ok_or_else(|| WireError::range("import.tiers.weights", *weight))?;
        Ok((id, weight))
    });
    Ok(Tier::Weighted(weighted.collect::<Result<_>>()?))
}

fn service(from: &v1::PlanService) -> Result<ServicePlan> {
    let ports = from.ports.iter().map(|port| {
        let place = PlanPort {
            name: name("service.ports.name", &port.name)?,
            protocol: protocol(port.protocol)?,
            number: number("service.ports.port", port.port)?,
        };
        let endpoints = port.endpoints.iter().map(endpoint);
        let gateways = port.gateways.iter().map(|from| {
            let address = socket("service.ports.gateways", &from.address, from.port)?;
            Ok((address, zone(from.zone.as_deref())?))
        });
        let plan = PortPlan {
            endpoints: endpoints.collect::<Result<_>>()?,
            gateways: gateways.collect::<Result<_>>()?,
        };
        Ok((place, plan))
    });
    Ok(ServicePlan {
        by_gateways: from.by_gateways,
        ports: ports.collect::<Result<BTreeMap<_, _>>>()?,
    })
}

fn endpoint(from: &v1::PlanEndpoint) -> Result<(SocketAddr, PlanEndpoint)> {
    let address = socket("service.ports.endpoints", &from.address, from.port)?;
    if from.weight > MAX_WEIGHT {
        return Err(WireError::range(
            "service.ports.endpoints.weight",
            from.weight,
        ));
    }
    let plan = PlanEndpoint {
        ready: from.ready,
        serving: from.serving,
        terminating: from.terminating,
        weight: from.weight,
        zone: zone(from.zone.as_deref())?,
    };
    Ok((address, plan))
}

/// The address of an endpoint or a gateway, which must be one that another cluster can have.
fn socket(field: &'static str, octets: &[u8], port: u32) -> Result<SocketAddr> {
    let ip = decode_ip(field, octets)?;
    if Network::is_special(ip) {
        let why = format!("{ip}: no address that another cluster can have");
        return Err(WireError::new(field, why));
    }
    Ok(SocketAddr::new(ip, number(field, port)?))
}

fn zone(text: Option<&str>) -> Result<Option<Arc<str>>> {
    text.map(|text| name("service.ports.zone", text))
        .transpose()
}

fn gateway(from: &v1::PlanGateway) -> Result<GatewayPlan> {
    let importers = from.importers.iter();
    let importers = importers.map(|name| filled("gateway.importers", name));
    let ports = from.ports.iter().map(|port| {
        let place = (
            name("gateway.ports.name", &port.name)?,
            protocol(port.protocol)?,
        );
        Ok((place, number("gateway.ports.port", port.port)?))
    });
    Ok(GatewayPlan {
        importers: importers.collect::<Result<BTreeSet<_>>>()?,
        ports: ports.collect::<Result<_>>()?,
    })
}

fn filled(field: &'static str, text: &str) -> Result<Arc<str>> {
    match text.is_empty() {
        true => Err(WireError::new(field, "missing")),
        false => name(field, text),
    }
}

fn json<T: DeserializeOwned>(field: &'static str, text: &[u8]) -> Result<T> {
    let parsed = serde_json::from_slice(text);
    parsed.map_err(|error| WireError::new(field, error.to_string()))
}

fn refused(field: &'static str, faults: &[portolan_policy::Fault]) -> WireError {
    let first = faults.first();
    let why = first.map_or_else(String::new, |fault| {
        format!("{}: {}", fault.field, fault.error)
    });
    WireError::new(field, why)
}
