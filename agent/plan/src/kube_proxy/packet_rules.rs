// SPDX-License-Identifier: Apache-2.0

//! Rules of a kube-proxy in iptables or nftables mode, which rewrite packets before IPVS sees them.
//!
//! Its chains and ours have names in common, `nat KUBE-SERVICES` above all. So before ours are written, the
//! chain that leads to its Services is copied under a name of ours, and packets are sent through the copy
//! first ([`kept_input`]): its Services stay in force while sets, routes and virtual servers grow behind
//! them. When all is in place, the ways to its chains are taken away in one transaction for each table
//! ([`unhooked_input`]), and then the chains ([`removed_input`]). Connections go on by their entries in
//! conntrack. In nftables mode all is in a table of its own.
//!
//! Source: `pkg/proxy/iptables/proxier.go` and `pkg/proxy/nftables/proxier.go`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use ipnet::IpNet;
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Family, Protocol};

use crate::{Names, Rules};

/// Name of the table of a kube-proxy in nftables mode, one in each family.
pub const NFTABLES_TABLE: &str = "kube-proxy";

/// The map from address, protocol and port of a Service to its chain, in [`NFTABLES_TABLE`].
pub const NFTABLES_SERVICES: &str = "service-ips";

/// Copy of the chain that leads to the Services.
const COPY: &str = "KUBE-PORTOLAN-PREDECESSOR";

/// The chain that leads to the Services.
const SERVICES: &str = "KUBE-SERVICES";

/// Marks packets that [`POSTROUTING`] shall masquerade.
const MARK_MASQ: &str = "KUBE-MARK-MASQ";

/// The chain that masquerades.
const POSTROUTING: &str = "KUBE-POSTROUTING";

/// Chains that the kernel sends packets to.
const BUILT_IN: [&str; 5] = ["PREROUTING", "INPUT", "FORWARD", "OUTPUT", "POSTROUTING"];

/// Chains of `nat` through which packets come to [`SERVICES`].
const HOOKS: [&str; 2] = ["PREROUTING", "OUTPUT"];

/// Chains of a kube-proxy in iptables mode by table; those that end with `-` are prefixes.
const CHAINS: [(&str, &[&str]); 3] = [
    (
        "nat",
        &[
            COPY,
            SERVICES,
            "KUBE-NODEPORTS",
            POSTROUTING,
            MARK_MASQ,
            "KUBE-PROXY-CANARY",
            "KUBE-SVC-",
            "KUBE-SVL-",
            "KUBE-EXT-",
            "KUBE-FW-",
            "KUBE-SEP-",
        ],
    ),
    (
        "filter",
        &[
            SERVICES,
            "KUBE-EXTERNAL-SERVICES",
            "KUBE-NODEPORTS",
            "KUBE-FORWARD",
            "KUBE-PROXY-FIREWALL",
            "KUBE-PROXY-CANARY",
        ],
    ),
    ("mangle", &["KUBE-PROXY-CANARY"]),
];

/// Mode of a kube-proxy that rewrites packets by rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RuleMode {
    /// `iptables`.
    Iptables,
    /// `nftables`.
    Nftables,
}

impl RuleMode {
    /// As in kube-proxy's flag `--proxy-mode`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Iptables => "iptables",
            Self::Nftables => "nftables",
        }
    }
}

/// Rules of a kube-proxy that rewrite packets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PacketRules {
    /// The modes of the kube-proxies that left them; usually one.
    pub modes: BTreeSet<RuleMode>,
    /// The Services' addresses and ports, but for node ports.
    pub frontends: BTreeSet<VirtualServerKey>,
}

impl PacketRules {
    /// True if there are no rules.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.modes.is_empty()
    }
}

/// True for the names of a kube-proxy. Under others there is nothing to take over.
#[must_use]
pub fn shares_names(names: &Names) -> bool {
    names.chain("SERVICES") == SERVICES
}

/// True if rules, as `iptables-save` prints them, have chains of a kube-proxy in iptables mode. In IPVS mode it
/// has no `KUBE-NODEPORTS`.
#[must_use]
pub fn has_iptables_mode(saved: &[String]) -> bool {
    let chains = chains(saved);
    let has = |chain: &str| chains.contains(&("nat", chain));
    has("KUBE-NODEPORTS") || has(COPY)
}

