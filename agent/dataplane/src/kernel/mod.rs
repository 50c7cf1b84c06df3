// SPDX-License-Identifier: Apache-2.0

//! The real kernel, in the network namespace of the calling process.
//!
//! IPVS, ipset and routes go through batching netlink sockets, links and addresses through rtnetlink, the
//! constant rules through `iptables-restore`. Adjacent steps of one class share a batch.

mod binding;
mod blocking;
mod conntrack;
mod dumps;
mod forward;
pub(crate) mod glance;
mod host;
mod ipset;
mod iptables;
mod ipvs;
mod kube_proxy;
mod machine;
mod mark_users;
mod modules;
mod nftables;
mod other_plane;
mod probe;
mod removal;
mod routes;
mod schedulers;
mod settings;
mod sysctl;
mod tuning;
mod usage;
mod whole;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use portolan_model::Family;
use portolan_model::ipvs::{Connections, VirtualServerKey};
use portolan_netlink::ipset::Ipset;
use portolan_netlink::ipvs::Ipvs;
use portolan_plan::{
    Config, KernelState, MarkMask, MaskError, Names, NodeFacts, Rules, RulesMode, Step, VipBinding,
};

use crate::runs::{self, ApplyRun, Class, StepFailure};
use crate::{Dataplane, DataplaneError, Doubt, Errno, Flow, NodePortAddresses, StepError};

pub use binding::DEVICE as VIP_DEVICE;
pub use forward::ForwardHook;
pub use ipset::{REPLACEMENT as REPLACEMENT_SET, has_set};
pub use iptables::IptablesMode;
pub use kube_proxy::KubeProxyRules;
pub use modules::{Modprobe, Modules, load_modules};
pub use nftables::{NftablesKernel, Observed as ObservedTables, settings_without_ipvs};
pub use probe::Unusable;
pub use routes::{ROUTE_MARK, node_facts};
pub use settings::{CONNTRACK, Consequence, Setting, WrongSetting, settings, settings_at_start};
pub use tuning::{ConntrackTuning, Tuning};
pub use usage::{SomeUsage, UsageOf, read_some_usage, read_totals, read_usage};
pub use whole::{Whole, read_whole};

use binding::VipDevice;
use blocking::{blocking, blocking_steps};
use conntrack::LateConntrack;
use iptables::Iptables;
use routes::Routes;
use schedulers::Schedulers;

/// Configuration of [`Kernel`].
#[derive(Debug, Clone)]
pub struct KernelConfig {
    /// Variant of iptables.
    pub iptables: IptablesMode,
    /// Sources of the node's own connections to VIPs, at most one per family. The default is the first
    /// address of the lowest interface.
    pub node_ips: Vec<IpAddr>,
    /// Choice of the node's addresses that accept node ports.
    pub node_port_addresses: NodePortAddresses,
    /// File that records the rules in place, so that the next run need not write them again.
    pub rules_record: Option<PathBuf>,
    /// Optional settings.
    pub tuning: Tuning,
    /// Binding of VIPs to the node.
    pub vip_binding: VipBinding,
    /// Shortest time between two attempts of the kernel to load a missing scheduler.
    pub scheduler_pause: Duration,
    /// Loading of missing modules of IPVS and ipset.
    pub load_modules: bool,
    /// When rules are written. On demand, nothing of iptables is run or tried before.
    pub rules_mode: RulesMode,
}

impl Default for KernelConfig {
    fn default() -> Self {
        Self {
            iptables: IptablesMode::default(),
            node_ips: Vec::new(),
            node_port_addresses: NodePortAddresses::default(),
            rules_record: None,
            tuning: Tuning::default(),
            vip_binding: VipBinding::default(),
            scheduler_pause: Duration::from_secs(30),
            load_modules: true,
            rules_mode: RulesMode::Always,
        }
    }
}

