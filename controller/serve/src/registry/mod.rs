// SPDX-License-Identifier: Apache-2.0

//! Registry of connected agents and of the tables they have programmed.
//!
//! Entries of disconnected agents are kept and marked as such: that a node lags is most worth
//! knowing when its agent cannot report it.

mod confirm;
mod convergence;
mod counters;
mod disconnected;
mod entry;
mod everybody;
mod health;
mod nodes;
mod reason;
mod recent;
mod reconnects;
mod side_stream;
mod signals;
mod status;

use std::collections::hash_map::Entry as Place;
use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use portolan_auth::{RefusalReason, Refusals};
use portolan_model::NodeKey;
use portolan_proto::v1;
use portolan_runtime::Rate;
use portolan_tablelog::PublishObserver;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tracing::info;

pub use confirm::Unconfirmed;
use convergence::{Convergence, Member, Reached};
pub use counters::Counters;
pub(crate) use counters::{Counter, LiveCounters};
use disconnected::Disconnected;
use entry::AgentEntry;
pub use everybody::AllProgrammed;
pub use health::{BackendState, BalancerHealth, NodeHealth};
pub(crate) use nodes::NodeStanding;
use nodes::SourceNodes;
pub use recent::RecentChange;
pub(crate) use reconnects::RetryAfter;
pub(crate) use side_stream::{SideStream, SideStreamEnd};
use signals::SessionSignals;
pub use status::{HeldTable, NodeStatus, RecordProblem};

/// The agents of one controller, shared by sessions, metrics and the admin server.
#[derive(Debug)]
pub struct Registry {
    nodes: Mutex<Nodes>,
    live: LiveCounters,
    refusals: Arc<Refusals>,
    convergence: ConvergenceSeconds,
    /// Notified of each node that the source newly reports.
    arrivals: Notify,
}

/// Time from the first event of a change until a share of the connected nodes had programmed it, in
/// seconds, by `share`: `0.5`, `0.99` or `1`.
pub type ConvergenceSeconds = Family<[(&'static str, &'static str); 1], Histogram>;

impl Default for Registry {
    fn default() -> Self {
        let histogram: fn() -> Histogram = || Histogram::new(exponential_buckets(0.001, 2.0, 17));
        Self {
            nodes: Mutex::default(),
            live: LiveCounters::default(),
            refusals: Arc::default(),
            convergence: Family::new_with_constructor(histogram),
            arrivals: Notify::new(),
        }
    }
}

#[derive(Debug, Default)]
struct Nodes {
    /// Unsorted: each new stream and each acknowledgement looks up one among thousands of entries.
    entries: HashMap<NodeKey, AgentEntry>,
    disconnected: Disconnected,
    known: SourceNodes,
    /// Streams that agents have beside those of their tables.
    side_streams: HashMap<NodeKey, Arc<SessionSignals>>,
    last_session: u64,
    /// By cluster.
    convergence: BTreeMap<Arc<str>, Convergence>,
}

/// Description of a connecting agent.
#[derive(Debug)]
pub(crate) struct Connect {
    pub(crate) node: NodeKey,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) agent_version: String,
    pub(crate) protocol_version: u32,
    pub(crate) now: SystemTime,
    /// Rate of the node's streams; `None` where the name of the node is unproven.
    pub(crate) rate: Option<Rate>,
}

/// A node's one live stream. Dropping it marks the agent as disconnected.
#[derive(Debug)]
pub(crate) struct Session {
    registry: Arc<Registry>,
    node: NodeKey,
    number: u64,
    signals: Arc<SessionSignals>,
}

impl Registry {
    /// All agents, sorted by cluster and node.
    #[must_use]
    pub fn snapshot(&self) -> Vec<NodeStatus> {
        let (nodes, now) = (self.lock(), Instant::now());
        let none = Convergence::default();
        let mut entries: Vec<_> = nodes.entries.iter().collect();
        entries.sort_unstable_by_key(|(node, _)| *node);
        entries
            .into_iter()
            .map(|(node, entry)| {
                let convergence = nodes.convergence.get(&node.cluster).unwrap_or(&none);
                entry.status(node, convergence, now)
            })
            .collect()
    }

