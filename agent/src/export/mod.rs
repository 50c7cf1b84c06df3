// SPDX-License-Identifier: Apache-2.0

//! `export`: the node's table in the words of other programs. Changes nothing.

mod source;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_dataplane::{has_set, node_facts};
use portolan_model::NodeTable;
use portolan_plan::NodeFacts;
use portolan_plan::export::env::{Pods, env};
use portolan_plan::export::{
    Export, IptablesSettings, NftablesSettings, iptables, ipvsadm, kube_proxy_nftables,
    save_families,
};
use portolan_reconcile::ipvs_marker_sets;

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

/// Marks of virtual servers are those that the kernel has, if our IPVS dataplane has programmed it and it can be read.
async fn of_ipvsadm(args: &ExportArgs, loaded: &Loaded) -> anyhow::Result<Export> {
    let (families, config) = (args.families(), args.run.kernel.plan_config()?);
    let read = async {
        if !reads_kernel(&ipvs_marker_sets(&config), has_set)? {
            return anyhow::Ok(None);
        }
        let host = Arc::clone(&loaded.host);
        let preview = preview(&args.run, &loaded.table, host, false).await?;
        Ok(Some(preview))
    };
    match read.await {
        Ok(Some(preview)) => {
            return Ok(Export {
                text: save_families(&preview.desired.state, families, args.full),
                notes: refused(&preview),
            });
        }
        Ok(None) => {}
        Err(error) => {
            tracing::warn!("the kernel cannot be read: marks are those of an empty one: {error:#}");
        }
    }
    let facts = facts(args).await?;
    Ok(ipvsadm(&loaded.table, &facts, &config, families, args.full))
}

/// Whether the kernel is read: it has one of the sets that only our IPVS dataplane makes. To read it, programs of
/// iptables and trials of sets run, which a host without that dataplane is spared.
fn reads_kernel<E>(markers: &[String], has: impl Fn(&str) -> Result<bool, E>) -> Result<bool, E> {
    for marker in markers {
        if has(marker)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_is_read_only_where_ipvs_has_programmed_it() {
        let markers = ["a".to_owned(), "b".to_owned()];
        let reads = |there: &[&str]| -> Result<bool, ()> {
            reads_kernel(&markers, |name| Ok(there.contains(&name)))
        };
        assert_eq!(reads(&[]), Ok(false));
        assert_eq!(reads(&["another"]), Ok(false));
        assert_eq!(reads(&["b"]), Ok(true));
        assert_eq!(reads_kernel(&markers, |_| Err("denied")), Err("denied"));
    }
}
