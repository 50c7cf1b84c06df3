// SPDX-License-Identifier: Apache-2.0

//! Queues of clusters, which are served in turns.

use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::vec;

use portolan_catalog::ObjectChange;
use portolan_source::Event;
use tokio::sync::mpsc;

/// The queues of clusters, the one that was served last at the end: an event waits for one turn of each other cluster
/// at most, however much those have to say.
#[derive(Debug, Default)]
pub(super) struct Turns {
    queues: VecDeque<Queue>,
}

/// The events of one cluster that wait.
#[derive(Debug)]
struct Queue {
    cluster: Arc<str>,
    events: mpsc::Receiver<Event>,
    /// The most changes in one turn.
    most: usize,
    /// The changes of a long event that come in the next turns, before all other events.
    rest: vec::IntoIter<ObjectChange>,
}

impl Turns {
    /// Adds a cluster, or gives one that is there other events. Those of more changes than `most` take several turns.
    pub(super) fn insert(&mut self, cluster: Arc<str>, events: mpsc::Receiver<Event>, most: usize) {
        self.remove(&cluster);
        self.queues.push_back(Queue {
            cluster,
            events,
            most,
            rest: vec::IntoIter::default(),
        });
    }

    /// Drops a cluster, and its events that wait.
    pub(super) fn remove(&mut self, cluster: &str) {
        self.queues.retain(|queue| &*queue.cluster != cluster);
    }

    /// The number of events of each cluster that wait to be taken.
    pub(super) fn queued(&self) -> BTreeMap<Arc<str>, usize> {
        let queues = self.queues.iter();
        let queued = queues.map(|queue| (Arc::clone(&queue.cluster), queue.events.len()));
        queued.collect()
    }

    /// The next event, of the cluster whose last turn is the longest ago; `None` without clusters. May be dropped while
    /// it waits.
    pub(super) async fn next(&mut self) -> Option<(Arc<str>, Event)> {
        poll_fn(|context| self.poll_next(context)).await
    }

    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<(Arc<str>, Event)>> {
        let mut number = 0;
        while let Some(queue) = self.queues.get_mut(number) {
            let Poll::Ready(event) = queue.poll_next(context) else {
                number += 1;
                continue;
            };
            // The next one has its number now. A cluster whose events have ended has no more turns.
            let served = self.queues.remove(number);
            if let (Some(queue), Some(event)) = (served, event) {
                let cluster = Arc::clone(&queue.cluster);
                self.queues.push_back(queue);
                return Poll::Ready(Some((cluster, event)));
            }
        }
        match self.queues.is_empty() {
            true => Poll::Ready(None),
            false => Poll::Pending,
        }
    }
}

impl Queue {
    fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let most = self.most;
        if self.rest.as_slice().is_empty() {
            match ready!(self.events.poll_recv(context)) {
                Some(Event::Changes(changes)) if changes.len() > most => {
                    self.rest = changes.into_iter();
                }
                event => return Poll::Ready(event),
            }
        }
        let changes = self.rest.by_ref().take(most).collect();
        Poll::Ready(Some(Event::Changes(changes)))
    }
}
