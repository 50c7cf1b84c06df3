// SPDX-License-Identifier: Apache-2.0

//! Starts of agents that program the kernel, by their dataplanes.

use anyhow::Context as _;
use portolan_dataplane::{
    Dataplane as _, DataplaneError, Kernel, KernelConfig, KubeProxyObjects, NftablesKernel,
    settings_at_start, settings_without_ipvs,
};
use portolan_model::Families;
use portolan_plan::kube_proxy::VIP_DEVICE;
use portolan_plan::kube_proxy::packet_rules::shares_names;
use portolan_plan::{Config, RulesMode};
use portolan_runtime::Vital;
use portolan_source::file;

use super::changeover::{
    AfterIpvs, former_ipvs, must_take_over_first, rules_of_kube_proxy, unmark_tables,
};
use super::{DEFAULT_SCHEDULER, Parts, Place, start};
use crate::args::{RunArgs, Source};
use crate::director;
use crate::families;
use crate::subscribe::set_aside;
use crate::sync::{NftablesReconciler, Reconciler, Succession};
use crate::trace::{Plane, PlaneKind};

/// Starts an agent that programs IPVS.
pub(super) async fn start_ipvs(
    args: &RunArgs,
    place: Place,
    config: Config,
    (kernel, families): (Kernel, Families),
    vital: &Vital,
) -> anyhow::Result<()> {
    let (kernel, config) = prepare_ipvs(args, config, (kernel, families)).await?;
    let parts = Parts {
        plane: Some(plane(PlaneKind::Ipvs, args, &config)?),
        settings: settings_at_start(&args.tune.tuning(), config.rules_mode),
        reconciler: Reconciler::new(kernel, config),
        families,
        place,
    };
    start(args, parts, vital).await
}

/// Prepares a kernel to be programmed with IPVS.
async fn prepare_ipvs(
    args: &RunArgs,
    mut config: Config,
    (mut kernel, families): (Kernel, Families),
) -> anyhow::Result<(Kernel, Config)> {
    kernel.prepare().await?;
    config.families = families.iter().collect();
    settle_rules(&mut kernel, &mut config).await?;
    unmark_tables(&mut kernel, &config).await;
    config.binds_balancers = !director::load_owned(&args.state_dir).stands_by;
    set_older_table_aside(args, &config, &mut kernel).await?;
    Ok((kernel, config))
}

/// Starts an agent that programs nftables.
pub(super) async fn start_nftables(
    args: &RunArgs,
    place: Place,
    config: Config,
    (mut kernel, families): (NftablesKernel, Families),
    vital: &Vital,
) -> anyhow::Result<()> {
    kernel.prepare()?;
    let after = Config {
        families: families.iter().collect(),
        ..config.clone()
    };
    let plane = plane(PlaneKind::Nftables, args, &after)?;
    let settings = settings_without_ipvs(&args.tune.tuning());
    if must_take_over_first(args, &config).await? {
        // Opened again when its turn comes.
        drop(kernel);
        let first = ipvs_before_nftables(args, config).await?;
        let parts = Parts {
            plane: Some(plane),
            reconciler: Succession::new(first, AfterIpvs::new(args, &after)?),
            settings,
            families,
            place,
        };
        return start(args, parts, vital).await;
    }
    let former = former_ipvs(args, &after).await;
    let kube_proxy = rules_of_kube_proxy(args, &after).await?;
    let parts = Parts {
        plane: Some(plane),
        reconciler: NftablesReconciler::new(kernel, after)
            .after(former)
            .taking_over(kube_proxy),
        settings,
        families,
        place,
    };
    start(args, parts, vital).await
}

/// IPVS that takes over from a kube-proxy, so that nftables can change over from it.
async fn ipvs_before_nftables(
    args: &RunArgs,
    config: Config,
) -> anyhow::Result<Reconciler<Kernel>> {
    tracing::info!("takes over from a kube-proxy in IPVS mode: by ipvs first, then changing over");
    let opened = open_ipvs(args, config.scheduler.unwrap_or(DEFAULT_SCHEDULER)).await;
    let opened = opened.context("--takeover kube-proxy: its virtual servers")?;
    let (kernel, config) = prepare_ipvs(args, config, opened).await?;
    Ok(Reconciler::new(kernel, config))
}

/// Returns the dataplane of the kernel, for callers that only read it.
fn plane(kind: PlaneKind, args: &RunArgs, config: &Config) -> anyhow::Result<Plane> {
    Ok(Plane {
        kind,
        config: config.clone(),
        kernel: args.kernel_config()?,
    })
}