/// The Services' addresses and ports in rules of a kube-proxy in iptables mode.
#[must_use]
pub fn iptables_frontends(saved: &[String]) -> BTreeSet<VirtualServerKey> {
    // Our own chain has no such rules.
    let of_services = |rule: &Rule<'_>| [SERVICES, COPY].contains(&rule.chain);
    let rules = rules(saved).filter(|rule| rule.table == "nat");
    rules
        .filter(of_services)
        .filter_map(|rule| rule.frontend())
        .collect()
}

/// The address and port of an element of the map [`NFTABLES_SERVICES`]; the fields of its key are padded to
/// four bytes.
#[must_use]
pub fn nftables_frontend(family: Family, key: &[u8]) -> Option<VirtualServerKey> {
    let length = match family {
        Family::V4 => 4,
        Family::V6 => 16,
    };
    let (address, rest) = key.split_at_checked(length)?;
    let ip: IpAddr = match family {
        Family::V4 => <[u8; 4]>::try_from(address).ok()?.into(),
        Family::V6 => <[u8; 16]>::try_from(address).ok()?.into(),
    };
    let [number, _, _, _, high, low, ..] = *rest else {
        return None;
    };
    let protocol = match number {
        6 => Protocol::Tcp,
        17 => Protocol::Udp,
        132 => Protocol::Sctp,
        _ => return None,
    };
    Some(VirtualServerKey::new(
        protocol,
        ip,
        u16::from_be_bytes([high, low]),
    ))
}

/// Input of `iptables-restore` that keeps the Services of a kube-proxy in iptables mode in force whatever
/// becomes of `KUBE-SERVICES`; none if that was done.
#[must_use]
pub fn kept_input(saved: &[String]) -> Option<String> {
    if chains(saved).contains(&("nat", COPY)) {
        return None;
    }
    let mut text = format!("*nat\n:{COPY} - [0:0]\n");
    for rule in rules(saved).filter(|rule| rule.table == "nat" && rule.chain == SERVICES) {
        let _ = writeln!(text, "-A {COPY} {}", rule.text);
    }
    for hook in HOOKS {
        let _ = writeln!(text, "-I {hook} 1 -j {COPY}");
    }
    text.push_str("COMMIT\n");
    Some(text)
}

/// Input of `iptables-restore` that deletes the jumps to a kube-proxy's chains, each table at once; none without
/// any. `ours` stay, and so do rules in chains of other programs.
#[must_use]
pub fn unhooked_input(saved: &[String], ours: &Rules) -> Option<String> {
    let chains = removable(saved, ours);
    let mut text = String::new();
    for (table, of_table) in &chains {
        let leads_there = |rule: &Rule<'_>| {
            rule.table == *table
                && !of_table.contains(rule.chain)
                && !is_of_others(rule, ours, of_table)
                && rule
                    .target()
                    .is_some_and(|target| of_table.contains(target))
        };
        let jumps: Vec<Rule<'_>> = rules(saved).filter(leads_there).collect();
        if jumps.is_empty() {
            continue;
        }
        let _ = writeln!(text, "*{table}");
        for jump in jumps {
            let _ = writeln!(text, "-D {} {}", jump.chain, jump.text);
        }
        text.push_str("COMMIT\n");
    }
    (!text.is_empty()).then_some(text)
}

/// Input of `iptables-restore` that deletes a kube-proxy's chains; none without any. `ours` stay. A chain that other
/// programs jump to from chains of their own cannot be deleted, and is emptied.
#[must_use]
pub fn removed_input(saved: &[String], ours: &Rules) -> Option<String> {
    let chains = removable(saved, ours);
    let mut text = String::new();
    for (table, of_table) in &chains {
        let _ = writeln!(text, "*{table}");
        // Declaring a chain empties it, so that no rule refers to another one when it is deleted.
        for chain in of_table {
            let _ = writeln!(text, ":{chain} - [0:0]");
        }
        let used = used_by_others(saved, table, ours, of_table);
        for chain in of_table.difference(&used) {
            let _ = writeln!(text, "-X {chain}");
        }
        text.push_str("COMMIT\n");
    }
    (!text.is_empty()).then_some(text)
}

