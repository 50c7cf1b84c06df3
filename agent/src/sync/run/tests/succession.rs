// SPDX-License-Identifier: Apache-2.0

//! Takeovers from a kube-proxy in IPVS mode to nftables, with IPVS in between.

use portolan_model::ipset::{Set, SetEntry, SetHeader, SetKind};
use portolan_model::ipvs::{RealServerConfig, VirtualServer, VirtualServerConfig};
use portolan_plan::host::Host;
use portolan_plan::kube_proxy::{VIP_DEVICE, must_take_over_first, takeover_marker};
use portolan_reconcile::{FormerIpvs, HostOutcome};

use super::others::metric;
use super::*;
use crate::sync::{Counts, Opens, Succession};

const PATIENCE: Duration = Duration::from_secs(900);
/// The address of a Service of the kube-proxy that the table lacks.
const GONE: [u8; 4] = [10, 96, 0, 2];

fn gone() -> VirtualServerKey {
    VirtualServerKey::new(Protocol::Tcp, GONE.into(), 80)
}

/// A kernel with what a kube-proxy has left: a Service of the table with an open connection, and another one.
fn left() -> Shared {
    let mut kernel = FakeKernel::default();
    let server = VirtualServer {
        config: VirtualServerConfig::round_robin().into(),
        real_servers: Arc::new([(STAYS.parse().unwrap(), RealServerConfig::masquerade(1))].into()),
    };
    let keys = [key(Protocol::Tcp), gone()];
    kernel.state.virtual_servers = keys.map(|key| (key, server.clone())).into();
    let header = SetHeader {
        kind: SetKind::HashIpPort,
        family: Family::V4,
        max_entries: 65_536,
    };
    let addresses = keys.map(|key| key.socket().unwrap().ip());
    let entry = |ip| SetEntry::IpPort(ip, Protocol::Tcp, 80);
    let entries = addresses.map(entry).into();
    let set = Set { header, entries };
    // The second one has no counterpart of ours.
    let names = ["KUBE-CLUSTER-IP", "KUBE-LOAD-BALANCER-SOURCE-IP"];
    kernel.state.sets = names.map(|name| (name.to_owned(), set.clone())).into();
    kernel
        .devices
        .insert(VIP_DEVICE.to_owned(), addresses.into());
    let open = Connections {
        active: 1,
        ..Connections::default()
    };
    let at = (key(Protocol::Tcp), STAYS.parse().unwrap());
    kernel.connections.insert(at, open);
    Shared(Arc::new(Mutex::new(kernel)))
}

/// The engine of nftables on a kernel in memory: tables of addresses and ports.
struct Tables {
    kernel: Shared,
    former: FormerIpvs<Shared>,
}

fn frontends(table: &NodeTable) -> BTreeSet<VirtualServerKey> {
    let mut frontends = BTreeSet::new();
    for record in table.records.values() {
        for frontend in record.frontends.iter() {
            if let FrontendAddress::Vip(ip) = frontend.address {
                let key = VirtualServerKey::new(record.key.protocol, ip, frontend.port);
                frontends.insert(key);
            }
        }
    }
    frontends
}

impl Engine for Tables {
    async fn glance(&mut self) -> Result<Option<String>, DataplaneError> {
        Ok(None)
    }

    async fn refresh_facts(&mut self) -> Result<bool, DataplaneError> {
        Ok(false)
    }

    fn facts(&self) -> Option<&NodeFacts> {
        None
    }

    fn forget(&mut self) {}

    async fn reconcile(
        &mut self,
        table: &Arc<NodeTable>,
        _: bool,
    ) -> Result<Outcome, DataplaneError> {
        let mut kernel = self.kernel.0.lock().await;
        kernel.write_table(Family::V4, frontends(table))?;
        Ok(Outcome::default())
    }

    async fn settle(&mut self) -> Result<(), DataplaneError> {
        Ok(())
    }

    async fn forget_stale_flows(&mut self, _: &NodeTable) -> Result<Option<usize>, DataplaneError> {
        Ok(None)
    }

    fn counts(&mut self) -> Option<Counts> {
        None
    }

    fn is_certain(&mut self) -> bool {
        true
    }

    fn set_host(&mut self, _: Option<Arc<Host>>, _: Owned) {}

    async fn finish_host(&mut self, _: &NodeTable) -> HostOutcome {
        HostOutcome::default()
    }

    async fn retire(&mut self) -> Result<Retirement, DataplaneError> {
        self.former.retire(std::time::Instant::now()).await
    }
}

/// Opens that engine, after a number of failures.
struct After {
    kernel: Shared,
    failures: usize,
}

impl Opens for After {
    type Engine = Tables;

    async fn open(&mut self) -> anyhow::Result<Tables> {
        if self.failures > 0 {
            self.failures -= 1;
            anyhow::bail!("too many open files");
        }
        let kernel = self.kernel.clone();
        let former = FormerIpvs::open(kernel.clone(), Config::default(), PATIENCE).await?;
        Ok(Tables { kernel, former })
    }
}

fn succession(kernel: &Shared, failures: usize) -> Succession<Reconciler<Shared>, After> {
    let first = Reconciler::new(kernel.clone(), Config::default());
    let kernel = kernel.clone();
    Succession::new(first, After { kernel, failures })
}

