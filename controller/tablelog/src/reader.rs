//! The reading half: what each stream sends next.

mod all;
mod cluster_id;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use portolan_model::{NodeKey, NodeTable, SetHash};
use portolan_proto::buckets::short;
use tokio::sync::futures::OwnedNotified;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::feed::{Delivery, Feed, Question, commit, full_commit};
use crate::log::{Cluster, Differences, Hashes, OwnChanges, TableLog, bucket_count};
use crate::wire::{Chunks, Writer};
use crate::{Published, Retention};

use cluster_id::ClusterId;

/// A change of more than so much of all records, in percent of bytes, is told by a snapshot: that
/// is compressed, made already, and needs no more of the agent.
const MUCH: usize = 70;

/// As [`MUCH`], of buckets that differ: they hold many records that do not.
const MANY_BUCKETS: usize = 50;

/// A table smaller than this is sent rather than asked for its buckets, in bytes.
const WORTH_ASKING: usize = 16 * 1024;

/// The reading half, for sessions and the admin server.
#[derive(Debug, Clone)]
pub struct Tables {
    shared: Arc<Shared>,
    published: watch::Receiver<Published>,
}

/// Whoever needs more than one lock takes a feed's segments first, then the log, then the feed's
/// memo: a reader that waited for the log with the memo locked, while the writer waits too, would
/// stop everything.
#[derive(Debug)]
struct Shared {
    epoch: u64,
    log: RwLock<TableLog>,
    feeds: RwLock<BTreeMap<Arc<str>, Arc<Feed>>>,
    state: AtomicU8,
    raised: Arc<Notify>,
    cluster_id: ClusterId,
}

/// What the writer is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// Not every source has delivered all.
    Starting,
    /// Every source has delivered all; the tables are served.
    Synced,
    /// There is no writer any more.
    Closed,
}

/// What an agent says that it has.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Have {
    /// The epoch of `revision`; 0 if it has none.
    pub epoch: u64,
    /// The revision of its last Commit.
    pub revision: u64,
    /// The hashes of its table, if it has one.
    pub hashes: Option<Hashes>,
    /// How far the sources of that table were; empty if they do not say.
    pub source_versions: Vec<u64>,
}

/// What an agent is sent first.
#[derive(Debug)]
pub enum First {
    /// A transition, and how it makes the table ours.
    Deliver(Delivery, How),
    /// It depends on the hashes of the agent's buckets, of so many.
    Ask(u32),
    /// As [`Ask`](Self::Ask), but another agent that has the same records was asked already. Look
    /// again after [`ANSWERED_WITHIN`](crate::ANSWERED_WITHIN).
    Wait(u32),
    /// The agent's table is newer than ours.
    Behind,
    /// A snapshot, when it is the agent's turn.
    Snapshot,
}

/// How an agent's table comes to be ours without a snapshot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It is equal already; also if another controller sent it.
    Equal,
    /// It is sent what differs.
    Resume,
    /// It is sent the buckets that differ, as another agent has told that has the same records.
    Buckets,
}

/// What an agent is sent next.
#[derive(Debug)]
pub enum Next {
    /// Nothing before something changes.
    Nothing,
    /// A transition.
    Deliver(Delivery),
    /// A snapshot, when it is the agent's turn.
    Snapshot,
}

impl Tables {
    pub(crate) fn new(retention: Retention, published: watch::Receiver<Published>) -> Self {
        let shared = Shared {
            epoch: random_epoch(),
            log: RwLock::new(TableLog::new(retention)),
            feeds: RwLock::default(),
            state: AtomicU8::new(State::Starting as u8),
            raised: Arc::default(),
            cluster_id: ClusterId::default(),
        };
        Self {
            shared: Arc::new(shared),
            published,
        }
    }

    /// The epoch of all revisions here: a random number, not 0.
    #[must_use]
    pub fn epoch(&self) -> u64 {
        self.shared.epoch
    }

