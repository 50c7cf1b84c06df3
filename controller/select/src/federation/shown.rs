// SPDX-License-Identifier: Apache-2.0

//! Imports and exports for people: who serves with which share, and why others do not.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_catalog::{Catalog, ObjectKey};
use portolan_federate::imports::{ImportHere, ImportName, Traffic, TrafficReason, World};
use portolan_federate::merge::{ImportKind, condition};
use portolan_federate::shares::{self, Precision, TWENTIETHS, Tier, health};
use portolan_federate::vip::Allocation;
use portolan_model::Family;
use portolan_policy::Threshold;
use portolan_policy::spec::SpillOver;
use serde::{Deserialize, Serialize};

use super::gateway::gateway_key;
use super::{Extent, Federation, import_key, service_key};
use crate::SelectConfig;
use crate::project::OfFamily;

/// An import in one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShownImport {
    /// The importing cluster.
    pub cluster: String,
    /// `NAMESPACE/NAME`.
    pub name: String,
    /// Whether there is an import of this name.
    pub exists: bool,
    /// `ClusterSetIP` or `Headless`.
    pub kind: String,
    /// Its virtual addresses.
    pub vips: Vec<IpAddr>,
    /// Where its shares come from, in words.
    pub policy: String,
    /// The TrafficPolicies that select it too and do not apply, by name.
    #[serde(default)]
    pub shadowed: Vec<String>,
    /// The ImportPolicy whose `nodes` get the addresses; none if all nodes do.
    #[serde(default)]
    pub nodes: Option<String>,
    /// Its ports, by family.
    pub ports: Vec<ShownPort>,
    /// The clusters that do not serve it, with the first reason.
    pub hidden: Vec<(String, String)>,
    /// The clusters at whose gateways the affinity ends; none without affinity.
    #[serde(default)]
    pub affinity_ends: Vec<String>,
    /// True while changes of objects wait to be published. Nodes may not have been sent them.
    #[serde(default)]
    pub pending: bool,
}

/// One port of an import in one family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShownPort {
    /// Its name, number and protocol, as in `http 80/TCP`.
    pub port: String,
    /// The family.
    pub family: Family,
    /// Whether all endpoints count alike, because too few are ready.
    pub panic: bool,
    /// The largest error of a share in permille; 0 if the weights are exact.
    pub error_permille: u32,
    /// The scheduler, if one is named.
    pub scheduler: Option<String>,
    /// The clusters that expose the port, by tier.
    pub clusters: Vec<ShownCluster>,
}

/// One cluster that exposes a port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShownCluster {
    /// Its tier, from 1; none if no tier has it.
    pub tier: Option<usize>,
    /// The load of the tier in twentieths.
    pub load: Option<u32>,
    /// Its name.
    pub cluster: String,
    /// Its step, 0 to 20.
    pub step: u8,
    /// Usable endpoints.
    pub ready: u32,
    /// Endpoints that are not terminating.
    pub expected: u32,
    /// Its health in twentieths.
    pub health: u32,
    /// Its share in permille; none without one.
    pub share_permille: Option<u32>,
    /// Number of endpoints of each weight, with the weight, the greatest first.
    pub weights: Vec<(usize, u32)>,
    /// The gateways that connections go to; empty if they go to pods.
    #[serde(default)]
    pub gateways: Vec<SocketAddr>,
    /// Reason in words; may be empty.
    pub reason: String,
}

/// An export of one cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShownExport {
    /// The exporting cluster.
    pub cluster: String,
    /// `NAMESPACE/NAME`.
    pub name: String,
    /// The reason of the condition `Valid`; none if it is not exported.
    pub valid: Option<String>,
    /// The reason of the condition `Ready`.
    pub ready: Option<String>,
    /// The conflicts, in words.
    pub conflicts: Option<String>,
    /// Problems of its endpoints, and other problems.
    pub problems: Vec<String>,
    /// Its ports at the gateways of its cluster, for clusters that do not reach pods.
    #[serde(default)]
    pub gateways: Vec<ShownGateway>,
    /// For each member whether it imports the Service: the name that it has there, or why not.
    pub importers: Vec<(String, Result<String, String>)>,
}

/// A port of an export at the gateways of its cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ShownGateway {
    /// Its name and protocol, as in `http TCP`.
    pub port: String,
    /// The addresses that accept connections, each with its Node.
    pub places: Vec<(SocketAddr, String)>,
    /// The clusters that it is for.
    pub importers: Vec<String>,
}

impl Federation {
    /// An import of a cluster; none if the cluster is no member.
    pub(crate) fn show_import(
        &self,
        catalog: &Catalog,
        config: SelectConfig,
        importing: &Arc<str>,
        name: &ImportName,
    ) -> Option<ShownImport> {
        self.show_import_of(&self.world(catalog), catalog, config, importing, name)
    }

