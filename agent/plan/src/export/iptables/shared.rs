// SPDX-License-Identifier: Apache-2.0

//! Chains and rules that all Services share, and the jumps that lead to them.

use std::fmt::Write as _;

use portolan_model::Family;

use super::Writer;

pub(super) const SERVICES: &str = "KUBE-SERVICES";
pub(super) const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
pub(super) const NODE_PORTS: &str = "KUBE-NODEPORTS";
pub(super) const MARK_MASQ: &str = "KUBE-MARK-MASQ";
pub(super) const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
const POSTROUTING: &str = "KUBE-POSTROUTING";
const FORWARD: &str = "KUBE-FORWARD";
const FIREWALL: &str = "KUBE-FIREWALL";

const NODE_PORTS_COMMENT: &str =
    "kubernetes service nodeports; NOTE: this must be the last rule in this chain";

/// A jump from a built-in chain, which is inserted at the top.
struct Jump {
    table: &'static str,
    from: &'static str,
    to: &'static str,
    is_for_new: bool,
    comment: &'static str,
}

const fn jump(
    table: &'static str,
    from: &'static str,
    to: &'static str,
    is_for_new: bool,
    comment: &'static str,
) -> Jump {
    Jump {
        table,
        from,
        to,
        is_for_new,
        comment,
    }
}

const PORTALS: &str = "kubernetes service portals";
const EXTERNAL_PORTALS: &str = "kubernetes externally-visible service portals";
const BALANCER_FIREWALL: &str = "kubernetes load balancer firewall";

/// In the order of insertion: the last one ends on top.
static JUMPS: [Jump; 14] = [
    jump("filter", "INPUT", EXTERNAL_SERVICES, true, EXTERNAL_PORTALS),
    jump(
        "filter",
        "FORWARD",
        EXTERNAL_SERVICES,
        true,
        EXTERNAL_PORTALS,
    ),
    jump(
        "filter",
        "INPUT",
        NODE_PORTS,
        false,
        "kubernetes health check service ports",
    ),
    jump("filter", "FORWARD", SERVICES, true, PORTALS),
    jump("filter", "OUTPUT", SERVICES, true, PORTALS),
    jump(
        "filter",
        "FORWARD",
        FORWARD,
        false,
        "kubernetes forwarding rules",
    ),
    jump("filter", "INPUT", PROXY_FIREWALL, true, BALANCER_FIREWALL),
    jump("filter", "OUTPUT", PROXY_FIREWALL, true, BALANCER_FIREWALL),
    jump("filter", "FORWARD", PROXY_FIREWALL, true, BALANCER_FIREWALL),
    jump("nat", "OUTPUT", SERVICES, false, PORTALS),
    jump("nat", "PREROUTING", SERVICES, false, PORTALS),
    jump(
        "nat",
        "POSTROUTING",
        POSTROUTING,
        false,
        "kubernetes postrouting rules",
    ),
    // To the chain that protects addresses of the loopback device, which has a rule in IPv4 alone.
    jump("filter", "INPUT", FIREWALL, false, ""),
    jump("filter", "OUTPUT", FIREWALL, false, ""),
];

impl Writer<'_> {
    /// Chains that always exist, and their rules.
    pub(super) fn begin(&mut self) {
        for chain in [
            SERVICES,
            EXTERNAL_SERVICES,
            FORWARD,
            NODE_PORTS,
            PROXY_FIREWALL,
        ] {
            self.filter.declare(chain);
        }
        self.nat.declare(SERVICES);
        self.nat.declare(NODE_PORTS);
        if self.settings.has_jumps {
            self.filter.declare(FIREWALL);
        }
        if self.settings.family == Family::V4 {
            // Node ports answer on the loopback device where net.ipv4.conf.all.route_localnet is set, and
            // then others could reach its addresses.
            let comment = self.comment("block incoming localnet connections");
            let rule = "-d 127.0.0.0/8 ! -s 127.0.0.0/8 -m conntrack ! --ctstate \
                RELATED,ESTABLISHED,DNAT -j DROP";
            self.filter.rule(FIREWALL, &[&comment, rule]);
        }
        let mark = self.settings.config.masquerade_mark;
        let is_marked = format!("{mark:#x}/{mark:#x}");
        let to_masquerade = self.comment("kubernetes service traffic requiring SNAT");
        let set = format!("-j MARK --or-mark {mark:#x}");
        self.nat.rule(MARK_MASQ, &[&set]);
        for rule in [
            format!("-m mark ! --mark {is_marked} -j RETURN"),
            // Without the mark, a packet that passes again is not masqueraded twice.
            format!("-j MARK --xor-mark {mark:#x}"),
        ] {
            self.nat.rule(POSTROUTING, &[&rule]);
        }
        let masquerade = "-j MASQUERADE --random-fully";
        self.nat.rule(POSTROUTING, &[&to_masquerade, masquerade]);

        let invalid = "-m conntrack --ctstate INVALID -j DROP";
        self.filter.rule(FORWARD, &[invalid]);
        let comment = self.comment("kubernetes forwarding rules");
        let marked = format!("-m mark --mark {is_marked} -j ACCEPT");
        self.filter.rule(FORWARD, &[&comment, &marked]);
        let comment = self.comment("kubernetes forwarding conntrack rule");
        let open = "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT";
        self.filter.rule(FORWARD, &[&comment, open]);
    }

    /// The rules for node ports, which come last: they match the node's addresses.
    pub(super) fn end(&mut self) {
        let comment = self.comment(NODE_PORTS_COMMENT);
        let to = format!("-j {NODE_PORTS}");
        let Some(addresses) = self.settings.node_port_addresses else {
            let local = "-m addrtype --dst-type LOCAL";
            // Not in IPv6, where the kernel does not route packets of the loopback address.
            let but = match self.settings.family {
                Family::V4 => "",
                Family::V6 => "! -d ::1/128",
            };
            self.nat.rule(SERVICES, &[&comment, local, but, &to]);
            return;
        };
        let family = self.settings.family;
        for address in addresses.iter().filter(|ip| Family::of(**ip) == family) {
            let destination = format!("-d {address}");
            self.nat.rule(SERVICES, &[&comment, &destination, &to]);
        }
    }

    /// Commands that insert the jumps of one table.
    pub(super) fn write_jumps(&self, table: &str, text: &mut String) {
        for jump in JUMPS.iter().filter(|jump| jump.table == table) {
            let new = match jump.is_for_new {
                true => "-m conntrack --ctstate NEW",
                false => "",
            };
            let comment = match jump.comment {
                "" => String::new(),
                comment => self.comment(comment),
            };
            let to = format!("-j {}", jump.to);
            let words = ["-I", jump.from, new, &comment, &to];
            let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
            // Writing to a string never fails.
            let _ = writeln!(text, "{}", words.join(" "));
        }
    }
}
