// SPDX-License-Identifier: Apache-2.0

//! The task that writes into one cluster: one write at a time, at a pace that an API server does not feel.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use portolan_mcs::{Target, Write};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use super::request::{Failure, perform};
use super::slices::Slices;
use super::tried::Tried;
use super::{Leading, Work, WriteCounts};

/// The time between the beginnings of two writes: at most 20 in a second.
const PACE: Duration = Duration::from_millis(50);
/// The most objects whose failures are remembered for the log.
const LOGGED: usize = 1000;

/// Writes into one cluster.
pub(crate) struct Executor {
    pub(crate) client: Client,
    pub(crate) cluster: Arc<str>,
    pub(crate) work: watch::Receiver<Work>,
    pub(crate) leading: Leading,
    pub(crate) counts: WriteCounts,
}

/// State that the executor remembers.
#[derive(Default)]
struct Memory {
    tried: Tried,
    slices: Slices,
    /// Objects whose failure was logged: each once, until it works again.
    failed: BTreeSet<Target>,
}

impl Executor {
    /// Runs until the planner or the cluster is gone.
    pub(crate) async fn run(mut self) {
        let mut memory = Memory::default();
        loop {
            if !self.leading.is_leading() {
                // Another replica writes, and this one does not know what.
                memory = Memory::default();
                self.leading.changed().await;
                continue;
            }
            let work = self.work.borrow_and_update().clone();
            memory.tried.keep_only(&work.writes);
            let begin = Instant::now();
            let next = match next(&work.writes, &memory.tried) {
                Next::Now(write) => Some(write.clone()),
                Next::At(at) => {
                    let slices = memory.slices.next(&self.client, &work).await;
                    match slices {
                        Ok(Some(write)) => Some(write),
                        Ok(None) => {
                            self.idle([at, memory.slices.due()].into_iter().flatten().min())
                                .await;
                            None
                        }
                        Err(failure) => {
                            self.note_listing(&failure);
                            self.idle([at, memory.slices.due()].into_iter().flatten().min())
                                .await;
                            None
                        }
                    }
                }
            };
            if let Some(write) = next {
                self.write(&mut memory, &write).await;
                sleep_until(begin + PACE).await;
            }
            if self.work.has_changed().is_err() {
                return;
            }
        }
    }

    /// Waits for news, or for the time.
    async fn idle(&mut self, until: Option<Instant>) {
        let time = async {
            match until {
                Some(at) => sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.work.changed() => {}
            () = self.leading.changed() => {}
            () = time => {}
        }
    }

    async fn write(&self, memory: &mut Memory, write: &Write) {
        let (target, verb) = (&write.target, write.action.verb());
        let kind = target.kind.as_str();
        let (cluster, result) = (&self.cluster, perform(&self.client, write).await);
        let label = result
            .as_ref()
            .map_or_else(|failure| failure.result, |_| "written");
        self.counts.count(cluster, kind, label);
        let refused = result.as_ref().is_err_and(|failure| failure.refused);
        let uid = result.as_ref().map(Option::as_deref).map_err(|_| ());
        memory.slices.wrote(write, uid);
        memory.tried.note(write, result.is_ok(), refused);
        match result {
            Ok(_) => {
                tracing::debug!(%cluster, %target, verb, "written");
                memory.failed.remove(target);
            }
            Err(failure) => {
                let is_new = memory.failed.len() < LOGGED && memory.failed.insert(target.clone());
                let (result, message) = (failure.result, failure.message);
                if is_new {
                    tracing::warn!(%cluster, %target, verb, result, message,
                        "cannot write; trying again (logged once for each object)");
                } else {
                    tracing::debug!(%cluster, %target, verb, result, message, "cannot write");
                }
            }
        }
    }

    fn note_listing(&self, failure: &Failure) {
        let (cluster, message) = (&self.cluster, &failure.message);
        self.counts.count(cluster, "EndpointSlice", failure.result);
        tracing::warn!(%cluster, message, "cannot list the EndpointSlices of imports; trying again");
    }
}

/// Next write that may be made.
enum Next<'w> {
    Now(&'w Write),
    /// Nothing before then, if ever.
    At(Option<Instant>),
}

/// Returns the first write that was not tried yet, then the one that has been due for longest: a write that fails again
/// and again holds up nothing else.
fn next<'w>(writes: &'w [Write], tried: &Tried) -> Next<'w> {
    let due = writes.iter().map(|write| (tried.due(write), write));
    match due.min_by_key(|(due, _)| *due) {
        None => Next::At(None),
        Some((Some(due), _)) if due > Instant::now() => Next::At(Some(due)),
        Some((_, write)) => Next::Now(write),
    }
}

#[cfg(test)]
mod tests;
