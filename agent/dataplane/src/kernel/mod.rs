//! The real kernel, in the network namespace of the calling process.
//!
//! IPVS and ipset go over our own batching netlink socket, routes and addresses over rtnetlink,
//! the constant rules through `iptables-restore`. Neighbouring steps of one class share a batch.

mod binding;
pub(crate) mod glance;
mod ipset;
mod iptables;
mod ipvs;
mod modules;
mod predecessor;
mod routes;
mod sysctl;
mod tuning;

use std::borrow::Borrow;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use portolan_model::Family;
use portolan_model::ipvs::{Connections, VirtualServerKey};
use portolan_netlink::conntrack::Conntrack;
use portolan_netlink::ipset::Ipset;
use portolan_netlink::ipvs::Ipvs;
use portolan_netlink::route::Request;
use portolan_plan::{KernelState, Names, NodeFacts, Rules, Step, VipBinding};

use crate::gate::Gate;
use crate::{Dataplane, DataplaneError, Flow, NodePortAddresses, StepError};

pub use binding::DEVICE as VIP_DEVICE;
pub use ipset::REPLACEMENT as REPLACEMENT_SET;
pub use iptables::IptablesMode;
pub use routes::ROUTE_MARK;
pub use tuning::{ConntrackTuning, Tuning};

use binding::Device;
use iptables::Iptables;
use routes::Routes;

/// How to use the kernel.
#[derive(Debug, Clone, Default)]
pub struct KernelConfig {
    /// Which iptables to write rules with.
    pub iptables: IptablesMode,
    /// The node's addresses to use as the source of its own connections to VIPs, at most one per
    /// family. For a family without one the first address of the lowest interface is taken.
    pub node_ips: Vec<IpAddr>,
    /// Which of the node's addresses take node ports.
    pub node_port_addresses: NodePortAddresses,
    /// A file in which it is kept what rules are in place, so that the next run need not write them
    /// again; none: it does.
    pub rules_record: Option<PathBuf>,
    /// Settings beyond those that we cannot do without.
    pub tuning: Tuning,
    /// How VIPs arrive on the node.
    pub vip_binding: VipBinding,
}

/// The kernel of the network namespace that we run in.
#[derive(Debug)]
pub struct Kernel {
    config: KernelConfig,
    ipvs: Ipvs,
    ipset: Ipset,
    /// Opened when it is first needed: only UDP Services need it.
    conntrack: Option<Conntrack>,
    routes: Routes,
    device: Device,
    iptables: Iptables,
    missing_schedulers: Option<BTreeSet<String>>,
    /// What virtual servers and routes looked like when they last were as they should be, unless we
    /// have changed anything since.
    seen: Option<(glance::Sum, glance::Sum)>,
}

impl Kernel {
    /// Opens all that is needed; loads the kernel modules of IPVS if it is missing. Must be called
    /// within a tokio runtime.
    ///
    /// # Errors
    /// If the kernel has no IPVS or ipset, the capability `CAP_NET_ADMIN` is missing, or there is
    /// no iptables that works.
    pub async fn open(config: KernelConfig) -> Result<Self, DataplaneError> {
        Ok(Self {
            ipvs: modules::open_ipvs().await?,
            ipset: modules::open_ipset().await?,
            conntrack: None,
            routes: Routes::open()?,
            device: Device::default(),
            iptables: Iptables::open(config.iptables, config.rules_record.clone()).await?,
            missing_schedulers: None,
            seen: None,
            config,
        })
    }

    /// How many netlink requests were made so far that read or change virtual servers, sets or
    /// routes.
    #[must_use]
    pub fn requests(&self) -> u32 {
        let requests = [
            self.ipvs.requests(),
            self.ipset.requests(),
            self.routes.requests(),
        ];
        requests.into_iter().fold(0, u32::wrapping_add)
    }

    /// The families that the kernel has.
    #[must_use]
    pub fn families() -> Vec<Family> {
        if sysctl::has_ipv6() {
            Family::ALL.to_vec()
        } else {
            vec![Family::V4]
        }
    }

