// SPDX-License-Identifier: Apache-2.0

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use portolan_dataplane::{
    Dataplane, DataplaneError, FakeKernel, Flow, HostPlane, KubeProxyObjects, NodePortAddresses,
    OtherPlane, StepError, Tuple,
};
use portolan_model::ipvs::{Connections, VirtualServerKey};
use portolan_model::{
    Destination, Family, Frontend, FrontendAddress, FrontendKind, NodeTable, Protocol, Record,
    RecordKey,
};
use portolan_plan::host::{HostDesired, HostState, HostStep, Owned};
use portolan_plan::kube_proxy::PacketRules;
use portolan_plan::{
    Config, KernelState, MarkMask, MaskError, Names, NodeFacts, Rules, Step, VipBinding,
};
use portolan_runtime::Readiness;
use prometheus_client::registry::Registry;
use tokio::sync::Mutex;

use super::super::BootClock;
use super::*;
use crate::kube_proxy::Search;
use crate::sync::Reconciler;

mod disk;
mod hung;
mod others;

/// A kernel shared by the test and the loop.
#[derive(Debug, Clone, Default)]
struct Shared(Arc<Mutex<FakeKernel>>);

impl HostPlane for Shared {
    async fn observe_host(
        &mut self,
        desired: &HostDesired,
        owned: &Owned,
    ) -> Result<HostState, DataplaneError> {
        self.0.lock().await.observe_host(desired, owned).await
    }

    async fn apply_host(&mut self, steps: &[HostStep]) -> Vec<(HostStep, String)> {
        self.0.lock().await.apply_host(steps).await
    }

    fn bind_by(&mut self, binding: VipBinding) {
        if let Ok(mut kernel) = self.0.try_lock() {
            kernel.bind_by(binding);
        }
    }
}

impl Dataplane for Shared {
    async fn prepare(&mut self) -> Result<(), DataplaneError> {
        self.0.lock().await.prepare().await
    }

    async fn observe(&mut self) -> Result<KernelState, DataplaneError> {
        self.0.lock().await.observe().await
    }

    async fn glance(
        &mut self,
        observed: &KernelState,
        names: &Names,
    ) -> Result<Option<String>, DataplaneError> {
        self.0.lock().await.glance(observed, names).await
    }

    async fn facts(&mut self) -> Result<NodeFacts, DataplaneError> {
        self.0.lock().await.facts().await
    }

    async fn choose_marks(&mut self, config: &Config) -> Result<MarkMask, MaskError> {
        self.0.lock().await.choose_marks(config).await
    }

    async fn apply(&mut self, steps: &[Step]) -> Vec<StepError> {
        self.0.lock().await.apply(steps).await
    }

    async fn settle(&mut self) -> Result<(), DataplaneError> {
        self.0.lock().await.settle().await
    }

    async fn connections(
        &mut self,
        key: &VirtualServerKey,
    ) -> Result<BTreeMap<SocketAddr, Connections>, DataplaneError> {
        self.0.lock().await.connections(key).await
    }

    async fn flows(
        &mut self,
        family: Family,
        keep: &(dyn Fn(&Flow) -> bool + Sync),
    ) -> Result<Vec<Flow>, DataplaneError> {
        self.0.lock().await.flows(family, keep).await
    }

    async fn delete_flows(&mut self, flows: &[Flow]) -> Result<usize, DataplaneError> {
        self.0.lock().await.delete_flows(flows).await
    }

    async fn remove_rules(&mut self, rules: &Rules, family: Family) -> Result<(), DataplaneError> {
        self.0.lock().await.remove_rules(rules, family).await
    }

    async fn destroy_sets(&mut self, names: &[String]) -> Result<(), DataplaneError> {
        self.0.lock().await.destroy_sets(names).await
    }
}

impl OtherPlane for Shared {
    async fn tables(
        &mut self,
    ) -> Result<BTreeMap<Family, BTreeSet<VirtualServerKey>>, DataplaneError> {
        self.0.lock().await.tables().await
    }

