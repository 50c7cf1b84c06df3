// SPDX-License-Identifier: Apache-2.0

//! Rules of `filter`: accepted and rejected packets.

use super::{Chain, Writer, source_ranges};
use crate::SetName;

pub(super) const CHAINS: [Chain; 5] = [
    ("FORWARD", forward),
    ("NODE-PORT", node_port),
    ("PROXY-FIREWALL", proxy_firewall),
    ("SOURCE-RANGES-FIREWALL", source_ranges),
    ("IPVS-FILTER", ipvs_filter),
];

fn forward(writer: &mut Writer<'_>) -> Vec<String> {
    let mark = writer.config.masquerade_mark;
    vec![
        format!("-m mark --mark {mark:#x}/{mark:#x} -j ACCEPT"),
        "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".to_owned(),
    ]
}

/// Accepts health checks of load balancers, which the node itself answers.
fn node_port(writer: &mut Writer<'_>) -> Vec<String> {
    let port = SetName::HealthCheckNodePort;
    vec![format!(
        "-p tcp {}",
        writer.on_set(port, "dst", "", "ACCEPT")
    )]
}

fn proxy_firewall(writer: &mut Writer<'_>) -> Vec<String> {
    let ranges = writer.chain("SOURCE-RANGES-FIREWALL");
    vec![writer.on_set(SetName::LoadBalancerFw, "dst,dst", "", &ranges)]
}

/// Rejects connections through a VIP to sockets on the node's wildcard address.
fn ipvs_filter(writer: &mut Writer<'_>) -> Vec<String> {
    let ours = [
        SetName::LoadBalancer,
        SetName::ClusterIp,
        SetName::ExternalIp,
        SetName::ExternalIpLocal,
    ];
    let mut rules: Vec<_> = ours
        .into_iter()
        .map(|set| writer.on_set(set, "dst,dst", "", "RETURN"))
        .collect();
    let port = SetName::HealthCheckNodePort;
    let health_check = writer.on_set(port, "dst", "", "RETURN");
    rules.push(format!("-p tcp {health_check}"));
    let new = "-m conntrack --ctstate NEW ";
    rules.push(writer.on_set(SetName::IpvsIps, "dst", new, "REJECT"));
    rules
}
