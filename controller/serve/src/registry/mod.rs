//! Which agents are connected, and what each of them has programmed.
//!
//! Agents that are gone are kept, marked as such: that a node has not programmed a revision is
//! most worth knowing when its agent cannot say so.

mod confirm;
mod convergence;
mod counters;
mod entry;
mod everybody;
mod nodes;
mod reason;
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
use entry::AgentEntry;
pub(crate) use nodes::NodeStanding;
use nodes::SourceNodes;
pub(crate) use reconnects::RetryAfter;
pub(crate) use side_stream::{SideStream, SideStreamEnd};
use signals::SessionSignals;
pub use status::{HeldTable, NodeStatus, RecordProblem};

/// How many disconnected agents are remembered: anybody can make up names of nodes.
const MAX_DISCONNECTED: usize = 10_000;

/// The agents of one controller. Shared by sessions, metrics and the admin server.
#[derive(Debug)]
pub struct Registry {
    nodes: Mutex<Nodes>,
    live: LiveCounters,
    refusals: Arc<Refusals>,
    convergence: ConvergenceSeconds,
    /// SessionSignals of each node that the source has anew.
    arrivals: Notify,
}

/// From the first event of a change until a share of the connected nodes had programmed it, in
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
    /// Not sorted: each agent that comes, and each of its acks, is one to find among thousands.
    entries: HashMap<NodeKey, AgentEntry>,
    /// The disconnected ones by the number of their last session, oldest first.
    disconnected: BTreeMap<u64, NodeKey>,
    known: SourceNodes,
    /// The streams that nodes have beside those of their tables.
    side_streams: HashMap<NodeKey, Arc<SessionSignals>>,
    last_session: u64,
    /// By cluster.
    convergence: BTreeMap<Arc<str>, Convergence>,
}

/// Who connects.
#[derive(Debug)]
pub(crate) struct Connect {
    pub(crate) node: NodeKey,
    pub(crate) peer: Option<SocketAddr>,
    pub(crate) agent_version: String,
    pub(crate) protocol_version: u32,
    pub(crate) now: SystemTime,
    /// The rate of the node's streams; `None` where anybody can claim to be the node.
    pub(crate) rate: Option<Rate>,
}

/// A node's one live stream. It counts as disconnected when this is dropped.
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

    /// How long changes took until nodes had programmed them, to be registered.
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

    /// How many agents have a live stream. Costs O(1).
    #[must_use]
    pub fn connected(&self) -> usize {
        let nodes = self.lock();
        nodes.entries.len() - nodes.disconnected.len()
    }

    /// What was counted since the start.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.live.read()
    }

    pub(crate) fn count(&self, counter: Counter, by: usize) {
        self.live.add(counter, by);
    }

    /// How many connections and streams were refused, by reason.
    #[must_use]
    pub fn refusals(&self) -> Vec<(RefusalReason, u64)> {
        self.refusals.read()
    }

    /// A peer was refused: counted, and logged if it was not for a minute.
    pub(crate) fn refuse(&self, peer: IpAddr, reason: RefusalReason, message: &str) {
        self.refusals.refuse(peer, reason, message);
    }

    /// Where the listener counts its refusals.
    pub(crate) fn refusals_shared(&self) -> Arc<Refusals> {
        Arc::clone(&self.refusals)
    }

    /// Begins a session. If the node has one, that one is told to end: the newer stream is the one
    /// that works, whatever became of the other's connection.
    ///
    /// # Errors
    /// If the node's streams begin too often. The stream that it has goes on.
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
            nodes.disconnected.remove(&old.session());
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

    /// Whatever a panic left there is as good as it was.
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
    /// The entry that a node had before, of which the new one takes over what stays true.
    fn insert(&mut self, node: NodeKey, entry: AgentEntry) -> Option<AgentEntry> {
        match self.entries.entry(node) {
            Place::Vacant(place) => {
                place.insert(entry);
                None
            }
            Place::Occupied(mut place) => {
                let mut old = place.insert(entry);
                place.get_mut().inherit(&mut old);
                Some(old)
            }
        }
    }

    /// A node takes no part in a cluster's convergence any more.
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

    /// Whether a newer stream of the same node has begun.
    pub(crate) fn is_replaced(&self) -> bool {
        self.signals.is_replaced()
    }

    /// Whether the node was deleted.
    pub(crate) fn is_deleted(&self) -> bool {
        self.signals.is_deleted()
    }

    /// Which revision is confirmed that the agent holds back; once.
    pub(crate) fn take_confirmed(&self) -> Option<u64> {
        self.signals.take_confirmed()
    }

    /// Completes when one of these has changed since it did so last. For one who waits.
    pub(crate) fn news(&self) -> Notified<'_> {
        self.signals.news()
    }

    /// A Commit was handed to the connection.
    pub(crate) fn sent(&self, revision: u64) {
        self.signals.set_sent(revision);
    }

    /// The agent staged a Commit. `false` if it never was sent one of that revision.
    pub(crate) fn received(&self, message: v1::Received) -> bool {
        self.update(|entry| entry.received(message))
    }

    /// The agent's kernel is at a Commit. `false` if it never was sent one of that revision.
    pub(crate) fn programmed(&self, message: v1::Programmed) -> bool {
        let revision = message.revision;
        let mut nodes = self.registry.lock();
        let Some(entry) = nodes.entries.get_mut(&self.node) else {
            return false;
        };
        if entry.session() != self.number || !entry.programmed(message) {
            return false;
        }
        let mut member = entry.member.take();
        let cluster = Arc::clone(&self.node.cluster);
        let convergence = nodes.convergence.entry(cluster).or_default();
        let reached = convergence.programmed(&mut member, revision, Instant::now());
        if let Some(entry) = nodes.entries.get_mut(&self.node) {
            entry.member = member;
        }
        drop(nodes);
        self.registry.observe(reached);
        true
    }

    /// Changes the node's entry, unless it is a newer session's.
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
        if let Some(member) = entry.member.take() {
            nodes.left(&self.node.cluster, member);
        }
        nodes.disconnected.insert(self.number, self.node.clone());
        if nodes.disconnected.len() > MAX_DISCONNECTED
            && let Some((_, oldest)) = nodes.disconnected.pop_first()
        {
            nodes.entries.remove(&oldest);
        }
    }
}

#[cfg(test)]
mod tests;
