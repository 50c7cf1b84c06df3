// SPDX-License-Identifier: Apache-2.0

//! Constant iptables rules, in the format of `iptables-restore`.
//!
//! The rules refer to sets, never to a Service, so they are written once. Source of the rules of `nat`
//! and `filter`: `pkg/proxy/ipvs/proxier.go`, `writeIptablesRules` and `createAndLinkKubeChain`.
//! Differences: all sets and therefore all rules always exist; rules of external IPs end in a plain
//! ACCEPT like those of cluster IPs, so that bridged pods need no `xt_physdev`; checks of the node's own
//! connections are in `mangle`, because IPVS intercepts them (at priority -98 of OUTPUT) before
//! `filter`. The policies in `mangle` are those of kube-proxy's other modes. The rule about imports is left out until
//! there is one ([`Rules::without_clamp`]): kernels have its target as a module of its own.

mod filter;
mod mangle;
mod nat;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use portolan_model::{Family, NodeInfo};
use serde::{Deserialize, Serialize};

use crate::{Config, SetName};

/// A jump from a built-in chain to one of ours, inserted at the top.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Jump {
    /// `mangle`, `nat` or `filter`.
    pub table: Cow<'static, str>,
    /// The built-in chain.
    pub chain: Cow<'static, str>,
    /// Our chain.
    pub target: String,
}

/// All rules of one family.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rules {
    /// Our chains with their rules, by table.
    pub tables: Vec<Table>,
    /// Jumps to the chains, in the order of insertion: the last one ends on top.
    pub jumps: Vec<Jump>,
    /// Jumps of earlier versions, to be deleted.
    pub obsolete: Vec<Jump>,
    /// The sets that the rules refer to.
    pub sets: BTreeSet<String>,
}

/// Our chains in one iptables table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Table {
    /// `mangle`, `nat` or `filter`.
    pub name: Cow<'static, str>,
    /// Chains with their rules, without `-A CHAIN`.
    pub chains: Vec<(String, Vec<String>)>,
}

impl Rules {
    /// Numbers of rules in our chains, by iptables table.
    #[must_use]
    pub fn count_by_table(&self) -> BTreeMap<String, usize> {
        let tables = self.tables.iter().map(|table| {
            let rules = table.chains.iter().map(|(_, rules)| rules.len());
            (table.name.to_string(), rules.sum())
        });
        tables.collect()
    }

    /// True if a rule clamps TCP segments to the size of the path, which needs `xt_TCPMSS`.
    #[must_use]
    pub fn clamps(&self) -> bool {
        let chains = self.tables.iter().flat_map(|table| &table.chains);
        let mut rules = chains.flat_map(|(_, rules)| rules);
        rules.any(|rule| rule.contains(mangle::CLAMP))
    }

    /// The rules without that one: without its chain, the jump to it and its set.
    #[must_use]
    pub fn without_clamp(&self) -> Self {
        let mut rules = self.clone();
        let is_it = |name: &str| ends_with(name, mangle::REMOTE_MSS);
        rules.jumps.retain(|jump| !is_it(&jump.target));
        for table in &mut rules.tables {
            table.chains.retain(|(name, _)| !is_it(name));
        }
        rules
            .sets
            .retain(|set| !ends_with(set, SetName::Remote.suffix()));
        rules
    }

    /// Returns `true` if both have a chain of the same name in the same table.
    #[must_use]
    pub fn shares_chain(&self, other: &Self) -> bool {
        let chains = |rules: &Self| -> BTreeSet<(String, String)> {
            let tables = rules.tables.iter();
            let of_table = |table: &Table| {
                let name = table.name.to_string();
                let chains = table.chains.iter();
                chains
                    .map(move |(chain, _)| (name.clone(), chain.clone()))
                    .collect::<Vec<_>>()
            };
            tables.flat_map(of_table).collect()
        };
        !chains(self).is_disjoint(&chains(other))
    }

    /// Input of `iptables-restore --noflush` that rewrites our chains, inserts `missing` jumps and deletes
    /// `obsolete` ones (by table, as printed by `iptables-save`). Each table changes atomically; other
    /// rules are left untouched.
    #[must_use]
    pub fn restore_input(&self, missing: &[&Jump], obsolete: &[(&str, &str)]) -> String {
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
            for (_, line) in obsolete.iter().filter(|(name, _)| *name == table.name) {
                let _ = writeln!(text, "-D{}", line.trim_start_matches("-A"));
            }
            for jump in missing.iter().filter(|jump| jump.table == table.name) {
                let _ = writeln!(text, "-I {} 1 -j {}", jump.chain, jump.target);
            }
            text.push_str("COMMIT\n");
        }
        text
    }
}

