// SPDX-License-Identifier: Apache-2.0

//! Start of an agent on a node that another dataplane of ours, or a kube-proxy, has programmed.

use anyhow::bail;
use portolan_dataplane::{
    DataplaneError, Kernel, KernelConfig, KubeProxyRules, OtherPlane as _, has_set,
};
use portolan_plan::Config;
use portolan_plan::kube_proxy::VIP_DEVICE;
use portolan_reconcile::{FormerIpvs, ipvs_marker_sets};

use super::set_table_aside;
use crate::args::RunArgs;

/// What our IPVS dataplane has left, if it has left anything.
pub(super) async fn former_ipvs(args: &RunArgs, config: &Config) -> Option<FormerIpvs<Kernel>> {
    let found = ipvs_marker_sets(config)
        .iter()
        .try_fold(false, |found, name| {
            Ok::<_, DataplaneError>(found || has_set(name)?)
        });
    match found {
        Ok(true) => {}
        Ok(false) => return None,
        Err(error) => {
            tracing::debug!(%error, "sets cannot be read");
            return None;
        }
    }
    let opened = async {
        let kernel_config = KernelConfig {
            load_modules: false,
            ..args.kernel_config()?
        };
        let kernel = Kernel::open(kernel_config).await?;
        let former = FormerIpvs::open(kernel, config.clone(), args.drain_timeout()).await?;
        anyhow::Ok(former)
    };
    match opened.await {
        Ok(former) => {
            tracing::info!("changing over from ipvs: its connections go on");
            Some(former)
        }
        Err(error) => {
            tracing::warn!("objects of ipvs stay, since they cannot be read: {error:#}");
            None
        }
    }
}

/// Keeps marks of the IPVS dataplane from packets that tables of our nftables dataplane translate.
pub(super) async fn unmark_tables(kernel: &mut Kernel, config: &Config) {
    let bits = config.short_circuit_mask.bits();
    if let Err(error) = kernel.unmark(bits).await {
        tracing::warn!(%error, "the tables of nftables cannot be prepared for ipvs");
    }
}

/// The rules of a kube-proxy in iptables or nftables mode, from which an agent with nftables shall take over. The
/// table of an earlier run may be older than they are.
pub(super) async fn rules_of_kube_proxy(
    args: &RunArgs,
    config: &Config,
) -> anyhow::Result<Option<KubeProxyRules>> {
    if args.takeover.is_none() {
        return Ok(None);
    }
    let mut rules = KubeProxyRules::open(&args.kernel_config()?)?;
    if rules.has_device(VIP_DEVICE).await? {
        bail!(
            "--takeover kube-proxy: a kube-proxy in IPVS mode has programmed this node: take over with \
             --dataplane ipvs, and then change over to nftables"
        );
    }
    if rules.read(&config.families).await?.is_empty() {
        return Ok(None);
    }
    set_table_aside(args)?;
    Ok(Some(rules))
}
