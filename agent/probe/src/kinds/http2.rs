// SPDX-License-Identifier: Apache-2.0

//! Connections of HTTP probes.

use std::pin::pin;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{Either, select};
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
