// SPDX-License-Identifier: Apache-2.0

//! The subscription: the state of a table stream that outlives single streams.

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use portolan_proto::v1::agent_message::Message;
use portolan_proto::{VERSION, v1};
use portolan_subscription::{Client, Controllers, DeletionGuard, Dialer, Subscriber, Taken, at};
use tokio::sync::watch;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{debug, error, info};

use super::health::HealthReporter;
use super::in_force::TableInForce;
use super::latency::Latency;
use super::outbox::Outbox;
use super::saver::Saver;
use super::store::{Store, StoreError, StoredTable};
use super::{
    ClusterPin, Committed, HeldView, Report, Staging, StagingError, Stats, SubscribeConfig,
    Subscribed,
};
use crate::spans;

/// Attempts to read a table on disk, and the interval between them.
const READS: u32 = 3;
const READ_PAUSE: Duration = Duration::from_secs(1);

/// The longest wait for the disk between two streams. A write that hangs goes on meanwhile.
const SAVE_PATIENCE: Duration = Duration::from_secs(2);

/// Subscribes until `token` is cancelled: publishes each committed table in `tables`, acknowledges
/// the `reports` about them, and shows held deletions in `held`. Without a controller the last
/// table stays in force, also over a restart. Returns at once if there are no endpoints.
pub async fn run(
    config: SubscribeConfig,
    tables: watch::Sender<Option<Arc<Subscribed>>>,
    reports: watch::Receiver<Option<Report>>,
    stats: Arc<Stats>,
    held: HeldView,
    token: CancellationToken,
) {
    let mut subscription = Subscription::new(&config, tables, reports, stats, held);
    let controllers = Controllers::new(config.endpoints);
    let dialer = Dialer::new(config.security);
    let follow = async {
        subscription.load(config.disk_patience).await;
        if !controllers.is_empty() {
            let stats = Arc::clone(&subscription.stats.stream);
            let client = Client::new(controllers, dialer, config.first_commit_timeout, stats);
            client.run(&mut subscription).await;
        }
    };
    let _ = token.run_until_cancelled(follow).await;
    subscription.save_now().await;
}

#[derive(Debug)]
struct Subscription {
    hello: v1::Hello,
    staging: Staging,
    in_force: TableInForce,
    saver: Saver,
    reports: watch::Receiver<Option<Report>>,
    has_reporter: bool,
    stats: Arc<Stats>,
    pin: ClusterPin,
    /// The cluster of the present stream's controller; empty if it has no identity.
    stream_cluster: String,
    /// Number of `forget` runs noticed when the last stream began.
    forgotten: u64,
    outbox: Outbox,
    health: HealthReporter,
    latency: Latency,
    /// When the acknowledgement that waits was due, if there are spans.
    acknowledging: Option<Instant>,
}

impl Subscription {
    fn new(
        config: &SubscribeConfig,
        tables: watch::Sender<Option<Arc<Subscribed>>>,
        reports: watch::Receiver<Option<Report>>,
        stats: Arc<Stats>,
        held: HeldView,
    ) -> Self {
        let store = config.state_dir.as_ref().map(|directory| Store {
            directory: directory.clone(),
            cluster: config.cluster.clone(),
            node: config.node.clone(),
            pin: config.pin.clone(),
        });
        Self {
            hello: v1::Hello {
                version: VERSION,
                cluster: config.cluster.clone(),
                node: config.node.clone(),
                agent_version: config.agent_version.clone(),
                ..v1::Hello::default()
            },
            staging: Staging::new(&config.cluster, &config.node),
            in_force: TableInForce::new(config.guard, held, tables, Arc::clone(&stats)),
            saver: Saver::new(store.map(Arc::new), Arc::clone(&stats)),
            reports,
            has_reporter: true,
            stats,
            pin: config.pin.clone(),
            stream_cluster: String::new(),
            forgotten: 0,
            outbox: Outbox::default(),
            health: HealthReporter::new(config.backends.clone()),
            latency: Latency::default(),
            acknowledging: None,
        }
    }

    /// Reads the table of the last run, if there is one, and puts it in force if no controller
    /// sends one in time.
    async fn load(&mut self, patience: Duration) {
        let Some(StoredTable {
            staging,
            committed,
            in_force,
            cluster_id,
            is_of_other_cluster,
        }) = load(&self.saver, &self.stats).await
        else {
            return;
        };
        info!(
            revision = committed.revision,
            records = in_force.records.len(),
            "read the last good table; it is in force unless a controller sends another"
        );
        let position = (committed.epoch, committed.revision);
        self.pin.restored_table(&cluster_id);
        self.staging = staging;
        self.in_force
            .restore(position, committed.table, Arc::clone(&in_force));
        self.in_force
            .put_in_force_after(patience, position, in_force);
        if is_of_other_cluster {
            self.leave_cluster();
        }
    }

    /// Accepts that the node may belong to another cluster from now on: tables of that cluster are
    /// refused neither for their age nor for their size.
    fn leave_cluster(&mut self) {
        self.staging.forget_source_versions();
        self.in_force.guard.guard.believe_next();
    }

    /// Takes a committed table, whose last frame came at `began`.
    fn commit(&mut self, committed: Committed, began: Option<Instant>) {
        Stats::set(&self.stats.refused_records, committed.refused.len());
        debug!(
            revision = committed.revision,
            snapshot = committed.snapshot,
            records = committed.table.records.len(),
            refused = committed.refused.len(),
            "table received"
        );
        self.latency.committed(&committed);
        self.pin.took_table(&self.stream_cluster);
        let position = (committed.epoch, committed.revision);
        let held = self.in_force.take_table(Subscribed {
            trigger_times_ms: committed.trigger_times_ms.clone(),
            ..Subscribed::new(position, Arc::clone(&committed.table))
        });
        let now = Instant::now();
        let held = held.map(|held| held.to_message(now));
        spans::received(&committed, began);
        self.outbox.committed(&committed, held, now);
        self.health.committed();
        self.saver.changed(now);
    }

