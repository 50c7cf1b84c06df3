// SPDX-License-Identifier: Apache-2.0

//! Start of an agent on a node that another dataplane of ours, or a kube-proxy, has programmed.

use std::time::Duration;

use portolan_dataplane::{
    DataplaneError, Kernel, KernelConfig, KubeProxyRules, NftablesKernel, OtherPlane as _, has_set,
};
use portolan_plan::Config;
use portolan_plan::kube_proxy::{self, VIP_DEVICE, takeover_marker};
use portolan_reconcile::{FormerIpvs, ipvs_marker_sets};

use super::planes::set_table_aside;
use crate::args::RunArgs;
use crate::sync::{NftablesReconciler, Opens};

/// Objects that our IPVS dataplane has left; `None` if there are none, or they cannot be read and so stay.
pub(super) async fn former_ipvs(args: &RunArgs, config: &Config) -> Option<FormerIpvs<Kernel>> {
    if !has_any(&ipvs_marker_sets(config)) {
        return None;
    }
    let found = async { AfterIpvs::new(args, config)?.former().await };
    let found = found.await;
    if let Err(error) = &found {
        tracing::warn!("objects of ipvs stay, since they cannot be read: {error:#}");
    }
    found.ok()
}

/// Returns `true` if the kernel has one of these sets.
fn has_any(sets: &[String]) -> bool {
    let has = |found, name: &String| Ok::<_, DataplaneError>(found || has_set(name)?);
    sets.iter().try_fold(false, has).unwrap_or_else(|error| {
        tracing::debug!(%error, "sets cannot be read");
        false
    })
}

/// Nftables that change over from our IPVS dataplane.
#[derive(Debug)]
pub(super) struct AfterIpvs {
    kernel: KernelConfig,
    config: Config,
    patience: Duration,
}

impl AfterIpvs {
    pub(super) fn new(args: &RunArgs, config: &Config) -> anyhow::Result<Self> {
        Ok(Self {
            kernel: args.kernel_config()?,
            config: config.clone(),
            patience: args.drain_timeout(),
        })
    }

    /// Objects that our IPVS dataplane has left.
    async fn former(&self) -> anyhow::Result<FormerIpvs<Kernel>> {
        let kernel = Kernel::open(KernelConfig {
            load_modules: false,
            ..self.kernel.clone()
        });
        let former = FormerIpvs::open(kernel.await?, self.config.clone(), self.patience).await?;
        tracing::info!("changing over from ipvs: its connections go on");
        Ok(former)
    }
}

impl Opens for AfterIpvs {
    type Engine = NftablesReconciler;

    async fn open(&mut self) -> anyhow::Result<NftablesReconciler> {
        let kernel = NftablesKernel::open(self.kernel.clone())?;
        let former = self.former().await?;
        Ok(NftablesReconciler::new(kernel, self.config.clone()).after(Some(former)))
    }
}

/// Whether IPVS must take over before nftables can serve this node: [`kube_proxy::must_take_over_first`].
pub(crate) async fn must_take_over_first(args: &RunArgs, config: &Config) -> anyhow::Result<bool> {
    let has_marker = has_any(&[takeover_marker(&config.names)]);
    let asked = args.takeover.is_some();
    let has_device = match asked {
        true => {
            let mut kernel = KubeProxyRules::open(&args.kernel_config()?)?;
            kernel.has_device(VIP_DEVICE).await?
        }
        false => false,
    };
    Ok(kube_proxy::must_take_over_first(
        has_marker, has_device, asked,
    ))
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
    if rules.read(&config.families).await?.is_empty() {
        return Ok(None);
    }
    set_table_aside(args)?;
    Ok(Some(rules))
}
