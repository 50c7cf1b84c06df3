//! The seam to the kernel: observe what it holds, apply steps to it.
//!
//! [`Kernel`] is the real one; [`FakeKernel`] models it, checks references as the kernel does, and
//! can be told to fail. Neither decides anything: what to do is the plan's business.

#![forbid(unsafe_code)]

mod addresses;
mod fake;
mod gate;
mod kernel;
mod kube_proxy;
mod runs;

use std::collections::BTreeMap;
use std::future::Future;
use std::net::SocketAddr;

use portolan_model::ipset::SetEntry;
use portolan_model::ipvs::{Connections, VirtualServerKey};
use portolan_plan::{KernelState, Names, NodeFacts, Rules, Step};

pub use portolan_netlink::Errno;
pub use portolan_netlink::conntrack::{Flow, Tuple};

pub use gate::HELD_WITH_SERVER;

pub use addresses::{AddressMonitor, NodePortAddresses, NodePortAddressesError};
pub use fake::{FakeKernel, Fault};
pub use kernel::{
    ConntrackTuning, IptablesMode, Kernel, KernelConfig, REPLACEMENT_SET, ROUTE_MARK, Tuning,
    Unusable, VIP_DEVICE,
};
pub use kube_proxy::KubeProxyObjects;
pub use portolan_netlink::ipvs::Timeouts;

/// Why the kernel could not be read or prepared.
#[derive(Debug, thiserror::Error)]
pub enum DataplaneError {
    /// IPVS could not be used.
    #[error(transparent)]
    Ipvs(#[from] portolan_netlink::ipvs::IpvsError),
    /// ipset could not be used.
    #[error(transparent)]
    Ipset(#[from] portolan_netlink::ipset::IpsetError),
    /// A part of the kernel is not there and cannot be loaded.
    #[error(
        "the kernel has no {what}, and its modules cannot be loaded from here ({reason}): on the \
         host, run `{}`",
        Self::modprobe()
    )]
    NoModule {
        /// Which part.
        what: &'static str,
        /// Why it cannot be loaded.
        reason: String,
    },
    /// Conntrack could not be used.
    #[error("conntrack: {0}")]
    Conntrack(portolan_netlink::SocketError),
    /// Routes or addresses could not be read.
    #[error(transparent)]
    Route(#[from] rtnetlink::Error),
    /// Routes could not be prepared.
    #[error("routes: {0}")]
    RouteSocket(portolan_netlink::SocketError),
    /// A tool could not be run, or it failed.
    #[error("{command}: {message}")]
    Command {
        /// What was run.
        command: String,
        /// What it said.
        message: String,
    },
    /// A tool did not end, and was killed.
    #[error("{command}: has not ended in {deadline:?}: killed")]
    Hangs {
        /// What was run.
        command: String,
        /// How long it may take.
        deadline: std::time::Duration,
    },
    /// A kernel setting could not be written.
    #[error("sysctl {name}: {error}")]
    Sysctl {
        /// Its name, with slashes.
        name: &'static str,
        /// Why.
        error: std::io::Error,
    },
    /// Something else of the operating system failed.
    #[error(transparent)]
    Io(#[from] std::io::Error),
}

/// A step that did not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepError {
    /// Its index in the slice given to [`Dataplane::apply`].
    pub index: usize,
    /// Why.
    pub message: String,
    /// The entries of sets that are missing because of it; see
    /// [`Desired::records_of`](portolan_plan::Desired::records_of).
    pub entries: Vec<SetEntry>,
    /// The part of the step that the kernel took all the same.
    pub done: Option<Step>,
    /// What is known of the kernel besides.
    pub doubt: Doubt,
}

/// What a failed step says about what is known of the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Doubt {
    /// Nothing: the step was not taken, but for the part that is known, and all else is as it was.
    #[default]
    None,
    /// The kernel's answer contradicts what was known before, unless that was read just now.
    Stale,
    /// There was no answer: the step may have been taken.
    Lost,
}

/// A kernel that can be observed and changed.
pub trait Dataplane: Send {
    /// Writes the kernel settings that the rest depends on, and takes away what one that was killed
    /// in the middle of a change left.
    fn prepare(&mut self) -> impl Future<Output = Result<(), DataplaneError>> + Send;

    /// Reads all that the kernel holds of what we look after, and whose it may be.
    fn observe(&mut self) -> impl Future<Output = Result<KernelState, DataplaneError>> + Send;

    /// Looks whether the kernel still holds what is ours of a known state, as far as a few
    /// milliseconds tell; says what it found otherwise, if anything.
    ///
    /// Of IPv4 virtual servers that is what they do and how many real servers they have, of sets
    /// what they are and how many entries they have, and the local routes, others' too. IPv6 virtual
    /// servers, weights, single entries and rules are left to [`Self::observe`].
    fn glance(
        &mut self,
        observed: &KernelState,
        names: &Names,
    ) -> impl Future<Output = Result<Option<String>, DataplaneError>> + Send;

    /// Reads what the node is like.
    fn facts(&mut self) -> impl Future<Output = Result<NodeFacts, DataplaneError>> + Send;

    /// Takes steps in order. A step that fails does not stop the others, except those that must
    /// not be without it: no virtual server comes up whose masquerade rules or entries are missing.
    fn apply(&mut self, steps: &[Step]) -> impl Future<Output = Vec<StepError>> + Send;

    /// Does what is still to be done after [`Self::apply`] and nobody has to wait for.
    fn settle(&mut self) -> impl Future<Output = Result<(), DataplaneError>> + Send;

    /// The connections of a virtual server's real servers.
    fn connections(
        &mut self,
        key: &VirtualServerKey,
    ) -> impl Future<Output = Result<BTreeMap<SocketAddr, Connections>, DataplaneError>> + Send;

    /// The UDP flows of a family that conntrack remembers and `keep` wants.
    fn flows(
        &mut self,
        family: portolan_model::Family,
        keep: &(dyn Fn(&Flow) -> bool + Sync),
    ) -> impl Future<Output = Result<Vec<Flow>, DataplaneError>> + Send;

    /// Makes conntrack forget flows; says how many it still remembered.
    fn delete_flows(
        &mut self,
        flows: &[Flow],
    ) -> impl Future<Output = Result<usize, DataplaneError>> + Send;

    /// Takes our chains and jumps away.
    fn remove_rules(
        &mut self,
        rules: &Rules,
        family: portolan_model::Family,
    ) -> impl Future<Output = Result<(), DataplaneError>> + Send;

    /// Takes sets away that no rule refers to any more.
    fn destroy_sets(
        &mut self,
        names: &[String],
    ) -> impl Future<Output = Result<(), DataplaneError>> + Send;
}
