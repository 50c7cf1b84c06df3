// SPDX-License-Identifier: Apache-2.0

//! `portolanctl table`, in the form of `ipvsadm -L -n`, or in the words of another program.

use std::collections::BTreeSet;
use std::io::Write as _;
use std::net::IpAddr;

use anyhow::Context as _;
use ipnet::IpNet;
use portolan_model::{Family, Frontend, FrontendAddress, NodeTable};
use portolan_plan::export::{
    Export, IptablesSettings, NftablesSettings, iptables, ipvsadm, kube_proxy_nftables,
};
use portolan_plan::{Config, DetectLocal, NodeFacts};
use serde_json::Value;

use crate::reply::Output;

/// Arguments of `table`.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct TableArgs {
    /// The node.
    pub(crate) node: String,

    /// The family. Default: ipv4 with -o iptables, whose programs have one each; both for nft and ipvsadm.
    #[arg(long, value_name = "FAMILY", value_parser = parse_family, help_heading = FORMATS)]
    family: Option<Family>,

    /// Networks of pods, the agent's flag. Default: the networks of the node's own pods.
    #[arg(long, value_name = "NETWORK", value_delimiter = ',', help_heading = FORMATS)]
    cluster_cidr: Vec<IpNet>,

    /// Addresses of the node that accept node ports; may be repeated. The table does not have them: without
    /// them, iptables and nft --kube-proxy have rules for all local addresses, and nft and ipvsadm have no node ports.
    #[arg(long, value_name = "ADDRESS", value_delimiter = ',', help_heading = FORMATS)]
    node_address: Vec<IpAddr>,

    /// With -o iptables: add the jumps from built-in chains. Restoring them twice adds them twice.
    #[arg(long, help_heading = FORMATS)]
    jumps: bool,

    /// With -o iptables: leave out comments.
    #[arg(long, help_heading = FORMATS)]
    short: bool,

    /// With -o nft: rules of a kube-proxy in nftables mode, in its table.
    #[arg(long, help_heading = FORMATS)]
    kube_proxy: bool,

    /// With -o ipvsadm: add the sets, routes and rules that virtual servers need, as comments. They are for
    /// people: ipvsadm -R ends with an error at a comment.
    #[arg(long, help_heading = FORMATS)]
    full: bool,
}

/// Heading of flags for formats.
const FORMATS: &str = "Formats of other programs";

/// A text that names no family.
#[derive(Debug, thiserror::Error)]
#[error("expected ipv4 or ipv6")]
struct BadFamily;

fn parse_family(text: &str) -> Result<Family, BadFamily> {
    match text {
        "ipv4" | "v4" => Ok(Family::V4),
        "ipv6" | "v6" => Ok(Family::V6),
        _ => Err(BadFamily),
    }
}

/// The table in a format. What the format cannot express goes to standard error: not all formats have comments.
pub(crate) fn text(table: &NodeTable, args: &TableArgs, output: Output) -> anyhow::Result<String> {
    if !output.is_export() {
        return Ok(show(table));
    }
    let export = export(table, args, output)?;
    for note in &export.notes {
        writeln!(std::io::stderr(), "portolanctl: {note}")?;
    }
    Ok(export.text)
}

/// The table in another program's format.
fn export(table: &NodeTable, args: &TableArgs, output: Output) -> anyhow::Result<Export> {
    let detect_local = match args.cluster_cidr.is_empty() {
        true => DetectLocal::NodeCidr,
        false => DetectLocal::ClusterCidr(args.cluster_cidr.iter().map(IpNet::trunc).collect()),
    };
    let config = Config {
        detect_local,
        ..Config::default()
    };
    let addresses: BTreeSet<IpAddr> = args.node_address.iter().copied().collect();
    let first = args.node_address.iter().rev();
    let facts = NodeFacts {
        addresses: addresses.clone(),
        node_port_addresses: addresses,
        source: first.map(|ip| (Family::of(*ip), *ip)).collect(),
        ..NodeFacts::default()
    };
    let families = args
        .family
        .map_or(Family::ALL.to_vec(), |family| vec![family]);
    let families = families.into_iter().collect();
    let mut export = match output {
        Output::Iptables => {
            let family = args.family.unwrap_or(Family::V4);
            let named = Some(&facts.node_port_addresses).filter(|named| !named.is_empty());
            let settings = IptablesSettings {
                family,
                config: &config,
                node_port_addresses: named,
                node_ip: facts.source.get(&family).copied(),
                has_jumps: args.jumps,
                is_short: args.short,
            };
            iptables(table, &settings)
        }
        Output::Nft if args.kube_proxy => {
            let named = Some(&facts.node_port_addresses).filter(|named| !named.is_empty());
            let settings = NftablesSettings {
                families,
                config: &config,
                node_port_addresses: named,
                node_ips: &args.node_address,
            };
            return Ok(kube_proxy_nftables(table, &settings));
        }
        Output::Nft => portolan_nftables::export(table, &facts, &config, families)?,
        _ => ipvsadm(table, &facts, &config, families, args.full),
    };
    if output != Output::Iptables && args.node_address.is_empty() && has_node_ports(table) {
        let note = "node ports are left out: --node-address names the addresses that accept them";
        export.notes.push(note.to_owned());
    }
    Ok(export)
}

