// SPDX-License-Identifier: Apache-2.0

//! Objects that all Services share.

use portolan_model::Family;

use super::Writer;

pub(super) const SERVICES: &str = "services";
pub(super) const REJECT: &str = "reject-chain";
pub(super) const SERVICE_IPS: &str = "service-ips";
pub(super) const SERVICE_NODE_PORTS: &str = "service-nodeports";
pub(super) const CLUSTER_IPS: &str = "cluster-ips";
pub(super) const NO_ENDPOINT_SERVICES: &str = "no-endpoint-services";
pub(super) const NO_ENDPOINT_NODE_PORTS: &str = "no-endpoint-nodeports";
pub(super) const FIREWALL_IPS: &str = "firewall-ips";
pub(super) const HAIRPIN: &str = "hairpin-connections";
const NODE_PORT_IPS: &str = "nodeport-ips";
const SERVICE_ENDPOINTS_CHECK: &str = "service-endpoints-check";
const NODE_PORT_ENDPOINTS_CHECK: &str = "nodeport-endpoints-check";
const CLUSTER_IPS_CHECK: &str = "cluster-ips-check";
const FIREWALL_CHECK: &str = "firewall-check";
const MASQUERADING: &str = "masquerading";

/// Base chains: name, type, hook, priority.
const BASES: [[&str; 4]; 8] = [
    [
        "filter-prerouting-pre-dnat",
        "filter",
        "prerouting",
        "dstnat - 10",
    ],
    // The name `dstnat` is not for this hook.
    ["filter-output-pre-dnat", "filter", "output", "-110"],
    ["filter-input", "filter", "input", "filter"],
    ["filter-forward", "filter", "forward", "filter"],
    ["filter-output", "filter", "output", "filter"],
    ["nat-prerouting", "nat", "prerouting", "dstnat"],
    ["nat-output", "nat", "output", "-100"],
    ["nat-postrouting", "nat", "postrouting", "srcnat"],
];

/// Jumps, in order: from, match, to.
const JUMPS: [[&str; 3]; 11] = [
    ["filter-input", "ct state new", NODE_PORT_ENDPOINTS_CHECK],
    ["filter-input", "ct state new", SERVICE_ENDPOINTS_CHECK],
    ["filter-forward", "ct state new", SERVICE_ENDPOINTS_CHECK],
    ["filter-output", "ct state new", SERVICE_ENDPOINTS_CHECK],
    ["filter-prerouting-pre-dnat", "ct state new", FIREWALL_CHECK],
    ["filter-output-pre-dnat", "ct state new", FIREWALL_CHECK],
    ["nat-output", "", SERVICES],
    ["nat-prerouting", "", SERVICES],
    ["nat-postrouting", "", MASQUERADING],
    ["filter-forward", "ct state new", CLUSTER_IPS_CHECK],
    ["filter-output", "ct state new", CLUSTER_IPS_CHECK],
];