/// The kernel of the process's network namespace.
#[derive(Debug)]
pub struct Kernel {
    config: KernelConfig,
    ipvs: Ipvs,
    ipset: Ipset,
    conntrack: LateConntrack,
    routes: Routes,
    device: VipDevice,
    iptables: Iptables,
    schedulers: Schedulers,
    /// Sets of trials that could not be deleted yet.
    trial_sets: BTreeSet<&'static str>,
    /// Sums of virtual servers and routes when they last matched the observed state; reset by changes of
    /// ours.
    seen: Option<(glance::Sum, glance::Sum)>,
    /// `true` once conntrack was told to know connections of IPVS.
    is_tracking: bool,
}

impl Kernel {
    /// Opens all sockets; loads the kernel modules of IPVS if necessary. Must be called within a tokio
    /// runtime. Rules on demand leave iptables for later.
    ///
    /// # Errors
    /// If the kernel has no IPVS or ipset, a capability is missing, or no variant of iptables works.
    pub async fn open(config: KernelConfig) -> Result<Self, DataplaneError> {
        let missing = machine::missing_capabilities();
        if !missing.is_empty() {
            return Err(DataplaneError::Capabilities(missing));
        }
        let ipvs = modules::open_ipvs(config.load_modules).await?;
        let ipset = modules::open_ipset(config.load_modules).await?;
        // Last: a trial of iptables creates tables, and a node without IPVS is left as it was.
        let mut iptables = Iptables::new(config.iptables, config.rules_record.clone());
        if config.rules_mode == RulesMode::Always {
            iptables.choose().await?;
        }
        Ok(Self {
            ipvs,
            ipset,
            conntrack: LateConntrack::default(),
            routes: Routes::open()?,
            device: VipDevice::default(),
            iptables,
            schedulers: Schedulers::new(config.scheduler_pause),
            trial_sets: BTreeSet::new(),
            seen: None,
            is_tracking: config.rules_mode == RulesMode::Always,
            config,
        })
    }

    /// Number of netlink requests so far that read or change virtual servers, sets or routes.
    #[must_use]
    pub fn requests(&self) -> u32 {
        let requests = [
            self.ipvs.requests(),
            self.ipset.requests(),
            self.routes.requests(),
        ];
        requests.into_iter().fold(0, u32::wrapping_add)
    }

    /// Sets IPVS's timeouts.
    pub fn tune(&mut self) {
        blocking(|| tuning::apply(&self.config.tuning, &mut self.ipvs));
    }

    /// Schedulers that the agent uses without being asked and the kernel lacks. One that is there is probed once:
    /// in use it cannot be unloaded. The module of a missing one may come later.
    fn missing_schedulers(&mut self) -> Result<BTreeSet<String>, DataplaneError> {
        let (ipvs, schedulers, now) = (&mut self.ipvs, &mut self.schedulers, Instant::now());
        let probe = || ipvs.has_scheduler("mh");
        let lacks = blocking(|| schedulers.probe("mh", now, probe))?;
        Ok(lacks.then(|| "mh".to_owned()).into_iter().collect())
    }

    /// Compares the kernel with an observed state, as cheaply as it can be.
    fn look_for_changes(
        &mut self,
        observed: &KernelState,
        names: &Names,
    ) -> Result<Option<String>, DataplaneError> {
        let binding = self.config.vip_binding;
        let seen = (
            glance::sum_of_servers(&self.ipvs)?,
            self.routes.sum(binding)?,
        );
        if self.seen != Some(seen) {
            if let Some(found) = glance::servers(&self.ipvs, observed, names)? {
                return Ok(Some(found));
            }
            if let Some(found) = self.routes.glance(observed, binding)? {
                return Ok(Some(found));
            }
            self.seen = Some(seen);
        }
        Ok(glance::sets(&self.ipset.counts()?, observed, names))
    }