fn has_node_ports(table: &NodeTable) -> bool {
    let mut frontends = table.records.values().flat_map(|record| &record.frontends);
    frontends.any(|frontend| matches!(frontend.address, FrontendAddress::NodeAddresses(_)))
}

/// Reads the answer of `/debug/table/NODE`.
pub(crate) fn parse(answer: Value) -> anyhow::Result<NodeTable> {
    serde_json::from_value(answer).context("the controller's answer")
}

/// Shows each frontend with its destinations.
pub(crate) fn show(table: &NodeTable) -> String {
    let mut text = String::new();
    for record in table.records.values() {
        for frontend in &record.frontends {
            let scheduler = record.scheduling.scheduler.as_deref().unwrap_or("default");
            let address = address(frontend);
            let protocol = record.key.protocol;
            text.push_str(&format!(
                "{protocol} {address} {scheduler} ({})",
                record.key
            ));
            if let Some(affinity) = record.affinity {
                text.push_str(&format!(" persistent {}", affinity.timeout_seconds));
            }
            text.push('\n');
            for destination in table.destinations(record, frontend) {
                let (address, weight) = (destination.address, destination.weight);
                text.push_str(&format!("  -> {address} weight {weight}\n"));
            }
        }
    }
    text
}

/// Address and port of a frontend.
fn address(frontend: &Frontend) -> String {
    frontend.place()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use portolan_model::{Destination, FrontendKind, Protocol, Record, RecordKey};

    use super::*;

    fn table() -> NodeTable {
        let mut record = Record::new(RecordKey {
            cluster: "".into(),
            namespace: "ns1".into(),
            service: "svc1".into(),
            port: "p80".into(),
            protocol: Protocol::Tcp,
        });
        record.destinations = vec![Destination::new("10.180.0.1:80".parse().unwrap())];
        record.available.insert(Family::V4);
        let vip = FrontendAddress::Vip([172, 30, 0, 41].into());
        let node = FrontendAddress::NodeAddresses(Family::V4);
        record.frontends = vec![
            Frontend::new(FrontendKind::ClusterIp, vip, 80),
            Frontend::new(FrontendKind::NodePort, node, 30080),
        ];
        let mut table = NodeTable::default();
        table.node.pod_cidrs = vec!["10.180.0.0/24".parse().unwrap()];
        table.records.insert(record.key.clone(), Arc::new(record));
        table
    }

    fn with(args: TableArgs, output: Output) -> Export {
        // As it comes from a controller.
        let dump = serde_json::to_value(table()).unwrap();
        let parsed = parse(dump).unwrap();
        assert_eq!(parsed, table());
        export(&parsed, &args, output).unwrap()
    }

    #[test]
    fn a_table_comes_in_the_words_of_each_program() {
        let rules = with(TableArgs::default(), Output::Iptables).text;
        for part in [
            "-d 172.30.0.41 --dport 80 -j KUBE-SVC-XPGD46QRK7WJZT7O\n",
            "! -s 10.180.0.0/24 -j KUBE-MARK-MASQ\n",
            "--dst-type LOCAL -j KUBE-NODEPORTS\n",
        ] {
            assert!(rules.contains(part), "{part}\n{rules}");
        }
        let nft = with(TableArgs::default(), Output::Nft);
        assert!(
            nft.notes[0].starts_with("node ports are left out"),
            "{:?}",
            nft.notes
        );
        let nft = nft.text;
        assert!(
            nft.contains("172.30.0.41 . tcp . 80 : goto pick-0"),
            "{nft}"
        );
        assert!(!nft.contains("30080"), "{nft}");
    }

    #[test]
    fn addresses_of_the_node_make_node_ports() {
        let args = TableArgs {
            node_address: vec![[192, 0, 2, 1].into()],
            family: Some(Family::V4),
            short: true,
            ..TableArgs::default()
        };
        let servers = with(args.clone(), Output::Ipvsadm).text;
        let lines: Vec<_> = servers.lines().collect();
        assert_eq!(
            lines,
            [
                "-A -t 172.30.0.41:80 -s rr",
                "-a -t 172.30.0.41:80 -r 10.180.0.1:80 -m -w 1",
                "-A -t 192.0.2.1:30080 -s rr",
                "-a -t 192.0.2.1:30080 -r 10.180.0.1:80 -m -w 1",
            ]
        );
        let rules = with(args.clone(), Output::Iptables).text;
        assert!(rules.contains("-d 192.0.2.1 -j KUBE-NODEPORTS\n") && !rules.contains("comment"));
        assert!(!with(args, Output::Nft).text.contains("table ip6"));
    }
}
