// SPDX-License-Identifier: Apache-2.0

//! Connections to controllers, and streams on them.

use std::collections::HashMap;
use std::time::Duration;

use portolan_proto::limits::MAX_FRAME_BYTES;
use portolan_proto::reason::Reason;
use portolan_proto::v1::agent_message::Message as Said;
use portolan_proto::{CLUSTER_ID, v1};
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status, Streaming};
use tonic_prost::ProstCodec;
use tracing::{debug, warn};

use crate::{End, Security, Target};

/// The time limit of a connection attempt, and of the answer to Hello.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// Interval of pings on a silent connection, and time limit of the answer. A busy controller
/// answers late: with a shorter limit it would lose agents because it has so many.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// HTTP/2 windows and frames: a snapshot comes in few large pieces.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 2 << 20;
const HTTP2_FRAME_BYTES: u32 = 256 << 10;

/// Both directions of an open stream. `F` is a frame: [`v1::Frame`], or another type that reads
/// the same messages.
#[derive(Debug)]
pub(crate) struct Opened<F> {
    /// Frames from the controller.
    pub(crate) frames: Streaming<F>,
    /// Messages to the controller.
    pub(crate) messages: mpsc::Sender<v1::AgentMessage>,
}

/// Connects to controllers, and logs each cause of failure once.
#[derive(Debug)]
pub struct Dialer {
    security: Security,
    /// The last failure by controller.
    last_failures: HashMap<String, String>,
    /// The cluster named by a controller that refused this program for its own.
    other_cluster: Option<String>,
}

impl Dialer {
    /// Creates a dialer.
    #[must_use]
    pub fn new(security: Security) -> Self {
        Self {
            security,
            last_failures: HashMap::new(),
            other_cluster: None,
        }
    }

    /// Connects. Returns the connection and the value of the `authorization` header, if requests
    /// have one.
    ///
    /// # Errors
    /// If there is no connection; the cause has been logged.
    pub async fn connect(
        &mut self,
        target: &Target,
    ) -> Result<(Channel, Option<MetadataValue<Ascii>>), End> {
        let channel = match open_channel(target, &self.security).await {
            Ok(channel) => channel,
            Err(error) => return Err(self.unreachable(target, root_cause(&error))),
        };
        match self.security.authorization().await {
            Ok(authorization) => Ok((channel, authorization)),
            Err(error) => Err(self.unreachable(target, error.to_string())),
        }
    }

    /// Connects, and sends Hello.
    pub(crate) async fn open<F>(
        &mut self,
        target: &Target,
        hello: v1::Hello,
    ) -> Result<Opened<F>, End>
    where
        F: Message + Default + 'static,
    {
        let (channel, authorization) = self.connect(target).await?;
        let (messages, receiver) = mpsc::channel(1);
        // The channel is empty, and its other end is here.
        let _ = messages.try_send(v1::AgentMessage {
            message: Some(Said::Hello(hello)),
        });
        let mut request = Request::new(ReceiverStream::new(receiver));
        if let Some(value) = authorization {
            request.metadata_mut().insert("authorization", value);
        }
        let answer = self.answer(target, sync(channel, request)).await;
        Ok(Opened {
            frames: answer?,
            messages,
        })
    }

    /// Awaits the answer to a request for a stream, for a limited time.
    ///
    /// # Errors
    /// If the controller refuses or does not answer; the cause has been logged.
    pub async fn answer<T>(
        &mut self,
        target: &Target,
        answer: impl Future<Output = Result<T, Status>>,
    ) -> Result<T, End> {
        let answer = timeout(CONNECT_TIMEOUT, answer).await;
        match answer.unwrap_or_else(|_| Err(Status::deadline_exceeded("no answer"))) {
            Ok(answer) => {
                self.last_failures.clear();
                Ok(answer)
            }
            Err(status) => Err(self.refused(target, &status)),
        }
    }

    /// The cluster of the controller that refused this program for its own, if one did since the
    /// last call.
    pub(crate) fn take_other_cluster(&mut self) -> Option<String> {
        self.other_cluster.take()
    }

    fn unreachable(&mut self, target: &Target, reason: String) -> End {
        self.failed(target, "no connection to the controller", reason);
        End::Unreachable
    }

    fn refused(&mut self, target: &Target, status: &Status) -> End {
        // The status itself does not show a failure of TLS at this point.
        let cause = std::error::Error::source(status).map(root_cause);
        let reason = match cause {
            None => format!("{:?}: {}", status.code(), status.message()),
            Some(cause) if matches!(self.security, Security::Plaintext) => {
                format!("{cause}; this side uses plaintext, does the controller expect TLS?")
            }
            Some(cause) => cause,
        };
        self.failed(target, "the controller refused the stream", reason);
        self.other_cluster = cluster_of(status).map(str::to_owned);
        ended_early(status)
    }

    /// Logs why an attempt failed, as a warning if the cause is new.
    fn failed(&mut self, target: &Target, what: &str, reason: String) {
        let last = self.last_failures.entry(target.to_string()).or_default();
        if *last == reason {
            debug!(%target, reason, "{what}");
        } else {
            warn!(%target, reason, "{what}; retrying (logged once)");
            *last = reason;
        }
    }
}

/// Calls `Tables.Sync`, with frames of any type that reads them.
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

async fn open_channel(
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

/// The cluster named by a controller that refuses this program for its own.
pub(crate) fn cluster_of(status: &Status) -> Option<&str> {
    status.metadata().get(CLUSTER_ID)?.to_str().ok()
}

/// The end of a stream that has not brought a table.
#[must_use]
pub fn ended_early(status: &Status) -> End {
    if Reason::of(status) == Some(Reason::AgentAhead) {
        End::Behind
    } else if cluster_of(status).is_some() {
        End::WrongCluster
    } else if status.code() == Code::FailedPrecondition {
        End::UnknownNode
    } else {
        End::Refused
    }
}

/// The innermost cause: the outer ones are no more specific than "transport error".
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}