    /// The health of load balancers' backends, of each node that is connected or has reported any; sorted by cluster and node.
    #[must_use]
    pub fn backend_health(&self) -> Vec<NodeHealth> {
        let nodes = self.lock();
        let entries = nodes.entries.iter();
        let mut all: Vec<_> = entries
            .filter_map(|(node, entry)| entry.health(node))
            .collect();
        drop(nodes);
        all.sort_unstable_by(|a, b| (&a.cluster, &a.node).cmp(&(&b.cluster, &b.node)));
        all
    }

    /// The last changes of all clusters, the newest first.
    #[must_use]
    pub fn recent_changes(&self) -> Vec<RecentChange> {
        let (nodes, now) = (self.lock(), Instant::now());
        let clusters = nodes.convergence.iter();
        let all = clusters.flat_map(|(cluster, it)| it.recent().changes(cluster, now));
        let mut all: Vec<_> = all.collect();
        all.sort_by_key(|change| change.age);
        all
    }

    /// Histogram of convergence times, for registration.
    #[must_use]
    pub fn convergence(&self) -> ConvergenceSeconds {
        self.convergence.clone()
    }

    fn observe(&self, reached: Vec<Reached>) {
        for (share, duration) in reached {
            let histogram = self.convergence.get_or_create(&[("share", share.as_str())]);
            histogram.observe(duration.as_secs_f64());
        }
    }

    /// Number of agents with a live stream. Costs O(1).
    #[must_use]
    pub fn connected(&self) -> usize {
        let nodes = self.lock();
        nodes.entries.len() - nodes.disconnected.len()
    }

    /// Totals since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.live.read()
    }

    pub(crate) fn count(&self, counter: Counter, by: usize) {
        self.live.add(counter, by);
    }

    /// Refused connections and streams, by reason.
    #[must_use]
    pub fn refusals(&self) -> Vec<(RefusalReason, u64)> {
        self.refusals.read()
    }

    /// Counts a refusal, and logs it at a limited rate.
    pub(crate) fn refuse(&self, peer: IpAddr, reason: RefusalReason, message: &str) {
        self.refusals.refuse(peer, reason, message);
    }

    /// The refusal counters, shared with the listener.
    pub(crate) fn refusals_shared(&self) -> Arc<Refusals> {
        Arc::clone(&self.refusals)
    }

    /// Begins a session. A session that the node already has is told to end: the newer stream is
    /// the one known to work, whatever the state of the older connection.
    ///
    /// # Errors
    /// If the node's streams begin too often. Its present stream goes on.
    pub(crate) fn connect(self: &Arc<Self>, connect: Connect) -> Result<Session, RetryAfter> {
        let signals = Arc::<SessionSignals>::default();
        let node = connect.node.clone();
        let mut nodes = self.lock();
        if let Some(rate) = connect.rate
            && let Some(known) = nodes.entries.get_mut(&node)
        {
            known.spend_stream(rate, Instant::now())?;
        }
        if !nodes.is_served(&node) {
            signals.delete();
        }
        nodes.last_session += 1;
        let number = nodes.last_session;
        let entry = AgentEntry::new(connect, number, Arc::clone(&signals));
        if let Some(mut old) = nodes.insert(node.clone(), entry) {
            nodes.disconnected.remove(old.session());
            if old.replace() {
                self.count(Counter::Replaced, 1);
            }
            if let Some(member) = old.member.take() {
                nodes.left(&node.cluster, member);
            }
        }
        drop(nodes);
        self.count(Counter::Sessions, 1);
        Ok(Session {
            registry: Arc::clone(self),
            node,
            number,
            signals,
        })
    }

    /// A poisoned lock is taken over: entries stay usable after a panic.
    fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PublishObserver for Registry {
    fn node_changed(&self, node: &NodeKey, is_present: bool) {
        match is_present {
            true => self.node_present(node),
            false => self.node_deleted(node),
        }
    }

    fn head_changed(&self, cluster: &Arc<str>, head: u64, observed: Instant) {
        let mut nodes = self.lock();
        let convergence = nodes.convergence.entry(Arc::clone(cluster)).or_default();
        let reached = convergence.published(head, observed, Instant::now());
        drop(nodes);
        self.observe(reached);
    }
}