    async fn unmark(&mut self, bits: u32) -> Result<(), DataplaneError> {
        self.0.lock().await.unmark(bits).await
    }

    async fn delete_table(&mut self, family: Family) -> Result<(), DataplaneError> {
        self.0.lock().await.delete_table(family).await
    }

    async fn delete_untranslated_flows(
        &mut self,
        family: Family,
        is_stale: &(dyn Fn(&Flow) -> bool + Sync),
    ) -> Result<usize, DataplaneError> {
        let mut kernel = self.0.lock().await;
        kernel.delete_untranslated_flows(family, is_stale).await
    }
}

impl KubeProxyObjects for Shared {
    async fn vip_device(&mut self, name: &str) -> Result<Option<BTreeSet<IpAddr>>, DataplaneError> {
        self.0.lock().await.vip_device(name).await
    }

    async fn delete_vips(&mut self, name: &str, ips: &[IpAddr]) -> Result<(), DataplaneError> {
        self.0.lock().await.delete_vips(name, ips).await
    }

    async fn delete_vip_device(&mut self, name: &str) -> Result<(), DataplaneError> {
        self.0.lock().await.delete_vip_device(name).await
    }

    async fn remove_second_jumps(
        &mut self,
        rules: &Rules,
        family: Family,
    ) -> Result<(), DataplaneError> {
        self.0.lock().await.remove_second_jumps(rules, family).await
    }

    async fn packet_rules(
        &mut self,
        families: &BTreeSet<Family>,
    ) -> Result<PacketRules, DataplaneError> {
        self.0.lock().await.packet_rules(families).await
    }

    async fn keep_packet_rules(
        &mut self,
        families: &BTreeSet<Family>,
    ) -> Result<(), DataplaneError> {
        self.0.lock().await.keep_packet_rules(families).await
    }

    async fn delete_packet_rules(
        &mut self,
        ours: &BTreeMap<Family, Rules>,
    ) -> Result<(), DataplaneError> {
        self.0.lock().await.delete_packet_rules(ours).await
    }
}

/// A running loop on a kernel in memory, under tokio's paused clock.
struct Rig {
    kernel: Shared,
    tables: watch::Sender<Option<Arc<Subscribed>>>,
    reports: watch::Receiver<Option<Report>>,
    addresses: Arc<Notify>,
    token: CancellationToken,
    task: tokio::task::JoinHandle<()>,
    state: tempfile::TempDir,
    registry: Registry,
}

/// A clock that follows tokio's.
fn boot_clock(start: Instant) -> BootClock {
    let at_start = Duration::from_secs(1_000_000);
    BootClock::new("this", move || at_start + start.elapsed())
}

impl Rig {
    fn start() -> Self {
        let state = tempfile::tempdir().unwrap();
        Self::with(Shared::default(), state, boot_clock(Instant::now()))
    }

    fn with(kernel: Shared, state: tempfile::TempDir, clock: BootClock) -> Self {
        Self::searching(kernel, state, clock, Search::default())
    }

    fn searching(
        kernel: Shared,
        state: tempfile::TempDir,
        clock: BootClock,
        search: Search,
    ) -> Self {
        Self::watched(kernel, state, clock, search, Watchdog::default())
    }

