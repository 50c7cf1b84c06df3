//! The constant masquerade and filter rules, as `iptables-restore` takes them.
//!
//! They refer to sets, never to a service, so they are written once. Source of the rules:
//! `pkg/proxy/ipvs/proxier.go`, `writeIptablesRules` and `createAndLinkKubeChain`. Differences:
//! all sets always exist, so all rules are always there; external IPs end in a plain ACCEPT like
//! cluster IPs, so that bridged pods need no `xt_physdev`; and the source-range firewall hangs in
//! OUTPUT too, because with local routes the node's own connections have the node's address as
//! their source and can be held to the ranges like anybody's.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use portolan_model::Family;
use serde::Serialize;

use crate::{Config, Masquerade, SetName};

/// A jump from a built-in chain to one of ours, put before all others.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Jump {
    /// `nat` or `filter`.
    pub table: &'static str,
    /// The built-in chain.
    pub chain: &'static str,
    /// Our chain.
    pub target: String,
}

/// All rules of one family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Rules {
    /// Our chains with their rules, by table.
    pub tables: Vec<Table>,
    /// How packets get there, in the order in which they are prepended: the last is on top.
    pub jumps: Vec<Jump>,
    /// The sets that the rules refer to.
    pub sets: BTreeSet<String>,
}

/// Our part of one iptables table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Table {
    /// `nat` or `filter`.
    pub name: &'static str,
    /// Our chains, with their rules without the `-A CHAIN`.
    pub chains: Vec<(String, Vec<String>)>,
}

impl Rules {
    /// The input of `iptables-restore --noflush`: our chains rewritten, `missing` jumps prepended,
    /// nothing else touched. Each table is one atomic change.
    #[must_use]
    pub fn restore_input(&self, missing: &[&Jump]) -> String {
        let mut text = String::new();
        for table in &self.tables {
            let _ = writeln!(text, "*{}", table.name);
            for (chain, _) in &table.chains {
                let _ = writeln!(text, ":{chain} - [0:0]");
            }
            for (chain, rules) in &table.chains {
                for rule in rules {
                    let _ = writeln!(text, "-A {chain} {rule}");
                }
            }
            for jump in missing.iter().filter(|jump| jump.table == table.name) {
                let _ = writeln!(text, "-I {} 1 -j {}", jump.chain, jump.target);
            }
            text.push_str("COMMIT\n");
        }
        text
    }
}

/// The rules of a family.
#[must_use]
pub fn rules(family: Family, config: &Config) -> Rules {
    let mut writer = Writer {
        family,
        config,
        sets: BTreeSet::new(),
    };
    let nat = Table {
        name: "nat",
        chains: vec![
            (config.names.chain("SERVICES"), writer.services()),
            (config.names.chain("LOAD-BALANCER"), writer.load_balancer()),
            (config.names.chain("NODE-PORT"), writer.node_port()),
            (config.names.chain("MARK-MASQ"), writer.mark_masq()),
            (config.names.chain("POSTROUTING"), writer.postrouting()),
        ],
    };
    let filter = Table {
        name: "filter",
        chains: vec![
            (config.names.chain("FORWARD"), writer.forward()),
            (
                config.names.chain("PROXY-FIREWALL"),
                writer.proxy_firewall(),
            ),
            (
                config.names.chain("SOURCE-RANGES-FIREWALL"),
                writer.source_ranges(),
            ),
            (config.names.chain("IPVS-FILTER"), writer.ipvs_filter()),
        ],
    };
    let jump = |table, chain, suffix| Jump {
        table,
        chain,
        target: config.names.chain(suffix),
    };
    Rules {
        jumps: vec![
            jump("nat", "OUTPUT", "SERVICES"),
            jump("nat", "PREROUTING", "SERVICES"),
            jump("nat", "POSTROUTING", "POSTROUTING"),
            jump("filter", "FORWARD", "FORWARD"),
            jump("filter", "INPUT", "PROXY-FIREWALL"),
            jump("filter", "OUTPUT", "PROXY-FIREWALL"),
            jump("filter", "FORWARD", "PROXY-FIREWALL"),
            jump("filter", "INPUT", "IPVS-FILTER"),
        ],
        tables: vec![nat, filter],
        sets: writer.sets,
    }
}

struct Writer<'a> {
    family: Family,
    config: &'a Config,
    sets: BTreeSet<String>,
}

