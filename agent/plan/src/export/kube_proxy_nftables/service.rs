// SPDX-License-Identifier: Apache-2.0

//! Chains, rules and elements of one Service port.

use std::collections::BTreeMap;

use portolan_model::{Affinity, Destination, Family, Frontend, FrontendKind, Lists, Record};

use super::super::port::{self, vip};
use super::Writer;
use super::names::Names;
use super::objects::comment_text;
use super::shared::{
    CLUSTER_IPS, FIREWALL_IPS, HAIRPIN, NO_ENDPOINT_NODE_PORTS, NO_ENDPOINT_SERVICES, REJECT,
    SERVICE_IPS, SERVICE_NODE_PORTS,
};

/// A Service port with its chains.
type Port<'a> = port::Port<'a, Names>;

/// The match of connections from the node itself.
const FROM_NODE: &str = "fib saddr type local";

impl Writer<'_> {
    pub(super) fn service(&mut self, record: &Record, notes: &mut Vec<String>) {
        let Some(port) = Port::new(self.table, self.family, record, Names::new) else {
            return;
        };
        self.hairpins(&port);
        self.cluster_ips(&port);
        for kind in [FrontendKind::ExternalIp, FrontendKind::LoadBalancer] {
            self.external_ips(&port, kind);
        }
        self.node_ports(&port);
        self.external_chain(&port);
        self.firewall_chain(&port);
        for lists in [Lists::Cluster, Lists::Local] {
            self.list(&port, lists);
        }
        if let Some(affinity) = record.affinity {
            self.endpoints(&port, affinity);
        }
        note_ranges(&port, notes);
    }

    fn hairpins(&mut self, port: &Port<'_>) {
        let own = self.table.lists.get(&port.record.key);
        let used: Vec<_> = port.cluster.iter().chain(&port.local).collect();
        for socket in own.into_iter().flat_map(|lists| &lists.own) {
            if used
                .iter()
                .any(|destination| destination.address == *socket)
            {
                let (ip, protocol, number) = (socket.ip(), port.protocol, socket.port());
                let key = format!("{ip} . {ip} . {protocol} . {number}");
                self.objects.element(HAIRPIN, &key, "");
            }
        }
    }

    fn cluster_ips(&mut self, port: &Port<'_>) {
        for frontend in port.of_kind(FrontendKind::ClusterIp) {
            let Some(ip) = vip(frontend) else { continue };
            self.objects.element(CLUSTER_IPS, &ip.to_string(), "");
            let key = format!("{ip} . {} . {}", port.protocol, frontend.port);
            if port.has_any(frontend.lists) {
                let verdict = format!(": goto {}", chain(port, frontend.lists));
                self.objects.element(SERVICE_IPS, &key, &verdict);
            } else {
                self.unserved(port, NO_ENDPOINT_SERVICES, &key);
            }
        }
    }

    fn external_ips(&mut self, port: &Port<'_>, kind: FrontendKind) {
        for frontend in port.of_kind(kind) {
            let Some(ip) = vip(frontend) else { continue };
            let key = format!("{ip} . {} . {}", port.protocol, frontend.port);
            self.external_way(port, frontend, [SERVICE_IPS, NO_ENDPOINT_SERVICES], &key);
            if kind == FrontendKind::LoadBalancer && !port.ranges().is_empty() {
                let verdict = format!(": goto {}", port.names.firewall());
                self.objects.element(FIREWALL_IPS, &key, &verdict);
            }
        }
    }

    fn node_ports(&mut self, port: &Port<'_>) {
        for frontend in port.of_kind(FrontendKind::NodePort) {
            let key = format!("{} . {}", port.protocol, frontend.port);
            let maps = [SERVICE_NODE_PORTS, NO_ENDPOINT_NODE_PORTS];
            self.external_way(port, frontend, maps, &key);
        }
    }

    /// A way from outside, in the map of those with endpoints, or that of those without, or both.
    fn external_way(
        &mut self,
        port: &Port<'_>,
        frontend: &Frontend,
        [with, without]: [&str; 2],
        key: &str,
    ) {
        if port.has_endpoints {
            let verdict = format!(": goto {}", port.names.external());
            self.objects.element(with, key, &verdict);
        }
        if !port.has_any(frontend.lists) {
            self.unserved(port, without, key);
        }
    }

    /// A way whose connections no endpoint of its list can serve.
    fn unserved(&mut self, port: &Port<'_>, map: &str, key: &str) {
        let verdict = match port.has_endpoints {
            false => format!("goto {REJECT}"),
            true => "drop".to_owned(),
        };
        let rest = format!("comment \"{}\" : {verdict}", comment_text(&port.name));
        self.objects.element(map, key, &rest);
    }

    fn external_chain(&mut self, port: &Port<'_>) {
        let Some(frontend) = port.external().filter(|_| port.has_endpoints) else {
            return;
        };
        let (external, masquerade) = (port.names.external(), self.masquerade());
        self.objects.declare(&external, None);
        if frontend.lists == Lists::Cluster {
            self.objects
                .commented(&external, &[&masquerade], "masquerade");
        } else {
            let short_circuit = format!("goto {}", port.names.cluster());
            let has_short_circuit = !port.cluster.is_empty();
            if let (Some(local), true) = (&self.local, has_short_circuit) {
                let words = [&*local.is_local(), &short_circuit];
                self.objects
                    .commented(&external, &words, "short-circuit pod traffic");
            }
            let words = [FROM_NODE, &masquerade];
            self.objects
                .commented(&external, &words, "masquerade local traffic");
            if has_short_circuit {
                let words = [FROM_NODE, &short_circuit];
                self.objects
                    .commented(&external, &words, "short-circuit local traffic");
            }
        }
        if !port.list(frontend.lists).is_empty() {
            let to = format!("goto {}", chain(port, frontend.lists));
            self.objects.rule(&external, &[&to]);
        }
    }

    fn firewall_chain(&mut self, port: &Port<'_>) {
        let ranges = port.ranges();
        if ranges.is_empty() {
            return;
        }
        let node = self.settings.node_ips.iter().copied();
        let node = node.into_iter().find(|ip| Family::of(*ip) == self.family);
        let sources = ranges.iter().map(ToString::to_string);
        let balancers = port.permitted_balancers(node).map(|ip| ip.to_string());
        let sources: Vec<_> = sources.chain(balancers).collect();
        let others = format!("{} saddr != {{ {} }}", self.ip(), sources.join(", "));
        self.objects
            .rule(&port.names.firewall(), &[&others, "drop"]);
    }

    /// The chain of a list.
    fn list(&mut self, port: &Port<'_>, lists: Lists) {
        let list = port.list(lists);
        if list.is_empty() {
            return;
        }
        let (chain, ip) = (chain(port, lists), self.ip());
        let random = format!("numgen random mod {}", total(list));
        if port.record.affinity.is_none() {
            let drawn = drawn(list, |d| {
                format!("{} . {}", d.address.ip(), d.address.port())
            });
            let protocol = format!("meta l4proto {}", port.protocol);
            let translate = format!("dnat {ip} addr . port to {random} map {{ {drawn} }}");
            self.objects.rule(&chain, &[&protocol, &translate]);
            return;
        }
        for destination in list {
            let remembered = format!("{ip} saddr @{}", port.names.affinity(destination.address));
            let to = format!("goto {}", port.names.endpoint(destination.address));
            self.objects.rule(&chain, &[&remembered, &to]);
        }
        let drawn = drawn(list, |d| format!("goto {}", port.names.endpoint(d.address)));
        self.objects
            .rule(&chain, &[&random, &format!("vmap {{ {drawn} }}")]);
    }

    /// Chains of endpoints and sets of their clients.
    fn endpoints(&mut self, port: &Port<'_>, affinity: Affinity) {
        let all = port.cluster.iter().chain(&port.local);
        let all: BTreeMap<_, _> = all.map(|d| (d.address.to_string(), d.address)).collect();
        let (kind, ip) = match self.family {
            Family::V4 => ("type ipv4_addr", "ip"),
            Family::V6 => ("type ipv6_addr", "ip6"),
        };
        let timeout = format!("timeout {}s", affinity.timeout_seconds);
        for address in all.into_values() {
            let (chain, set) = (port.names.endpoint(address), port.names.affinity(address));
            self.objects
                .set(&set, &[kind, "flags dynamic,timeout", &timeout]);
            let remember = format!("update @{set} {{ {ip} saddr }}");
            self.objects.rule(&chain, &[&remember]);
            let protocol = format!("meta l4proto {}", port.protocol);
            self.objects
                .rule(&chain, &[&protocol, &format!("dnat to {address}")]);
        }
    }
}