/// The chains of a kube-proxy in iptables mode that are there and can go, by table. None of them is ours.
///
/// The plugin `portmap` of CNI has packets masqueraded by jumps to [`MARK_MASQ`], if its `externalSetMarkChain` says so.
/// That chain and the one that masquerades stay then. They have no jumps to others.
fn removable<'a>(saved: &'a [String], ours: &Rules) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let mut found: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (table, chain) in chains(saved) {
        if is_of_kube_proxy(table, chain) && !is_ours(ours, table, chain) {
            found.entry(table).or_default().insert(chain);
        }
    }
    if let Some(of_nat) = found.get_mut("nat")
        && used_by_others(saved, "nat", ours, of_nat).contains(MARK_MASQ)
    {
        of_nat.retain(|chain| ![MARK_MASQ, POSTROUTING].contains(chain));
    }
    found.retain(|_, of_table| !of_table.is_empty());
    found
}

/// The chains of a kube-proxy that other programs jump to from chains of their own.
fn used_by_others<'a>(
    saved: &'a [String],
    table: &str,
    ours: &Rules,
    of_table: &BTreeSet<&str>,
) -> BTreeSet<&'a str> {
    let of_others =
        rules(saved).filter(|rule| rule.table == table && is_of_others(rule, ours, of_table));
    let targets = of_others.filter_map(|rule| rule.target());
    targets
        .filter(|target| of_table.contains(*target))
        .collect()
}

/// Returns `true` for a rule in a chain that another program has made.
fn is_of_others(rule: &Rule<'_>, ours: &Rules, of_table: &BTreeSet<&str>) -> bool {
    let Rule { table, chain, .. } = *rule;
    !of_table.contains(chain) && !BUILT_IN.contains(&chain) && !is_ours(ours, table, chain)
}

fn is_ours(ours: &Rules, table: &str, chain: &str) -> bool {
    let mut tables = ours.tables.iter().filter(|of| of.name == table);
    tables.any(|of| of.chains.iter().any(|(name, _)| name == chain))
}

fn is_of_kube_proxy(table: &str, chain: &str) -> bool {
    let mut of_table = CHAINS.iter().filter(|(name, _)| *name == table);
    of_table.any(|(_, names)| {
        names.iter().any(|name| match name.strip_suffix('-') {
            Some(_) => chain.starts_with(name),
            None => chain == *name,
        })
    })
}

/// A rule as `iptables-save` prints it.
#[derive(Debug, Clone, Copy)]
struct Rule<'a> {
    table: &'a str,
    chain: &'a str,
    /// All after the chain.
    text: &'a str,
}

impl<'a> Rule<'a> {
    /// The chain that it jumps or goes to.
    fn target(&self) -> Option<&'a str> {
        let mut words = self
            .text
            .split(' ')
            .skip_while(|word| !["-j", "-g"].contains(word));
        words.nth(1)
    }

    /// The value of an option. No comment of a kube-proxy has such a word before it.
    fn option(&self, name: &str) -> Option<&'a str> {
        let mut words = self.text.split(' ').skip_while(|word| *word != name);
        words.nth(1)
    }

    fn frontend(&self) -> Option<VirtualServerKey> {
        let network: IpNet = self.option("-d")?.parse().ok()?;
        let protocol = match self.option("-p")? {
            "tcp" => Protocol::Tcp,
            "udp" => Protocol::Udp,
            "sctp" => Protocol::Sctp,
            _ => return None,
        };
        let port = self.option("--dport")?.parse().ok()?;
        Some(VirtualServerKey::new(protocol, network.addr(), port))
    }
}

fn rules(saved: &[String]) -> impl Iterator<Item = Rule<'_>> {
    in_tables(saved).filter_map(|(table, line)| {
        let (chain, text) = line.strip_prefix("-A ")?.split_once(' ')?;
        Some(Rule { table, chain, text })
    })
}

/// All chains with their tables.
fn chains(saved: &[String]) -> BTreeSet<(&str, &str)> {
    let declared = in_tables(saved).filter_map(|(table, line)| {
        let (chain, _) = line.strip_prefix(':')?.split_once(' ')?;
        Some((table, chain))
    });
    declared.collect()
}

fn in_tables(saved: &[String]) -> impl Iterator<Item = (&str, &str)> {
    let mut table = "";
    saved.iter().map(String::as_str).map(move |line| {
        if let Some(name) = line.strip_prefix('*') {
            table = name;
        }
        (table, line)
    })
}

#[cfg(test)]
mod tests;
