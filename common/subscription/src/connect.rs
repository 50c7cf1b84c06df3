//! From a controller's address to an open stream.

use std::collections::HashMap;
use std::time::Duration;

use portolan_proto::limits::MAX_FRAME_BYTES;
use portolan_proto::v1::agent_message::Message as Said;
use portolan_proto::{BEHIND_THE_AGENT, CLUSTER_ID, v1};
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tracing::{debug, warn};

use crate::{End, Security, Target};

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

/// Both directions of an open stream. `F` is a frame: [`v1::Frame`], or another type that reads
/// the same messages.
#[derive(Debug)]
pub struct Opened<F> {
    /// What the controller says.
    pub frames: Streaming<F>,
    /// What we say.
    pub messages: mpsc::Sender<v1::AgentMessage>,
}

/// Opens streams.
#[derive(Debug)]
pub struct Dialer {
    security: Security,
    /// Why there was no stream the last time, by controller: said once while it stays the same.
    last_failures: HashMap<String, String>,
    /// Which cluster a controller said that it is of when it refused us for that.
    other_cluster: Option<String>,
}

impl Dialer {
    /// One that has not tried anything.
    #[must_use]
    pub fn new(security: Security) -> Self {
        Self {
            security,
            last_failures: HashMap::new(),
            other_cluster: None,
        }
    }

    /// Connects, and says Hello.
    ///
    /// # Errors
    /// If there is no stream: it has been logged why.
    pub async fn open<F>(&mut self, target: &Target, hello: v1::Hello) -> Result<Opened<F>, End>
    where
        F: Message + Default + 'static,
    {
        let channel = match connect(target, &self.security).await {
            Ok(channel) => channel,
            Err(reason) => return Err(self.unreachable(target, root_cause(&reason))),
        };
        let authorization = match self.security.authorization().await {
            Ok(authorization) => authorization,
            Err(reason) => return Err(self.unreachable(target, reason.to_string())),
        };
        let (messages, receiver) = mpsc::channel(1);
        // The channel is empty, and its other end is here.
        let _ = messages.try_send(v1::AgentMessage {
            message: Some(Said::Hello(hello)),
        });
        let mut request = Request::new(ReceiverStream::new(receiver));
        if let Some(value) = authorization {
            request.metadata_mut().insert("authorization", value);
        }
        let frames = match timeout(CONNECT_TIMEOUT, sync(channel, request)).await {
            Ok(Ok(frames)) => frames,
            Ok(Err(status)) => return Err(self.refused(target, &status)),
            Err(_) => {
                let status = Status::deadline_exceeded("no answer");
                return Err(self.refused(target, &status));
            }
        };
        self.last_failures.clear();
        Ok(Opened { frames, messages })
    }

    /// Which cluster the controller is of that refused us for that, if one did; once.
    pub fn take_other_cluster(&mut self) -> Option<String> {
        self.other_cluster.take()
    }

    /// There was nobody to talk to, or nobody to trust.
    fn unreachable(&mut self, target: &Target, reason: String) -> End {
        self.failed(target, "no connection to the controller", reason);
        End::Unreachable
    }

    fn refused(&mut self, target: &Target, status: &Status) -> End {
        // Where TLS fails only now, the status itself says nothing of it.
        let cause = std::error::Error::source(status).map(root_cause);
        let reason = match cause {
            None => format!("{:?}: {}", status.code(), status.message()),
            Some(cause) if matches!(self.security, Security::Plaintext) => {
                format!("{cause}; we speak plaintext, does the controller want TLS?")
            }
            Some(cause) => cause,
        };
        self.failed(target, "the controller refused us", reason);
        self.other_cluster = cluster_of(status).map(str::to_owned);
        ended_early(status)
    }

    /// Says why an attempt came to nothing, if that is news.
    fn failed(&mut self, target: &Target, what: &str, reason: String) {
        let last = self.last_failures.entry(target.to_string()).or_default();
        if *last == reason {
            debug!(%target, reason, "{what}");
        } else {
            warn!(%target, reason, "{what}; trying again (said once)");
            *last = reason;
        }
    }
}

/// The one method, with frames of any type that reads them.
async fn sync<F>(
    channel: Channel,
    request: Request<ReceiverStream<v1::AgentMessage>>,
) -> Result<Streaming<F>, Status>
where
    F: Message + Default + 'static,
{
    let mut client = Grpc::new(channel).max_decoding_message_size(MAX_FRAME_BYTES);
    let ready = client.ready().await;
    ready.map_err(|error| Status::from_error(Box::new(error)))?;
    let codec: ProstCodec<v1::AgentMessage, F> = ProstCodec::default();
    let path = PathAndQuery::from_static("/portolan.v1.Tables/Sync");
    Ok(client.streaming(request, path, codec).await?.into_inner())
}

pub(crate) async fn connect(
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

/// Which cluster the controller is of that refuses us for that.
#[must_use]
pub fn cluster_of(status: &Status) -> Option<&str> {
    status.metadata().get(CLUSTER_ID)?.to_str().ok()
}

/// How a stream ended without a table.
#[must_use]
pub fn ended_early(status: &Status) -> End {
    if status.code() == Code::Unavailable && status.message().contains(BEHIND_THE_AGENT) {
        End::Behind
    } else if cluster_of(status).is_some() {
        End::WrongCluster
    } else if status.code() == Code::FailedPrecondition {
        End::UnknownNode
    } else {
        End::Refused
    }
}

/// The innermost cause: the outer ones say no more than "transport error".
pub(crate) fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
