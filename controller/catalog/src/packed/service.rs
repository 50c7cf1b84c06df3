// SPDX-License-Identifier: Apache-2.0

//! Packed Services: most have a cluster IP and ports only.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::{Family, Scheduling};

use super::{Few, Pack};
use crate::{ObjectKey, Service, ServicePort, TrafficPolicy};

/// A Service without its name, which is its key.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct PackedService {
    /// `None` is kept as the smallest number.
    created: i64,
    cluster_ips: Few<IpAddr>,
    ports: Few<ServicePort>,
    external_policy: TrafficPolicy,
    internal_policy: TrafficPolicy,
    more: Option<Box<More>>,
}

/// Fields that few Services set.
#[derive(Debug, Default, PartialEq, Eq)]
struct More {
    external_ips: Box<[IpAddr]>,
    load_balancer_ips: Box<[IpAddr]>,
    balancer_keeps_sources: bool,
    source_ranges: Box<[IpNet]>,
    affinity_seconds: Option<u32>,
    scheduling: Scheduling,
    drain_seconds: Option<u32>,
    health_check_port: Option<u16>,
}

impl PackedService {
    pub(crate) fn pack(service: &Service, names: &mut Pack) -> Self {
        // All fields by name: a new field must be handled here.
        let Service {
            key: _,
            created,
            cluster_ips,
            external_ips,
            load_balancer_ips,
            balancer_keeps_sources,
            source_ranges,
            external_policy,
            internal_policy,
            affinity_seconds,
            scheduling,
            drain_seconds,
            health_check_port,
            ports,
        } = service;
        let more = More {
            external_ips: external_ips.as_slice().into(),
            load_balancer_ips: load_balancer_ips.as_slice().into(),
            balancer_keeps_sources: *balancer_keeps_sources,
            source_ranges: source_ranges.as_slice().into(),
            affinity_seconds: *affinity_seconds,
            scheduling: scheduling.clone(),
            drain_seconds: *drain_seconds,
            health_check_port: *health_check_port,
        };
        let ports = ports.iter().map(|port| ServicePort {
            name: names.name(Arc::clone(&port.name)),
            ..port.clone()
        });
        Self {
            created: created.unwrap_or(i64::MIN),
            cluster_ips: cluster_ips.clone().into(),
            ports: ports.collect::<Vec<_>>().into(),
            external_policy: *external_policy,
            internal_policy: *internal_policy,
            more: (more != More::default()).then(|| Box::new(more)),
        }
    }

    pub(crate) fn unpack(&self, key: ObjectKey) -> Service {
        let service = Service {
            created: self.created(),
            cluster_ips: self.cluster_ips.as_slice().to_vec(),
            external_policy: self.external_policy,
            internal_policy: self.internal_policy,
            ports: self.ports.as_slice().to_vec(),
            ..Service::new(key)
        };
        let Some(more) = self.more.as_deref() else {
            return service;
        };
        Service {
            external_ips: more.external_ips.to_vec(),
            load_balancer_ips: more.load_balancer_ips.to_vec(),
            balancer_keeps_sources: more.balancer_keeps_sources,
            source_ranges: more.source_ranges.to_vec(),
            affinity_seconds: more.affinity_seconds,
            scheduling: more.scheduling.clone(),
            drain_seconds: more.drain_seconds,
            health_check_port: more.health_check_port,
            ..service
        }
    }

    /// The addresses that it was given, by the API server or by a load balancer. Without ports it claims none.
    pub(crate) fn given(&self) -> impl Iterator<Item = &IpAddr> {
        let more = self.more.iter();
        let balanced = more.flat_map(|more| more.load_balancer_ips.iter());
        let given = self.cluster_ips.as_slice().iter().chain(balanced);
        given.filter(|_| !self.ports().is_empty())
    }

    pub(crate) fn ports(&self) -> &[ServicePort] {
        self.ports.as_slice()
    }

    /// As [`Service::has_family`].
    pub(crate) fn has_family(&self, family: Family) -> bool {
        let ips = self.cluster_ips.as_slice();
        ips.iter().any(|ip| Family::of(*ip) == family)
    }

    pub(crate) fn created(&self) -> Option<i64> {
        (self.created != i64::MIN).then_some(self.created)
    }
}
