// SPDX-License-Identifier: Apache-2.0

//! The source of a cluster whose edge controller dials this one.
//!
//! One stream counts at a time. A newer one of the same process takes its place; one of another process waits while the
//! first is in contact, and is sent plans meanwhile, or is refused if it takes none: so two replicas of an edge never
//! overwrite each other's objects, or replace each other for ever. Without a stream the objects stay as they were.

mod guards;
mod pace;
mod standby;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::future::pending;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _};
use portolan_catalog::{Kind, ObjectChange};
use portolan_edge::{Limits, Partition, PartitionError, Received};
use portolan_proto::{VERSION, v1};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tonic::Status;
use tracing::{info, warn};
use v1::centre_message::Message as Answer;
use v1::edge_message::Message;

use crate::deletions::GuardConfig;
use crate::sink::Closed;
use crate::{Event, HeldDeletions, Sink};
use guards::Guards;
use pace::Pace;
use standby::{Standby, Standbys};
pub use stats::Stats;

/// The most changes that go in one event.
const BATCH: usize = 500;

/// An edge that has said nothing for this long may be replaced by another one. Three times the period of its
/// `EdgeAlive`.
const SILENT: Duration = Duration::from_secs(30);

/// The most streams that a cluster may begin within [`STREAMS_WITHIN`]: each costs a comparison of all objects.
const STREAMS: usize = 30;
/// See [`STREAMS`].
const STREAMS_WITHIN: Duration = Duration::from_secs(30);

/// The kinds of `source_versions`, in order.
const VERSIONED: [Kind; 3] = [Kind::Service, Kind::EndpointSlice, Kind::Node];

/// Bounds of one cluster. A large cluster has 10,000 Services of 10 endpoints and 5,000 Nodes.
pub const LIMITS: Limits = Limits {
    objects: 200_000,
    endpoints: 1_000_000,
    bytes: 256 << 20,
    staged_bytes: 256 << 20,
};

/// Messages of an edge.
pub type Messages = Pin<Box<dyn Stream<Item = Result<v1::EdgeMessage, Status>> + Send>>;

/// A message of the centre, or the error that ends a stream.
pub type Answered = Result<v1::CentreMessage, Status>;

/// Begins to send something beside answers: work over a stream that counts now, or plans over one that counts or waits.
/// The returned future is dropped as soon as the stream does not any more; `None` if it sends nothing.
pub type BeginSending = Box<dyn FnMut(&EdgeStream) -> Option<Sending> + Send>;

/// Sends until it is dropped, or the stream has ended.
pub type Sending = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The stream of an edge that was admitted.
pub struct EdgeStream {
    /// Name of the edge.
    pub edge: Arc<str>,
    /// The number of its process.
    pub instance: u64,
    /// Version of its program.
    pub version: String,
    /// Its messages after its Hello.
    pub messages: Messages,
    /// Sender of the answers. An error ends the stream.
    pub answers: mpsc::Sender<Answered>,
    /// Whether the edge writes objects into its cluster.
    pub writes: bool,
    /// Hashes of the plans that it has, by bucket; `None` if it serves no imports.
    pub plans: Option<Vec<u8>>,
    /// Sender of work for it, and of plans. Beside the answers, so that a slow reader of work does not hold them back.
    pub work: mpsc::Sender<Answered>,
}

impl std::fmt::Debug for EdgeStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("EdgeStream");
        debug.field("edge", &self.edge).finish_non_exhaustive()
    }
}

/// Options of [`receive`].
pub struct Options {
    /// Limits of the deletion guard.
    pub guard: GuardConfig,
    /// Its report.
    pub holds: Arc<HeldDeletions>,
    /// Statistics, which others read.
    pub stats: Arc<Stats>,
    /// Begins to send work, which goes the other way.
    pub send_work: BeginSending,
    /// Begins to send plans.
    pub send_plans: BeginSending,
}