    /// Follows the writer. It ends when the [`Publisher`](crate::Publisher) is dropped.
    #[must_use]
    pub fn published(&self) -> watch::Receiver<Published> {
        self.published.clone()
    }

    /// A node's table, for people. Copies it.
    #[must_use]
    pub fn table(&self, node: &NodeKey) -> NodeTable {
        self.read().of(&node.cluster).table(&node.name)
    }

    /// The revision that an up-to-date agent of a cluster has.
    #[must_use]
    pub fn head(&self, cluster: &str) -> u64 {
        self.read().of(cluster).head()
    }

    /// Whether the tables are served.
    #[must_use]
    pub fn state(&self) -> State {
        let state = self.shared.state.load(Ordering::Acquire);
        if state == State::Synced as u8 && self.shared.cluster_id.is_awaited() {
            return State::Starting;
        }
        match state {
            0 => State::Starting,
            1 => State::Synced,
            _ => State::Closed,
        }
    }

    pub(crate) fn enter(&self, state: State) {
        self.shared.state.store(state as u8, Ordering::Release);
        self.wake_feeds();
    }

    fn wake_feeds(&self) {
        let feeds = self.shared.feeds.read();
        for feed in feeds.unwrap_or_else(PoisonError::into_inner).values() {
            feed.wake();
        }
    }

    /// The sources have got further, whether or not that changed anything.
    pub(crate) fn raise(&self) {
        self.shared.raised.notify_waiters();
    }

    /// Completes at the next [`raise`](Self::raise) from now on.
    pub fn raised(&self) -> OwnedNotified {
        Arc::clone(&self.shared.raised).notified_owned()
    }

    /// What the streams of a cluster share.
    #[must_use]
    pub fn feed(&self, cluster: &Arc<str>) -> Arc<Feed> {
        let feeds = self.shared.feeds.read();
        let known = feeds
            .unwrap_or_else(PoisonError::into_inner)
            .get(cluster)
            .cloned();
        known.unwrap_or_else(|| {
            let mut feeds = self
                .shared
                .feeds
                .write()
                .unwrap_or_else(PoisonError::into_inner);
            Arc::clone(feeds.entry(Arc::clone(cluster)).or_default())
        })
    }

    /// What an agent is sent first: as little as makes its table equal to ours.
    #[must_use]
    pub fn first(&self, feed: &Feed, node: &NodeKey, have: &Have) -> First {
        let log = self.read();
        let Some(theirs) = have.hashes else {
            // Its table was not what it should be; how new it was is known all the same.
            return if is_behind(log.source_versions(), &have.source_versions) {
                First::Behind
            } else {
                First::Snapshot
            };
        };
        let of = log.of(&node.cluster);
        let ours = of.hashes(&node.name);
        let last = || full_commit(of.head(), ours, log.source_versions());
        if theirs == ours {
            let delivery =
                Delivery::with_own(&Arc::default(), OwnChanges::default(), false, last());
            return First::Deliver(delivery, How::Equal);
        }
        if is_behind(log.source_versions(), &have.source_versions) {
            return First::Behind;
        }
        if theirs.records == ours.records {
            let own = of.own(&node.name);
            let delivery = Delivery::with_own(&Arc::default(), own, true, last());
            return First::Deliver(delivery, How::Resume);
        }
        let (bytes, count) = (of.records().bytes(), bucket_count(of.records().len()));
        drop(log);
        if have.epoch == self.shared.epoch {
            if let Some(delivery) = self.since(feed, node, have.revision, false) {
                return First::Deliver(delivery, How::Resume);
            }
            // Known to be much: its buckets would say the same.
            let question = Question::Since {
                from: have.revision,
                live: false,
            };
            // Looked up before the memo is locked: see the order of locks at Shared.
            let head = self.head(&node.cluster);
            let answer = feed.memo().answer(head, question);
            if answer.get().is_some_and(Option::is_none) {
                return First::Snapshot;
            }
        }
        if bytes < WORTH_ASKING {
            return First::Snapshot;
        }
        self.elsewhere(feed, node, theirs, count)
    }

