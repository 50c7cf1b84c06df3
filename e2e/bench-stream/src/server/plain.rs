// SPDX-License-Identifier: Apache-2.0

//! Plain servers with tonic: each message is cloned and encoded for each agent.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::Result;
use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use portolan_proto::convert::{encode_key, encode_record};
use portolan_proto::v1;
use portolan_select::TableDelta;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::wrappers::{ReceiverStream, UnboundedReceiverStream};
use tonic::codegen::BoxFuture;
use tonic::server::{Grpc, StreamingService};
use tonic::transport::Server;
use tonic::transport::server::TcpIncoming;
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;
use tower::service_fn;

use super::Target;
use super::rows::Rows;

/// A message of this server. Thin clients decode it as a frame of the protocol.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Plain {
    #[prost(message, optional, tag = "1")]
    pub(crate) welcome: Option<v1::Welcome>,
    #[prost(message, optional, tag = "2")]
    pub(crate) records: Option<v1::Records>,
    #[prost(message, optional, tag = "4")]
    pub(crate) commit: Option<v1::Commit>,
    #[prost(message, optional, tag = "15")]
    pub(crate) rows: Option<Rows>,
}

type Item = Result<Plain, Status>;
type Codec = ProstCodec<Plain, v1::AgentMessage>;

/// State shared by all streams.
struct Shared {
    snapshot: Vec<Rows>,
    queues: Mutex<Queues>,
}

#[derive(Default)]
struct Queues {
    revision: u64,
    agents: Vec<mpsc::UnboundedSender<Arc<Plain>>>,
}

/// Serves a snapshot, and then published changes.
pub(super) fn start(listener: TcpListener, snapshot: Vec<Rows>) -> Result<impl Target + use<>> {
    rustix::net::listen(&listener, 4_096)?;
    let shared = Arc::new(Shared {
        snapshot,
        queues: Mutex::default(),
    });
    let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
    let method = Sync(Arc::clone(&shared));
    let service = service_fn(move |request| {
        let (method, codec) = (method.clone(), Codec::default());
        async move { Ok::<_, Infallible>(Grpc::new(codec).streaming(method, request).await) }
    });
    let routes = axum::Router::new().route_service("/portolan.v1.Tables/Sync", service);
    tokio::spawn(
        Server::builder()
            .add_routes(routes.into())
            .serve_with_incoming(incoming),
    );
    Ok(shared)
}

impl Shared {
    fn queues(&self) -> std::sync::MutexGuard<'_, Queues> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The messages for one agent: the snapshot, at the agent's pace, and then its queue.
    fn stream(self: Arc<Self>) -> BoxStream<'static, Item> {
        // The unbounded queue is the point of this baseline.
        #[expect(clippy::disallowed_methods, reason = "the leak is what is measured")]
        let (queue, later) = mpsc::unbounded_channel();
        let mut queues = self.queues();
        queues.agents.push(queue);
        let revision = queues.revision;
        drop(queues);
        let (sender, snapshot) = mpsc::channel(16);
        tokio::spawn(async move {
            let welcome = Plain {
                welcome: Some(v1::Welcome {
                    version: 1,
                    epoch: 1,
                    ..v1::Welcome::default()
                }),
                ..Plain::default()
            };
            let rows = self.snapshot.iter().map(|rows| Plain {
                rows: Some(rows.clone()),
                ..Plain::default()
            });
            for message in std::iter::once(welcome)
                .chain(rows)
                .chain([commit(revision, true)])
            {
                if sender.send(Ok(message)).await.is_err() {
                    return;
                }
            }
        });
        // Cloned only on delivery: the machine has no memory for clones of all queued messages.
        let later = UnboundedReceiverStream::new(later).map(|message| Ok(Plain::clone(&message)));
        ReceiverStream::new(snapshot).chain(later).boxed()
    }
}

fn commit(revision: u64, snapshot: bool) -> Plain {
    Plain {
        commit: Some(v1::Commit {
            revision,
            snapshot,
            records_hash: vec![0; 16],
            own_hash: vec![0; 16],
            ..v1::Commit::default()
        }),
        ..Plain::default()
    }
}

impl Target for Arc<Shared> {
    fn publish(&mut self, delta: &TableDelta) -> u64 {
        let mut records = v1::Records::default();
        for (key, record) in &delta.records {
            match record {
                Some(record) => {
                    let record = encode_record(record, record.content_hash());
                    records.put.push(record);
                }
                None => records.delete.push(encode_key(key)),
            }
        }
        let mut queues = self.queues();
        queues.revision += 1;
        let message = Arc::new(Plain {
            records: Some(records),
            ..commit(queues.revision, false)
        });
        queues
            .agents
            .retain(|agent| agent.send(Arc::clone(&message)).is_ok());
        queues.revision
    }

    fn is_debounced(&self) -> bool {
        false
    }

    fn streams(&self) -> usize {
        let mut queues = self.queues();
        queues.agents.retain(|agent| !agent.is_closed());
        queues.agents.len()
    }
}

/// The method `Sync`.
#[derive(Clone)]
struct Sync(Arc<Shared>);

impl StreamingService<v1::AgentMessage> for Sync {
    type Response = Plain;
    type ResponseStream = BoxStream<'static, Item>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<v1::AgentMessage>>) -> Self::Future {
        let shared = Arc::clone(&self.0);
        Box::pin(async move {
            let mut messages = request.into_inner();
            messages.message().await?;
            // The server ignores further messages of the agent.
            Ok(Response::new(shared.stream()))
        })
    }
}