impl Writer<'_> {
    /// Chains, sets and rules that are always there.
    pub(super) fn shared(&mut self) {
        for [name, kind, hook, priority] in BASES {
            self.objects.base(name, kind, hook, priority);
        }
        for [from, condition, to] in JUMPS {
            self.objects.declare(to, None);
            self.objects.rule(from, &[condition, "jump", to]);
        }
        self.containers();
        self.masquerading();
        self.checks();
        self.dispatch();
    }

    fn containers(&mut self) {
        let address = match self.family {
            Family::V4 => "ipv4_addr",
            Family::V6 => "ipv6_addr",
        };
        let of_addresses = format!("type {address}");
        let of_hairpins = format!("type {address} . {address} . inet_proto . inet_service");
        let of_ways = format!("type {address} . inet_proto . inet_service : verdict");
        let of_ports = "type inet_proto . inet_service : verdict";
        for (name, kind, comment) in [
            (CLUSTER_IPS, &of_addresses, "Active ClusterIPs"),
            (HAIRPIN, &of_hairpins, "service hairpin connections"),
        ] {
            self.objects
                .set(name, &[kind, &format!("comment \"{comment}\"")]);
        }
        for (name, kind, comment) in [
            (
                NO_ENDPOINT_SERVICES,
                &*of_ways,
                "vmap to drop or reject packets to services with no endpoints",
            ),
            (
                NO_ENDPOINT_NODE_PORTS,
                of_ports,
                "vmap to drop or reject packets to service nodeports with no endpoints",
            ),
            (
                FIREWALL_IPS,
                &of_ways,
                "destinations that are subject to LoadBalancerSourceRanges",
            ),
            (
                SERVICE_IPS,
                &of_ways,
                "ClusterIP, ExternalIP and LoadBalancer IP traffic",
            ),
            (SERVICE_NODE_PORTS, of_ports, "NodePort traffic"),
        ] {
            self.objects
                .map(name, &[kind, &format!("comment \"{comment}\"")]);
        }
        let Some(addresses) = self.settings.node_port_addresses else {
            return;
        };
        let comment = "comment \"IPs that accept NodePort traffic\"";
        self.objects.set(NODE_PORT_IPS, &[&of_addresses, comment]);
        for ip in addresses {
            if Family::of(*ip) == self.family && !ip.is_loopback() {
                self.objects.element(NODE_PORT_IPS, &ip.to_string(), "");
            }
        }
    }

    fn masquerading(&mut self) {
        let (ip, mark) = (self.ip(), self.settings.config.masquerade_mark);
        let is_marked = format!("mark and {mark:#x} != 0");
        let unmark = format!("mark set mark xor {mark:#x}");
        let masquerade = "masquerade fully-random";
        self.objects
            .rule(MASQUERADING, &[&is_marked, &unmark, masquerade]);
        let hairpin = format!("{ip} saddr . {ip} daddr . meta l4proto . th dport @{HAIRPIN}");
        self.objects
            .rule(MASQUERADING, &["ct status dnat", &hairpin, masquerade]);
    }

    fn checks(&mut self) {
        let way = self.way();
        let is_cluster_ip = format!("{} daddr @{CLUSTER_IPS}", self.ip());
        self.objects.commented(
            CLUSTER_IPS_CHECK,
            &[&is_cluster_ip, "reject"],
            "Reject traffic to invalid ports of ClusterIPs",
        );
        let helper = "helper for @no-endpoint-services / @no-endpoint-nodeports";
        self.objects.declare(REJECT, Some(helper));
        self.objects.rule(REJECT, &["reject"]);
        let vmap = format!("vmap @{NO_ENDPOINT_SERVICES}");
        self.objects.rule(SERVICE_ENDPOINTS_CHECK, &[&way, &vmap]);
        let to_node = match self.settings.node_port_addresses {
            None => self.no_localhost().to_owned(),
            Some(_) => self.to_node_port_ip(),
        };
        let vmap = format!("meta l4proto . th dport vmap @{NO_ENDPOINT_NODE_PORTS}");
        self.objects
            .rule(NODE_PORT_ENDPOINTS_CHECK, &[&to_node, &vmap]);
        let vmap = format!("vmap @{FIREWALL_IPS}");
        self.objects.rule(FIREWALL_CHECK, &[&way, &vmap]);
    }

    /// The chain that finds a connection's Service.
    fn dispatch(&mut self) {
        let (way, masquerade) = (self.way(), self.masquerade());
        let is_cluster_ip = format!("{} daddr @{CLUSTER_IPS}", self.ip());
        if self.settings.config.masquerade_all {
            self.objects.commented(
                SERVICES,
                &[&is_cluster_ip, &masquerade],
                "masquerade all clusterIP traffic",
            );
        } else if let Some(local) = &self.local {
            self.objects.commented(
                SERVICES,
                &[&is_cluster_ip, &local.is_not_local(), &masquerade],
                "masquerade clusterIP traffic from outside cluster",
            );
        }
        let vmap = format!("vmap @{SERVICE_IPS}");
        self.objects.rule(SERVICES, &[&way, &vmap]);
        let to_node = match self.settings.node_port_addresses {
            None => format!("fib daddr type local {}", self.no_localhost()),
            Some(_) => self.to_node_port_ip(),
        };
        let vmap = format!("meta l4proto . th dport vmap @{SERVICE_NODE_PORTS}");
        self.objects.rule(SERVICES, &[&to_node, &vmap]);
    }

    /// The statement that has a packet masqueraded.
    pub(super) fn masquerade(&self) -> String {
        format!(
            "mark set mark or {:#x}",
            self.settings.config.masquerade_mark
        )
    }

    /// Key of the maps of ways.
    fn way(&self) -> String {
        format!("{} daddr . meta l4proto . th dport", self.ip())
    }

    fn to_node_port_ip(&self) -> String {
        format!("{} daddr @{NODE_PORT_IPS}", self.ip())
    }

    const fn no_localhost(&self) -> &'static str {
        match self.family {
            Family::V4 => "ip daddr != 127.0.0.0/8",
            Family::V6 => "ip6 daddr != ::1",
        }
    }
}
