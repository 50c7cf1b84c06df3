// SPDX-License-Identifier: Apache-2.0

//! `portolan-agent cleanup --hand-over kube-proxy`: hand-over to a kube-proxy without a gap.

use std::collections::BTreeSet;

use anyhow::Context as _;
use portolan_dataplane::{Dataplane, KubeProxyObjects, REPLACEMENT_SET};
use portolan_model::NodeInfo;
use portolan_plan::kube_proxy::{HandOver, VIP_DEVICE};
use portolan_plan::{Config, rules};

/// Limit of addresses named in an error.
const NAMED: usize = 5;

/// Removes our objects that a kube-proxy, which has programmed the node, does not share.
///
/// # Errors
/// If no kube-proxy has programmed the node, or an object could not be removed.
pub(crate) async fn hand_over<D: Dataplane + KubeProxyObjects>(
    kernel: &mut D,
    config: &Config,
) -> anyhow::Result<()> {
    let bound = kernel.vip_device(VIP_DEVICE).await?;
    let bound = bound.with_context(|| {
        format!("--hand-over: there is no device {VIP_DEVICE}: kube-proxy has not begun yet")
    })?;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::net::IpAddr;
    use std::sync::Arc;

    use portolan_dataplane::FakeKernel;
    use portolan_model::ipset::{Set, SetHeader, SetKind};
    use portolan_model::ipvs::{VirtualServer, VirtualServerConfig, VirtualServerKey};
    use portolan_model::{Family, Protocol};
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