    fn watched(
        kernel: Shared,
        state: tempfile::TempDir,
        clock: BootClock,
        search: Search,
        watchdog: Watchdog,
    ) -> Self {
        let (tables, receiver) = watch::channel(None);
        let (reports_out, reports) = watch::channel(None);
        let addresses = Arc::new(Notify::new());
        let inputs = SyncInputs {
            tables: receiver,
            addresses: Arc::clone(&addresses),
            takeover: TakeoverConfig {
                asked: true,
                search,
                ..TakeoverConfig::default()
            },
            host: HostLink::none(),
        };
        let mut registry = Registry::default();
        let health = Health::new(Family::ALL, Duration::from_secs(30));
        let node_ports = NodePortAddresses::default();
        let health_checks = HealthChecks::register(
            Family::ALL.into(),
            node_ports,
            health.clone(),
            &mut registry,
        );
        let outputs = SyncOutputs {
            reports: reports_out,
            metrics: ReconcileMetrics::register(&mut registry),
            status: Status::default(),
            health,
            health_checks,
            ready: Ready::new(Readiness::default(), Family::ALL.into_iter().collect()),
            watchdog,
            ways: watch::Sender::default(),
        };
        let drainer = Drainer::open(state.path(), Duration::from_secs(900), clock);
        let reconciler = Reconciler::new(kernel.clone(), Config::default());
        let token = CancellationToken::new();
        let (timing, stop) = (Timing::default(), token.clone());
        let task = tokio::spawn(run(reconciler, drainer, inputs, timing, outputs, stop));
        Self {
            kernel,
            tables,
            reports,
            addresses,
            token,
            task,
            state,
            registry,
        }
    }

    /// Sends a table and waits until it is programmed.
    async fn put(&mut self, revision: u64, table: NodeTable) {
        self.put_from(false, revision, table).await;
    }

    async fn put_from(&mut self, is_from_disk: bool, revision: u64, table: NodeTable) {
        self.tables.send_replace(Some(Arc::new(Subscribed {
            epoch: 1,
            revision,
            table: Arc::new(table),
            received_at: std::time::Instant::now(),
            trigger_times_ms: vec![],
            is_from_disk,
            checked: 0,
        })));
        self.programmed(revision).await;
    }

    async fn programmed(&mut self, revision: u64) {
        let done = |report: &Option<Report>| {
            report
                .as_ref()
                .is_some_and(|report| report.revision == revision)
        };
        self.reports.wait_for(done).await.unwrap();
        // The loop reports before it updates drains and flows.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    async fn weight(&self, address: &str) -> Option<u32> {
        let kernel = self.kernel.0.lock().await;
        let server = kernel.state.virtual_servers.values().next()?;
        let config = server.real_servers.get(&address.parse().unwrap())?;
        Some(config.weight)
    }

    async fn connect(&self, protocol: Protocol, address: &str) {
        let connections = Connections {
            active: 1,
            ..Connections::default()
        };
        let mut kernel = self.kernel.0.lock().await;
        let at = (key(protocol), address.parse().unwrap());
        kernel.connections.insert(at, connections);
    }

    async fn stop(self) -> (Shared, tempfile::TempDir) {
        self.token.cancel();
        self.task.await.unwrap();
        (self.kernel, self.state)
    }
}

fn key(protocol: Protocol) -> VirtualServerKey {
    VirtualServerKey::new(protocol, "10.96.0.1".parse().unwrap(), 80)
}

fn record(protocol: Protocol, destinations: &[&str]) -> Record {
    let key = RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: "svc".into(),
        port: "".into(),
        protocol,
    };
    let vip = FrontendAddress::Vip("10.96.0.1".parse().unwrap());
    let destination = |text: &&str| Destination::new(text.parse().unwrap());
    Record {
        frontends: vec![Frontend::new(FrontendKind::ClusterIp, vip, 80)],
        destinations: destinations.iter().map(destination).collect(),
        ..Record::new(key)
    }
}

fn table(record: Record) -> NodeTable {
    NodeTable {
        records: [(record.key.clone(), Arc::new(record))]
            .into_iter()
            .collect(),
        ..NodeTable::default()
    }
}

fn tcp(destinations: &[&str]) -> NodeTable {
    table(record(Protocol::Tcp, destinations))
}

const STAYS: &str = "10.0.0.1:80";
const LEAVES: &str = "10.0.0.2:80";

async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}