impl Nodes {
    /// Inserts an entry, which inherits the lasting state of the node's previous one. Returns the
    /// previous entry.
    fn insert(&mut self, node: NodeKey, entry: AgentEntry) -> Option<AgentEntry> {
        match self.entries.entry(node) {
            Place::Vacant(place) => {
                place.insert(entry);
                None
            }
            Place::Occupied(mut place) => {
                let old = place.insert(entry);
                place.get_mut().inherit(&old);
                Some(old)
            }
        }
    }

    /// Removes a node from its cluster's convergence.
    fn left(&mut self, cluster: &Arc<str>, member: Member) {
        if let Some(convergence) = self.convergence.get_mut(cluster) {
            convergence.left(member);
        }
    }
}

impl Session {
    pub(crate) fn node(&self) -> &NodeKey {
        &self.node
    }

    /// Returns `true` if a newer stream of the same node has begun.
    pub(crate) fn is_replaced(&self) -> bool {
        self.signals.is_replaced()
    }

    /// Returns `true` if the stream was told that its node is not served.
    pub(crate) fn is_deleted(&self) -> bool {
        self.signals.is_deleted()
    }

    /// Takes the revision that an operator has confirmed; each confirmation is returned once.
    pub(crate) fn take_confirmed(&self) -> Option<u64> {
        self.signals.take_confirmed()
    }

    /// Completes when one of these signals has changed since the last completion. Supports a single
    /// waiter.
    pub(crate) fn news(&self) -> Notified<'_> {
        self.signals.news()
    }

    /// Records that a Commit was handed to the connection.
    pub(crate) fn sent(&self, revision: u64) {
        self.signals.set_sent(revision);
    }

    /// Records that the agent has staged a Commit. Returns `false` if no such revision was sent on
    /// this stream.
    pub(crate) fn received(&self, message: v1::Received) -> bool {
        self.update(|entry| entry.received(message))
    }

    /// Records that the agent has programmed a Commit. Returns `false` if no such revision was sent
    /// on this stream.
    pub(crate) fn programmed(&self, message: v1::Programmed) -> bool {
        let revision = message.revision;
        let mut nodes = self.registry.lock();
        let Nodes {
            entries,
            convergence,
            ..
        } = &mut *nodes;
        let Some(entry) = entries.get_mut(&self.node) else {
            return false;
        };
        if entry.session() != self.number || !entry.programmed(message) {
            return false;
        }
        let cluster = Arc::clone(&self.node.cluster);
        let convergence = convergence.entry(cluster).or_default();
        let reached = convergence.programmed(&mut entry.member, revision, Instant::now());
        drop(nodes);
        self.registry.observe(reached);
        true
    }

    /// Records a report about the health of load balancers' backends.
    pub(crate) fn health_reported(&self, report: v1::Health) {
        self.update(|entry| entry.health_reported(report, SystemTime::now()));
    }

    /// Changes the node's entry, unless it belongs to a newer session.
    fn update<R: Default>(&self, change: impl FnOnce(&mut AgentEntry) -> R) -> R {
        let mut nodes = self.registry.lock();
        match nodes.entries.get_mut(&self.node) {
            Some(entry) if entry.session() == self.number => change(entry),
            _ => R::default(),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let mut nodes = self.registry.lock();
        let Some(entry) = nodes.entries.get_mut(&self.node) else {
            return;
        };
        if entry.session() != self.number {
            return;
        }
        info!(node = %self.node, "agent disconnected");
        entry.disconnect(SystemTime::now());
        let health = entry.health_size();
        if let Some(member) = entry.member.take() {
            nodes.left(&self.node.cluster, member);
        }
        let (number, node) = (self.number, self.node.clone());
        nodes.disconnected.insert(number, node, health);
        nodes.bound_disconnected();
    }
}

#[cfg(test)]
mod tests;
