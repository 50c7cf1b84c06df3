// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent cleanup --hand-over kube-proxy`: hand-over to a kube-proxy without a gap.

use std::collections::BTreeSet;

use portolan_dataplane::{
    Dataplane, KernelConfig, KubeProxyObjects, KubeProxyRules, NftablesKernel, REPLACEMENT_SET,
    has_set,
};
use portolan_model::NodeInfo;
use portolan_model::ipvs::VirtualServerKey;
use portolan_plan::kube_proxy::{HandOver, ServedByKubeProxy, VIP_DEVICE};
use portolan_plan::{Config, rules};
use portolan_reconcile::{NftablesReconciler, ipvs_marker_sets};

/// Limit of addresses named in an error.
const NAMED: usize = 5;

/// Removes our objects of IPVS that a kube-proxy in IPVS mode, which has programmed the node, does not share.
///
/// # Errors
/// If no kube-proxy in that mode has programmed the node, or an object could not be removed.
pub(crate) async fn hand_over<D: Dataplane + KubeProxyObjects>(
    kernel: &mut D,
    config: &Config,
) -> anyhow::Result<()> {
    let bound = match kernel.vip_device(VIP_DEVICE).await? {
        Some(bound) => bound,
        None => return Err(without_device(kernel, config).await),
    };
    let mut observed = kernel.observe().await?;
    observed.recover(&config.names, &BTreeSet::new());
    let plan = HandOver::new(&observed, &bound, config);
    for (family, ours) in &plan.rules {
        kernel.remove_rules(ours, *family).await?;
        let all = rules(*family, config, &NodeInfo::default());
        kernel.remove_second_jumps(&all, *family).await?;
    }
    let errors = kernel.apply(&plan.steps).await;
    for error in &errors {
        tracing::error!("{}: {}", plan.steps[error.index], error.message);
    }
    let (failed, steps) = (errors.len(), plan.steps.len());
    anyhow::ensure!(errors.is_empty(), "{failed} of {steps} steps failed");
    if !plan.unbound.is_empty() {
        let named = plan.unbound.iter().take(NAMED).map(ToString::to_string);
        anyhow::bail!(
            "{} virtual addresses are not on {VIP_DEVICE} and keep their routes ({} ...): if \
             kube-proxy is not through yet, run this again when it is",
            plan.unbound.len(),
            named.collect::<Vec<_>>().join(", ")
        );
    }
    let mut sets = plan.sets;
    sets.push(REPLACEMENT_SET.to_owned());
    kernel.destroy_sets(&sets).await?;
    tracing::info!(steps, "handed over to kube-proxy");
    Ok(())
}

/// The reason why there is no device of a kube-proxy in IPVS mode.
async fn without_device<D: KubeProxyObjects>(kernel: &mut D, config: &Config) -> anyhow::Error {
    let rules = kernel.packet_rules(&config.families).await;
    let mode = rules.ok().and_then(|rules| rules.modes.first().copied());
    match mode {
        Some(mode) => anyhow::anyhow!(
            "--hand-over: this node has a kube-proxy in {} mode, which shares nothing with IPVS: run the agent \
             with --dataplane nftables until IPVS has retired, then hand over with that flag",
            mode.as_str()
        ),
        None => anyhow::anyhow!(
            "--hand-over: there is no device {VIP_DEVICE}: kube-proxy has not begun yet"
        ),
    }
}

/// Deletes our tables, with which a kube-proxy in any mode shares nothing, once it serves what they do.
///
/// # Errors
/// If it does not yet, if IPVS still serves connections of before, or a table cannot be deleted.
pub(crate) async fn hand_over_tables(kernel: &KernelConfig, config: &Config) -> anyhow::Result<()> {
    let retiring = ipvs_marker_sets(config);
    anyhow::ensure!(
        !retiring.iter().any(|set| has_set(set).unwrap_or(false)),
        "--hand-over: IPVS has connections of an earlier agent: it retires while an agent with --dataplane \
         nftables runs, at most for its --drain-timeout"
    );
    let mut tables = NftablesKernel::open(kernel.clone())?;
    let families = NftablesReconciler::families(&mut tables)?;
    if families.is_empty() {
        tracing::info!("nothing to hand over: this node has no table of --dataplane nftables");
        return Ok(());
    }
    let theirs = KubeProxyRules::open(kernel)?.served(&families).await?;
    let ours = NftablesReconciler::served(&mut tables).await?;
    ensure_served(&ours, &theirs)?;
    let tables = NftablesReconciler::remove(&mut tables)?;
    tracing::info!(tables, "handed over to kube-proxy");
    Ok(())
}