    /// What an agent is sent that has records of which only the hash is known.
    fn elsewhere(&self, feed: &Feed, node: &NodeKey, theirs: Hashes, count: u32) -> First {
        let log = self.read();
        let of = log.of(&node.cluster);
        let question = Question::Elsewhere {
            records: theirs.records,
        };
        let mut memo = feed.memo();
        let answer = memo.answer(of.head(), question);
        let Some(answer) = answer.get() else {
            return if memo.is_to_ask(of.head(), theirs.records, Instant::now()) {
                First::Ask(count)
            } else {
                First::Wait(count)
            };
        };
        drop(memo);
        match answer {
            Some(shared) => {
                let last = full_commit(of.head(), of.hashes(&node.name), log.source_versions());
                let (own, replace) = of.own_unless(&node.name, theirs.own);
                let delivery = Delivery::with_own(shared, own, replace, last);
                First::Deliver(delivery, How::Buckets)
            }
            None => First::Snapshot,
        }
    }

    /// What an agent is sent that has the table of revision `cursor`.
    #[must_use]
    pub fn next(&self, feed: &Feed, node: &NodeKey, cursor: u64) -> Next {
        if !feed.is_ahead(cursor) {
            return Next::Nothing;
        }
        let step = feed.step(&node.name, cursor);
        match step.or_else(|| self.since(feed, node, cursor, true)) {
            Some(delivery) => Next::Deliver(delivery),
            None => Next::Snapshot,
        }
    }

    /// What changed after `cursor`; `None` if a snapshot is less, or that is not known any more.
    fn since(&self, feed: &Feed, node: &NodeKey, from: u64, live: bool) -> Option<Delivery> {
        let log = self.read();
        let of = log.of(&node.cluster);
        let (head, hashes) = (of.head(), of.hashes(&node.name));
        let versions = log.source_versions();
        let (own, replace) = of.own_after(&node.name, from)?;
        let answer = feed.memo().answer(head, Question::Since { from, live });
        let mut last = commit(head, hashes.records, None, versions);
        if live {
            last.trigger_times_ms = of.triggers_since(from);
        }
        let is_own = replace || own != OwnChanges::default();
        let of_node = is_own.then(|| portolan_proto::v1::Commit {
            own_hash: hashes.own.to_bytes().into(),
            ..last.clone()
        });
        let changes = match answer.get() {
            Some(_) => None,
            None => Some(of.records().since(from)?),
        };
        let changes = changes.filter(|changes| !Self::is_much(changes.bytes(), of));
        drop(log);
        let make = || {
            let chunks = Writer::default().records(changes?).commit(last).finish();
            Some(Arc::new(chunks))
        };
        let shared = answer.get_or_init(make).as_ref()?;
        Some(match of_node {
            Some(last) => Delivery::with_own(shared, own, replace, last),
            None => Delivery::shared(head, Arc::clone(shared)),
        })
    }

