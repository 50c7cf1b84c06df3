//! One stream, from connecting to its end.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use portolan_proto::limits::MAX_FRAME_BYTES;
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_proto::v1::tables_client::TablesClient;
use tokio::sync::{mpsc, watch};
use tokio::time::{timeout, timeout_at};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint, Uri};
use tonic::{Code, Request, Status, Streaming};
use tracing::{debug, error, info, warn};

use super::outbox::Outbox;
use super::reconnect::End;
use super::{Committed, Report, Security, Staging, Stats, Subscribed, Taken};

/// How long a connection may take, and then an answer to Hello.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// So often a silent connection is tested, and so long an answer may take. A busy controller
/// answers late: less patience would make it lose agents because it has so many.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// HTTP/2 windows and frames: a snapshot comes in few large pieces.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;
const HTTP2_FRAME_BYTES: u32 = 256 << 10;

/// What outlives a stream.
#[derive(Debug)]
pub(super) struct Inner {
    pub(super) staging: Staging,
    pub(super) tables: watch::Sender<Option<Arc<Subscribed>>>,
    pub(super) reports: watch::Receiver<Option<Report>>,
    pub(super) stats: Arc<Stats>,
    pub(super) first_commit_timeout: Duration,
    pub(super) security: Security,
    /// Why there was no stream the last time, by endpoint: said once while it stays the same.
    pub(super) last_failures: HashMap<String, String>,
}

/// An open stream.
struct Stream<'a> {
    inner: &'a mut Inner,
    frames: Streaming<v1::Frame>,
    messages: mpsc::Sender<v1::AgentMessage>,
    outbox: Outbox,
    committed: bool,
    /// How long to wait for the next frame: only before the first Commit, if there are others.
    deadline: Option<Instant>,
}

/// Connects, and follows the stream until it ends.
pub(super) async fn follow(
    inner: &mut Inner,
    endpoint: &Uri,
    hello: v1::Hello,
    has_others: bool,
) -> End {
    let channel = match connect(endpoint, &inner.security).await {
        Ok(channel) => channel,
        Err(reason) => return unreachable(inner, endpoint, root_cause(&reason)),
    };
    let authorization = match inner.security.authorization().await {
        Ok(authorization) => authorization,
        Err(reason) => return unreachable(inner, endpoint, reason.to_string()),
    };
    let hello = inner.staging.begin(hello);
    let (messages, receiver) = mpsc::channel(1);
    // The channel is empty, and its other end is here.
    let _ = messages.try_send(v1::AgentMessage {
        message: Some(Message::Hello(hello)),
    });
    let mut client = TablesClient::new(channel).max_decoding_message_size(MAX_FRAME_BYTES);
    let mut request = Request::new(ReceiverStream::new(receiver));
    if let Some(value) = authorization {
        request.metadata_mut().insert("authorization", value);
    }
    let answer = timeout(CONNECT_TIMEOUT, client.sync(request));
    let frames = match answer.await {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => return refused(inner, endpoint, &status),
        Err(_) => return refused(inner, endpoint, &Status::deadline_exceeded("no answer")),
    };
    info!(%endpoint, "connected");
    inner.last_failures.clear();
    Stats::count(&inner.stats.streams);
    let stats = Arc::clone(&inner.stats);
    let _connected = Connected::new(&stats);
    let patience = inner.first_commit_timeout;
    let mut stream = Stream {
        inner,
        frames,
        messages,
        outbox: Outbox::default(),
        committed: false,
        deadline: has_others.then(|| Instant::now() + patience),
    };
    stream.run().await
}

async fn connect(endpoint: &Uri, security: &Security) -> Result<Channel, tonic::transport::Error> {
    let endpoint = Endpoint::from(endpoint.clone())
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(HTTP2_FRAME_BYTES);
    match security {
        Security::Plaintext => endpoint.connect().await,
        Security::Tls(tls) => endpoint.connect_with_connector(tls.connector()).await,
    }
}

/// There was nobody to talk to, or nobody to trust.
fn unreachable(inner: &mut Inner, endpoint: &Uri, reason: String) -> End {
    failed(inner, endpoint, "no connection to the controller", reason);
    End::Unreachable
}

fn refused(inner: &mut Inner, endpoint: &Uri, status: &Status) -> End {
    // Where TLS fails only now, the status itself says nothing of it.
    let reason = match std::error::Error::source(status).map(root_cause) {
        None => format!("{:?}: {}", status.code(), status.message()),
        Some(cause) if matches!(inner.security, Security::Plaintext) => {
            format!("{cause}; we speak plaintext, does the controller want TLS?")
        }
        Some(cause) => cause,
    };
    failed(inner, endpoint, "the controller refused us", reason);
    End::Broken { committed: false }
}

