// SPDX-License-Identifier: Apache-2.0

//! The writer's inbox: events of each cluster's source, and clusters that come and go.

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;

use portolan_policy::Objects;
use portolan_source::Event;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_stream::{StreamExt as _, StreamMap};

/// Length of the queue of changes of the set.
const CHANGES: usize = 8;

/// A change of the set of clusters.
#[derive(Debug)]
pub(crate) enum ClusterChange {
    /// A cluster with a source of its own, or a source that was started again. The writer takes its events in turn with those of others, so
    /// that a busy source fills its own queue only.
    Joined {
        cluster: Arc<str>,
        events: mpsc::Receiver<Event>,
    },
    /// The policy objects in force. Until they are complete, one that is missing may be in a file that is
    /// late.
    Policies {
        objects: Box<Objects>,
        is_complete: bool,
    },
    /// The cluster is not served any more.
    Left(Arc<str>),
    /// All that is wrong with the files that define the clusters, in place of what was wrong before.
    Problems(Vec<String>),
    /// The set is known, and has no cluster: there is nothing to wait for.
    None,
}

/// One input of the writer.
#[derive(Debug)]
pub(super) enum Input {
    Event(Arc<str>, Event),
    Joined(Arc<str>),
    Policies(Box<Objects>, bool),
    Left(Arc<str>),
    Problems(Vec<String>),
    NoClusters,
}

/// The inputs of the writer, in turns.
#[derive(Debug)]
pub(crate) struct Inbox {
    sources: StreamMap<Arc<str>, ReceiverStream<Event>>,
    /// `None` for a set that never changes.
    changes: Option<mpsc::Receiver<ClusterChange>>,
}

impl Inbox {
    /// The inbox of one cluster.
    pub(crate) fn single(cluster: Arc<str>, events: mpsc::Receiver<Event>) -> Self {
        let mut sources = StreamMap::new();
        sources.insert(cluster, ReceiverStream::new(events));
        Self {
            sources,
            changes: None,
        }
    }

    /// The inbox of clusters that come and go, and the sender of their changes.
    pub(crate) fn several() -> (mpsc::Sender<ClusterChange>, Self) {
        let (sender, changes) = mpsc::channel(CHANGES);
        let inbox = Self {
            sources: StreamMap::new(),
            changes: Some(changes),
        };
        (sender, inbox)
    }

    /// The number of events of each source that wait to be taken.
    pub(super) fn queued(&self) -> BTreeMap<Arc<str>, usize> {
        let sources = self.sources.iter();
        let queued = sources.map(|(cluster, events)| {
            let events: &mpsc::Receiver<Event> = events.as_ref();
            (Arc::clone(cluster), events.len())
        });
        queued.collect()
    }

    /// The next input; `None` after the end of the only source, or of the changes. May be dropped while
    /// it waits.
    pub(super) async fn next(&mut self) -> Option<Input> {
        let Some(changes) = &mut self.changes else {
            let (cluster, event) = self.sources.next().await?;
            return Some(Input::Event(cluster, event));
        };
        // A map without streams ends at once.
        let events = async {
            match self.sources.next().await {
                Some(event) => event,
                None => pending().await,
            }
        };
        let change = tokio::select! {
            (cluster, event) = events => return Some(Input::Event(cluster, event)),
            change = changes.recv() => change?,
        };
        Some(match change {
            ClusterChange::Joined { cluster, events } => {
                let events = ReceiverStream::new(events);
                self.sources.insert(Arc::clone(&cluster), events);
                Input::Joined(cluster)
            }
            ClusterChange::Left(cluster) => {
                self.sources.remove(&cluster);
                Input::Left(cluster)
            }
            ClusterChange::Policies {
                objects,
                is_complete,
            } => Input::Policies(objects, is_complete),
            ClusterChange::Problems(problems) => Input::Problems(problems),
            ClusterChange::None => Input::NoClusters,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event() -> Event {
        Event::Read(1)
    }

    #[tokio::test]
    async fn a_busy_source_delays_no_other_one() {
        let (changes, mut inbox) = Inbox::several();
        let mut senders = Vec::new();
        for cluster in ["busy", "calm"] {
            let (events, receiver) = mpsc::channel(64);
            let (cluster, events_of) = (cluster.into(), receiver);
            let joined = ClusterChange::Joined {
                cluster,
                events: events_of,
            };
            changes.send(joined).await.unwrap();
            senders.push(events);
        }
        for _ in 0..2 {
            assert!(matches!(inbox.next().await, Some(Input::Joined(_))));
        }
        for _ in 0..64 {
            senders[0].try_send(event()).unwrap();
        }
        senders[1].try_send(event()).unwrap();
        let mut before = 0;
        while let Some(Input::Event(cluster, _)) = inbox.next().await {
            if &*cluster == "calm" {
                break;
            }
            before += 1;
        }
        // By chance both are next; 2^-40 for a false alarm.
        assert!(before < 40, "{before} events of the busy source came first");
    }

    #[tokio::test]
    async fn the_events_of_a_source_that_wait_are_counted() {
        let (events, receiver) = mpsc::channel(8);
        let mut inbox = Inbox::single("a".into(), receiver);
        for _ in 0..3 {
            events.try_send(event()).unwrap();
        }
        assert_eq!(inbox.queued()["a"], 3);
        assert!(matches!(inbox.next().await, Some(Input::Event(..))));
        assert_eq!(inbox.queued()["a"], 2);
    }

    #[tokio::test]
    async fn events_of_a_cluster_that_left_are_dropped() {
        let (changes, mut inbox) = Inbox::several();
        let (events, receiver) = mpsc::channel(8);
        let cluster: Arc<str> = "a".into();
        let joined = ClusterChange::Joined {
            cluster: Arc::clone(&cluster),
            events: receiver,
        };
        changes.send(joined).await.unwrap();
        assert!(matches!(inbox.next().await, Some(Input::Joined(_))));
        changes.send(ClusterChange::Left(cluster)).await.unwrap();
        assert!(matches!(inbox.next().await, Some(Input::Left(_))));
        assert!(events.try_send(event()).is_err(), "nobody reads it");
        drop(changes);
        assert!(inbox.next().await.is_none());
    }
}