impl std::fmt::Debug for Options {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut debug = f.debug_struct("Options");
        debug.field("guard", &self.guard).finish_non_exhaustive()
    }
}

/// Takes in the objects of a cluster, until `token` is cancelled or the sink's reader is gone.
///
/// [`Event::Synced`] follows the first listing.
pub async fn receive(
    cluster: Arc<str>,
    streams: mpsc::Receiver<EdgeStream>,
    sink: Sink,
    options: Options,
    token: CancellationToken,
) {
    let receiver = Receiver {
        guards: Guards::new(&cluster, options.guard, &options.holds),
        partition: Partition::new(Arc::clone(&cluster), LIMITS),
        cluster,
        sink,
        stats: options.stats,
        send_work: options.send_work,
        send_plans: options.send_plans,
        current: None,
        standbys: Standbys::default(),
        is_synced: false,
        pace: Pace::default(),
        begun: VecDeque::new(),
    };
    // Ends early only with the sink's reader, whose owner deals with its end.
    let _ = token.run_until_cancelled(receiver.run(streams)).await;
}

struct Receiver {
    cluster: Arc<str>,
    partition: Partition,
    guards: Guards,
    sink: Sink,
    stats: Arc<Stats>,
    send_work: BeginSending,
    send_plans: BeginSending,
    current: Option<Current>,
    standbys: Standbys,
    is_synced: bool,
    pace: Pace,
    /// When the last streams began, oldest first.
    begun: VecDeque<Instant>,
}

/// The stream that counts.
struct Current {
    stream: EdgeStream,
    /// When its edge said something.
    heard: Instant,
    /// Work and plans on their way to the edge.
    sending: [Option<AbortOnDropHandle<()>>; 2],
}

impl Current {
    /// The next message, not before a time. May be dropped while it waits.
    async fn next(
        current: &mut Option<Self>,
        at: Instant,
    ) -> Option<Result<v1::EdgeMessage, Status>> {
        let Some(current) = current else {
            return pending().await;
        };
        sleep_until(at).await;
        tokio::select! {
            message = current.stream.messages.next() => message,
            // The credential has ended, or the connection.
            () = current.stream.answers.closed() => None,
        }
    }
}

impl Receiver {
    async fn run(mut self, mut streams: mpsc::Receiver<EdgeStream>) -> Result<(), Closed> {
        loop {
            self.promote();
            let silent = self.silent_at();
            tokio::select! {
                Some(stream) = streams.recv() => self.begin(stream),
                message = Current::next(&mut self.current, self.pace.next()) => self.message(message).await?,
                () = self.guards.wait() => {
                    let changes = self.guards.look();
                    self.send(changes).await?;
                }
                () = at(silent) => {
                    let why = "the edge is silent, and another one of the cluster waits";
                    self.end("replaced", Status::aborted(why));
                }
            }
        }
    }

    /// Begins a stream, has it wait, or refuses it.
    fn begin(&mut self, stream: EdgeStream) {
        let rival = self.rival(&stream).map(|current| Arc::clone(&current.edge));
        let may_wait = stream.plans.is_some() && self.standbys.has_room(stream.instance);
        if let (Some(edge), false) = (&rival, may_wait) {
            let why = format!("edge {edge:?} sends the objects of this cluster");
            self.stats.count_end("other_edge");
            // The channel of a new stream has room.
            let _ = stream.answers.try_send(Err(Status::already_exists(why)));
            return;
        }
        if !self.may_begin() {
            self.stats.count_end("rate");
            let status = Status::resource_exhausted("the streams of this cluster begin too often");
            let _ = stream.answers.try_send(Err(status));
            return;
        }
        if let Some(edge) = rival {
            self.stand_by(stream, &edge);
            return;
        }
        self.end(
            "replaced",
            Status::aborted("a newer stream of the cluster has begun"),
        );
        self.start(stream, None);
    }

