// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent cleanup`: removal of our objects, in the reverse order of programming.
//!
//! Ours are the virtual servers in the ownership record, the routes with our protocol number, and the sets
//! and chains with our names; of a `Director` the sync daemons and announced routes in the state directory, and
//! proxy neighbours with our protocol number. Kernel settings stay: others may rely on them. With
//! `--hand-over kube-proxy` the objects that a kube-proxy has adopted stay too, and nothing goes that it does
//! not serve yet.

use portolan_dataplane::{HostPlane, Kernel, KernelConfig, NftablesKernel};
use portolan_model::Family;
use portolan_plan::RulesMode;
use portolan_plan::host::{HostDesired, Owned, plan_host};
use portolan_reconcile::{NftablesReconciler, clear};

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
    if args.hand_over.is_some() && has_tables(args)? {
        return hand_over_tables(&args.kernel.kernel_config()?, &args.kernel.plan_config()?).await;
    }
    let ipvs = clean_ipvs(args).await;
    if args.hand_over.is_some() && ipvs.is_err() {
        // Nothing else goes before its place is taken.
        return ipvs.map(drop);
    }
    judge(args.kernel.dataplane, ipvs, clean_tables(args))
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

/// Removes our tables of nftables.
fn clean_tables(args: &CleanupArgs) -> anyhow::Result<Cleaned> {
    let mut kernel = match NftablesKernel::open(args.kernel.kernel_config()?) {
        Ok(kernel) => kernel,
        Err(error) => return Ok(Cleaned::Absent(error.into())),
    };
    if let Err(error) = kernel.generation() {
        return Ok(Cleaned::Absent(error.into()));
    }
    let tables = NftablesReconciler::remove(&mut kernel)?;
    if tables > 0 {
        tracing::info!(tables, "tables of nftables removed");
    }
    Ok(Cleaned::Done)
}

