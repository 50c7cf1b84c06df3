// SPDX-License-Identifier: Apache-2.0

//! Services.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::{Family, FrontendKind, Protocol, Scheduling};
use serde::Serialize;

use super::{ObjectKey, TrafficPolicy};
use crate::Claim;

/// A Service with a cluster IP. Headless Services and `ExternalName`s never become one.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Service {
    /// Its name.
    pub key: ObjectKey,
    /// `metadata.creationTimestamp` in seconds since 1970, if known. Of two Services that claim the
    /// same address and port, the older one wins.
    pub created: Option<i64>,
    /// `spec.clusterIPs`: one or two, of different families. The Service exists in these families
    /// only: addresses of another family below have no effect.
    pub cluster_ips: Vec<IpAddr>,
    /// `spec.externalIPs`.
    pub external_ips: Vec<IpAddr>,
    /// `status.loadBalancer.ingress[].ip` with `ipMode` VIP.
    pub load_balancer_ips: Vec<IpAddr>,
    /// Whether the load balancer preserves clients' addresses: it has ingress points, and all of
    /// them are in `load_balancer_ips`. A host name, or a balancer that forwards to node ports
    /// (`ipMode: Proxy`), hides them.
    pub balancer_keeps_sources: bool,
    /// `spec.loadBalancerSourceRanges`.
    pub source_ranges: Vec<IpNet>,
    /// `spec.externalTrafficPolicy`.
    pub external_policy: TrafficPolicy,
    /// `spec.internalTrafficPolicy`.
    pub internal_policy: TrafficPolicy,
    /// The timeout of ClientIP affinity in seconds, or `None` without affinity.
    pub affinity_seconds: Option<u32>,
    /// Scheduling of its virtual servers (annotations).
    pub scheduling: Scheduling,
    /// The time for which a removed destination keeps its connections, in seconds (annotation); 0
    /// for none, `None` for the agent's default.
    pub drain_seconds: Option<u32>,
    /// `spec.healthCheckNodePort`, if it has effect: of type LoadBalancer, with
    /// `externalTrafficPolicy: Local`.
    pub health_check_port: Option<u16>,
    /// `spec.ports`.
    pub ports: Vec<ServicePort>,
}

/// One port of a Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServicePort {
    /// Its name; empty if the Service has one port without a name.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// The port of cluster, external and load-balancer IPs.
    pub port: u16,
    /// The port on every node's addresses, if any.
    pub node_port: Option<u16>,
}

impl Service {
    /// A Service with a name only.
    #[must_use]
    pub fn new(key: ObjectKey) -> Self {
        Self {
            key,
            created: None,
            cluster_ips: Vec::new(),
            external_ips: Vec::new(),
            load_balancer_ips: Vec::new(),
            balancer_keeps_sources: false,
            source_ranges: Vec::new(),
            external_policy: TrafficPolicy::Cluster,
            internal_policy: TrafficPolicy::Cluster,
            affinity_seconds: None,
            scheduling: Scheduling::default(),
            drain_seconds: None,
            health_check_port: None,
            ports: Vec::new(),
        }
    }

    /// A Service with a name and the settings that annotations of another one give it.
    #[must_use]
    pub fn annotated_as(of: &Self, key: ObjectKey) -> Self {
        // All fields by name: a new annotation must be handled here.
        let Self {
            key: _,
            created: _,
            cluster_ips: _,
            external_ips: _,
            load_balancer_ips: _,
            balancer_keeps_sources: _,
            source_ranges: _,
            external_policy: _,
            internal_policy: _,
            affinity_seconds: _,
            scheduling,
            drain_seconds,
            health_check_port: _,
            ports: _,
        } = of;
        Self {
            scheduling: scheduling.clone(),
            drain_seconds: *drain_seconds,
            ..Self::new(key)
        }
    }

    /// Returns `true` if the Service exists in this family.
    #[must_use]
    pub fn has_family(&self, family: Family) -> bool {
        self.cluster_ips.iter().any(|ip| Family::of(*ip) == family)
    }

    /// Returns `true` if the port has a frontend other than the cluster IP (`ExternallyAccessible`
    /// upstream).
    #[must_use]
    pub fn externally_accessible(&self, port: &ServicePort) -> bool {
        port.node_port.is_some()
            || self
                .addresses()
                .any(|(kind, _)| kind != FrontendKind::ClusterIp)
    }

    /// Its addresses of the families it has, with their kind. An external IP that is a balancer's
    /// too is the balancer's: whom that keeps out stays out.
    pub fn addresses(&self) -> impl Iterator<Item = (FrontendKind, IpAddr)> + '_ {
        let is_twice = |kind, ip: &IpAddr| {
            kind == FrontendKind::ExternalIp && self.load_balancer_ips.contains(ip)
        };
        let all = [
            (FrontendKind::ClusterIp, &self.cluster_ips),
            (FrontendKind::ExternalIp, &self.external_ips),
            (FrontendKind::LoadBalancer, &self.load_balancer_ips),
        ];
        let all = all.into_iter();
        let all = all.flat_map(|(kind, ips)| ips.iter().map(move |ip| (kind, *ip)));
        all.filter(move |(kind, ip)| !is_twice(*kind, ip) && self.has_family(Family::of(*ip)))
    }

    /// The claims of the Service: port index, kind of frontend, and the exclusive address and port.
    pub fn claims(&self) -> impl Iterator<Item = (usize, FrontendKind, Claim)> + '_ {
        let ports = self.ports.iter().enumerate();
        ports.flat_map(|(index, port)| {
            let of_port = self.claims_of(port);
            of_port.map(move |(kind, claim)| (index, kind, claim))
        })
    }

    /// The claims of one port.
    pub fn claims_of<'s>(
        &'s self,
        port: &'s ServicePort,
    ) -> impl Iterator<Item = (FrontendKind, Claim)> + 's {
        let claim = |address, number| Claim {
            cluster: Arc::clone(&self.key.cluster),
            address,
            port: number,
            protocol: port.protocol,
        };
        let vips = self.addresses();
        let vips = vips.map(move |(kind, ip)| (kind, claim(Some(ip), port.port)));
        let node_port = port.node_port.into_iter();
        let node_port = node_port.map(move |number| (FrontendKind::NodePort, claim(None, number)));
        vips.chain(node_port)
    }
}
