// SPDX-License-Identifier: Apache-2.0

//! A node's table as the rules of a kube-proxy in nftables mode, for `nft -f`.
//!
//! Names, rules and their order within a chain are kube-proxy's (`pkg/proxy/nftables/proxier.go`, `setupNFTables` and
//! `syncProxyRules`, version 1.36). Chains, sets and elements are sorted, which kube-proxy's are not.

mod names;
mod objects;
mod service;
mod shared;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::net::IpAddr;

use portolan_model::{Families, Family, NodeTable};

use super::Export;
use crate::{Config, DetectLocal};
use objects::Objects;

/// Settings of rules of nftables.
#[derive(Debug, Clone)]
pub struct NftablesSettings<'a> {
    /// The families; each has a table.
    pub families: Families,
    /// The mark of packets to masquerade, and whose packets are masqueraded.
    pub config: &'a Config,
    /// The node's addresses that accept node ports, of both families; `None` for all.
    pub node_port_addresses: Option<&'a BTreeSet<IpAddr>>,
    /// The node's own addresses, if they are known: a balancer IP is a permitted source where one is.
    pub node_ips: &'a [IpAddr],
}

/// The tables `kube-proxy` of the families. Each replaces one that is there.
#[must_use]
pub fn kube_proxy_nftables(table: &NodeTable, settings: &NftablesSettings<'_>) -> Export {
    let mut export = Export::default();
    for family in settings.families.iter() {
        let writer = Writer::new(table, settings, family);
        writer.write(&mut export);
    }
    export.notes.sort();
    export.notes.dedup();
    export
}

struct Writer<'a> {
    table: &'a NodeTable,
    settings: &'a NftablesSettings<'a>,
    family: Family,
    objects: Objects,
    /// Match of packets of the node's own pods; `None` if they cannot be recognised.
    local: Option<LocalMatch>,
}

/// A match of packets of the node's own pods: what is compared, and with what.
#[derive(Debug, Clone)]
struct LocalMatch {
    selector: &'static str,
    value: String,
}

impl LocalMatch {
    fn new(family: Family, detect: &DetectLocal, table: &NodeTable) -> Option<Self> {
        let from = |networks: &[ipnet::IpNet]| {
            let mut networks = networks.iter();
            let network = networks.find(|network| Family::of(network.addr()) == family)?;
            Some(Self {
                selector: match family {
                    Family::V4 => "ip saddr",
                    Family::V6 => "ip6 saddr",
                },
                value: network.to_string(),
            })
        };
        let interface = |value| {
            Some(Self {
                selector: "iifname",
                value,
            })
        };
        match detect {
            DetectLocal::ClusterCidr(networks) => from(networks),
            DetectLocal::NodeCidr => from(&table.node.pod_cidrs),
            DetectLocal::Bridge(name) => interface(format!("\"{name}\"")),
            DetectLocal::InterfacePrefix(prefix) => interface(format!("\"{prefix}*\"")),
        }
    }

    fn is_local(&self) -> String {
        format!("{} {}", self.selector, self.value)
    }

    fn is_not_local(&self) -> String {
        format!("{} != {}", self.selector, self.value)
    }
}

impl<'a> Writer<'a> {
    fn new(table: &'a NodeTable, settings: &'a NftablesSettings<'a>, family: Family) -> Self {
        Self {
            table,
            settings,
            family,
            objects: Objects::default(),
            local: LocalMatch::new(family, &settings.config.detect_local, table),
        }
    }

    fn write(mut self, export: &mut Export) {
        self.shared();
        for record in self.table.records.values() {
            if record.balancing.is_some() {
                export.notes.push(format!(
                    "{}: left out: kube-proxy has no counterpart of a load balancer",
                    record.key
                ));
                continue;
            }
            self.service(record, &mut export.notes);
        }
        export.text.push_str(&self.objects.text(self.ip()));
    }

    /// The family's name in rules.
    const fn ip(&self) -> &'static str {
        match self.family {
            Family::V4 => "ip",
            Family::V6 => "ip6",
        }
    }
}