    /// Records the kernel's state.
    fn reported(&mut self) {
        let report = self.reports.borrow_and_update();
        let Some(report) = report.as_ref() else {
            return;
        };
        self.outbox.reported(report, Instant::now());
        self.acknowledging = spans::now();
        for duration in self.latency.reported(report, SystemTime::now()) {
            let histogram = &self.stats.network_programming;
            histogram.observe(duration.as_secs_f64());
        }
    }

    /// Begins to write the table to disk.
    fn save(&mut self) {
        let (staging, in_force) = (&self.staging, &self.in_force);
        let saved = || staging.save().with_in_force(in_force.with_withheld());
        self.saver.begin(saved, Instant::now());
    }

    /// Writes the table if that on disk differs, and waits until it is there.
    async fn save_now(&mut self) {
        self.saver.settle().await;
        if self.saver.due().is_some() {
            self.save();
            self.saver.settle().await;
        }
    }
}

impl Subscriber for Subscription {
    type Frame = v1::Frame;
    type Error = StagingError;

    fn hello(&mut self) -> v1::Hello {
        let cluster_id = self.pin.id();
        let forgotten = self.pin.forgotten();
        if std::mem::replace(&mut self.forgotten, forgotten) != forgotten {
            self.leave_cluster();
        }
        self.staging.begin(v1::Hello {
            cluster_id,
            ..self.hello.clone()
        })
    }

    fn connected(&mut self) {
        self.outbox = Outbox::default();
        self.health.connected();
        self.latency = Latency::default();
        // The kernel may have a table that this controller sent before.
        self.reports.mark_changed();
        self.has_reporter = true;
    }

    fn take_frame(&mut self, frame: v1::Frame) -> Result<Taken, StagingError> {
        use super::Taken as Frame;

        let began = spans::now();
        Ok(match self.staging.take_frame(frame)? {
            Frame::Welcome(welcome) => Taken::Welcome(welcome),
            Frame::Staged => Taken::Part,
            Frame::Unknown => Taken::Unknown,
            Frame::Committed(committed) => {
                let is_snapshot = committed.snapshot;
                self.commit(committed, began);
                Taken::Commit { is_snapshot }
            }
            Frame::Asked(buckets) => {
                self.outbox.asked(buckets);
                Taken::Part
            }
            Frame::Confirmed(confirm) => Taken::Confirm(confirm),
            Frame::Goaway(goaway) => Taken::Goaway(goaway),
        })
    }

    fn is_of_our_cluster(&mut self, id: &str) -> bool {
        // The pin logs it.
        let is_ours = self.pin.check(id).is_ok();
        if is_ours {
            self.stream_cluster = id.to_owned();
        }
        is_ours
    }

    fn guard(&mut self) -> &mut DeletionGuard {
        &mut self.in_force.guard.guard
    }

    fn release(&mut self) {
        let now = Instant::now();
        self.in_force.release();
        self.outbox.released(now);
        self.saver.changed(now);
    }

    fn has_message(&self) -> bool {
        self.outbox.has_message() || self.health.has_message()
    }

    fn next_message(&mut self) -> Option<v1::AgentMessage> {
        let message = self.outbox.next_message(Instant::now());
        let is_report =
            |message: &v1::AgentMessage| matches!(message.message, Some(Message::Programmed(_)));
        if message.as_ref().is_some_and(is_report)
            && let Some(began) = self.acknowledging.take()
        {
            spans::acknowledged(self.reports.borrow().as_ref(), began);
        }
        message.or_else(|| {
            let health = self.health.next_message()?;
            Some(v1::AgentMessage {
                message: Some(Message::Health(health)),
            })
        })
    }

    async fn work(&mut self) {
        let (save_at, acknowledge_at) = (self.saver.due(), self.outbox.due());
        tokio::select! {
            changed = self.reports.changed(), if self.has_reporter => {
                self.has_reporter = changed.is_ok();
                self.reported();
            }
            () = self.health.changed() => {}
            () = at(save_at) => self.save(),
            () = at(acknowledge_at) => self.outbox.resume(Instant::now()),
            () = self.in_force.confirmed() => self.release(),
        }
    }

    async fn ended(&mut self, is_round_over: bool) {
        if is_round_over {
            // No controller has a newer one for now.
            self.in_force.put_loaded_in_force();
        }
        self.in_force.begin_listing();
        // A disk that hangs keeps no agent from its controllers.
        let _ = timeout(SAVE_PATIENCE, self.save_now()).await;
    }

    fn forget_source_versions(&mut self) -> bool {
        self.staging.forget_source_versions()
    }
}

/// The table on disk, if there is one that can be used. A file that cannot be read for now is left
/// where it is.
pub(crate) async fn load(saver: &Saver, stats: &Stats) -> Option<StoredTable> {
    let store = saver.store()?;
    for attempt in 1..=READS {
        let store = Arc::clone(&store);
        // The task does not panic and is never aborted.
        match spawn_blocking(move || store.load()).await.ok()? {
            Ok(table) => return table,
            Err(why @ StoreError::Unusable { .. }) => {
                Stats::count(&stats.table_files_set_aside);
                error!(%why, "the last good table cannot be used; going on without it");
                return None;
            }
            Err(why @ StoreError::Read { .. }) => {
                Stats::count(&stats.table_read_failures);
                error!(%why, attempt, of = READS, "the last good table cannot be read");
            }
        }
        if attempt < READS {
            sleep(READ_PAUSE).await;
        }
    }
    None
}

#[cfg(test)]
mod tests;
