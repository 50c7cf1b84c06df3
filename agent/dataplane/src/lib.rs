// SPDX-License-Identifier: Apache-2.0

//! Interface to the kernel: observation of its state, and application of steps.
//!
//! [`Kernel`] is the real one. [`FakeKernel`] models it: it checks references as the kernel does, and fails
//! on demand. Neither chooses steps, which is left to the plan.

#![forbid(unsafe_code)]

mod addresses;
mod fake;
mod gate;
mod host;
mod kernel;
mod kube_proxy;
mod other_plane;
mod runs;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::SocketAddr;

use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::{Connections, VirtualServerKey};
use portolan_plan::{Config, KernelState, MarkMask, MaskError, Names, NodeFacts, Rules, Step};

pub use portolan_netlink::Errno;
pub use portolan_netlink::announce::Announcer;
pub use portolan_netlink::conntrack::{Flow, Tuple};

pub use gate::HoldReason;

pub use addresses::{AddressMonitor, NodePortAddresses, NodePortAddressesError};
pub use fake::{FakeHost, FakeKernel, Fault};
pub use host::HostPlane;
pub use kernel::{
    CONNTRACK, ConntrackTuning, Consequence, ForwardHook, IptablesMode, Kernel, KernelConfig,
    KubeProxyRules, Modprobe, Modules, NftablesKernel, ObservedTables, REPLACEMENT_SET, ROUTE_MARK,
    Setting, SomeUsage, Tuning, Unusable, UsageOf, VIP_DEVICE, Whole, WrongSetting, has_set,
    load_modules, node_facts, read_some_usage, read_totals, read_usage, read_whole, settings,
    settings_at_start, settings_without_ipvs,
};
pub use kube_proxy::KubeProxyObjects;
pub use other_plane::OtherPlane;
pub use portolan_netlink::ipvs::{Timeouts, Totals, Usage};
pub use portolan_netlink::nftables;

/// Reason the kernel could not be read or prepared.
#[derive(Debug, thiserror::Error)]
pub enum DataplaneError {
    /// IPVS could not be used.
    #[error(transparent)]
    Ipvs(#[from] portolan_netlink::ipvs::IpvsError),
    /// ipset could not be used.
    #[error(transparent)]
    Ipset(#[from] portolan_netlink::ipset::IpsetError),
    /// This process may not program the kernel.
    #[error(
        "this process lacks {}: run it as root, or with CAP_NET_ADMIN and CAP_NET_RAW, which the \
         match `set` of iptables needs",
        .0.join(" and ")
    )]
    Capabilities(Vec<&'static str>),
    /// A part of the kernel is missing and cannot be loaded.
    #[error(
        "the kernel has no {what}, and its modules cannot be loaded from here ({reason}): on the \
         host, run `{}`",
        Self::modprobe()
    )]
    NoModule {
        /// The missing part.
        what: &'static str,
        /// Reason why it cannot be loaded.
        reason: String,
    },
    /// Conntrack could not be used.
    #[error("conntrack: {0}")]
    Conntrack(portolan_netlink::SocketError),
    /// nftables could not be used.
    #[error("nftables: {0}")]
    Nftables(portolan_netlink::SocketError),
    /// Routes or addresses could not be read.
    #[error(transparent)]
    Route(#[from] rtnetlink::Error),
    /// Routes could not be prepared.
    #[error("routes: {0}")]
    RouteSocket(portolan_netlink::SocketError),
    /// A tool could not be run, or it failed.
    #[error("{command}: {message}")]
    Command {
        /// The command.
        command: String,
        /// Its error message.
        message: String,
    },
    /// No variant of iptables could be chosen.
    #[error("no variant of iptables works: {0}")]
    Undecided(String),
    /// A tool exceeded its deadline and was killed.
    #[error("{command}: not finished in {deadline:?}: killed")]
    Hangs {
        /// The command.
        command: String,
        /// Its deadline.
        deadline: std::time::Duration,
    },
    /// Kernel settings are wrong and could not be written, and Services are not forwarded with them.
    #[error(
        "kernel settings are wrong and cannot be written from here: {wrong}; run `portolan-agent \
         prepare` with the same flags as root on the host or in a privileged container"
    )]
    Settings {
        /// The settings, with their values.
        wrong: String,
    },
    /// Another operation of the operating system failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

impl DataplaneError {
    /// The error of a transaction of nftables. `what` was to be made by it.
    #[must_use]
    pub fn of_commit(what: String, error: nftables::CommitError) -> Self {
        match error {
            nftables::CommitError::Socket(error) => Self::Nftables(error),
            error => Self::Command {
                command: what,
                message: error.to_string(),
            },
        }
    }
}

