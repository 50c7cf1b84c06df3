// SPDX-License-Identifier: Apache-2.0

//! A node's table as the rules of a kube-proxy in iptables mode, for `iptables-restore --noflush`.
//!
//! Names, texts and order of rules within a chain are kube-proxy's (`pkg/proxy/iptables/proxier.go`,
//! `syncProxyRules`). Chains and Services are sorted, which kube-proxy's are not.

mod lists;
mod names;
mod service;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::net::IpAddr;

use portolan_model::{Family, FrontendKind, NodeTable};

use super::Export;
use crate::Config;

/// Endpoints of all Services from which on rules of endpoints have no comments
/// (`largeClusterEndpointsThreshold`).
const LARGE: usize = 1000;

/// Settings of rules of iptables.
#[derive(Debug, Clone)]
pub struct IptablesSettings<'a> {
    /// The family.
    pub family: Family,
    /// The mark of packets to masquerade, and whose packets are masqueraded.
    pub config: &'a Config,
    /// The node's addresses that accept node ports; `None` for all.
    pub node_port_addresses: Option<&'a BTreeSet<IpAddr>>,
    /// The node's own address, if it is known: a balancer IP is a permitted source where it is.
    pub node_ip: Option<IpAddr>,
    /// Whether built-in chains get jumps to ours.
    pub has_jumps: bool,
    /// Whether comments are left out.
    pub is_short: bool,
}

/// The rules of one family: the tables `filter` and `nat`.
#[must_use]
pub fn iptables(table: &NodeTable, settings: &IptablesSettings<'_>) -> Export {
    let mut writer = Writer {
        table,
        settings,
        filter: Chains::default(),
        nat: Chains::default(),
        local: settings
            .config
            .detect_local
            .rule_match(settings.family, &table.node),
        is_large: is_large(table, settings.family),
    };
    let mut notes = Vec::new();
    writer.begin();
    for record in table.records.values() {
        if record.balancing.is_some() {
            notes.push(format!(
                "{}: left out: iptables has no counterpart of a load balancer",
                record.key
            ));
            continue;
        }
        let restricted = record.frontends.iter().find(|frontend| {
            frontend.family() == settings.family
                && frontend.kind != FrontendKind::LoadBalancer
                && !frontend.source_ranges.is_empty()
        });
        if let Some(frontend) = restricted {
            let place = frontend.place();
            notes.push(format!(
                "{}: {place} is open to all sources: kube-proxy's rules restrict those of balancer IPs alone",
                record.key
            ));
        }
        writer.service(record);
    }
    writer.end();
    Export {
        text: writer.text(),
        notes,
    }
}

/// Returns `true` if Services have so many endpoints that kube-proxy saves comments.
fn is_large(table: &NodeTable, family: Family) -> bool {
    let count = |record: &portolan_model::Record| {
        let own = table.lists.get(&record.key);
        let own = own.into_iter().flat_map(|own| &own.local);
        let all = record.destinations.iter().chain(own).map(|d| d.address);
        let of_family = all.filter(|address| Family::of(address.ip()) == family);
        of_family.collect::<BTreeSet<_>>().len()
    };
    table
        .records
        .values()
        .map(|record| count(record))
        .sum::<usize>()
        > LARGE
}

/// Chains of one table, with rules without `-A CHAIN`.
#[derive(Debug, Default)]
struct Chains(BTreeMap<String, Vec<String>>);

impl Chains {
    /// A chain that exists without rules, too.
    fn declare(&mut self, chain: &str) {
        self.0.entry(chain.to_owned()).or_default();
    }

    /// Adds a rule, of words of which any may be empty.
    fn rule(&mut self, chain: &str, words: &[&str]) {
        let words = words.iter().filter(|word| !word.is_empty());
        let rule = words.copied().collect::<Vec<_>>().join(" ");
        self.0.entry(chain.to_owned()).or_default().push(rule);
    }
}

struct Writer<'a> {
    table: &'a NodeTable,
    settings: &'a IptablesSettings<'a>,
    filter: Chains,
    nat: Chains,
    /// Match of packets of the node's own pods, if they can be recognised.
    local: Option<String>,
    is_large: bool,
}

impl Writer<'_> {
    /// The match that carries a comment.
    fn comment(&self, text: &str) -> String {
        // Names of Kubernetes objects have none of these: a file or a controller might.
        let is_bad = |c: char| c.is_control() || matches!(c, '"' | '\'' | '\\');
        let text = text.replace(is_bad, "?");
        if self.settings.is_short {
            String::new()
        } else if text.contains(' ') {
            format!("-m comment --comment \"{text}\"")
        } else {
            format!("-m comment --comment {text}")
        }
    }

    /// The same for a rule of an endpoint.
    fn endpoint_comment(&self, text: &str) -> String {
        if self.is_large {
            String::new()
        } else {
            self.comment(text)
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, chains) in [("filter", &self.filter), ("nat", &self.nat)] {
            // Writing to a string never fails.
            let _ = writeln!(text, "*{name}");
            for chain in chains.0.keys() {
                let _ = writeln!(text, ":{chain} - [0:0]");
            }
            for (chain, rules) in &chains.0 {
                for rule in rules {
                    let _ = writeln!(text, "-A {chain} {rule}");
                }
            }
            if self.settings.has_jumps {
                self.write_jumps(name, &mut text);
            }
            text.push_str("COMMIT\n");
        }
        text
    }
}