/// Fails unless a kube-proxy serves all of ours.
fn ensure_served(
    ours: &BTreeSet<VirtualServerKey>,
    theirs: &ServedByKubeProxy,
) -> anyhow::Result<()> {
    anyhow::ensure!(
        !theirs.is_empty(),
        "--hand-over: kube-proxy has not begun yet: it has neither rules nor the device {VIP_DEVICE}"
    );
    let lacking: Vec<_> = ours.iter().filter(|key| !theirs.serves(key)).collect();
    let named = lacking.iter().take(NAMED).map(ToString::to_string);
    anyhow::ensure!(
        lacking.is_empty(),
        "--hand-over: kube-proxy does not serve {} of {} addresses and ports ({} ...), so that all tables \
         stay: run this again when it is through; a cleanup without --hand-over gives these up",
        lacking.len(),
        ours.len(),
        named.collect::<Vec<_>>().join(", ")
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;
    use std::sync::Arc;

    use portolan_dataplane::FakeKernel;
    use portolan_model::ipset::{Set, SetHeader, SetKind};
    use portolan_model::ipvs::{VirtualServer, VirtualServerConfig, VirtualServerKey};
    use portolan_model::{Family, Protocol};
    use portolan_plan::kube_proxy::RuleMode;
    use portolan_plan::ownership_entry;

    use super::*;

    fn vip(last: u8) -> IpAddr {
        [10, 96, 0, last].into()
    }

    fn kernel() -> FakeKernel {
        let mark = VirtualServerKey::Mark {
            family: Family::V4,
            mark: 0x1_0000,
        };
        let keys = [1, 2].map(|last| VirtualServerKey::new(Protocol::Tcp, vip(last), 80));
        let server = VirtualServer {
            config: VirtualServerConfig::round_robin().into(),
            real_servers: Arc::default(),
        };
        let header = SetHeader {
            kind: SetKind::HashIpPort,
            family: Family::V4,
            max_entries: 65_536,
        };
        let set = Set {
            header,
            entries: [mark, keys[0], keys[1]]
                .iter()
                .map(ownership_entry)
                .collect(),
        };
        let mut kernel = FakeKernel::default();
        let names = [
            "KUBE-PORTOLAN-OWNED",
            "KUBE-CLUSTER-IP",
            "KUBE-NO-LOCAL",
            "PORTOLAN-REPLACEMENT",
        ];
        kernel.state.sets = names.map(|name| (name.to_owned(), set.clone())).into();
        kernel.state.virtual_servers = [mark, keys[0], keys[1]]
            .map(|key| (key, server.clone()))
            .into();
        kernel.state.routes = [1, 2, 3].map(|last| (vip(last), None)).into();
        kernel
    }

    #[tokio::test]
    async fn shared_objects_stay_and_the_rest_goes() {
        let mut kernel = kernel();
        let bound = BTreeSet::from([vip(1), vip(2)]);
        kernel.devices.insert(VIP_DEVICE.to_owned(), bound.clone());
        hand_over(&mut kernel, &Config::default()).await.unwrap();
        let servers: Vec<_> = kernel.state.virtual_servers.keys().collect();
        assert!(
            servers.iter().all(|key| key.mark().is_none()),
            "{servers:?}"
        );
        assert_eq!(servers.len(), 2);
        assert!(kernel.state.routes.is_empty());
        let sets: Vec<_> = kernel.state.sets.keys().collect();
        assert_eq!(sets, ["KUBE-CLUSTER-IP"]);
        assert_eq!(kernel.devices[VIP_DEVICE], bound);
        let chain = |name: &str| (Family::V4, format!("KUBE-{name}"));
        assert!(kernel.removed_chains.contains(&chain("LOCAL-POLICY")));
        assert!(!kernel.removed_chains.contains(&chain("SERVICES")));
    }

    #[test]
    fn tables_stay_until_a_kube_proxy_in_any_mode_serves_what_they_do() {
        let key = |last, port| VirtualServerKey::new(Protocol::Tcp, vip(last), port);
        let ours = BTreeSet::from([key(1, 80), key(2, 80)]);
        let error = |theirs: &ServedByKubeProxy| {
            ensure_served(&ours, theirs).map_err(|error| error.to_string())
        };
        let found = error(&ServedByKubeProxy::default()).unwrap_err();
        assert!(found.contains("has not begun"), "{found}");

        let mut theirs = ServedByKubeProxy::default();
        theirs.rules.modes.insert(RuleMode::Nftables);
        theirs.rules.frontends = [key(1, 80), key(2, 81)].into();
        let found = error(&theirs).unwrap_err();
        assert!(found.contains("1 of 2"), "{found}");
        assert!(found.contains("10.96.0.2:80"), "{found}");
        theirs.rules.frontends.insert(key(2, 80));
        assert_eq!(error(&theirs), Ok(()));

        let mut theirs = ServedByKubeProxy {
            device: Some([vip(1)].into()),
            ..ServedByKubeProxy::default()
        };
        assert!(error(&theirs).is_err());
        theirs.device = Some([vip(1), vip(2)].into());
        assert_eq!(error(&theirs), Ok(()));
    }

    #[tokio::test]
    async fn a_kube_proxy_that_shares_nothing_with_ipvs_is_named() {
        let mut kernel = kernel();
        kernel.packet_rules.modes.insert(RuleMode::Iptables);
        let before = kernel.state.clone();
        let error = hand_over(&mut kernel, &Config::default()).await;
        let error = error.unwrap_err().to_string();
        assert!(error.contains("iptables mode"), "{error}");
        assert_eq!(kernel.state, before);
    }

    #[tokio::test]
    async fn objects_stay_until_a_kube_proxy_has_programmed_them() {
        let mut kernel = kernel();
        let before = kernel.state.clone();
        let error = hand_over(&mut kernel, &Config::default())
            .await
            .unwrap_err();
        assert!(error.to_string().contains("kube-ipvs0"), "{error}");
        assert_eq!(kernel.state, before);

        let bound = BTreeSet::from([vip(1)]);
        kernel.devices.insert(VIP_DEVICE.to_owned(), bound);
        let error = hand_over(&mut kernel, &Config::default())
            .await
            .unwrap_err();
        assert!(error.to_string().contains("10.96.0.2"), "{error}");
        // The third address has no virtual server.
        assert_eq!(kernel.state.routes.keys().collect::<Vec<_>>(), [&vip(2)]);
        assert!(kernel.state.sets.contains_key("KUBE-PORTOLAN-OWNED"));
    }
}
