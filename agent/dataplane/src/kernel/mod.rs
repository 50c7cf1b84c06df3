//! The real kernel, in the network namespace of the calling process.
//!
//! IPVS and ipset go over our own batching netlink socket, routes and addresses over rtnetlink,
//! the constant rules through `iptables-restore`. Neighbouring steps of one class share a batch.

mod binding;
pub(crate) mod glance;
mod ipset;
mod iptables;
mod ipvs;
mod kube_proxy;
mod machine;
mod modules;
mod probe;
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
use portolan_plan::{KernelState, Names, NodeFacts, Rules, Step, VipBinding};

use crate::runs::{self, ApplyRun, Class, StepFailure};
use crate::{Dataplane, DataplaneError, Doubt, Flow, NodePortAddresses, StepError};

pub use binding::DEVICE as VIP_DEVICE;
pub use ipset::REPLACEMENT as REPLACEMENT_SET;
pub use iptables::IptablesMode;
pub use probe::Unusable;
pub use routes::ROUTE_MARK;
pub use tuning::{ConntrackTuning, Tuning};

use binding::VipDevice;
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
    device: VipDevice,
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
            device: VipDevice::default(),
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

    async fn write_rules(&mut self, steps: &[&Step]) -> Vec<Result<(), StepFailure>> {
        let mut results = Vec::with_capacity(steps.len());
        for step in steps {
            results.push(match step {
                Step::WriteRules { family, rules } => {
                    let written = self.iptables.write(*family, rules).await;
                    written.map_err(|error| StepFailure::new(Doubt::None, error.to_string()))
                }
                _ => Ok(()),
            });
        }
        results
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
            Class::VirtualServer | Class::RealServer => ipvs::apply(&mut self.ipvs, run),
            Class::Set => failed(ipset::apply(&mut self.ipset, &listed())),
            Class::Rules => failed(self.write_rules(&listed()).await),
            Class::Route => failed(self.bind_vips(&listed()).await),
        }
    }
}

/// Those of the results that are failures, with their numbers.
fn failed(results: Vec<Result<(), StepFailure>>) -> Vec<(usize, StepFailure)> {
    let results = results.into_iter().enumerate();
    let failed = results.filter_map(|(index, result)| Some((index, result.err()?)));
    failed.collect()
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
        let seen = (glance::sum_of_servers(&self.ipvs)?, self.routes.sum()?);
        if self.seen != Some(seen) {
            if let Some(found) = glance::servers(&self.ipvs, observed, names)? {
                return Ok(Some(found));
            }
            if let Some(found) = self.routes.glance(observed)? {
                return Ok(Some(found));
            }
            self.seen = Some(seen);
        }
        Ok(glance::sets(&self.ipset.counts()?, observed, names))
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
        runs::apply(self, steps).await
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