    /// Has a stream wait for the one of another edge.
    fn stand_by(&mut self, stream: EdgeStream, other: &str) {
        info!(cluster = %self.cluster, edge = %stream.edge, other, "edge waits for another one");
        let message = Some(Answer::Standby(v1::CentreStandby {
            edge: other.to_owned(),
        }));
        // The channel of a new stream has room.
        let _ = stream.answers.try_send(Ok(v1::CentreMessage { message }));
        let plans = (self.send_plans)(&stream).map(spawned);
        self.standbys.add(Standby { stream, plans });
    }

    /// Has the edge that waits for longest send the objects, if none does.
    fn promote(&mut self) {
        if self.current.is_none()
            && let Some(Standby { stream, plans }) = self.standbys.take()
        {
            self.start(stream, plans);
        }
    }

    /// When the current edge has been silent for so long that one that waits takes its place.
    fn silent_at(&self) -> Option<Instant> {
        let current = self.current.as_ref()?;
        (!self.standbys.is_empty()).then(|| current.heard + SILENT)
    }

    /// Has a stream count, with plans that are on their way over it.
    fn start(&mut self, stream: EdgeStream, plans: Option<AbortOnDropHandle<()>>) {
        let EdgeStream {
            edge,
            version,
            writes,
            ..
        } = &stream;
        let has_plans = stream.plans.is_some();
        info!(cluster = %self.cluster, %edge, version, writes, plans = has_plans, "edge connected");
        let welcome = v1::CentreWelcome {
            version: VERSION,
            bucket_hashes: self.partition.begin(),
            plans: true,
        };
        self.stats.set_edge(Some(edge));
        let work = (self.send_work)(&stream);
        let new_plans = match plans {
            Some(_) => None,
            None => (self.send_plans)(&stream),
        };
        self.current = Some(Current {
            stream,
            heard: Instant::now(),
            sending: [None, plans],
        });
        // Before any work.
        self.answer(Answer::Welcome(welcome));
        if let Some(current) = &mut self.current {
            let [of_work, of_plans] = &mut current.sending;
            *of_work = work.map(spawned);
            if let Some(plans) = new_plans {
                *of_plans = Some(spawned(plans));
            }
        }
    }

    /// Returns `true` if one more stream may begin now. Notes that it does.
    fn may_begin(&mut self) -> bool {
        let now = Instant::now();
        self.begun.retain(|at| now - *at < STREAMS_WITHIN);
        let may_begin = self.begun.len() < STREAMS;
        if may_begin {
            self.begun.push_back(now);
        }
        may_begin
    }

    /// The current stream, if it is of another process that is in contact.
    fn rival(&self, stream: &EdgeStream) -> Option<&EdgeStream> {
        let current = self.current.as_ref()?;
        let is_rival =
            current.stream.instance != stream.instance && current.heard.elapsed() < SILENT;
        is_rival.then_some(&current.stream)
    }

    /// Takes a message of the current stream, or its end.
    async fn message(
        &mut self,
        message: Option<Result<v1::EdgeMessage, Status>>,
    ) -> Result<(), Closed> {
        let message = match message {
            Some(Ok(message)) => message.message,
            Some(Err(status)) => {
                self.ended("broken", status.message());
                return Ok(());
            }
            None => {
                self.ended("closed", "closed by the edge, or its credential has ended");
                return Ok(());
            }
        };
        if let Some(current) = &mut self.current {
            current.heard = Instant::now();
        }
        let bytes = match &message {
            Some(Message::Objects(part)) => part.put.iter().map(|object| object.len()).sum(),
            _ => 0,
        };
        self.pace.took(bytes);
        match message {
            Some(Message::Objects(part)) => {
                if let Err(error) = self.partition.stage(part) {
                    self.refuse(&error);
                }
            }
            Some(Message::Commit(commit)) => match self.partition.commit(&commit) {
                Ok(received) => {
                    self.take(received).await?;
                    self.pace.committed();
                    let number = commit.number;
                    self.answer(Answer::Accepted(v1::CentreAccepted { number }));
                }
                Err(error) => self.refuse(&error),
            },
            Some(Message::Alive(alive)) => {
                let silence = Duration::from_millis(alive.silence_ms);
                self.stats.contact.note_after(silence);
            }
            Some(Message::Hello(_)) => {
                self.end("protocol", Status::invalid_argument("hello: a second one"));
            }
            // Of a newer version.
            None => {}
        }
        Ok(())
    }

