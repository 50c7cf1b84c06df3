// SPDX-License-Identifier: Apache-2.0

//! Connections of HTTP probes.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{BoxFuture, Either, select};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::{http1, http2};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::AbortHandle;

/// A connection with or without TLS.
pub(super) trait Io: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Io for T {}

/// Runs an exchange, and the connection beside it.
pub(super) async fn beside<T>(exchange: impl Future<Output = T>, connection: impl Future) -> T {
    match select(pin!(exchange), pin!(connection)).await {
        Either::Left((answer, _)) => answer,
        Either::Right((_, exchange)) => exchange.await,
    }
}

/// An HTTP connection. Its parts are boxed, or the compiler cannot prove that a probe may change threads.
pub(super) struct Opened {
    sender: Sender,
    /// Runs the connection; beside an exchange.
    pub(super) connection: BoxFuture<'static, ()>,
    /// Tasks of the connection, which end with it.
    pub(super) tasks: AbortOnDrop,
}

enum Sender {
    Http1(http1::SendRequest<Full<Bytes>>),
    Http2(http2::SendRequest<Full<Bytes>>),
}

impl Opened {
    /// Opens a connection of HTTP/2, or of HTTP/1.
    pub(super) fn new(
        stream: TokioIo<Box<dyn Io>>,
        is_http2: bool,
    ) -> BoxFuture<'static, hyper::Result<Self>> {
        let tasks = AbortOnDrop(Tasks::default());
        Box::pin(async move {
            let (sender, connection): (_, BoxFuture<'static, ()>) = if is_http2 {
                let (sender, connection) = http2::handshake(tasks.0.clone(), stream).await?;
                // Its end is told to the sender too.
                (
                    Sender::Http2(sender),
                    Box::pin(async move { drop(connection.await) }),
                )
            } else {
                let (sender, connection) = http1::handshake(stream).await?;
                (
                    Sender::Http1(sender),
                    Box::pin(async move { drop(connection.await) }),
                )
            };
            Ok(Self {
                sender,
                connection,
                tasks,
            })
        })
    }

    /// Sends a request.
    pub(super) fn send(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> BoxFuture<'static, hyper::Result<Response<Incoming>>> {
        match &mut self.sender {
            Sender::Http1(sender) => Box::pin(sender.send_request(request)),
            Sender::Http2(sender) => Box::pin(sender.send_request(request)),
        }
    }
}

/// Runs the tasks of one HTTP/2 connection, and aborts them when it is dropped.
#[derive(Debug, Clone, Default)]
pub(super) struct Tasks(Arc<Mutex<Vec<AbortHandle>>>);

impl<F> hyper::rt::Executor<F> for Tasks
where
    F: Future<Output: Send> + Send + 'static,
{
    fn execute(&self, task: F) {
        let handle = tokio::spawn(task).abort_handle();
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(handle);
    }
}

/// Aborts the tasks when the probe ends; their executors live in the tasks themselves.
#[derive(Debug)]
pub(super) struct AbortOnDrop(pub(super) Tasks);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        let tasks = self.0.0.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.iter().for_each(AbortHandle::abort);
    }
}