/// [`open_ipvs`], for commands that need it. `load_modules` loads those that the kernel lacks.
pub(crate) async fn open_kernel(
    args: &RunArgs,
    scheduler: &str,
    load_modules: bool,
) -> anyhow::Result<(Kernel, Families)> {
    args.needs_ipvs()?;
    let config = KernelConfig {
        load_modules,
        ..args.kernel_config()?
    };
    open_with(args, scheduler, config).await
}

/// Opens the kernel for IPVS, and determines the families that are served.
pub(crate) async fn open_ipvs(
    args: &RunArgs,
    scheduler: &str,
) -> anyhow::Result<(Kernel, Families)> {
    open_with(args, scheduler, args.kernel_config()?).await
}

async fn open_with(
    args: &RunArgs,
    scheduler: &str,
    config: KernelConfig,
) -> anyhow::Result<(Kernel, Families)> {
    let opened = Kernel::open(KernelConfig {
        rules_mode: rules_mode(args),
        ..config
    });
    let mut kernel = opened.await.context("this node can serve nothing")?;
    let families = families::settle(&mut kernel, args.families, scheduler).await?;
    Ok((kernel, families))
}

/// Load balancers seldom need rules. Services of Kubernetes do, and a takeover has to find those of a kube-proxy.
fn rules_mode(args: &RunArgs) -> RulesMode {
    let is_director = args.source == Source::File && file::have_directors_alone(&args.file);
    match is_director && args.takeover.is_none() {
        true => RulesMode::OnDemand,
        false => RulesMode::Always,
    }
}

/// Chooses the marks of the rules, so that they collide with no other program's. With rules on demand this is left
/// to the first reconciliation that needs some.
pub(crate) async fn settle_rules(kernel: &mut Kernel, config: &mut Config) -> anyhow::Result<()> {
    config.rules_mode = kernel.rules_mode();
    if config.rules_mode == RulesMode::Always {
        config.short_circuit_mask = kernel.choose_marks(config).await?;
    }
    kernel.end_probes().await?;
    Ok(())
}

/// Sets the table of an earlier run aside if a kube-proxy has programmed the node since: by the old table its virtual
/// servers, or its rules, would be deleted although newer Services need them.
async fn set_older_table_aside(
    args: &RunArgs,
    config: &Config,
    kernel: &mut impl KubeProxyObjects,
) -> anyhow::Result<()> {
    if args.takeover.is_some() && has_kube_proxy(config, kernel).await? {
        set_table_aside(args)?;
    }
    Ok(())
}

/// Returns `true` if a kube-proxy in any mode has programmed the node.
async fn has_kube_proxy(
    config: &Config,
    kernel: &mut impl KubeProxyObjects,
) -> Result<bool, DataplaneError> {
    if kernel.vip_device(VIP_DEVICE).await?.is_some() {
        return Ok(true);
    }
    if !shares_names(&config.names) {
        return Ok(false);
    }
    match kernel.packet_rules(&config.families).await {
        Ok(rules) => Ok(!rules.is_empty()),
        Err(error) => {
            // A node that boots without a controller needs its table.
            tracing::warn!(%error, "rules of a kube-proxy cannot be read: the table of an earlier run is used");
            Ok(false)
        }
    }
}

pub(super) fn set_table_aside(args: &RunArgs) -> anyhow::Result<()> {
    let aside = set_aside(&args.state_dir);
    if aside.with_context(|| args.state_dir.display().to_string())? {
        tracing::info!("takes over: the table of an earlier run is set aside as table.old");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use portolan_dataplane::FakeKernel;
    use portolan_plan::kube_proxy::RuleMode;

    use super::*;

    #[tokio::test]
    async fn a_kube_proxy_is_found_in_every_mode() {
        let config = Config::default();
        let mut kernel = FakeKernel::default();
        assert!(!has_kube_proxy(&config, &mut kernel).await.unwrap());
        for mode in [RuleMode::Iptables, RuleMode::Nftables] {
            let mut kernel = FakeKernel::default();
            kernel.packet_rules.modes.insert(mode);
            assert!(has_kube_proxy(&config, &mut kernel).await.unwrap());
        }
        kernel.devices.insert(VIP_DEVICE.to_owned(), [].into());
        assert!(has_kube_proxy(&config, &mut kernel).await.unwrap());
    }
}