    /// Applies steps about virtual servers, but for those whose scheduler the kernel lacks: these fail
    /// without being sent.
    fn apply_virtual_servers<S: Borrow<Step>>(&mut self, run: &[S]) -> Vec<(usize, StepFailure)> {
        let (ipvs, schedulers, now) = (&mut self.ipvs, &mut self.schedulers, Instant::now());
        let mut lacks = |step: &Step| {
            let name = schedulers::needed(step);
            name.is_some_and(|name| schedulers.lacks(name, now, || ipvs.has_scheduler(name)))
        };
        let lacking: BTreeSet<usize> = (0..run.len())
            .filter(|number| lacks(run[*number].borrow()))
            .collect();
        if lacking.is_empty() {
            return ipvs::apply(&mut self.ipvs, run);
        }
        let numbers: Vec<usize> = (0..run.len()).filter(|n| !lacking.contains(n)).collect();
        let sent: Vec<&Step> = numbers.iter().map(|number| run[*number].borrow()).collect();
        let failed = ipvs::apply(&mut self.ipvs, &sent).into_iter();
        let mut failures: Vec<_> = failed
            .map(|(index, failure)| (numbers[index], failure))
            .collect();
        let refused = |number: usize| {
            let step: &Step = run[number].borrow();
            StepFailure::refused(step, Errno::ENOENT)
        };
        failures.extend(lacking.into_iter().map(|number| (number, refused(number))));
        failures.sort_by_key(|(number, _)| *number);
        failures
    }

    /// Has conntrack know connections before the first of these steps adds a masqueraded server: firewalls of the host
    /// take its answers for invalid otherwise.
    fn track_masqueraded<S: Borrow<Step>>(&mut self, run: &[S]) {
        if !self.is_tracking && run.iter().any(|step| settings::masquerades(step.borrow())) {
            self.track_connections();
        }
    }

    fn track_connections(&mut self) {
        match blocking(|| settings::CONNTRACK.write()) {
            Ok(()) => self.is_tracking = true,
            Err(wrong) => {
                let consequence =
                    "stateful firewalls of this host drop answers of masqueraded servers";
                tracing::warn!(consequence, "kernel setting {wrong}: not written");
            }
        }
    }

    /// When rules are written.
    #[must_use]
    pub fn rules_mode(&self) -> RulesMode {
        self.config.rules_mode
    }

    async fn write_rules(&mut self, steps: &[&Step]) -> Vec<Result<(), StepFailure>> {
        if let Err(wrong) = blocking(|| settings::CONNTRACK.write()) {
            let failure = || StepFailure::new(Doubt::None, format!("kernel setting {wrong}"));
            return steps.iter().map(|_| Err(failure())).collect();
        }
        let all = steps.iter().filter_map(|step| match step {
            Step::WriteRules { family, rules } => Some((*family, &**rules)),
            _ => None,
        });
        let written = self.iptables.write(&all.collect::<Vec<_>>()).await;
        let failure = |error: DataplaneError| StepFailure::new(Doubt::None, error.to_string());
        written
            .into_iter()
            .map(|written| written.map_err(failure))
            .collect()
    }
}

impl ApplyRun for Kernel {
    async fn apply_run<S: Borrow<Step> + Sync>(
        &mut self,
        class: Class,
        run: &[S],
    ) -> Vec<(usize, StepFailure)> {
        let listed = || run.iter().map(Borrow::borrow).collect::<Vec<&Step>>();
        match class {
            Class::VirtualServer => blocking(|| self.apply_virtual_servers(run)),
            Class::RealServer => {
                self.track_masqueraded(run);
                blocking_steps(run.len(), || ipvs::apply(&mut self.ipvs, run))
            }
            Class::Set => failed(blocking(|| ipset::apply(&mut self.ipset, &listed()))),
            Class::Rules => failed(self.write_rules(&listed()).await),
            Class::Route => failed(self.bind_vips(&listed()).await),
        }
    }
}

/// Failures among results, with their numbers.
fn failed(results: Vec<Result<(), StepFailure>>) -> Vec<(usize, StepFailure)> {
    let results = results.into_iter().enumerate();
    let failed = results.filter_map(|(index, result)| Some((index, result.err()?)));
    failed.collect()
}