/// The chain of a list.
fn chain(port: &Port<'_>, lists: Lists) -> String {
    match lists {
        Lists::Cluster => port.names.cluster(),
        Lists::Local => port.names.local(),
    }
}

fn total(list: &[Destination]) -> u64 {
    list.iter().map(|d| u64::from(d.weight)).sum()
}

/// Elements of the map of a random number: as many numbers for each endpoint as its weight.
fn drawn(list: &[Destination], value: impl Fn(&Destination) -> String) -> String {
    let mut first = 0;
    let elements = list.iter().map(|destination| {
        let next = first + u64::from(destination.weight);
        let numbers = match destination.weight {
            1 => first.to_string(),
            _ => format!("{first}-{}", next - 1),
        };
        first = next;
        format!("{numbers} : {}", value(destination))
    });
    elements.collect::<Vec<_>>().join(", ")
}

/// Notes source ranges that kube-proxy does not apply.
fn note_ranges(port: &Port<'_>, notes: &mut Vec<String>) {
    for kind in [
        FrontendKind::ClusterIp,
        FrontendKind::ExternalIp,
        FrontendKind::NodePort,
    ] {
        let restricted = port.of_kind(kind).find(|f| !f.source_ranges.is_empty());
        if let Some(frontend) = restricted {
            notes.push(format!(
                "{}: {} is open to all sources: kube-proxy's rules restrict those of balancer IPs alone",
                port.record.key,
                frontend.place()
            ));
        }
    }
}