/// Returns `true` if a hand-over is from nftables: the dataplane that is named or, with `auto`, that is there.
fn has_tables(args: &CleanupArgs) -> anyhow::Result<bool> {
    let has_any = || {
        let mut kernel = NftablesKernel::open(args.kernel.kernel_config()?)?;
        Ok(!NftablesReconciler::families(&mut kernel)?.is_empty())
    };
    match args.kernel.dataplane {
        DataplaneKind::Nftables => Ok(true),
        DataplaneKind::Auto => has_any(),
        DataplaneKind::Ipvs | DataplaneKind::Userspace => Ok(false),
    }
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
    let steps = clear(&mut kernel, &config, &removable).await?;
    tracing::info!(steps, "objects of IPVS removed");
    host.map(|()| Cleaned::Done)
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
mod tests {
    use std::collections::BTreeMap;
    use std::net::IpAddr;
    use std::sync::Arc;

    use portolan_dataplane::FakeKernel;
    use portolan_model::Protocol;
    use portolan_model::ipset::{Set, SetEntry, SetHeader, SetKind};
    use portolan_model::ipvs::{
        SyncDaemon, SyncRole, VirtualServer, VirtualServerConfig, VirtualServerKey,
    };
    use portolan_plan::host::{HostState, Neighbour};
    use portolan_plan::{Config, ownership_entry};

    use super::*;

    fn vip() -> IpAddr {
        "10.96.0.1".parse().unwrap()
    }

    fn set(entries: &[SetEntry]) -> Set {
        let header = SetHeader {
            kind: SetKind::HashIpPort,
            family: Family::V4,
            max_entries: 65_536,
        };
        Set {
            header,
            entries: entries.iter().cloned().collect(),
        }
    }

    #[test]
    fn a_dataplane_that_could_not_be_removed_is_an_error_also_if_it_is_not_named() {
        let done = || Ok(Cleaned::Done);
        let absent = || Ok(Cleaned::Absent(anyhow::anyhow!("no module")));
        let failed = || Err(anyhow::anyhow!("busy"));
        let said = |named, ipvs, tables| {
            let judged = judge(named, ipvs, tables);
            judged.map_err(|error: anyhow::Error| error.to_string())
        };
        let busy = || Err("busy".to_owned());
        for named in [
            DataplaneKind::Ipvs,
            DataplaneKind::Nftables,
            DataplaneKind::Auto,
        ] {
            assert_eq!(said(named, done(), done()), Ok(()));
            assert_eq!(said(named, failed(), done()), busy());
            assert_eq!(said(named, done(), failed()), busy());
            assert_eq!(said(named, absent(), failed()), busy());
        }
        let missing = || Err("no module".to_owned());
        assert_eq!(said(DataplaneKind::Ipvs, absent(), done()), missing());
        assert_eq!(said(DataplaneKind::Ipvs, done(), absent()), Ok(()));
        assert_eq!(said(DataplaneKind::Nftables, done(), absent()), missing());
        assert_eq!(said(DataplaneKind::Nftables, absent(), done()), Ok(()));
        assert_eq!(said(DataplaneKind::Auto, absent(), done()), Ok(()));
        assert_eq!(said(DataplaneKind::Auto, absent(), absent()), missing());
    }

    #[tokio::test]
    async fn our_objects_go_and_foreign_ones_stay() {
        let key = |port| VirtualServerKey::new(Protocol::Tcp, vip(), port);
        let mark = |mark| VirtualServerKey::Mark {
            family: Family::V4,
            mark,
        };
        let config = VirtualServerConfig::round_robin();
        let server = VirtualServer {
            config: config.into(),
            real_servers: Arc::default(),
        };
        let ours = [ownership_entry(&key(80)), ownership_entry(&mark(1))];
        let mut kernel = FakeKernel::default();
        kernel.state.sets = BTreeMap::from([
            ("KUBE-PORTOLAN-OWNED".to_owned(), set(&ours)),
            ("KUBE-CLUSTER-IP".to_owned(), set(&ours[..1])),
            ("PORTOLAN-REPLACEMENT".to_owned(), set(&[])),
            ("somebody-elses".to_owned(), set(&[])),
        ]);
        kernel.state.virtual_servers = [key(80), key(81), mark(1), mark(2)]
            .map(|key| (key, server.clone()))
            .into();
        kernel.state.routes = BTreeMap::from([(vip(), None)]);

        clear(&mut kernel, &Config::default(), &Family::ALL)
            .await
            .unwrap();
        assert_eq!(
            kernel.state.virtual_servers,
            BTreeMap::from([(key(81), server.clone()), (mark(2), server)])
        );
        assert_eq!(
            kernel.state.sets.keys().collect::<Vec<_>>(),
            ["somebody-elses"]
        );
        assert!(kernel.state.routes.is_empty());
    }

    #[tokio::test]
    async fn what_a_director_made_goes_and_an_operators_daemon_stays() {
        let ours = SyncDaemon::new("eth0");
        let operators = SyncDaemon {
            id: 7,
            ..SyncDaemon::new("eth1")
        };
        let neighbour = Neighbour {
            interface: "eth0".to_owned(),
            address: "2001:db8::1".parse().unwrap(),
        };
        let mut kernel = FakeKernel::default();
        kernel.host.state = HostState {
            daemons: [
                (SyncRole::Master, ours.clone()),
                (SyncRole::Backup, operators.clone()),
            ]
            .into(),
            neighbours: [neighbour].into(),
            announced: [(199, vip())].into(),
            ..HostState::default()
        };
        // The agent had started both roles; somebody has started another backup since.
        let owned = Owned {
            daemons: SyncRole::ALL.map(|role| (role, ours.clone())).into(),
            tables: [199].into(),
            stands_by: false,
        };
        clean_host(&mut kernel, &owned).await.unwrap();
        let left = HostState {
            daemons: [(SyncRole::Backup, operators)].into(),
            ..HostState::default()
        };
        assert_eq!(kernel.host.state, left);
        clean_host(&mut kernel, &Owned::default()).await.unwrap();
        assert_eq!(kernel.host.applied.len(), 3, "{:?}", kernel.host.applied);
    }
}