impl Dataplane for Kernel {
    async fn prepare(&mut self) -> Result<(), DataplaneError> {
        // Rules of an earlier run may be in place, and then nothing writes them.
        let mode = match self.iptables.has_written() {
            true => RulesMode::Always,
            false => self.config.rules_mode,
        };
        let all = settings_at_start(&self.config.tuning, mode);
        blocking(|| settings::write(&all))?;
        if let Err(error) = self.destroy_sets(&[REPLACEMENT_SET.to_owned()]).await {
            // It matters only when a set has to be replaced, which reports it then.
            tracing::warn!(%error, "the temporary set of a killed agent cannot be deleted");
        }
        self.tune();
        Ok(())
    }

    async fn observe(&mut self) -> Result<KernelState, DataplaneError> {
        self.seen = None;
        let listing = blocking(|| self.ipset.list())?;
        let state = blocking(|| self.ipvs.dump())?;
        let rules = self.iptables.observe().await;
        let routes = self.observe_vips().await?;
        Ok(KernelState {
            sets: listing.sets,
            rules,
            routes: routes.ours,
            foreign_routes: routes.foreign,
            virtual_servers: state.virtual_servers,
            recovered: BTreeSet::new(),
        })
    }

    async fn glance(
        &mut self,
        observed: &KernelState,
        names: &Names,
    ) -> Result<Option<String>, DataplaneError> {
        blocking(|| self.look_for_changes(observed, names))
    }

    async fn facts(&mut self) -> Result<NodeFacts, DataplaneError> {
        let config = &self.config;
        let mut facts = self
            .routes
            .facts(&config.node_ips, &config.node_port_addresses)
            .await?;
        facts.missing_schedulers = self.missing_schedulers()?;
        facts.local_ports = sysctl::local_ports();
        Ok(facts)
    }

    async fn lacking_schedulers(
        &mut self,
        names: &BTreeSet<String>,
    ) -> Result<BTreeSet<String>, DataplaneError> {
        let (ipvs, schedulers, now) = (&mut self.ipvs, &mut self.schedulers, Instant::now());
        let mut lacking = BTreeSet::new();
        for name in names {
            if blocking(|| schedulers.probe(name, now, || ipvs.has_scheduler(name)))? {
                lacking.insert(name.clone());
            }
        }
        Ok(lacking)
    }

    fn track(&mut self) {
        if !self.is_tracking {
            self.track_connections();
        }
    }

    async fn choose_marks(&mut self, config: &Config) -> Result<MarkMask, MaskError> {
        self.free_marks(config).await
    }

    async fn apply(&mut self, steps: &[Step]) -> Vec<StepError> {
        self.seen = None;
        runs::apply(self, steps).await
    }

    async fn settle(&mut self) -> Result<(), DataplaneError> {
        self.iptables.settle().await
    }

    async fn connections(
        &mut self,
        key: &VirtualServerKey,
    ) -> Result<BTreeMap<SocketAddr, Connections>, DataplaneError> {
        Ok(blocking(|| self.ipvs.connections(key))?)
    }

    async fn flows(
        &mut self,
        family: Family,
        keep: &(dyn Fn(&Flow) -> bool + Sync),
    ) -> Result<Vec<Flow>, DataplaneError> {
        let conntrack = self.conntrack.get()?;
        let flows = blocking(|| conntrack.udp_flows(family, &|flow| keep(flow)));
        flows.map_err(DataplaneError::Conntrack)
    }

    async fn delete_flows(&mut self, flows: &[Flow]) -> Result<usize, DataplaneError> {
        let conntrack = self.conntrack.get()?;
        let deleted = blocking(|| conntrack.delete(flows));
        deleted.map_err(DataplaneError::Conntrack)
    }

    async fn remove_rules(&mut self, rules: &Rules, family: Family) -> Result<(), DataplaneError> {
        self.iptables.remove(family, rules).await
    }

    async fn destroy_sets(&mut self, names: &[String]) -> Result<(), DataplaneError> {
        blocking(|| ipset::destroy(&mut self.ipset, names))
    }
}
