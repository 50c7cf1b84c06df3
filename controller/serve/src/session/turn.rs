// SPDX-License-Identifier: Apache-2.0

//! Limit on concurrent snapshots. More at a time would only slow each other down.

use std::sync::Arc;
use std::task::Context;

use portolan_model::NodeKey;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::PollSemaphore;
use tracing::debug;

/// One agent's turn to be sent a snapshot.
#[derive(Debug)]
pub(super) struct Turn {
    semaphore: Arc<Semaphore>,
    state: State,
}

#[derive(Debug)]
enum State {
    None,
    Waiting(Box<PollSemaphore>),
    Held { _permit: OwnedSemaphorePermit },
}

impl Turn {
    pub(super) fn new(semaphore: &Arc<Semaphore>) -> Self {
        Self {
            semaphore: Arc::clone(semaphore),
            state: State::None,
        }
    }

    /// Returns `true` if it is this agent's turn. Otherwise the waker is woken when it is.
    pub(super) fn poll(&mut self, node: &NodeKey, waker: &mut Context<'_>) -> bool {
        loop {
            match &mut self.state {
                State::Held { .. } => return true,
                State::Waiting(waiting) => {
                    // The semaphore is never closed.
                    let std::task::Poll::Ready(Some(permit)) = waiting.poll_acquire(waker) else {
                        return false;
                    };
                    self.state = State::Held { _permit: permit };
                }
                State::None => {
                    self.state = match Arc::clone(&self.semaphore).try_acquire_owned() {
                        Ok(permit) => State::Held { _permit: permit },
                        Err(_) => {
                            debug!(%node, "waits for its turn to get a snapshot");
                            State::Waiting(Box::new(PollSemaphore::new(Arc::clone(
                                &self.semaphore,
                            ))))
                        }
                    };
                }
            }
        }
    }

    /// Releases the turn.
    pub(super) fn end(&mut self) {
        self.state = State::None;
    }
}
