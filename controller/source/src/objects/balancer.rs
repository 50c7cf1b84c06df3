// SPDX-License-Identifier: Apache-2.0

//! Load balancers in front of Services: addresses and health checks.

use std::net::IpAddr;

use portolan_catalog::TrafficPolicy;

use super::address::Wanted;
use super::problems::Problems;
use super::{ServiceSpec, ServiceStatus, ports};

/// The converted `status.loadBalancer`.
pub(super) struct Balancer {
    /// The addresses that nodes have to answer for: not its host names, nor those where it forwards
    /// to the node's own address (`ipMode: Proxy`).
    pub(super) ips: Vec<IpAddr>,
    /// Whether those are all of its ingress points.
    pub(super) keeps_sources: bool,
}

impl Balancer {
    pub(super) fn new(
        status: Option<ServiceStatus>,
        cluster_ips: &[IpAddr],
        problems: &mut Problems,
    ) -> Self {
        let balancer = status.and_then(|status| status.load_balancer);
        let ingress = balancer.and_then(|balancer| balancer.ingress);
        let ingress = ingress.unwrap_or_default();
        let mut keeps_sources = !ingress.is_empty();
        let mut wanted = Wanted::new(cluster_ips);
        for (index, ingress) in ingress.into_iter().enumerate() {
            let field = format!("status.loadBalancer.ingress[{index}]");
            let ip = ingress.ip.filter(|ip| !ip.is_empty());
            keeps_sources &= match (ip, ingress.ip_mode.as_deref()) {
                (None, _) | (_, Some("Proxy")) => false,
                (Some(ip), None | Some("VIP")) => wanted.push(format!("{field}.ip"), &ip, problems),
                (_, Some(other)) => {
                    problems.invalid(
                        format!("{field}.ipMode"),
                        format!("unknown value {other:?}: expected VIP or Proxy; taken as Proxy"),
                    );
                    false
                }
            };
        }
        Self {
            ips: wanted.ips,
            keeps_sources,
        }
    }
}

/// `healthCheckNodePort`, which has effect only where a load balancer must not send connections to
/// nodes without an endpoint of their own.
pub(super) fn health_check_port(
    spec: &ServiceSpec,
    external_policy: TrafficPolicy,
    problems: &mut Problems,
) -> Option<u16> {
    let is_balanced = spec.type_.as_deref() == Some("LoadBalancer");
    let given = spec.health_check_node_port.filter(|number| *number != 0);
    if given.is_none() || !is_balanced || external_policy != TrafficPolicy::Local {
        return None;
    }
    ports::number("spec.healthCheckNodePort", given, problems)
}
