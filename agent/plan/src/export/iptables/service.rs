// SPDX-License-Identifier: Apache-2.0

//! Chains and rules of one Service port.

use std::net::IpAddr;

use portolan_model::{Destination, Frontend, FrontendAddress, FrontendKind, Lists, Record};

use super::Writer;
use super::names::Names;
use super::shared::{EXTERNAL_SERVICES, MARK_MASQ, NODE_PORTS, PROXY_FIREWALL, SERVICES};

/// A Service port in one family.
pub(super) struct Port<'a> {
    pub(super) record: &'a Record,
    pub(super) names: Names,
    frontends: Vec<&'a Frontend>,
    /// The cluster-wide list, in kube-proxy's order; empty where no connection uses it.
    pub(super) cluster: Vec<Destination>,
    /// The node's own list; the same.
    pub(super) local: Vec<Destination>,
    /// Whether some node has an endpoint.
    has_endpoints: bool,
}

impl<'a> Port<'a> {
    /// `None` if no client can reach it by this family.
    fn new(writer: &Writer<'_>, record: &'a Record) -> Option<Self> {
        let family = writer.settings.family;
        let frontends = record.frontends.iter();
        let frontends: Vec<_> = frontends.filter(|f| f.family() == family).collect();
        if frontends.is_empty() {
            return None;
        }
        let list = |lists| {
            let mut list = writer.table.list(record, family, lists);
            list.retain(|destination| destination.weight > 0);
            list.sort_by_key(|destination| destination.address.to_string());
            list
        };
        let uses_cluster = |f: &&Frontend| f.lists == Lists::Cluster || f.has_short_circuit();
        let cluster = match frontends.iter().any(uses_cluster) {
            true => list(Lists::Cluster),
            false => Vec::new(),
        };
        let local = match frontends.iter().any(|f| f.lists == Lists::Local) {
            true => list(Lists::Local),
            false => Vec::new(),
        };
        Some(Self {
            has_endpoints: record.available.contains(family) || !cluster.is_empty(),
            record,
            names: Names::new(&record.key),
            frontends,
            cluster,
            local,
        })
    }

    fn of_kind(&self, kind: FrontendKind) -> impl Iterator<Item = &'a Frontend> {
        let frontends = self.frontends.iter().copied();
        frontends.filter(move |frontend| frontend.kind == kind)
    }

    fn external(&self) -> Option<&'a Frontend> {
        let mut frontends = self.frontends.iter().copied();
        frontends.find(|frontend| frontend.kind != FrontendKind::ClusterIp)
    }

    /// Whether a list that connections are limited to has an endpoint.
    fn has_any(&self, lists: Lists) -> bool {
        match lists {
            Lists::Cluster => self.has_endpoints,
            Lists::Local => !self.local.is_empty(),
        }
    }

    /// The chain of a list.
    fn chain(&self, lists: Lists) -> String {
        match lists {
            Lists::Cluster => self.names.cluster(),
            Lists::Local => self.names.local(),
        }
    }

    /// Match of connections to an address and port.
    fn to(&self, address: IpAddr, port: u16) -> String {
        let protocol = self.names.protocol;
        format!("-m {protocol} -p {protocol} -d {address} --dport {port}")
    }

    /// Match of connections to a port.
    fn to_port(&self, port: u16) -> String {
        let protocol = self.names.protocol;
        format!("-m {protocol} -p {protocol} --dport {port}")
    }

    /// The permitted sources of balancer IPs.
    fn ranges(&self) -> &'a [ipnet::IpNet] {
        let mut balancers = self.of_kind(FrontendKind::LoadBalancer);
        let restricted = balancers.find(|frontend| !frontend.source_ranges.is_empty());
        restricted.map_or(&[], |frontend| &frontend.source_ranges)
    }

    /// What becomes of connections that no endpoint of their list can serve, and the reason.
    fn unserved(&self) -> (&'static str, String) {
        match self.has_endpoints {
            false => ("-j REJECT", format!("{} has no endpoints", self.names.port)),
            true => (
                "-j DROP",
                format!("{} has no local endpoints", self.names.port),
            ),
        }
    }
}

fn vip(frontend: &Frontend) -> Option<IpAddr> {
    match frontend.address {
        FrontendAddress::Vip(ip) => Some(ip),
        _ => None,
    }
}