/// Failure of a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepError {
    /// Its index in the slice given to [`Dataplane::apply`].
    pub index: usize,
    /// Whether the step was tried or held back.
    pub kind: StepErrorKind,
    /// Reason.
    pub message: String,
    /// Set entries missing because of it; see
    /// [`Desired::records_of`](portolan_plan::Desired::records_of).
    pub entries: Vec<SetEntry>,
    /// The part of the step that the kernel executed.
    pub done: Option<Step>,
    /// Doubt about the observed state.
    pub doubt: Doubt,
}

/// Kind of a [`StepError`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StepErrorKind {
    /// The step was tried, and the kernel or a tool refused it or gave no answer.
    Failed,
    /// The step was not tried because of an earlier failure.
    Held(HoldReason),
}

/// Doubt that a failed step casts on the observed state.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// None: the step had no effect, but for the part that is known.
    #[default]
    None,
    /// The kernel's answer contradicts the observed state, unless that was just read.
    Stale,
    /// There was no answer: the step may have been executed.
    Lost,
}

/// A kernel that can be observed and changed.
pub trait Dataplane: Send {
    /// Writes required kernel settings, and removes temporary objects of a killed agent.
    fn prepare(&mut self) -> impl Future<Output = Result<(), DataplaneError>> + Send;

    /// Reads the state of the kernel, foreign objects included.
    fn observe(&mut self) -> impl Future<Output = Result<KernelState, DataplaneError>> + Send;

    /// Compares our objects with an observed state in a few milliseconds; returns the first difference.
    ///
    /// Checked are configurations of IPv4 virtual servers and numbers of their real servers, headers of sets
    /// and numbers of their entries, and local routes, foreign ones included. IPv6 virtual servers,
    /// weights, single entries and rules are left to [`Self::observe`].
    fn glance(
        &mut self,
        observed: &KernelState,
        names: &Names,
    ) -> impl Future<Output = Result<Option<String>, DataplaneError>> + Send;

    /// Reads the facts about the node.
    fn facts(&mut self) -> impl Future<Output = Result<NodeFacts, DataplaneError>> + Send;

    /// The schedulers among these that the kernel lacks, and cannot load. None if that cannot be told.
    fn lacking_schedulers(
        &mut self,
        _names: &BTreeSet<String>,
    ) -> impl Future<Output = Result<BTreeSet<String>, DataplaneError>> + Send {
        std::future::ready(Ok(BTreeSet::new()))
    }

    /// Has conntrack know connections to masqueraded servers. A run before may have left such servers, for which there
    /// are no steps then.
    fn track(&mut self) {}

    /// Chooses the marks that the rules give packets, when the first rules are about to be written: bits that no
    /// other program uses.
    fn choose_marks(
        &mut self,
        config: &Config,
    ) -> impl Future<Output = Result<MarkMask, MaskError>> + Send;

    /// Applies steps in order. A failed step does not stop the others, except those that depend on it: no
    /// virtual server is added without its masquerade rules and entries.
    fn apply(&mut self, steps: &[Step]) -> impl Future<Output = Vec<StepError>> + Send;

    /// Completes [`Self::apply`] with work that nothing waits for.
    fn settle(&mut self) -> impl Future<Output = Result<(), DataplaneError>> + Send;

    /// The connections of a virtual server's real servers.
    fn connections(
        &mut self,
        key: &VirtualServerKey,
    ) -> impl Future<Output = Result<BTreeMap<SocketAddr, Connections>, DataplaneError>> + Send;

    /// The UDP flows of a family in conntrack that `keep` selects.
    fn flows(
        &mut self,
        family: portolan_model::Family,
        keep: &(dyn Fn(&Flow) -> bool + Sync),
    ) -> impl Future<Output = Result<Vec<Flow>, DataplaneError>> + Send;

    /// Deletes flows from conntrack; returns how many still existed.
    fn delete_flows(
        &mut self,
        flows: &[Flow],
    ) -> impl Future<Output = Result<usize, DataplaneError>> + Send;

    /// Removes our chains and jumps.
    fn remove_rules(
        &mut self,
        rules: &Rules,
        family: portolan_model::Family,
    ) -> impl Future<Output = Result<(), DataplaneError>> + Send;

    /// Destroys sets that no rule refers to any more.
    fn destroy_sets(
        &mut self,
        names: &[String],
    ) -> impl Future<Output = Result<(), DataplaneError>> + Send;
}
