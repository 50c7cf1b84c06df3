// SPDX-License-Identifier: Apache-2.0

//! A running loop on a kernel in memory.

use super::*;

/// A kernel shared by the test and the loop.
#[derive(Debug, Clone, Default)]
pub(super) struct Shared(pub(super) Arc<Mutex<FakeKernel>>);

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
pub(super) struct Rig {
    pub(super) kernel: Shared,
    pub(super) tables: watch::Sender<Option<Arc<Subscribed>>>,
    pub(super) reports: watch::Receiver<Option<Report>>,
    pub(super) addresses: Arc<Notify>,
    /// Settings of the host.
    pub(super) asked: watch::Sender<Option<Asked>>,
    pub(super) token: CancellationToken,
    pub(super) task: tokio::task::JoinHandle<()>,
    pub(super) state: tempfile::TempDir,
    pub(super) registry: Registry,
}

/// A clock that follows tokio's.
pub(super) fn boot_clock(start: Instant) -> BootClock {
    let at_start = Duration::from_secs(1_000_000);
    BootClock::new("this", move || at_start + start.elapsed())
}

impl Rig {
    pub(super) fn start() -> Self {
        let state = tempfile::tempdir().unwrap();
        Self::with(Shared::default(), state, boot_clock(Instant::now()))
    }

    pub(super) fn with(kernel: Shared, state: tempfile::TempDir, clock: BootClock) -> Self {
        Self::searching(kernel, state, clock, Search::default())
    }

    pub(super) fn searching(
        kernel: Shared,
        state: tempfile::TempDir,
        clock: BootClock,
        search: Search,
    ) -> Self {
        Self::watched(kernel, state, clock, search, Watchdog::default())
    }

    pub(super) fn watched(
        kernel: Shared,
        state: tempfile::TempDir,
        clock: BootClock,
        search: Search,
        watchdog: Watchdog,
    ) -> Self {
        let reconciler = Reconciler::new(kernel.clone(), Config::default());
        Self::running(reconciler, kernel, state, clock, search, watchdog)
    }

    /// With an engine that programs the kernel.
    pub(super) fn running(
        reconciler: impl Engine + 'static,
        kernel: Shared,
        state: tempfile::TempDir,
        clock: BootClock,
        search: Search,
        watchdog: Watchdog,
    ) -> Self {
        let (tables, receiver) = watch::channel(None);
        let (reports_out, reports) = watch::channel(None);
        let addresses = Arc::new(Notify::new());
        let (asked, host) = watch::channel(None);
        let inputs = SyncInputs {
            tables: receiver,
            addresses: Arc::clone(&addresses),
            takeover: TakeoverConfig {
                asked: true,
                search,
                ..TakeoverConfig::default()
            },
            host: HostLink {
                asked: host,
                ..HostLink::none()
            },
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
        let token = CancellationToken::new();
        let (timing, stop) = (Timing::default(), token.clone());
        let task = tokio::spawn(run(reconciler, drainer, inputs, timing, outputs, stop));
        Self {
            kernel,
            tables,
            reports,
            addresses,
            asked,
            token,
            task,
            state,
            registry,
        }
    }

    /// Sends a table and waits until it is programmed.
    pub(super) async fn put(&mut self, revision: u64, table: NodeTable) {
        self.put_from(false, revision, table).await;
    }

    pub(super) async fn put_from(&mut self, is_from_disk: bool, revision: u64, table: NodeTable) {
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

    pub(super) async fn programmed(&mut self, revision: u64) {
        let done = |report: &Option<Report>| {
            report
                .as_ref()
                .is_some_and(|report| report.revision == revision)
        };
        self.reports.wait_for(done).await.unwrap();
        // The loop reports before it updates drains and flows.
        tokio::time::sleep(Duration::from_millis(10)).await;
    }

    pub(super) async fn weight(&self, address: &str) -> Option<u32> {
        let kernel = self.kernel.0.lock().await;
        let server = kernel.state.virtual_servers.values().next()?;
        let config = server.real_servers.get(&address.parse().unwrap())?;
        Some(config.weight)
    }

    pub(super) async fn connect(&self, protocol: Protocol, address: &str) {
        let connections = Connections {
            active: 1,
            ..Connections::default()
        };
        let mut kernel = self.kernel.0.lock().await;
        let at = (key(protocol), address.parse().unwrap());
        kernel.connections.insert(at, connections);
    }

    pub(super) async fn stop(self) -> (Shared, tempfile::TempDir) {
        self.token.cancel();
        self.task.await.unwrap();
        (self.kernel, self.state)
    }
}

pub(super) fn key(protocol: Protocol) -> VirtualServerKey {
    VirtualServerKey::new(protocol, "10.96.0.1".parse().unwrap(), 80)
}

pub(super) fn record(protocol: Protocol, destinations: &[&str]) -> Record {
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

pub(super) fn table(record: Record) -> NodeTable {
    NodeTable {
        records: [(record.key.clone(), Arc::new(record))]
            .into_iter()
            .collect(),
        ..NodeTable::default()
    }
}

pub(super) fn tcp(destinations: &[&str]) -> NodeTable {
    table(record(Protocol::Tcp, destinations))
}

pub(super) const STAYS: &str = "10.0.0.1:80";
pub(super) const LEAVES: &str = "10.0.0.2:80";

pub(super) async fn pass(seconds: u64) {
    tokio::time::sleep(Duration::from_secs(seconds)).await;
}
