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

/// A silent connection is tested so often, and so long an answer may take.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(20);

/// An agent has one stream, and a second one for a moment when it replaces the first.
const MAX_STREAMS: u32 = 4;

/// The largest frame that HTTP/2 takes from an agent, in bytes: the least that it must take.
const FRAME_BYTES: u32 = 16 << 10;

/// All headers of a request, in bytes: a token has about 1,500.
const HEADER_BYTES: u32 = 16 << 10;

/// How much of a stream, and of a connection, may be on its way from an agent, in bytes.
const STREAM_WINDOW_BYTES: u32 = 64 << 10;
const CONNECTION_WINDOW_BYTES: u32 = 128 << 10;

/// How many streams a peer may open and reset before it is cut off.
const MAX_RESETS: usize = 16;

/// What a request costs, in bytes that its connection can send: it is answered by many hands.
const REQUEST_COST: u32 = 4 << 10;

/// Serves a connection to its end. At the shutdown it takes no new streams, and ends with the last.
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
        // By itself: what it takes to answer is not to be room that the stream has for good.
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
        // No agent looks at a Date.
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