    /// The schedulers that we would like to use by ourselves and the kernel does not have. Asked
    /// once: a kernel that had one may unload it only while nobody uses it.
    fn missing_schedulers(&mut self) -> Result<BTreeSet<String>, DataplaneError> {
        if let Some(missing) = &self.missing_schedulers {
            return Ok(missing.clone());
        }
        let mut missing = BTreeSet::new();
        if !self.ipvs.has_scheduler("mh")? {
            missing.insert("mh".to_owned());
        }
        self.missing_schedulers = Some(missing.clone());
        Ok(missing)
    }

    fn conntrack(&mut self) -> Result<&mut Conntrack, DataplaneError> {
        match &mut self.conntrack {
            Some(conntrack) => Ok(conntrack),
            none => {
                let opened = Conntrack::open().map_err(DataplaneError::Conntrack)?;
                Ok(none.insert(opened))
            }
        }
    }

    /// Takes neighbouring steps of one class, and says which of them failed, in order.
    async fn take<S: Borrow<Step>>(&mut self, class: Class, steps: &[S]) -> Vec<(usize, Failure)> {
        let listed = || steps.iter().map(Borrow::borrow).collect::<Vec<&Step>>();
        let results = match class {
            Class::Ipvs => return ipvs::take(&mut self.ipvs, steps),
            Class::Set => ipset::take(&mut self.ipset, &listed()),
            Class::Rules => self.write_rules(&listed()).await,
            Class::Route => {
                let mut changes = Vec::with_capacity(steps.len());
                changes.extend(steps.iter().filter_map(|step| route_change(step.borrow())));
                return self.bind_vips(&changes).await;
            }
        };
        let results = results.into_iter().enumerate();
        results
            .filter_map(|(index, result)| Some((index, result.err()?)))
            .collect()
    }

    async fn write_rules(&mut self, steps: &[&Step]) -> Vec<Result<(), Failure>> {
        let mut results = Vec::with_capacity(steps.len());
        for step in steps {
            results.push(match step {
                Step::WriteRules { family, rules } => {
                    let written = self.iptables.write(*family, rules).await;
                    written.map_err(|error| Failure::whole(error.to_string()))
                }
                _ => Ok(()),
            });
        }
        results
    }
}

/// Why a step failed, as a whole or for some of its entries.
#[derive(Debug, Default)]
struct Failure {
    message: String,
    /// The entries that are missing; empty if the whole step failed.
    entries: Vec<portolan_model::ipset::SetEntry>,
    certain: bool,
}

impl Failure {
    fn whole(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            entries: Vec::new(),
            certain: false,
        }
    }
}

/// What a step goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Set,
    Rules,
    Route,
    Ipvs,
}

fn class(step: &Step) -> Class {
    match step {
        Step::CreateSet { .. }
        | Step::ReplaceSet { .. }
        | Step::AddEntries { .. }
        | Step::DelEntries { .. } => Class::Set,
        Step::WriteRules { .. } => Class::Rules,
        Step::AddRoute { .. } | Step::SetRoute { .. } | Step::DelRoute { .. } => Class::Route,
        _ => Class::Ipvs,
    }
}

fn route_change(step: &Step) -> Option<Request> {
    match step {
        Step::AddRoute { vip, source } => Some(Request::Add(*vip, *source)),
        Step::SetRoute { vip, source } => Some(Request::Set(*vip, *source)),
        Step::DelRoute { vip } => Some(Request::Del(*vip)),
        _ => None,
    }
}

impl Dataplane for Kernel {
    async fn prepare(&mut self) -> Result<(), DataplaneError> {
        sysctl::write_settings()?;
        if let Err(error) = self.destroy_sets(&[REPLACEMENT_SET.to_owned()]).await {
            // It is in nobody's way before a set has to be replaced, and then that says so.
            tracing::warn!(%error, "what a killed agent left cannot be taken away");
        }
        tuning::apply(&self.config.tuning, &mut self.ipvs)
    }