    /// The same in a world that is known, for several imports.
    pub(super) fn show_import_of(
        &self,
        world: &World<'_>,
        catalog: &Catalog,
        config: SelectConfig,
        importing: &Arc<str>,
        name: &ImportName,
    ) -> Option<ShownImport> {
        world.members.get(importing)?;
        let key = import_key(importing, name);
        let here = self.here(&key);
        let kept = self.kept.get(&key);
        let vips = kept.map(|kept| kept.ips.clone()).unwrap_or_default();
        let allocation = Allocation {
            ips: vips.clone(),
            problems: Vec::new(),
        };
        let hidden = world.members.keys().filter_map(|exporting| {
            let source = here.and_then(|here| here.sources.get(exporting));
            let source = source.unwrap_or(name);
            let of = self
                .plan
                .explain(world, importing, exporting, source, Some(&allocation));
            Some((exporting.to_string(), of.invisible?.to_string()))
        });
        let hidden = hidden.collect();
        let ends = here.map(|here| self.affinity_ends(importing, here));
        let ends = ends.unwrap_or_default();
        Some(ShownImport {
            cluster: importing.to_string(),
            name: name.to_string(),
            exists: here.is_some(),
            kind: here
                .map_or(ImportKind::default(), |here| here.import.kind)
                .as_str()
                .to_owned(),
            nodes: here.and_then(|here| Some(here.nodes.as_ref()?.to_string())),
            policy: here.map(|here| in_words(&here.traffic)).unwrap_or_default(),
            shadowed: here
                .map(|here| here.traffic.shadowed.clone())
                .unwrap_or_default(),
            ports: here
                .map(|here| self.ports(catalog, config, &key, here))
                .unwrap_or_default(),
            vips,
            hidden,
            affinity_ends: ends.iter().map(ToString::to_string).collect(),
            pending: false,
        })
    }

    fn ports(
        &self,
        catalog: &Catalog,
        config: SelectConfig,
        key: &ObjectKey,
        here: &ImportHere,
    ) -> Vec<ShownPort> {
        let projected = self.project(catalog, config, key, Extent::All);
        let ports = projected.ports.iter().zip(&here.import.ports);
        let ports = ports.flat_map(|((_, families), port)| {
            let port = &port.port;
            let title = format!("{} {}/{}", port.name, port.number, port.protocol);
            let title = title.trim_start().to_owned();
            families.iter().map(move |(family, of)| ShownPort {
                port: title.clone(),
                family: *family,
                panic: of.shares.panic,
                error_permille: match of.shares.precision {
                    Precision::Exact => 0,
                    Precision::Capped { error_permille } => error_permille,
                },
                scheduler: of.shares.scheduler.clone(),
                clusters: self.named(clusters(&here.traffic, of)),
            })
        });
        ports.collect()
    }

    /// Names in place of ids.
    fn named(&self, mut clusters: Vec<ShownCluster>) -> Vec<ShownCluster> {
        for shown in &mut clusters {
            let mut all = self.objects.clusters.values();
            if let Some(cluster) = all.find(|cluster| cluster.id == shown.cluster) {
                shown.cluster.clone_from(&cluster.meta.name);
            }
        }
        clusters
    }

    /// An export of a cluster; none if the cluster is no member.
    pub(crate) fn show_export(
        &self,
        catalog: &Catalog,
        exporting: &Arc<str>,
        name: &ImportName,
    ) -> Option<ShownExport> {
        let world = self.world(catalog);
        world.members.get(exporting)?;
        let of_cluster = self.plan.exports.get(exporting);
        let status = of_cluster.and_then(|exports| exports.get(name));
        let conflicts = status.filter(|status| !status.conflicts.is_empty());
        let importers = world.members.keys().map(|importing| {
            let of = self.plan.explain(&world, importing, exporting, name, None);
            let answer = match of.invisible {
                None => Ok(of.name.unwrap_or_else(|| name.clone()).to_string()),
                Some(reason) => Err(reason.to_string()),
            };
            (importing.to_string(), answer)
        });
        let importers = importers.collect();
        let problems = self.problems.iter().filter(|(object, _)| {
            let key = &object.key;
            key.cluster == *exporting && key.namespace == name.namespace && key.name == name.name
        });
        let problems = problems.flat_map(|(_, found)| found);
        Some(ShownExport {
            cluster: exporting.to_string(),
            name: name.to_string(),
            valid: status.map(|status| status.valid.as_str().to_owned()),
            ready: status.map(|status| status.ready.as_str().to_owned()),
            conflicts: conflicts.map(|status| condition(&status.conflicts).1),
            problems: problems.map(ToString::to_string).collect(),
            gateways: self.show_gateways(catalog, exporting, name),
            importers,
        })
    }

    fn show_gateways(
        &self,
        catalog: &Catalog,
        exporting: &Arc<str>,
        name: &ImportName,
    ) -> Vec<ShownGateway> {
        let exported = service_key(exporting, name);
        let importers = self.gateway_importers(&exported).into_iter();
        let importers: Vec<_> = importers.map(|one| one.meta.name.clone()).collect();
        let service = self.gateway_service(catalog, &gateway_key(&exported));
        let (Some(service), Some(gateways)) = (service, self.gateways.get(exporting)) else {
            return Vec::new();
        };
        let ports = service.ports.iter().map(|port| {
            let places = service.cluster_ips.iter().filter_map(|ip| {
                let node = gateways.open.get(ip)?.to_string();
                Some((SocketAddr::new(*ip, port.port), node))
            });
            ShownGateway {
                port: format!("{} {}", port.name, port.protocol)
                    .trim_start()
                    .to_owned(),
                places: places.collect(),
                importers: importers.clone(),
            }
        });
        ports.collect()
    }
}

