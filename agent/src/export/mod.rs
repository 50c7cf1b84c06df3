// SPDX-License-Identifier: Apache-2.0

//! `export`: the node's table in the words of other programs. Changes nothing.

mod source;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_dataplane::node_facts;
use portolan_model::NodeTable;
use portolan_plan::NodeFacts;
use portolan_plan::export::env::{Pods, env};
use portolan_plan::export::{
    Export, IptablesSettings, NftablesSettings, iptables, ipvsadm, kube_proxy_nftables,
    save_families,
};

use crate::args::{ExportArgs, ExportFormat};
use crate::once::{preview, print, refused, warn};
use source::{Loaded, load};

/// Prints the table.
///
/// # Errors
/// If there is no table, a flag or a file cannot be used, or the node's addresses cannot be read.
pub async fn run(mut args: ExportArgs) -> anyhow::Result<()> {
    args.validate()?;
    let loaded = load(&mut args).await?;
    let export = match args.format {
        ExportFormat::Iptables => of_iptables(&args, &loaded.table).await?,
        ExportFormat::Ipvsadm => of_ipvsadm(&args, &loaded).await?,
        ExportFormat::Nft if args.kube_proxy => of_kube_proxy(&args, &loaded.table).await?,
        ExportFormat::Nft => of_nft(&args, &loaded.table).await?,
        ExportFormat::Env => {
            let pods = Pods {
                namespace: &args.namespace,
                has_links: true,
            };
            env(&loaded.table, pods, args.family())
        }
    };
    warn(&loaded.warnings);
    warn(&export.notes);
    print(&export.text)
}

async fn of_iptables(args: &ExportArgs, table: &NodeTable) -> anyhow::Result<Export> {
    let (family, config) = (args.family(), args.run.kernel.plan_config()?);
    let facts = facts(args).await?;
    let accepts_all = args.run.node_port_addresses()?.accepts_all(family);
    let addresses: Option<&BTreeSet<IpAddr>> = match accepts_all {
        true => None,
        false => Some(&facts.node_port_addresses),
    };
    let settings = IptablesSettings {
        family,
        config: &config,
        node_port_addresses: addresses,
        node_ip: facts.source.get(&family).copied(),
        has_jumps: args.jumps,
        is_short: args.short,
    };
    Ok(iptables(table, &settings))
}

async fn of_nft(args: &ExportArgs, table: &NodeTable) -> anyhow::Result<Export> {
    let (facts, config) = (facts(args).await?, args.run.kernel.plan_config()?);
    Ok(portolan_nftables::export(
        table,
        &facts,
        &config,
        args.families(),
    )?)
}

async fn of_kube_proxy(args: &ExportArgs, table: &NodeTable) -> anyhow::Result<Export> {
    let (families, config) = (args.families(), args.run.kernel.plan_config()?);
    let facts = facts(args).await?;
    let accepted = args.run.node_port_addresses()?;
    let accepts_all = families.iter().all(|family| accepted.accepts_all(family));
    let node_ips: Vec<IpAddr> = facts.source.values().copied().collect();
    let settings = NftablesSettings {
        families,
        config: &config,
        node_port_addresses: Some(&facts.node_port_addresses).filter(|_| !accepts_all),
        node_ips: &node_ips,
    };
    Ok(kube_proxy_nftables(table, &settings))
}

async fn facts(args: &ExportArgs) -> anyhow::Result<NodeFacts> {
    Ok(node_facts(&args.run.kernel_config()?).await?)
}

/// Marks of virtual servers are those that the kernel has, if IPVS can be read.
async fn of_ipvsadm(args: &ExportArgs, loaded: &Loaded) -> anyhow::Result<Export> {
    let families = args.families();
    match preview(&args.run, &loaded.table, Arc::clone(&loaded.host)).await {
        Ok(preview) => Ok(Export {
            text: save_families(&preview.desired.state, families, args.full),
            notes: refused(&preview),
        }),
        Err(error) => {
            tracing::warn!("the kernel cannot be read: marks are those of an empty one: {error:#}");
            let config = args.run.kernel.plan_config()?;
            let facts = facts(args).await?;
            Ok(ipvsadm(&loaded.table, &facts, &config, families, args.full))
        }
    }
}