    async fn observe(&mut self) -> Result<KernelState, DataplaneError> {
        self.seen = None;
        let listing = self.ipset.list()?;
        let state = self.ipvs.dump()?;
        let rules = self.iptables.observe().await?;
        let routes = self.observe_vips().await?;
        Ok(KernelState {
            sets: listing.sets,
            rules,
            routes: routes.ours,
            foreign_routes: routes.foreign,
            virtual_servers: state.virtual_servers,
        })
    }

    async fn glance(
        &mut self,
        known: &KernelState,
        names: &Names,
    ) -> Result<Option<String>, DataplaneError> {
        let seen = (glance::sum_of_servers(&self.ipvs)?, self.routes.sum()?);
        if self.seen != Some(seen) {
            if let Some(found) = glance::servers(&self.ipvs, known, names)? {
                return Ok(Some(found));
            }
            if let Some(found) = self.routes.glance(known)? {
                return Ok(Some(found));
            }
            self.seen = Some(seen);
        }
        Ok(glance::sets(&self.ipset.counts()?, known, names))
    }

    async fn facts(&mut self) -> Result<NodeFacts, DataplaneError> {
        let config = &self.config;
        let mut facts = self
            .routes
            .facts(&config.node_ips, &config.node_port_addresses)
            .await?;
        facts.missing_schedulers = self.missing_schedulers()?;
        Ok(facts)
    }

    async fn apply(&mut self, steps: &[Step]) -> Vec<StepError> {
        self.seen = None;
        let mut gate = Gate::default();
        let mut errors = Vec::new();
        let mut start = 0;
        for run in steps.chunk_by(|a, b| class(a) == class(b)) {
            let mut held = BTreeSet::new();
            for (number, step) in run.iter().enumerate() {
                if let Some(reason) = gate.holds(step) {
                    held.insert(number);
                    errors.push(StepError {
                        index: start + number,
                        message: reason.to_owned(),
                        entries: Vec::new(),
                        certain: true,
                    });
                }
            }
            let class = class(&run[0]);
            let failures = if held.is_empty() {
                // As a rule, and a list of all steps would take longer to make than to go through.
                self.take(class, run).await
            } else {
                let numbers: Vec<_> = (0..run.len()).filter(|n| !held.contains(n)).collect();
                let allowed: Vec<_> = numbers.iter().map(|number| &run[*number]).collect();
                let failures = self.take(class, &allowed).await.into_iter();
                let numbered = failures.map(|(failed, failure)| (numbers[failed], failure));
                numbered.collect()
            };
            for (number, failure) in failures {
                let step = &run[number];
                let entries = if failure.entries.is_empty() {
                    gate.failed(step);
                    step.added_entries()
                } else {
                    let failed = failure.entries.iter().cloned();
                    failed.for_each(|entry| gate.failed_entry(entry));
                    failure.entries
                };
                errors.push(StepError {
                    index: start + number,
                    message: failure.message,
                    entries,
                    certain: failure.certain,
                });
            }
            start += run.len();
        }
        errors.sort_by_key(|error| error.index);
        errors
    }

    async fn settle(&mut self) -> Result<(), DataplaneError> {
        self.iptables.settle().await
    }

    async fn connections(
        &mut self,
        key: &VirtualServerKey,
    ) -> Result<BTreeMap<SocketAddr, Connections>, DataplaneError> {
        Ok(self.ipvs.connections(key)?)
    }

    async fn flows(
        &mut self,
        family: Family,
        keep: &(dyn Fn(&Flow) -> bool + Sync),
    ) -> Result<Vec<Flow>, DataplaneError> {
        let conntrack = self.conntrack()?;
        let flows = conntrack.udp_flows(family, &|flow| keep(flow));
        flows.map_err(DataplaneError::Conntrack)
    }

    async fn delete_flows(&mut self, flows: &[Flow]) -> Result<usize, DataplaneError> {
        let deleted = self.conntrack()?.delete(flows);
        deleted.map_err(DataplaneError::Conntrack)
    }

    async fn remove_rules(&mut self, rules: &Rules, family: Family) -> Result<(), DataplaneError> {
        self.iptables.remove(family, rules).await
    }

    async fn destroy_sets(&mut self, names: &[String]) -> Result<(), DataplaneError> {
        ipset::destroy(&mut self.ipset, names)
    }
}