/// Where the shares of an import come from.
fn in_words(traffic: &Traffic) -> String {
    let from = match &traffic.reason {
        TrafficReason::Policy(because) => format!("TrafficPolicy {because}"),
        TrafficReason::ClusterSelectors => String::from("clusterSelectors of the winning export"),
        TrafficReason::Weights => String::from("weights of the exports' owners"),
        TrafficReason::Alike => {
            return String::from("no TrafficPolicy: all endpoints alike");
        }
    };
    let least = match traffic.min_healthy {
        Threshold::Number(number) => number.to_string(),
        Threshold::Percent(percent) => format!("{percent}%"),
    };
    let spill = match traffic.spill_over {
        SpillOver::AllAtOnce => "AllAtOnce",
        SpillOver::Proportional => "Proportional",
    };
    format!("{from}, minHealthy {least} {spill}")
}

fn clusters(traffic: &Traffic, of: &OfFamily) -> Vec<ShownCluster> {
    let sum: u128 = of.shares.clusters.values().map(|share| share.share).sum();
    let all = of.clusters.iter().map(|(id, cluster)| {
        let place = place(&traffic.tiers, id);
        let share = of.shares.clusters.get(id);
        let tier = if of.shares.panic {
            Some(0)
        } else {
            place.map(|(tier, _)| tier)
        };
        let load = tier.and_then(|tier| of.shares.loads.get(tier)).copied();
        let own = health(
            cluster.ready.into(),
            cluster.expected.into(),
            traffic.min_healthy,
            traffic.spill_over,
        );
        ShownCluster {
            tier: tier.map(|tier| tier + 1),
            load,
            cluster: id.to_string(),
            step: cluster.step,
            ready: cluster.ready,
            expected: cluster.expected,
            health: own,
            share_permille: share.map(|share| permille(share.share, sum)),
            weights: share.map(weights).unwrap_or_default(),
            gateways: gateways(cluster),
            reason: reason(cluster, place, load, own),
        }
    });
    let mut all: Vec<_> = all.collect();
    all.sort_by_key(|one| (one.tier.is_none(), one.tier, one.cluster.clone()));
    all
}

fn gateways(cluster: &shares::Cluster) -> Vec<SocketAddr> {
    let endpoints = cluster.endpoints.iter().filter(|_| cluster.gateway);
    endpoints.map(|endpoint| endpoint.address).collect()
}

/// The tier that has a cluster first, and its weight there.
fn place(tiers: &[Tier], id: &str) -> Option<(usize, Option<u16>)> {
    tiers
        .iter()
        .enumerate()
        .find_map(|(index, tier)| match tier {
            Tier::Alike(ids) => ids.iter().any(|one| **one == *id).then_some((index, None)),
            Tier::Weighted(ids) => {
                let mut ids = ids.iter();
                let (_, weight) = ids.find(|(one, _)| **one == *id)?;
                Some((index, Some(*weight)))
            }
        })
}

fn permille(share: u128, sum: u128) -> u32 {
    // 64 bits are enough for this.
    let shift = 64_u32.saturating_sub(sum.leading_zeros());
    let (share, sum) = (share >> shift, (sum >> shift).max(1));
    u32::try_from((share * 1000 + sum / 2) / sum).unwrap_or(1000)
}

fn weights(share: &shares::Share) -> Vec<(usize, u32)> {
    let mut counts = BTreeMap::new();
    for (_, weight) in &share.weights {
        *counts.entry(*weight).or_insert(0) += 1;
    }
    let counts = counts.into_iter().rev();
    counts.map(|(weight, count)| (count, weight)).collect()
}

fn reason(
    cluster: &shares::Cluster,
    place: Option<(usize, Option<u16>)>,
    load: Option<u32>,
    own: u32,
) -> String {
    let Some((_, weight)) = place else {
        return String::from("in no tier of the policy");
    };
    if weight == Some(0) {
        return String::from("weight 0");
    }
    match (cluster.step, cluster.drained) {
        (0, true) => return String::from("drained"),
        (0, false) => return String::from("lost: its endpoints are withdrawn"),
        _ => {}
    }
    if cluster.ready == 0 {
        return String::from("no ready endpoint");
    }
    if load == Some(0) {
        return String::from("not needed");
    }
    let mut reasons = Vec::new();
    if own < TWENTIETHS {
        reasons.push(format!("below the minimum: {}/20 go on", TWENTIETHS - own));
    }
    if u32::from(cluster.step) < TWENTIETHS {
        reasons.push(format!("step {}/20", cluster.step));
    }
    reasons.join("; ")
}
