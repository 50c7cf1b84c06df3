// SPDX-License-Identifier: Apache-2.0

//! Plans: what the controller of a cluster needs of others to serve the imports of that cluster itself.
//!
//! A plan has decisions of the centre, and what other clusters have. The endpoints of the cluster itself are in none:
//! its controller knows them sooner. All that depends on time, as the steps of clusters, is decided at the centre.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::{Protocol, Scheduling};
use portolan_policy::{Network, Selector};

use crate::imports::{ImportName, Traffic};
use crate::merge::{Affinity, ImportPort};

/// A Service of a cluster that exports it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExportName {
    /// The name of the Cluster object.
    pub cluster: Arc<str>,
    /// The name that the Service has there.
    pub service: ImportName,
}

/// Decisions about a cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPlan {
    /// Its id.
    pub id: Arc<str>,
    /// Its state; `None` before it has sent its objects.
    pub state: Option<StatePlan>,
    /// Its networks: of the importing cluster itself, and of those that its gateways admit.
    pub network: Option<Network>,
    /// Settings of all clusters alike; with the importing cluster itself.
    pub set: Option<SetPlan>,
}

/// The state of a cluster, as far as shares are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatePlan {
    /// The part of its share that it gets, in twentieths: 0 to 20.
    pub step: u8,
    /// `true` if the operator's drain leaves it nothing: at step 0 it counts as if it had no endpoints.
    pub drained: bool,
    /// Whether it is lost.
    pub lost: bool,
}

/// Parts of the ClusterSet that imports depend on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetPlan {
    /// The most endpoints of an export and family that imports use.
    pub endpoints_per_export: u32,
    /// Whether the last known endpoints serve if all clusters that expose a port are lost.
    pub keeps_last: bool,
}

/// An import with virtual addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImportPlan {
    /// Its virtual addresses, at most one of each family.
    pub ips: Vec<IpAddr>,
    /// The id of the cluster whose export is the winner.
    pub winner: Arc<str>,
    /// Its ports, those of the winner first.
    pub ports: Vec<ImportPort>,
    /// The affinity of clients.
    pub affinity: Affinity,
    /// Whether `internalTrafficPolicy` is `Local`.
    pub internal_local: bool,
    /// `trafficDistribution`.
    pub traffic_distribution: Option<Arc<str>>,
    /// By name of the exporting cluster, the name that the Service has there.
    pub sources: BTreeMap<Arc<str>, ImportName>,
    /// The ImportPolicy whose nodes get the virtual addresses; all nodes if none.
    pub nodes: Option<Arc<str>>,
    /// Distribution of connections. Its reason stays at the centre.
    pub traffic: Traffic,
    /// Scheduler and flags by annotations of the winner's Service.
    pub scheduling: Scheduling,
    /// As [`Self::scheduling`]: the time for which a removed destination keeps its connections, in seconds.
    pub drain_seconds: Option<u32>,
}

/// A Service of another cluster, as far as imports may use it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServicePlan {
    /// Whether connections go to gateways in place of endpoints.
    pub by_gateways: bool,
    /// Its ports.
    pub ports: BTreeMap<PlanPort, PortPlan>,
}

/// A port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PlanPort {
    /// Its name; empty if the Service has one port without a name.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub number: u16,
}

/// Endpoints and gateways behind a port of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PortPlan {
    /// The endpoints that imports may use.
    pub endpoints: BTreeMap<SocketAddr, PlanEndpoint>,
    /// The gateways that lead there, each with the zone of its Node; none if pods are reached themselves.
    pub gateways: BTreeMap<SocketAddr, Option<Arc<str>>>,
}

/// An endpoint of another cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlanEndpoint {
    /// `conditions.ready`.
    pub ready: bool,
    /// `conditions.serving`.
    pub serving: bool,
    /// `conditions.terminating`.
    pub terminating: bool,
    /// Its own weight.
    pub weight: u32,
    /// The zone of its Node.
    pub zone: Option<Arc<str>>,
}

/// An export that other clusters reach by the gateways of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GatewayPlan {
    /// The names of the importing clusters.
    pub importers: BTreeSet<Arc<str>>,
    /// By name and protocol of a port of the Service, its number at the gateways.
    pub ports: BTreeMap<(Arc<str>, Protocol), u16>,
}

/// The plans of one importing cluster that differ from those before; `None` for one that is gone.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PlanChanges {
    /// Clusters, by the name of their Cluster object.
    pub clusters: BTreeMap<Arc<str>, Option<ClusterPlan>>,
    /// Nodes of the importing cluster, by the name of the ImportPolicy that selects them.
    pub groups: BTreeMap<Arc<str>, Option<Selector>>,
    /// Its imports.
    pub imports: BTreeMap<ImportName, Option<ImportPlan>>,
    /// Services that other clusters export to it. Most importing clusters have the same plan of one.
    pub services: BTreeMap<ExportName, Option<Arc<ServicePlan>>>,
    /// Its own Services that others import by its gateways.
    pub gateways: BTreeMap<ImportName, Option<GatewayPlan>>,
}

impl PlanChanges {
    /// Returns `true` if nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Self {
            clusters,
            groups,
            imports,
            services,
            gateways,
        } = self;
        let are_alike = clusters.is_empty() && groups.is_empty() && imports.is_empty();
        are_alike && services.is_empty() && gateways.is_empty()
    }

    /// Takes later changes in.
    pub fn extend(&mut self, later: Self) {
        self.clusters.extend(later.clusters);
        self.groups.extend(later.groups);
        self.imports.extend(later.imports);
        self.services.extend(later.services);
        self.gateways.extend(later.gateways);
    }
}