#[tokio::test(start_paused = true)]
async fn cheap_comparison_repairs_at_once_and_full_one_the_rest() {
    let mut rig = Rig::start();
    rig.put(1, tcp(&[STAYS])).await;
    let seen: [fn(&mut KernelState); 3] = [
        |state| state.virtual_servers.clear(),
        |state| state.routes.clear(),
        |state| state.sets.values_mut().for_each(|set| set.entries.clear()),
    ];
    for change in seen {
        let whole = rig.kernel.0.lock().await.state.clone();
        let owned = whole.sets["KUBE-PORTOLAN-OWNED"].clone();
        change(&mut rig.kernel.0.lock().await.state);
        // Without the record the virtual servers would be foreign.
        let mut kernel = rig.kernel.0.lock().await;
        let set = kernel.state.sets.get_mut("KUBE-PORTOLAN-OWNED");
        set.unwrap().entries.extend(owned.entries);
        drop(kernel);
        pass(6).await;
        assert_eq!(rig.kernel.0.lock().await.state, whole);
    }
    rig.kernel.0.lock().await.state.rules.clear();
    pass(31).await;
    assert_eq!(rig.kernel.0.lock().await.state.rules.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn draining_real_server_is_deleted_when_idle_or_at_its_deadline() {
    let mut rig = Rig::start();
    rig.put(1, tcp(&[STAYS, LEAVES])).await;
    rig.connect(Protocol::Tcp, LEAVES).await;
    rig.put(2, tcp(&[STAYS])).await;
    pass(890).await;
    assert_eq!(rig.weight(LEAVES).await, Some(0));
    pass(10).await;
    assert_eq!(rig.weight(LEAVES).await, None);
    assert_eq!(rig.weight(STAYS).await, Some(1));

    rig.put(3, tcp(&[STAYS, LEAVES])).await;
    rig.put(4, tcp(&[STAYS])).await;
    rig.kernel.0.lock().await.connections.clear();
    pass(5).await;
    assert_eq!(rig.weight(LEAVES).await, None);
}

#[tokio::test(start_paused = true)]
async fn drain_time_of_a_record_is_used() {
    for (seconds, before) in [(7, Some(0)), (0, None)] {
        let mut rig = Rig::start();
        rig.put(1, tcp(&[STAYS, LEAVES])).await;
        rig.connect(Protocol::Tcp, LEAVES).await;
        let record = Record {
            drain_seconds: Some(seconds),
            ..record(Protocol::Tcp, &[STAYS])
        };
        rig.put(2, table(record)).await;
        assert_eq!(rig.weight(LEAVES).await, before, "{seconds}");
        pass(7).await;
        assert_eq!(rig.weight(LEAVES).await, None, "{seconds}");
    }
}

#[tokio::test(start_paused = true)]
async fn returning_endpoint_gets_its_weight_and_a_new_deadline() {
    let mut rig = Rig::start();
    rig.put(1, tcp(&[STAYS, LEAVES])).await;
    rig.connect(Protocol::Tcp, LEAVES).await;
    rig.put(2, tcp(&[STAYS])).await;
    pass(600).await;
    rig.put(3, tcp(&[STAYS, LEAVES])).await;
    assert_eq!(rig.weight(LEAVES).await, Some(1));
    rig.put(4, tcp(&[STAYS])).await;
    pass(600).await;
    assert_eq!(rig.weight(LEAVES).await, Some(0));
    pass(300).await;
    assert_eq!(rig.weight(LEAVES).await, None);
}

#[tokio::test(start_paused = true)]
async fn destination_desired_at_weight_zero_stays() {
    let mut rig = Rig::start();
    let mut record = record(Protocol::Tcp, &[STAYS, LEAVES]);
    record.destinations[1].weight = 0;
    rig.put(1, table(record)).await;
    pass(2000).await;
    assert_eq!(rig.weight(LEAVES).await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn restart_during_a_drain_changes_nothing() {
    let clock = boot_clock(Instant::now());
    let state = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(Shared::default(), state, clock.clone());
    rig.put(1, tcp(&[STAYS, LEAVES])).await;
    rig.connect(Protocol::Tcp, LEAVES).await;
    rig.put(2, tcp(&[STAYS])).await;
    let (kernel, state) = rig.stop().await;
    pass(600).await;

    let mut rig = Rig::with(kernel, state, clock.clone());
    rig.put(2, tcp(&[STAYS])).await;
    pass(290).await;
    assert_eq!(rig.weight(LEAVES).await, Some(0));
    pass(10).await;
    assert_eq!(rig.weight(LEAVES).await, None);
}

#[tokio::test(start_paused = true)]
async fn drains_without_a_file_get_the_full_time() {
    let mut rig = Rig::start();
    rig.put(1, tcp(&[STAYS, LEAVES])).await;
    rig.connect(Protocol::Tcp, LEAVES).await;
    rig.put(2, tcp(&[STAYS])).await;
    let (kernel, _) = rig.stop().await;
    pass(600).await;

    let empty = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(kernel, empty, boot_clock(Instant::now()));
    rig.put(2, tcp(&[STAYS])).await;
    pass(890).await;
    assert_eq!(rig.weight(LEAVES).await, Some(0));
    pass(10).await;
    assert_eq!(rig.weight(LEAVES).await, None);
}

#[tokio::test(start_paused = true)]
async fn changed_addresses_are_followed_and_unchanged_ones_cost_nothing() {
    let mut rig = Rig::start();
    let mut record = record(Protocol::Tcp, &[STAYS]);
    let way = FrontendAddress::NodeAddresses(Family::V4);
    record.frontends = vec![Frontend::new(FrontendKind::NodePort, way, 30080)];
    rig.put(1, table(record)).await;
    assert!(rig.kernel.0.lock().await.state.virtual_servers.is_empty());

    let taken = rig.kernel.0.lock().await.applied.len();
    rig.addresses.notify_one();
    pass(1).await;
    assert_eq!(rig.kernel.0.lock().await.applied.len(), taken);

    let address = "192.168.77.11".parse().unwrap();
    let facts = NodeFacts {
        addresses: [address].into(),
        node_port_addresses: [address].into(),
        ..NodeFacts::default()
    };
    rig.kernel.0.lock().await.facts = facts;
    rig.addresses.notify_one();
    pass(1).await;
    assert_eq!(rig.kernel.0.lock().await.state.virtual_servers.len(), 1);

    rig.kernel.0.lock().await.facts = NodeFacts::default();
    rig.addresses.notify_one();
    pass(1).await;
    assert!(rig.kernel.0.lock().await.state.virtual_servers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn stale_udp_flows_are_deleted_with_destinations_and_not_read_otherwise() {
    let flow = |answers: &str| {
        let client = "10.0.9.9:4000".parse().unwrap();
        Flow {
            original: Tuple {
                source: client,
                destination: "10.96.0.1:80".parse().unwrap(),
            },
            reply: Tuple {
                source: answers.parse().unwrap(),
                destination: client,
            },
            id: 1,
        }
    };
    let mut rig = Rig::start();
    let udp = |destinations: &[&str]| table(record(Protocol::Udp, destinations));
    let reads = async |rig: &Rig| rig.kernel.0.lock().await.flow_reads;
    rig.put(1, tcp(&[STAYS])).await;
    // A killed agent may have left some, in either family.
    assert_eq!(reads(&rig).await, 2);
    rig.put(2, udp(&[])).await;
    assert_eq!(reads(&rig).await, 2);
    // A client sent before the first destination existed.
    rig.kernel.0.lock().await.flows = vec![flow("10.96.0.1:80")];
    rig.put(3, udp(&[STAYS])).await;
    assert!(rig.kernel.0.lock().await.flows.is_empty());
    let first = reads(&rig).await;

    rig.kernel.0.lock().await.flows = vec![flow(STAYS), flow(LEAVES)];
    rig.put(4, udp(&[STAYS, LEAVES])).await;
    pass(100).await;
    assert_eq!(
        reads(&rig).await,
        first,
        "one more destination makes no flow stale"
    );
    rig.put(5, udp(&[STAYS])).await;
    assert_eq!(rig.kernel.0.lock().await.flows, [flow(STAYS)]);

    // Without any destination no flow is stale.
    rig.put(6, udp(&[])).await;
    assert_eq!(rig.kernel.0.lock().await.flows, [flow(STAYS)]);
}
