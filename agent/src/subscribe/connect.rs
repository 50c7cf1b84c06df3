//! From a controller's address to an open stream.

use std::time::Duration;

use portolan_proto::limits::MAX_FRAME_BYTES;
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_proto::v1::tables_client::TablesClient;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tracing::{debug, warn};

use super::inner::Inner;
use super::reconnect::End;
use super::resolve::Target;
use super::{Security, Stats};

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

/// What a controller says whose source is behind ours; then it is not the connection that broke,
/// and no proxy that found no controller.
const BEHIND: &str = "behind the agent";

/// Both directions of an open stream.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) frames: Streaming<v1::Frame>,
    pub(super) messages: mpsc::Sender<v1::AgentMessage>,
}

/// Connects, and says Hello.
pub(super) async fn open(
    inner: &mut Inner,
    target: &Target,
    hello: v1::Hello,
) -> Result<Opened, End> {
    let channel = match connect(target, &inner.security).await {
        Ok(channel) => channel,
        Err(reason) => return Err(unreachable(inner, target, root_cause(&reason))),
    };
    let authorization = match inner.security.authorization().await {
        Ok(authorization) => authorization,
        Err(reason) => return Err(unreachable(inner, target, reason.to_string())),
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
        Ok(Err(status)) => return Err(refused(inner, target, &status)),
        Err(_) => {
            let status = Status::deadline_exceeded("no answer");
            return Err(refused(inner, target, &status));
        }
    };
    Ok(Opened { frames, messages })
}

pub(super) async fn connect(
    target: &Target,
    security: &Security,
) -> Result<Channel, tonic::transport::Error> {
    Endpoint::from(target.endpoint.clone())
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_frame_size(HTTP2_FRAME_BYTES)
        .connect_with_connector(security.connector(target.address))
        .await
}

/// There was nobody to talk to, or nobody to trust.
fn unreachable(inner: &mut Inner, target: &Target, reason: String) -> End {
    failed(inner, target, "no connection to the controller", reason);
    End::Unreachable
}

fn refused(inner: &mut Inner, target: &Target, status: &Status) -> End {
    // Where TLS fails only now, the status itself says nothing of it.
    let cause = std::error::Error::source(status).map(root_cause);
    let end = ended_early(status);
    let reason = match cause {
        None => format!("{:?}: {}", status.code(), status.message()),
        Some(cause) if matches!(inner.security, Security::Plaintext) => {
            format!("{cause}; we speak plaintext, does the controller want TLS?")
        }
        Some(cause) => cause,
    };
    failed(inner, target, "the controller refused us", reason);
    end
}

/// How a stream ended without a table.
pub(super) fn ended_early(status: &Status) -> End {
    if status.code() == Code::Unavailable && status.message().contains(BEHIND) {
        End::Behind
    } else {
        End::Broken { committed: false }
    }
}

/// Counts an attempt that came to nothing; says why if that is news.
fn failed(inner: &mut Inner, target: &Target, what: &str, reason: String) {
    Stats::count(&inner.stats.connect_failures);
    let last = inner.last_failures.entry(target.to_string()).or_default();
    if *last == reason {
        debug!(%target, reason, "{what}");
    } else {
        warn!(%target, reason, "{what}; trying again (said once)");
        *last = reason;
    }
}

/// The innermost cause: the outer ones say no more than "transport error".
pub(super) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
