//! What outlives a stream.

use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_subscription::Dialer;
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;
use tracing::{debug, error, info, warn};

use super::guard::Hold;
use super::outbox::Outbox;
use super::saver::Saver;
use super::store::Store;
use super::{
    ClusterPin, Committed, HeldTable, Holding, Report, Staging, Stats, SubscribeConfig, Subscribed,
};

/// What outlives a stream.
#[derive(Debug)]
pub(super) struct Subscription {
    pub(super) staging: Staging,
    pub(super) hold: Hold,
    pub(super) holding: Holding,
    pub(super) confirmations: watch::Receiver<Option<HeldTable>>,
    pub(super) saver: Saver,
    pub(super) tables: watch::Sender<Option<Arc<Subscribed>>>,
    pub(super) reports: watch::Receiver<Option<Report>>,
    pub(super) stats: Arc<Stats>,
    pub(super) first_commit_timeout: Duration,
    pub(super) dialer: Dialer,
    pub(super) pin: ClusterPin,
    /// The table of the last run, until it or another one is in force.
    loaded: Option<Loaded>,
}

/// A table that comes in force by itself after a while, unless another one does before or this is
/// dropped.
#[derive(Debug)]
struct Loaded {
    table: Arc<Subscribed>,
    tables: watch::Sender<Option<Arc<Subscribed>>>,
    _in_time: AbortOnDropHandle<()>,
}

impl Loaded {
    fn new(
        table: Arc<Subscribed>,
        tables: watch::Sender<Option<Arc<Subscribed>>>,
        patience: Duration,
    ) -> Self {
        let (in_time, to) = (Arc::clone(&table), tables.clone());
        let in_time = tokio::spawn(async move {
            sleep(patience).await;
            put_first(&to, in_time);
        });
        Self {
            table,
            tables,
            _in_time: AbortOnDropHandle::new(in_time),
        }
    }

    fn put_in_force(self) {
        put_first(&self.tables, self.table);
    }
}

/// Puts a table in force if there is none.
fn put_first(tables: &watch::Sender<Option<Arc<Subscribed>>>, table: Arc<Subscribed>) {
    tables.send_if_modified(|in_force| {
        let is_first = in_force.is_none();
        if is_first {
            *in_force = Some(table);
        }
        is_first
    });
}

fn subscribed(committed: Committed) -> Subscribed {
    Subscribed {
        epoch: committed.epoch,
        revision: committed.revision,
        table: committed.table,
        received_at: Instant::now(),
        trigger_times_ms: committed.trigger_times_ms,
        is_from_disk: false,
    }
}

impl Subscription {
    pub(super) fn new(
        config: &SubscribeConfig,
        tables: watch::Sender<Option<Arc<Subscribed>>>,
        reports: watch::Receiver<Option<Report>>,
        stats: Arc<Stats>,
        holding: Holding,
    ) -> Self {
        let store = config.state_dir.as_ref().map(|directory| Store {
            directory: directory.clone(),
            cluster: config.cluster.clone(),
            node: config.node.clone(),
        });
        Self {
            staging: Staging::new(&config.cluster),
            hold: Hold::new(config.hold),
            confirmations: holding.confirmations(),
            holding,
            saver: Saver::new(store.map(Arc::new), Arc::clone(&stats)),
            tables,
            reports,
            stats,
            first_commit_timeout: config.first_commit_timeout,
            dialer: Dialer::new(config.security.clone()),
            pin: config.pin.clone(),
            loaded: None,
        }
    }

    /// Reads the table of the last run, if there is one, and puts it in force if no controller
    /// sends one in time. Not at once: an agent that was killed may have programmed a newer one.
    pub(super) async fn load(&mut self, patience: Duration) {
        let Some(store) = self.saver.store() else {
            return;
        };
        let loaded = spawn_blocking(move || store.load()).await;
        match loaded.map_err(|error| error.to_string()).flatten() {
            Ok(None) => {}
            Ok(Some((staging, committed))) => {
                info!(
                    revision = committed.revision,
                    records = committed.table.records.len(),
                    "read the last good table; it is in force unless a controller sends another"
                );
                self.staging = staging;
                if let Some(committed) = self.hold.judge(committed, Instant::now()) {
                    let table = Arc::new(Subscribed {
                        is_from_disk: true,
                        ..subscribed(committed)
                    });
                    self.loaded = Some(Loaded::new(table, self.tables.clone(), patience));
                }
            }
            Err(why) => {
                Stats::count(&self.stats.table_files_set_aside);
                error!(why, "the last good table cannot be used; going on without");
            }
        }
    }