/// True for a name of a prefix and this suffix; in IPv6 a set has `6-` between them.
fn ends_with(name: &str, suffix: &str) -> bool {
    let rest = name.split_once('-').map_or("", |(_, rest)| rest);
    rest == suffix || rest.strip_prefix("6-") == Some(suffix)
}

/// Rules of a family on a node, those about imports included.
#[must_use]
pub fn rules(family: Family, config: &Config, node: &NodeInfo) -> Rules {
    let mut writer = Writer {
        family,
        config,
        local: config.detect_local.rule_match(family, node),
        sets: BTreeSet::new(),
    };
    let tables = vec![
        writer.table("mangle", &mangle::CHAINS),
        writer.table("nat", &nat::CHAINS),
        writer.table("filter", &filter::CHAINS),
    ];
    let jump = |(table, chain, suffix): &(&'static str, &'static str, &str)| Jump {
        table: Cow::Borrowed(*table),
        chain: Cow::Borrowed(*chain),
        target: config.names.chain(suffix),
    };
    Rules {
        jumps: JUMPS.iter().map(jump).collect(),
        obsolete: OBSOLETE_JUMPS.iter().map(jump).collect(),
        tables,
        sets: writer.sets,
    }
}

/// Table, built-in chain, our chain.
const JUMPS: [(&str, &str, &str); 12] = [
    ("mangle", "PREROUTING", "LOCAL-POLICY"),
    ("mangle", "OUTPUT", "LOCAL-POLICY-OUT"),
    ("mangle", "POSTROUTING", "SHORT-CIRCUIT-END"),
    ("mangle", "POSTROUTING", mangle::REMOTE_MSS),
    ("nat", "OUTPUT", "SERVICES"),
    ("nat", "PREROUTING", "SERVICES"),
    ("nat", "POSTROUTING", "POSTROUTING"),
    ("filter", "FORWARD", "FORWARD"),
    ("filter", "INPUT", "NODE-PORT"),
    ("filter", "INPUT", "PROXY-FIREWALL"),
    ("filter", "FORWARD", "PROXY-FIREWALL"),
    ("filter", "INPUT", "IPVS-FILTER"),
];

/// Earlier versions checked source ranges of the node's own connections here; IPVS precedes this chain.
const OBSOLETE_JUMPS: [(&str, &str, &str); 1] = [("filter", "OUTPUT", "PROXY-FIREWALL")];

/// Name of a chain after the prefix, and the function that returns its rules.
type Chain = (&'static str, fn(&mut Writer<'_>) -> Vec<String>);

struct Writer<'a> {
    family: Family,
    config: &'a Config,
    /// Match for packets of the node's own pods, if they can be recognised.
    local: Option<String>,
    sets: BTreeSet<String>,
}

impl Writer<'_> {
    fn table(&mut self, name: &'static str, chains: &[Chain]) -> Table {
        let names = &self.config.names;
        let chains = chains
            .iter()
            .map(|(suffix, write)| (names.chain(suffix), write(self)))
            .collect();
        Table {
            name: name.into(),
            chains,
        }
    }

    /// Match for packets whose mark leads to a virtual server of ours.
    fn has_own_mark(&self) -> String {
        let ours = self.config.short_circuit_mask.bits();
        format!("-m mark ! --mark 0x0/{ours:#x}")
    }

    fn chain(&self, suffix: &str) -> String {
        self.config.names.chain(suffix)
    }

    fn set(&mut self, set: SetName) -> String {
        let name = self.config.names.set(set, self.family);
        self.sets.insert(name.clone());
        name
    }

    /// `-m set --match-set NAME dirs -j TARGET`, for a set of ours and a chain or target.
    fn on_set(&mut self, set: SetName, dirs: &str, extra: &str, target: &str) -> String {
        let name = self.set(set);
        format!("-m set --match-set {name} {dirs} {extra}-j {target}")
    }
}

/// Drops packets from outside the source ranges.
fn source_ranges(writer: &mut Writer<'_>) -> Vec<String> {
    let ranges = SetName::LoadBalancerSourceCidr;
    vec![
        writer.on_set(ranges, "dst,dst,src", "", "RETURN"),
        "-j DROP".to_owned(),
    ]
}

#[cfg(test)]
mod tests;
