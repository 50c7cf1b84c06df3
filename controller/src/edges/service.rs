// SPDX-License-Identifier: Apache-2.0

//! The gRPC service `portolan.v1.Federation`, for edge controllers.

use std::pin::Pin;
use std::time::Duration;

use futures_util::Stream;
use futures_util::stream::{PollNext, select_with_strategy};
use portolan_auth::{Refusal, RefusalReason};
use portolan_proto::limits::MAX_EDGE_MESSAGE_BYTES;
use portolan_proto::v1;
use portolan_serve::Caller;
use portolan_source::edge::{Answered, EdgeStream};
use portolan_tls::EdgeName;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming, async_trait};
use v1::edge_message::Message;
use v1::federation_server::{Federation, FederationServer};

use super::EdgeSeats;

/// Time limit for the Hello of an edge.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);
/// The longest version of a program that is kept, in bytes.
const MAX_VERSION: usize = 64;
/// Length of the queue of answers. An edge waits for the answer to each commit.
const ANSWERS: usize = 4;
/// Length of the queue of work, in parts.
const WORK: usize = 2;

/// The service, whose streams end at their seats.
pub(crate) fn federation(seats: EdgeSeats) -> FederationServer<impl Federation> {
    FederationServer::new(EdgeService { seats }).max_decoding_message_size(MAX_EDGE_MESSAGE_BYTES)
}

#[derive(Debug)]
struct EdgeService {
    seats: EdgeSeats,
}

#[async_trait]
impl Federation for EdgeService {
    type SyncStream = Pin<Box<dyn Stream<Item = Answered> + Send>>;

    async fn sync(
        &self,
        request: Request<Streaming<v1::EdgeMessage>>,
    ) -> Result<Response<Self::SyncStream>, Status> {
        let caller = request.extensions().get::<Caller>().cloned();
        let caller = caller.ok_or_else(|| Status::internal("an unguarded service"))?;
        let mut messages = request.into_inner();
        let hello = hello(&mut messages).await;
        let hello =
            hello.map_err(|status| caller.refuse(Refusal::new(RefusalReason::Hello, status)))?;
        caller.authorize_edge(&hello.cluster, &hello.name)?;
        let (sender, answers) = mpsc::channel(ANSWERS);
        let (work, parts) = mpsc::channel(WORK);
        let stream = EdgeStream {
            edge: hello.name.into(),
            instance: hello.instance,
            version: hello.edge_version,
            messages: Box::pin(messages),
            answers: sender,
            writes: hello.writes,
            plans: hello.plans.then_some(hello.plan_hashes),
            work,
        };
        self.seats.seat(&hello.cluster, stream)?;
        let (answers, parts) = (ReceiverStream::new(answers), ReceiverStream::new(parts));
        // The welcome comes first, and work waits for answers.
        let both = select_with_strategy(answers, parts, |(): &mut ()| PollNext::Left);
        Ok(Response::new(Box::pin(both)))
    }
}

/// Reads the first message of an edge.
async fn hello(messages: &mut Streaming<v1::EdgeMessage>) -> Result<v1::EdgeHello, Status> {
    let message = timeout(HELLO_TIMEOUT, messages.message()).await;
    let message = message.map_err(|_| Status::deadline_exceeded("no Hello in time"))??;
    let message = message.and_then(|message| message.message);
    let Some(Message::Hello(mut hello)) = message else {
        return Err(Status::invalid_argument("the first message is not Hello"));
    };
    if hello.version == 0 {
        return Err(Status::invalid_argument("version: 0"));
    }
    let name = EdgeName::new(&hello.cluster, &hello.name);
    name.map_err(|error| Status::invalid_argument(error.to_string()))?;
    let kept = hello.edge_version.floor_char_boundary(MAX_VERSION);
    hello.edge_version.truncate(kept);
    Ok(hello)
}