    /// A whole table came. It is programmed, or held.
    pub(super) fn committed(&mut self, committed: Committed, outbox: &mut Outbox) {
        let now = Instant::now();
        outbox.committed(&committed);
        match self.hold.judge(committed, now) {
            Some(committed) => self.let_through(committed, outbox),
            None => self.show_held(outbox, now),
        }
    }

    /// Whoever may says that a held table may be programmed.
    pub(super) fn confirmed(&mut self, epoch: u64, revision: u64, outbox: &mut Outbox) {
        match self.hold.confirmed(epoch, revision) {
            Some(committed) => {
                warn!(revision, "the held table was confirmed by an operator");
                self.let_through(committed, outbox);
            }
            None => warn!(revision, "confirmed, but that table is not held"),
        }
    }

    /// The held table's time may have come.
    pub(super) fn expired(&mut self, outbox: &mut Outbox) {
        if let Some(committed) = self.hold.expired(Instant::now()) {
            let revision = committed.revision;
            warn!(revision, "the held table counts as confirmed by time");
            self.let_through(committed, outbox);
        }
    }

    fn let_through(&mut self, committed: Committed, outbox: &mut Outbox) {
        outbox.held(None);
        self.show(None);
        self.publish(committed);
        self.saver.changed(Instant::now());
    }

    fn show_held(&mut self, outbox: &mut Outbox, now: Instant) {
        let Some(held) = self.hold.held() else {
            return;
        };
        if self.holding.held().is_none() {
            Stats::count(&self.stats.tables_held);
            let remaining = held.until.map(|until| until.saturating_duration_since(now));
            warn!(
                revision = held.revision,
                deleted = held.deleted,
                records = held.records,
                ?remaining,
                "this table would delete too much: held until confirmed"
            );
        }
        // What is in force instead must be.
        self.put_loaded_in_force();
        outbox.held(Some(held.to_message(now)));
        self.show(Some(held));
    }

    /// A stream begins, or ended.
    pub(super) fn begin_stream(&mut self) {
        self.hold.begin();
        self.show(self.hold.held());
    }

    fn show(&self, held: Option<HeldTable>) {
        let deleted = held.as_ref().map_or(0, |held| held.deleted);
        Stats::set(&self.stats.deletions_held, deleted);
        self.holding.show(held);
    }

    /// Puts the table of the last run in force, unless there is another already.
    pub(super) fn put_loaded_in_force(&mut self) {
        if let Some(loaded) = self.loaded.take() {
            loaded.put_in_force();
        }
    }

    fn publish(&mut self, committed: Committed) {
        debug!(revision = committed.revision, "table in force");
        self.tables
            .send_replace(Some(Arc::new(subscribed(committed))));
        self.loaded = None;
    }

    /// A controller of another cluster has refused us.
    pub(super) fn refused_by(&self, cluster: &str) {
        // Unless it was forgotten meanwhile: then the next attempt goes on from there.
        if let Err(error) = self.pin.check(cluster) {
            debug!(%error, "refused");
        }
    }

    /// When the table is to be written to disk; never while another one than that in force is
    /// staged.
    pub(super) fn save_at(&self) -> Option<Instant> {
        self.saver.due().filter(|_| self.hold.held().is_none())
    }

    /// Begins to write the table.
    pub(super) fn save(&mut self) {
        let staging = &self.staging;
        self.saver.begin(|| staging.save(), Instant::now());
    }

    /// Writes the table if it is not what is on disk, and waits until it is there.
    pub(super) async fn save_now(&mut self) {
        self.saver.settle().await;
        if self.save_at().is_some() {
            self.save();
            self.saver.settle().await;
        }
    }
}