impl Writer<'_> {
    /// `-m set --match-set NAME dirs -j TARGET`, for a set of ours and a chain or target.
    fn on_set(&mut self, set: SetName, dirs: &str, extra: &str, target: &str) -> String {
        let name = self.config.names.set(set, self.family);
        self.sets.insert(name.clone());
        format!("-m set --match-set {name} {dirs} {extra}-j {target}")
    }

    fn services(&mut self) -> Vec<String> {
        let mark_masq = self.config.names.chain("MARK-MASQ");
        let load_balancer = self.config.names.chain("LOAD-BALANCER");
        let node_port = self.config.names.chain("NODE-PORT");
        let loopback = match self.family {
            Family::V4 => "127.0.0.0/8",
            Family::V6 => "::1/128",
        };
        vec![
            format!("-s {loopback} -j RETURN"),
            self.on_set(SetName::LoadBalancer, "dst,dst", "", &load_balancer),
            self.cluster_ip_masquerade(&mark_masq),
            self.on_set(SetName::ExternalIp, "dst,dst", "", &mark_masq),
            format!("-m addrtype --dst-type LOCAL -j {node_port}"),
            // What is ours to NAT is nobody else's: a hostPort rule further down must not take it.
            self.on_set(SetName::ExternalIp, "dst,dst", "", "ACCEPT"),
            self.on_set(SetName::ExternalIpLocal, "dst,dst", "", "ACCEPT"),
            self.on_set(SetName::ClusterIp, "dst,dst", "", "ACCEPT"),
            self.on_set(SetName::LoadBalancer, "dst,dst", "", "ACCEPT"),
        ]
    }

    fn cluster_ip_masquerade(&mut self, mark_masq: &str) -> String {
        let local = match &self.config.masquerade {
            Masquerade::All => {
                return self.on_set(SetName::ClusterIp, "dst,dst", "", mark_masq);
            }
            Masquerade::From(local) => local
                .iter()
                .find(|net| Family::of(net.addr()) == self.family),
            Masquerade::FromVip => None,
        };
        match local {
            Some(net) => {
                let rule = self.on_set(SetName::ClusterIp, "dst,dst", "", mark_masq);
                format!("! -s {net} {rule}")
            }
            None => self.on_set(SetName::ClusterIp, "src,dst", "", mark_masq),
        }
    }

    fn load_balancer(&mut self) -> Vec<String> {
        vec![
            self.on_set(SetName::LoadBalancerLocal, "dst,dst", "", "RETURN"),
            format!("-j {}", self.config.names.chain("MARK-MASQ")),
        ]
    }

    fn node_port(&mut self) -> Vec<String> {
        let mark_masq = self.config.names.chain("MARK-MASQ");
        let protocols = [
            (
                "tcp",
                SetName::NodePortLocalTcp,
                SetName::NodePortTcp,
                "dst",
            ),
            (
                "udp",
                SetName::NodePortLocalUdp,
                SetName::NodePortUdp,
                "dst",
            ),
            (
                "sctp",
                SetName::NodePortLocalSctp,
                SetName::NodePortSctp,
                "dst,dst",
            ),
        ];
        let mut rules = Vec::new();
        for (protocol, local, all, dirs) in protocols {
            rules.push(format!(
                "-p {protocol} {}",
                self.on_set(local, dirs, "", "RETURN")
            ));
            rules.push(format!(
                "-p {protocol} {}",
                self.on_set(all, dirs, "", &mark_masq)
            ));
        }
        rules
    }

    fn mark_masq(&self) -> Vec<String> {
        vec![format!(
            "-j MARK --or-mark {:#x}",
            self.config.masquerade_mark
        )]
    }

    fn postrouting(&mut self) -> Vec<String> {
        let mark = self.config.masquerade_mark;
        vec![
            self.on_set(SetName::LoopBack, "dst,dst,src", "", "MASQUERADE"),
            format!("-m mark ! --mark {mark:#x}/{mark:#x} -j RETURN"),
            // Clear the mark, so that a packet that passes again (through a tunnel) is not
            // masqueraded twice.
            format!("-j MARK --xor-mark {mark:#x}"),
            "-j MASQUERADE --random-fully".to_owned(),
        ]
    }

    fn forward(&self) -> Vec<String> {
        let mark = self.config.masquerade_mark;
        vec![
            format!("-m mark --mark {mark:#x}/{mark:#x} -j ACCEPT"),
            "-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT".to_owned(),
        ]
    }

    fn proxy_firewall(&mut self) -> Vec<String> {
        let ranges = self.config.names.chain("SOURCE-RANGES-FIREWALL");
        vec![self.on_set(SetName::LoadBalancerFw, "dst,dst", "", &ranges)]
    }

    fn source_ranges(&mut self) -> Vec<String> {
        vec![
            self.on_set(SetName::LoadBalancerSourceCidr, "dst,dst,src", "", "RETURN"),
            "-j DROP".to_owned(),
        ]
    }

    /// Keeps what listens on the node's wildcard address from being reached through a VIP.
    fn ipvs_filter(&mut self) -> Vec<String> {
        let ours = [
            SetName::LoadBalancer,
            SetName::ClusterIp,
            SetName::ExternalIp,
            SetName::ExternalIpLocal,
        ];
        let mut rules: Vec<_> = ours
            .into_iter()
            .map(|set| self.on_set(set, "dst,dst", "", "RETURN"))
            .collect();
        let new = "-m conntrack --ctstate NEW ";
        rules.push(self.on_set(SetName::IpvsIps, "dst", new, "REJECT"));
        rules
    }
}

#[cfg(test)]
mod tests;