/// Counts an attempt that came to nothing; says why if that is news.
fn failed(inner: &mut Inner, endpoint: &Uri, what: &str, reason: String) {
    Stats::count(&inner.stats.connect_failures);
    let last = inner.last_failures.entry(endpoint.to_string()).or_default();
    if *last == reason {
        debug!(%endpoint, reason, "{what}");
    } else {
        warn!(%endpoint, reason, "{what}; trying again (said once)");
        *last = reason;
    }
}

/// The innermost cause: the outer ones say no more than "transport error".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Shows that there is a stream while it lives, also if it is dropped in the middle.
struct Connected<'a>(&'a Stats);

impl<'a> Connected<'a> {
    fn new(stats: &'a Stats) -> Self {
        stats.connected.store(true, Ordering::Relaxed);
        Self(stats)
    }
}

impl Drop for Connected<'_> {
    fn drop(&mut self) {
        self.0.connected.store(false, Ordering::Relaxed);
    }
}

impl Stream<'_> {
    async fn run(&mut self) -> End {
        // What the kernel has may be what this controller sent before.
        self.inner.reports.mark_changed();
        let mut reporting = true;
        let messages = self.messages.clone();
        loop {
            tokio::select! {
                frame = next_frame(&mut self.frames, self.deadline) => {
                    if let Some(end) = self.take(frame) {
                        return end;
                    }
                }
                changed = self.inner.reports.changed(), if reporting => {
                    reporting = changed.is_ok();
                    if let Some(report) = self.inner.reports.borrow_and_update().as_ref() {
                        self.outbox.reported(report);
                    }
                }
                Ok(permit) = messages.reserve(), if self.outbox.has_mail() => {
                    if let Some(message) = self.outbox.take() {
                        permit.send(message);
                    }
                }
            }
        }
    }

    /// Takes a frame, or how the stream ended; `Some` if that is the end.
    fn take(&mut self, frame: Result<Option<v1::Frame>, Status>) -> Option<End> {
        let frame = match frame {
            Ok(Some(frame)) => frame,
            Ok(None) => return Some(self.broken(&Status::ok("closed by the controller"))),
            Err(status) => return Some(self.broken(&status)),
        };
        let patience = self.inner.first_commit_timeout;
        self.deadline = self.deadline.map(|_| Instant::now() + patience);
        match self.inner.staging.take(frame) {
            Ok(Taken::Welcome | Taken::Staged) => None,
            Ok(Taken::Unknown) => {
                Stats::count(&self.inner.stats.unknown_frames);
                None
            }
            Ok(Taken::Committed(committed)) => {
                self.commit(committed);
                None
            }
            Ok(Taken::Asked(buckets)) => {
                self.outbox.asked(buckets);
                None
            }
            Ok(Taken::Confirmed(_)) => None,
            Ok(Taken::Goaway(goaway)) => {
                let spread = Duration::from_millis(goaway.spread_ms.into());
                info!(?spread, "the controller is about to stop");
                Some(End::Goaway { spread })
            }
            Err(reason) => {
                Stats::count(&self.inner.stats.hash_mismatches);
                error!(%reason, "the table is not what the controller sent; asking for all of it");
                Some(End::Suspect)
            }
        }
    }

    fn commit(&mut self, committed: Committed) {
        self.committed = true;
        self.deadline = None;
        let stats = &self.inner.stats;
        Stats::count(&stats.commits);
        if committed.snapshot {
            Stats::count(&stats.snapshots);
        }
        Stats::set(&stats.refused_records, committed.refused.len());
        debug!(
            revision = committed.revision,
            snapshot = committed.snapshot,
            records = committed.table.records.len(),
            refused = committed.refused.len(),
            "table received"
        );
        self.outbox.committed(&committed);
        self.inner.tables.send_replace(Some(Arc::new(Subscribed {
            epoch: committed.epoch,
            revision: committed.revision,
            table: committed.table,
            received_at: Instant::now(),
            trigger_times_ms: committed.trigger_times_ms,
        })));
    }

    fn broken(&self, status: &Status) -> End {
        if self.committed && status.code() == Code::Unauthenticated {
            // With tokens this happens every hour or so.
            info!(
                reason = status.message(),
                "connecting again with what we have now"
            );
            return End::Broken { committed: true };
        }
        warn!(code = ?status.code(), reason = status.message(), "stream ended");
        if status.code() == Code::Aborted {
            return End::Suspect;
        }
        End::Broken {
            committed: self.committed,
        }
    }
}

async fn next_frame(
    frames: &mut Streaming<v1::Frame>,
    deadline: Option<Instant>,
) -> Result<Option<v1::Frame>, Status> {
    match deadline {
        None => frames.message().await,
        Some(deadline) => timeout_at(deadline.into(), frames.message())
            .await
            .unwrap_or_else(|_| Err(Status::deadline_exceeded("no table in time"))),
    }
}