    /// What an agent is sent whose buckets have these hashes; `None` if a snapshot is less. Others
    /// that have the same records are sent the same. One that tells hashes which are not its own
    /// makes their tables differ from what they are told of them, and they get a snapshot.
    #[must_use]
    pub fn buckets(
        &self,
        feed: &Feed,
        node: &NodeKey,
        theirs: Hashes,
        hashes: &[[u8; 8]],
    ) -> Option<Delivery> {
        let count = u32::try_from(hashes.len()).ok()?;
        let log = self.read();
        let of = log.of(&node.cluster);
        let question = Question::Elsewhere {
            records: theirs.records,
        };
        let of_all = feed.memo().answer(of.head(), question);
        let tell = |answer: Option<&Arc<Chunks>>| {
            if add_up(hashes, theirs.records) && of_all.set(answer.cloned()).is_ok() {
                feed.wake();
            }
        };
        let (buckets, bytes) = of.buckets().differing(hashes);
        if buckets.is_empty() || bytes * 100 > of.records().bytes() * MANY_BUCKETS {
            tell(None);
            return None;
        }
        let last = full_commit(of.head(), of.hashes(&node.name), log.source_versions());
        let (own, replace) = of.own_unless(&node.name, theirs.own);
        let question = Question::Buckets {
            buckets: buckets.clone(),
            count,
        };
        let answer = feed.memo().answer(of.head(), question);
        let put = answer
            .get()
            .is_none()
            .then(|| of.of_buckets(&buckets, count));
        drop(log);
        let make = || {
            let chunks = Writer::default().buckets(buckets, count, put?).finish();
            Some(Arc::new(chunks))
        };
        let shared = answer.get_or_init(make).as_ref()?;
        tell(Some(shared));
        Some(Delivery::with_own(shared, own, replace, last))
    }

    /// All that a node must have.
    #[must_use]
    pub fn snapshot(&self, feed: &Feed, node: &NodeKey) -> Delivery {
        let mut segments = feed.segments();
        let log = self.read();
        let of = log.of(&node.cluster);
        let mut last = full_commit(of.head(), of.hashes(&node.name), log.source_versions());
        last.snapshot = true;
        let own = of.own(&node.name);
        let work = segments.work(of.head(), of.records());
        drop(log);
        if let Some(work) = work {
            segments.take(work);
        }
        let shared: Arc<Chunks> = Arc::clone(segments.chunks());
        drop(segments);
        Delivery::with_own(&shared, own, false, last)
    }

    /// The revision of a cluster, and the hashes of a node's table there.
    #[must_use]
    pub fn hashes(&self, node: &NodeKey) -> (u64, Hashes) {
        let log = self.read();
        let of = log.of(&node.cluster);
        (of.head(), of.hashes(&node.name))
    }

    /// As [`hashes`](Self::hashes), of what all nodes have.
    #[must_use]
    pub fn hashes_of_all(&self, cluster: &str) -> (u64, Hashes) {
        let log = self.read();
        let of = log.of(cluster);
        (of.head(), of.hashes_of_all())
    }

    /// What changed of a node's table after `cursor`, sorted; `None` if that is not known any more.
    #[must_use]
    pub fn differences_since(&self, node: &NodeKey, cursor: u64) -> Option<Differences> {
        let log = self.read();
        log.of(&node.cluster).differences_since(&node.name, cursor)
    }

    /// Whether records that are so long are better told by a snapshot.
    pub(crate) fn is_much(bytes: usize, of: &Cluster) -> bool {
        bytes > WORTH_ASKING && bytes * 100 > of.records().bytes() * MUCH
    }

    /// Readers only look: whatever a panic left there is as good as it was.
    pub(crate) fn read(&self) -> RwLockReadGuard<'_, TableLog> {
        self.shared
            .log
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, TableLog> {
        self.shared
            .log
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether any of our sources was not as far as the agent's. Nothing is known if either says
/// nothing, or they are not the same sources.
fn is_behind(ours: &[u64], theirs: &[u64]) -> bool {
    ours.len() == theirs.len() && ours.iter().zip(theirs).any(|(ours, theirs)| ours < theirs)
}

/// Whether these are the hashes of the buckets of such records, as far as sums can tell.
fn add_up(hashes: &[[u8; 8]], records: SetHash) -> bool {
    let sum = hashes.iter().fold(0_u64, |sum, hash| {
        sum.wrapping_add(u64::from_be_bytes(*hash))
    });
    sum.to_be_bytes() == short(records)
}

/// From the standard library's per-process random state: enough to tell two starts apart.
fn random_epoch() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    RandomState::new()
        .hash_one(std::time::SystemTime::now())
        .max(1)
}

#[cfg(test)]
mod races;
#[cfg(test)]
mod tests;
