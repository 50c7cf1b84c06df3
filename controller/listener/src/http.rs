// SPDX-License-Identifier: Apache-2.0

//! HTTP/2 on one connection.

use std::convert::Infallible;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio_util::sync::CancellationToken;
use tonic::codegen::http::{Request, Response};
use tracing::debug;

use crate::connection::Connection;
use crate::connection_task::{Begun, ConnectionTask};

/// Interval of pings, and the longest time until an answer.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// Limit of concurrent streams. An agent has one, and briefly a second one that replaces the first.
const MAX_STREAMS: u32 = 4;

/// Largest frame that an agent may send, in bytes: the smallest limit that HTTP/2 permits.
const FRAME_BYTES: u32 = 16 << 10;

/// Limit of all headers of a request, in bytes. A token has about 1,500.
const HEADER_BYTES: u32 = 16 << 10;

/// Flow-control windows of a stream and of a connection, in bytes.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 128 << 10;

/// Number of reset streams at which a peer is cut off.
const MAX_RESETS: usize = 16;

/// Cost of a request, in bytes of its connection's budget: answering one takes many steps.
const REQUEST_COST: u32 = 4 << 10;

/// Serves a connection to its end. After the shutdown it accepts no new streams, and ends with the
/// last one.
pub async fn serve<A, B>(
    connection: Connection,
    answer: impl Fn(Request<Incoming>) -> A + Send + 'static,
    shutdown: CancellationToken,
) where
    A: Future<Output = Result<Response<B>, Infallible>> + Send + 'static,
    B: http_body::Body<Data: Send, Error: std::error::Error + Send + Sync> + Send + 'static,
{
    let (peer, of_connection) = (connection.peer(), connection.peer());
    let service = service_fn(move |mut request: Request<Incoming>| {
        peer.charge(REQUEST_COST);
        request.extensions_mut().insert(peer.clone());
        // Boxed on its own: the memory for answering must not be part of the stream's for good.
        Box::pin(answer(request))
    });
    let begun = Begun::default();
    let mut http = Box::pin(builder(&begun).serve_connection(TokioIo::new(connection), service));
    let connection = async move {
        let ended = tokio::select! {
            biased;
            ended = &mut http => ended,
            () = shutdown.cancelled() => {
                http.as_mut().graceful_shutdown();
                http.await
            }
        };
        if let Err(error) = ended {
            debug!(%error, "a connection has ended");
        }
    };
    ConnectionTask::new(connection, begun, || of_connection.open()).await;
}

fn builder(begun: &Begun) -> Builder<Begun> {
    let mut builder = Builder::new(begun.clone());
    builder
        .timer(TokioTimer::new())
        // Agents ignore the Date header.
        .auto_date_header(false)
        .keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .max_header_list_size(HEADER_BYTES)
        .max_pending_accept_reset_streams(MAX_RESETS)
        .max_local_error_reset_streams(MAX_RESETS)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .max_concurrent_streams(MAX_STREAMS)
        .max_frame_size(FRAME_BYTES);
    builder
}