    /// Takes in a transition.
    async fn take(&mut self, received: Received) -> Result<(), Closed> {
        self.stats.count_transition();
        let mut changes = if received.listing {
            let objects = self.partition.objects();
            self.guards.list(objects)
        } else {
            let put = received.put.into_iter().map(Ok);
            let refused = received.refused.into_iter().map(Err);
            let put = put.chain(refused);
            let mut changes: Vec<_> = put.filter_map(|sent| self.guards.put(sent)).collect();
            let deleted = received.delete.into_iter();
            changes.extend(deleted.filter_map(|name| self.guards.delete(name)));
            changes
        };
        let versions = VERSIONED.into_iter().zip(received.source_versions);
        let versions = versions.filter(|(_, version)| *version > 0);
        changes.extend(versions.map(|(kind, version)| ObjectChange::Reached {
            kind,
            cluster: Arc::clone(&self.cluster),
            version,
        }));
        self.send(changes).await?;
        if received.listing && !std::mem::replace(&mut self.is_synced, true) {
            self.sink.send(Event::Synced).await?;
        }
        Ok(())
    }

    async fn send(&mut self, changes: Vec<ObjectChange>) -> Result<(), Closed> {
        let mut changes = changes.into_iter().peekable();
        while changes.peek().is_some() {
            let batch = changes.by_ref().take(BATCH).collect();
            self.sink.send_changes(batch).await?;
        }
        Ok(())
    }

    fn answer(&mut self, answer: Answer) {
        let Some(current) = &self.current else { return };
        let message = Some(answer);
        let sent = current
            .stream
            .answers
            .try_send(Ok(v1::CentreMessage { message }));
        if sent.is_err() {
            // It is full only if the edge commits without waiting for answers.
            self.ended("answers", "the edge takes no answers");
        }
    }

    /// Ends the current stream because of what it brought.
    fn refuse(&mut self, error: &PartitionError) {
        let status = match error {
            PartitionError::TooMany { .. } => Status::resource_exhausted(error.to_string()),
            PartitionError::Mismatch => Status::data_loss(error.to_string()),
            PartitionError::Object(_) | PartitionError::Bucket(_) | PartitionError::Listing => {
                Status::invalid_argument(error.to_string())
            }
        };
        self.end(error.reason(), status);
    }

    /// Ends the current stream, if there is one.
    fn end(&mut self, reason: &'static str, status: Status) {
        let Some(Current { stream, .. }) = &self.current else {
            return;
        };
        let why = status.message().to_owned();
        // Without room the edge does not read, and the stream breaks without a reason.
        let _ = stream.answers.try_send(Err(status));
        self.ended(reason, &why);
    }

    /// The current stream has ended.
    fn ended(&mut self, reason: &'static str, why: &str) {
        let Some(Current { stream, .. }) = self.current.take() else {
            return;
        };
        let (cluster, edge) = (&self.cluster, &stream.edge);
        warn!(%cluster, %edge, why, "stream of the edge ended; its objects stay as they were");
        self.stats.count_end(reason);
        self.stats.set_edge(None);
    }
}

fn spawned(sending: Sending) -> AbortOnDropHandle<()> {
    AbortOnDropHandle::new(tokio::spawn(sending))
}

/// Waits until a time; for ever without one.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time).await,
        None => pending().await,
    }
}
