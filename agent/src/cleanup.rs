// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent cleanup`: removal of our objects, in the reverse order of programming.
//!
//! Ours are the virtual servers in the ownership record, the routes with our protocol number, and the sets
//! and chains with our names; of a `Director` the sync daemons and announced routes in the state directory, and
//! proxy neighbours with our protocol number. Kernel settings stay: others may rely on them. With
//! `--hand-over kube-proxy` the objects that a kube-proxy has adopted stay too, and nothing goes that it does
//! not serve yet. Sets and chains that a kube-proxy may have by the same names stay on a node that has no record
//! of ours.

use portolan_dataplane::{
    Dataplane, DataplaneError, HostPlane, Kernel, KernelConfig, KubeProxyObjects, NftablesKernel,
    has_set,
};
use portolan_model::Family;
use portolan_plan::host::{HostDesired, Owned, plan_host};
use portolan_plan::kube_proxy::{VIP_DEVICE, takeover_marker};
use portolan_plan::{Config, RulesMode};
use portolan_reconcile::{NftablesReconciler, clear, ipvs_marker_sets};

use crate::args::{CleanupArgs, DataplaneKind};
use crate::director::{load_owned, save_owned};
use crate::kube_proxy::{hand_over, hand_over_tables};
use crate::state_lock::StateLock;

/// Cleans up, whatever dataplane is named: an agent may have been stopped while it changed over. The one that
/// is named must be there; of the other nothing may be.
///
/// # Errors
/// If an agent runs, the kernel cannot be read, or an object could not be removed.
pub async fn run(args: CleanupArgs) -> anyhow::Result<()> {
    if args.kernel.dataplane == DataplaneKind::Userspace {
        tracing::info!("nothing to clean up: sockets end with their agent");
        return Ok(());
    }
    // An agent that runs would program everything again.
    let lock = StateLock::of_cleanup(&args.state_dir)?;
    clean(&args, lock).await
}

/// Removes everything, or hands it over. The lock is held to the end, so that no agent starts meanwhile; `None` where no
/// agent can tell of itself.
async fn clean(args: &CleanupArgs, _lock: Option<StateLock>) -> anyhow::Result<()> {
    if args.hand_over.is_some() {
        return hand_over_node(args).await;
    }
    let ipvs = clean_ipvs(args).await;
    judge(args.kernel.dataplane, ipvs, clean_tables(args))
}

/// Hands the node over. Tables go by [`hand_over_tables`] alone, which asks whether a kube-proxy serves the same.
async fn hand_over_node(args: &CleanupArgs) -> anyhow::Result<()> {
    let named = args.kernel.dataplane;
    let (kernel, config) = (args.kernel.kernel_config()?, args.kernel.plan_config()?);
    let tables = find_tables(args)?;
    let has_tables = matches!(tables, Tables::There);
    // Tables behind IPVS are those of an agent that was stopped while it changed over.
    let has_sets = named == DataplaneKind::Ipvs && has_any(&ipvs_marker_sets(&config), has_set)?;
    let tables_are_next = match start(named, has_tables, has_sets) {
        Start::Tables => true,
        Start::Ipvs => after_ipvs(named, clean_ipvs(args).await?, tables)?,
        Start::Refused => anyhow::bail!(
            "--hand-over: this node is programmed by nftables: name --dataplane nftables"
        ),
    };
    if tables_are_next {
        hand_over_tables(&kernel, &config).await?;
    }
    Ok(())
}

/// The first step of a hand-over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Start {
    /// Tables of nftables, and nothing else.
    Tables,
    /// IPVS, and then tables that are still there.
    Ipvs,
    /// None: the dataplane that is named has not programmed the node.
    Refused,
}

/// Decides where a hand-over starts, by the dataplane that is named and those that have programmed the node.
fn start(named: DataplaneKind, has_tables: bool, has_sets: bool) -> Start {
    match (named, has_tables, has_sets) {
        (DataplaneKind::Nftables, _, _) | (DataplaneKind::Auto, true, _) => Start::Tables,
        (DataplaneKind::Ipvs, true, false) => Start::Refused,
        _ => Start::Ipvs,
    }
}

/// Returns `true` if tables are to be handed over after IPVS. Without IPVS they stay.
fn after_ipvs(named: DataplaneKind, ipvs: Cleaned, tables: Tables) -> anyhow::Result<bool> {
    let (ipvs, tables) = match (ipvs, tables) {
        (Cleaned::Done, Tables::There) => return Ok(true),
        (Cleaned::Absent(error), Tables::There) => return Err(error),
        (ipvs, Tables::None) => (ipvs, Cleaned::Done),
        (ipvs, Tables::Absent(error)) => (ipvs, Cleaned::Absent(error.into())),
    };
    judge(named, Ok(ipvs), Ok(tables))?;
    Ok(false)
}

/// The result of the cleanup of one dataplane.
#[derive(Debug)]
enum Cleaned {
    /// Nothing of it is left.
    Done,
    /// The host cannot have it, for this reason.
    Absent(anyhow::Error),
}

/// The result of the cleanup of both dataplanes. A host need not be able to have the one that is not named.
fn judge(
    named: DataplaneKind,
    ipvs: anyhow::Result<Cleaned>,
    tables: anyhow::Result<Cleaned>,
) -> anyhow::Result<()> {
    match (named, ipvs?, tables?) {
        (DataplaneKind::Ipvs, Cleaned::Absent(error), _)
        | (DataplaneKind::Nftables, _, Cleaned::Absent(error))
        | (DataplaneKind::Auto, Cleaned::Absent(error), Cleaned::Absent(_)) => Err(error),
        (_, ipvs, tables) => {
            for (dataplane, cleaned) in [("ipvs", ipvs), ("nftables", tables)] {
                if let Cleaned::Absent(error) = cleaned {
                    tracing::info!(dataplane, reason = %format!("{error:#}"), "nothing to clean up");
                }
            }
            tracing::info!("cleaned up");
            Ok(())
        }
    }
}