/// Has an engine program the table and retire what is left of IPVS; returns whether it came to the end.
async fn change_over(engine: &mut impl Engine, kernel: &Shared) -> bool {
    let table = Arc::new(tcp(&[STAYS]));
    if engine.reconcile(&table, false).await.is_err() {
        return false;
    }
    loop {
        match engine.retire().await {
            Ok(Retirement::More) => {}
            Ok(Retirement::Waiting { .. }) => {
                let mut kernel = kernel.0.lock().await;
                let servers = &kernel.state.virtual_servers;
                assert!(servers.contains_key(&key(Protocol::Tcp)), "it is in use");
                kernel.connections.clear();
            }
            Ok(Retirement::Done) => return true,
            Err(_) => return false,
        }
    }
}

/// One run of an agent; returns whether it came to the end.
async fn live(kernel: &Shared) -> bool {
    let (has_marker, has_device) = {
        let kernel = kernel.0.lock().await;
        let marker = takeover_marker(&Names::default());
        let has_marker = kernel.state.sets.contains_key(&marker);
        (has_marker, kernel.devices.contains_key(VIP_DEVICE))
    };
    if !must_take_over_first(has_marker, has_device, true) {
        let mut after = After {
            kernel: kernel.clone(),
            failures: 0,
        };
        let mut engine = after.open().await.unwrap();
        return change_over(&mut engine, kernel).await;
    }
    let mut engine = succession(kernel, 0);
    let mut takeover = Takeover::new(TakeoverConfig {
        asked: true,
        ..TakeoverConfig::default()
    });
    let table = Arc::new(tcp(&[STAYS]));
    let begun = engine.begin_takeover(&mut takeover, &table).await;
    if begun.is_err() || engine.reconcile(&table, false).await.is_err() {
        return false;
    }
    while takeover.is_begun() {
        if !engine.continue_takeover(&mut takeover).await && takeover.is_begun() {
            return false;
        }
    }
    engine.succeed().await.unwrap();
    change_over(&mut engine, kernel).await
}

/// Returns `true` if new connections to the Service are served: by the table, or by a virtual
/// server whose address is local.
fn is_served(kernel: &FakeKernel) -> bool {
    let key = key(Protocol::Tcp);
    let vip = key.socket().unwrap().ip();
    let mut tables = kernel.tables.values();
    let is_bound = kernel.devices.values().any(|ips| ips.contains(&vip));
    let is_local = is_bound || kernel.state.routes.contains_key(&vip);
    let is_in_ipvs = is_local && kernel.state.virtual_servers.contains_key(&key);
    tables.any(|table| table.contains(&key)) || is_in_ipvs
}

fn assert_changed_over(kernel: &FakeKernel) {
    let table = [(Family::V4, [key(Protocol::Tcp)].into())];
    assert_eq!(kernel.tables, table.into());
    assert_eq!(kernel.state, KernelState::default());
    assert!(kernel.devices.is_empty(), "{:?}", kernel.devices);
    let chain = (Family::V4, "KUBE-IPVS-OUT-FILTER".to_owned());
    assert!(kernel.removed_chains.contains(&chain));
}

#[tokio::test]
async fn a_crash_anywhere_leaves_the_service_served_and_the_next_run_ends_it() {
    let mut limit = 0;
    loop {
        let kernel = left();
        kernel.0.lock().await.operations_left = Some(limit);
        let has_finished = live(&kernel).await;
        {
            let mut kernel = kernel.0.lock().await;
            assert!(is_served(&kernel), "after {limit} operations");
            kernel.operations_left = None;
        }
        assert!(live(&kernel).await, "after {limit} operations");
        assert_changed_over(&*kernel.0.lock().await);
        if has_finished {
            break;
        }
        limit += 1;
    }
    assert!(limit > 30, "{limit}");
}

#[tokio::test(start_paused = true)]
async fn nftables_succeed_when_the_takeover_is_complete() {
    let (kernel, state) = (left(), tempfile::tempdir().unwrap());
    let engine = succession(&kernel, 1);
    let (clock, search) = (boot_clock(Instant::now()), Search::default());
    let mut rig = Rig::running(engine, kernel, state, clock, search, Watchdog::default());
    pass(60).await;
    assert_eq!(rig.kernel.0.lock().await.devices.len(), 1);
    rig.put(1, tcp(&[STAYS])).await;
    pass(1).await;
    // The successor could not be opened: IPVS goes on.
    assert_eq!(metric(&rig, "portolan_agent_takeover_pending"), "0");
    assert!(rig.kernel.0.lock().await.devices.is_empty());
    assert!(rig.kernel.0.lock().await.tables.is_empty());
    rig.put(2, tcp(&[STAYS, LEAVES])).await;
    assert_eq!(rig.weight(LEAVES).await, Some(1));
    pass(10).await;
    let kernel = rig.kernel.clone();
    assert_eq!(kernel.0.lock().await.tables.len(), 1);
    let servers = kernel.0.lock().await.state.virtual_servers.clone();
    let keys: Vec<_> = servers.into_keys().collect();
    assert_eq!(keys, [key(Protocol::Tcp)], "it has an open connection");
    assert_eq!(metric(&rig, "portolan_agent_changeover_pending"), "1");
    kernel.0.lock().await.connections.clear();
    pass(3).await;
    assert_changed_over(&*kernel.0.lock().await);
    assert_eq!(metric(&rig, "portolan_agent_changeover_pending"), "0");
    rig.put(3, tcp(&[STAYS])).await;
    assert!(kernel.0.lock().await.state.virtual_servers.is_empty());
}