impl Writer<'_> {
    pub(super) fn service(&mut self, record: &Record) {
        let Some(port) = Port::new(self, record) else {
            return;
        };
        self.cluster_ips(&port);
        self.external_ips(&port);
        self.balancer_ips(&port);
        self.node_ports(&port);
        if let Some(health) = record.health_check_port {
            let text = format!("{} health check node port", port.names.port);
            let to = format!("-m tcp -p tcp --dport {health}");
            let comment = self.comment(&text);
            self.filter.rule(NODE_PORTS, &[&comment, &to, "-j ACCEPT"]);
        }
        self.external_chain(&port);
        self.firewall_chain(&port);
        self.list(&port, &port.cluster, &port.names.cluster());
        self.list(&port, &port.local, &port.names.local());
        self.endpoints(&port);
    }

    fn cluster_ips(&mut self, port: &Port<'_>) {
        for frontend in port.of_kind(FrontendKind::ClusterIp) {
            let Some(ip) = vip(frontend) else { continue };
            let to = port.to(ip, frontend.port);
            if !port.has_any(frontend.lists) {
                self.unserved(port, SERVICES, &to);
                continue;
            }
            let comment = self.comment(&format!("{} cluster IP", port.names.port));
            let chain = port.chain(frontend.lists);
            let jump = format!("-j {chain}");
            self.nat.rule(SERVICES, &[&comment, &to, &jump]);
            let masquerade = format!("-j {MARK_MASQ}");
            if self.settings.config.masquerade_all {
                self.nat.rule(&chain, &[&comment, &to, &masquerade]);
            } else if let Some(local) = &self.local {
                let others = format!("! {local}");
                self.nat
                    .rule(&chain, &[&comment, &to, &others, &masquerade]);
            }
        }
    }

    fn external_ips(&mut self, port: &Port<'_>) {
        for frontend in port.of_kind(FrontendKind::ExternalIp) {
            let Some(ip) = vip(frontend) else { continue };
            let to = port.to(ip, frontend.port);
            if port.has_endpoints {
                let comment = self.comment(&format!("{} external IP", port.names.port));
                let jump = format!("-j {}", port.names.external());
                self.nat.rule(SERVICES, &[&comment, &to, &jump]);
            }
            if !port.has_any(frontend.lists) {
                self.unserved(port, EXTERNAL_SERVICES, &to);
            }
        }
    }

    fn balancer_ips(&mut self, port: &Port<'_>) {
        let is_restricted = !port.ranges().is_empty() && port.has_endpoints;
        for frontend in port.of_kind(FrontendKind::LoadBalancer) {
            let Some(ip) = vip(frontend) else { continue };
            let to = port.to(ip, frontend.port);
            if port.has_endpoints {
                let comment = self.comment(&format!("{} loadbalancer IP", port.names.port));
                let chain = match is_restricted {
                    true => port.names.firewall(),
                    false => port.names.external(),
                };
                let jump = format!("-j {chain}");
                self.nat.rule(SERVICES, &[&comment, &to, &jump]);
            }
            if is_restricted {
                let (name, chain) = (&port.names.port, port.names.firewall());
                let comment = self.comment(&format!("{name} traffic not accepted by {chain}"));
                self.filter
                    .rule(PROXY_FIREWALL, &[&comment, &to, "-j DROP"]);
            }
            if !port.has_any(frontend.lists) {
                self.unserved(port, EXTERNAL_SERVICES, &to);
            }
        }
    }

    fn node_ports(&mut self, port: &Port<'_>) {
        for frontend in port.of_kind(FrontendKind::NodePort) {
            let to = port.to_port(frontend.port);
            if port.has_endpoints {
                let comment = self.comment(&port.names.port);
                let jump = format!("-j {}", port.names.external());
                self.nat.rule(NODE_PORTS, &[&comment, &to, &jump]);
            }
            if !port.has_any(frontend.lists) {
                let local = format!("-m addrtype --dst-type LOCAL {to}");
                self.unserved(port, EXTERNAL_SERVICES, &local);
            }
        }
    }

    fn unserved(&mut self, port: &Port<'_>, chain: &str, to: &str) {
        let (target, reason) = port.unserved();
        let comment = self.comment(&reason);
        self.filter.rule(chain, &[&comment, to, target]);
    }

    fn external_chain(&mut self, port: &Port<'_>) {
        let Some(frontend) = port.external().filter(|_| port.has_endpoints) else {
            return;
        };
        let (chain, name) = (port.names.external(), &port.names.port);
        let masquerade = format!("-j {MARK_MASQ}");
        if frontend.lists == Lists::Cluster {
            let text = format!("masquerade traffic for {name} external destinations");
            let comment = self.comment(&text);
            self.nat.rule(&chain, &[&comment, &masquerade]);
        } else {
            let short_circuit = format!("-j {}", port.names.cluster());
            let short_circuit = match port.cluster.is_empty() {
                true => None,
                false => Some(short_circuit),
            };
            if let (Some(local), Some(jump)) = (&self.local, &short_circuit) {
                let text = format!("pod traffic for {name} external destinations");
                let comment = self.comment(&text);
                self.nat.rule(&chain, &[&comment, local, jump]);
            }
            let node = "-m addrtype --src-type LOCAL";
            let text = format!("masquerade LOCAL traffic for {name} external destinations");
            let comment = self.comment(&text);
            self.nat.rule(&chain, &[&comment, node, &masquerade]);
            if let Some(jump) = &short_circuit {
                let text = format!("route LOCAL traffic for {name} external destinations");
                let comment = self.comment(&text);
                self.nat.rule(&chain, &[&comment, node, jump]);
            }
        }
        let is_there = match frontend.lists {
            Lists::Cluster => !port.cluster.is_empty(),
            Lists::Local => !port.local.is_empty(),
        };
        if is_there {
            let jump = format!("-j {}", port.chain(frontend.lists));
            self.nat.rule(&chain, &[&jump]);
        }
    }

    fn firewall_chain(&mut self, port: &Port<'_>) {
        let ranges = port.ranges();
        if ranges.is_empty() || !port.has_endpoints {
            return;
        }
        let (chain, name) = (port.names.firewall(), &port.names.port);
        let comment = self.comment(&format!("{name} loadbalancer IP"));
        let jump = format!("-j {}", port.names.external());
        for range in ranges {
            self.nat
                .rule(&chain, &[&comment, &format!("-s {range}"), &jump]);
        }
        // The node's own connections to a balancer IP that it has as an address come from that address.
        let node = self.settings.node_ip;
        let is_permitted = node.is_some_and(|ip| ranges.iter().any(|range| range.contains(&ip)));
        if is_permitted {
            for ip in port.of_kind(FrontendKind::LoadBalancer).filter_map(vip) {
                self.nat
                    .rule(&chain, &[&comment, &format!("-s {ip}"), &jump]);
            }
        }
        let text = format!("other traffic to {name} will be dropped by {PROXY_FIREWALL}");
        let comment = self.comment(&text);
        self.nat.rule(&chain, &[&comment]);
    }
}
