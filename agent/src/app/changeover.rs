// SPDX-License-Identifier: Apache-2.0

//! Start of an agent on a node that another dataplane of ours has programmed.

use portolan_dataplane::{DataplaneError, Kernel, KernelConfig, OtherPlane as _, has_set};
use portolan_plan::Config;
use portolan_reconcile::{FormerIpvs, ipvs_marker_sets};

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
