// SPDX-License-Identifier: Apache-2.0

//! Chains and rules of one Service port.

use std::net::IpAddr;

use portolan_model::{FrontendKind, Lists, Record};

use super::super::port::{self, vip};
use super::Writer;
use super::names::Names;
use super::shared::{EXTERNAL_SERVICES, MARK_MASQ, NODE_PORTS, PROXY_FIREWALL, SERVICES};

/// A Service port with its chains.
pub(super) type Port<'a> = port::Port<'a, Names>;

/// The chain of a list.
fn chain(port: &Port<'_>, lists: Lists) -> String {
    match lists {
        Lists::Cluster => port.names.cluster(),
        Lists::Local => port.names.local(),
    }
}

/// Match of connections to an address and port.
fn to(port: &Port<'_>, address: IpAddr, number: u16) -> String {
    let protocol = port.protocol;
    format!("-m {protocol} -p {protocol} -d {address} --dport {number}")
}

/// Match of connections to a port.
fn to_port(port: &Port<'_>, number: u16) -> String {
    let protocol = port.protocol;
    format!("-m {protocol} -p {protocol} --dport {number}")
}

/// Target of connections that no endpoint of their list can serve, and the reason.
fn unserved(port: &Port<'_>) -> (&'static str, String) {
    match port.has_endpoints {
        false => ("-j REJECT", format!("{} has no endpoints", port.name)),
        true => ("-j DROP", format!("{} has no local endpoints", port.name)),
    }
}

impl Writer<'_> {
    pub(super) fn service(&mut self, record: &Record) {
        let Some(port) = Port::new(self.table, self.settings.family, record, Names::new) else {
            return;
        };
        self.cluster_ips(&port);
        self.external_ips(&port);
        self.balancer_ips(&port);
        self.node_ports(&port);
        if let Some(health) = record.health_check_port {
            let text = format!("{} health check node port", port.name);
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
            let to = to(port, ip, frontend.port);
            if !port.has_any(frontend.lists) {
                self.unserved(port, SERVICES, &to);
                continue;
            }
            let comment = self.comment(&format!("{} cluster IP", port.name));
            let chain = chain(port, frontend.lists);
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
            let to = to(port, ip, frontend.port);
            if port.has_endpoints {
                let comment = self.comment(&format!("{} external IP", port.name));
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
            let to = to(port, ip, frontend.port);
            if port.has_endpoints {
                let comment = self.comment(&format!("{} loadbalancer IP", port.name));
                let chain = match is_restricted {
                    true => port.names.firewall(),
                    false => port.names.external(),
                };
                let jump = format!("-j {chain}");
                self.nat.rule(SERVICES, &[&comment, &to, &jump]);
            }
            if is_restricted {
                let (name, chain) = (&port.name, port.names.firewall());
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
            let to = to_port(port, frontend.port);
            if port.has_endpoints {
                let comment = self.comment(&port.name);
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
        let (target, reason) = unserved(port);
        let comment = self.comment(&reason);
        self.filter.rule(chain, &[&comment, to, target]);
    }

    fn external_chain(&mut self, port: &Port<'_>) {
        let Some(frontend) = port.external().filter(|_| port.has_endpoints) else {
            return;
        };
        let (chain, name) = (port.names.external(), &port.name);
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
        if !port.list(frontend.lists).is_empty() {
            let jump = format!("-j {}", self::chain(port, frontend.lists));
            self.nat.rule(&chain, &[&jump]);
        }
    }

    fn firewall_chain(&mut self, port: &Port<'_>) {
        let ranges = port.ranges();
        if ranges.is_empty() || !port.has_endpoints {
            return;
        }
        let (chain, name) = (port.names.firewall(), &port.name);
        let comment = self.comment(&format!("{name} loadbalancer IP"));
        let jump = format!("-j {}", port.names.external());
        for range in ranges {
            self.nat
                .rule(&chain, &[&comment, &format!("-s {range}"), &jump]);
        }
        for ip in port.permitted_balancers(self.settings.node_ip) {
            self.nat
                .rule(&chain, &[&comment, &format!("-s {ip}"), &jump]);
        }
        let text = format!("other traffic to {name} will be dropped by {PROXY_FIREWALL}");
        let comment = self.comment(&text);
        self.nat.rule(&chain, &[&comment]);
    }
}