/// Our tables of nftables on a host.
#[derive(Debug)]
enum Tables {
    /// At least one is there.
    There,
    /// The host has none.
    None,
    /// The host cannot have any, for this reason.
    Absent(DataplaneError),
}

/// Looks for our tables of nftables.
fn find_tables(args: &CleanupArgs) -> anyhow::Result<Tables> {
    let mut kernel = match open_tables(args)? {
        Ok(kernel) => kernel,
        Err(error) => return Ok(Tables::Absent(error)),
    };
    match NftablesReconciler::families(&mut kernel)?.is_empty() {
        true => Ok(Tables::None),
        false => Ok(Tables::There),
    }
}

/// Removes our tables of nftables.
fn clean_tables(args: &CleanupArgs) -> anyhow::Result<Cleaned> {
    let mut kernel = match open_tables(args)? {
        Ok(kernel) => kernel,
        Err(error) => return Ok(Cleaned::Absent(error.into())),
    };
    let tables = NftablesReconciler::remove(&mut kernel)?;
    if tables > 0 {
        tracing::info!(tables, "tables of nftables removed");
    }
    Ok(Cleaned::Done)
}

/// Opens nftables, or returns the reason why the host has none.
fn open_tables(args: &CleanupArgs) -> anyhow::Result<Result<NftablesKernel, DataplaneError>> {
    let opened = NftablesKernel::open(args.kernel.kernel_config()?);
    Ok(opened.and_then(|mut kernel| {
        kernel.generation()?;
        Ok(kernel)
    }))
}

/// Removes the objects of our IPVS dataplane.
async fn clean_ipvs(args: &CleanupArgs) -> anyhow::Result<Cleaned> {
    let mut config = args.kernel.plan_config()?;
    let opened = Kernel::open(KernelConfig {
        // A director that needs no rules may be on a host without iptables.
        rules_mode: RulesMode::OnDemand,
        // Where it is not asked for, nothing is loaded to find nothing.
        load_modules: args.kernel.dataplane == DataplaneKind::Ipvs,
        ..args.kernel.kernel_config()?
    });
    let mut kernel = match opened.await {
        Ok(kernel) => kernel,
        Err(error) => return Ok(Cleaned::Absent(error.into())),
    };
    let mut removable = Vec::new();
    for family in Family::ALL {
        match kernel.probe_rules(family).await {
            Ok(()) => removable.push(family),
            Err(error) => tracing::warn!("{family} rules are not removed: {error}"),
        }
    }
    if args.hand_over.is_some() {
        config.families = removable.into_iter().collect();
        hand_over(&mut kernel, &config).await?;
        return Ok(Cleaned::Done);
    }
    // A director gives its addresses up before its virtual servers go.
    let owned = load_owned(&args.state_dir);
    let host = clean_host(&mut kernel, &owned).await;
    if host.is_ok() {
        let stands_by = owned.stands_by;
        let nothing = Owned {
            stands_by,
            ..Owned::default()
        };
        if nothing != owned {
            save_owned(&args.state_dir, &nothing)?;
        }
    }
    let has_sets = has_any(&own_sets(&config), has_set)?;
    let named = args.kernel.dataplane;
    clear_ours(&mut kernel, named, &config, &removable, has_sets).await?;
    host.map(|()| Cleaned::Done)
}

/// Clears the node of IPVS, unless nothing there is ours. A kube-proxy has sets and chains of the same names,
/// which it would miss until its next whole sync.
async fn clear_ours(
    kernel: &mut (impl Dataplane + KubeProxyObjects),
    named: DataplaneKind,
    config: &Config,
    removable: &[Family],
    has_sets: bool,
) -> anyhow::Result<()> {
    let is_named = named == DataplaneKind::Ipvs;
    // The device is a kube-proxy's alone.
    if has_sets || (is_named && kernel.vip_device(VIP_DEVICE).await?.is_none()) {
        let steps = clear(kernel, config, removable).await?;
        tracing::info!(steps, "objects of IPVS removed");
    } else {
        tracing::info!(
            dataplane = "ipvs",
            "nothing to clean up: no object is recorded as ours"
        );
    }
    Ok(())
}

/// Sets of which one exists as long as the node has objects of our IPVS dataplane: [`clear`] destroys them last.
fn own_sets(config: &Config) -> Vec<String> {
    let mut sets = ipvs_marker_sets(config);
    sets.push(takeover_marker(&config.names));
    sets
}

/// Returns `true` if one of these sets exists.
fn has_any<E>(sets: &[String], has: impl Fn(&str) -> Result<bool, E>) -> Result<bool, E> {
    for set in sets {
        if has(set)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Removes what a `Director` has made: announced routes, proxy neighbours, and sync daemons that are still as it
/// started them.
async fn clean_host(kernel: &mut impl HostPlane, owned: &Owned) -> anyhow::Result<()> {
    let nothing = HostDesired::default();
    let observed = kernel.observe_host(&nothing, owned).await?;
    let (steps, _) = plan_host(&nothing, &observed, owned);
    let failed = kernel.apply_host(&steps).await;
    for (step, error) in &failed {
        tracing::error!("{step}: {error}");
    }
    anyhow::ensure!(
        failed.is_empty(),
        "{} of {} settings of the host could not be removed",
        failed.len(),
        steps.len()
    );
    if !steps.is_empty() {
        tracing::info!(settings = steps.len(), "settings of the host removed");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
