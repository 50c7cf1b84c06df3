// SPDX-License-Identifier: Apache-2.0

//! The writer's inbox: events of each cluster's source, and clusters that come and go.

mod turns;

use std::collections::BTreeMap;
use std::future::pending;
use std::sync::Arc;

use portolan_policy::Objects;
use portolan_source::Event;
use tokio::sync::mpsc;

use turns::Turns;

/// Length of the queue of changes of the set.
const CHANGES: usize = 8;
/// The most changes of objects that one of several clusters brings in its turn.
const BATCH: usize = 500;
/// The same for a cluster that is read from files: all objects of a large cluster. A part of a reading is a state that
/// the files never had, and must not be published. Others wait meanwhile, so there is a bound.
const READING: usize = 25_000;

/// A change of the set of clusters.
#[derive(Debug)]
pub(crate) enum ClusterChange {
    /// A cluster with a source of its own, or a source that was started again. The writer takes its events in turn
    /// with those of others, at most [`BATCH`] changes at a time, so that a busy source fills its own queue only. A
    /// reading of files stays whole up to [`READING`] changes.
    Joined {
        cluster: Arc<str>,
        /// `true` if the cluster is read from files.
        has_files: bool,
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
    sources: Turns,
    /// `None` for a set that never changes.
    changes: Option<mpsc::Receiver<ClusterChange>>,
}

impl Inbox {
    /// The inbox of one cluster. Nobody waits for a turn, so that its events stay whole.
    pub(crate) fn single(cluster: Arc<str>, events: mpsc::Receiver<Event>) -> Self {
        let mut sources = Turns::default();
        sources.insert(cluster, events, usize::MAX);
        Self {
            sources,
            changes: None,
        }
    }

    /// The inbox of clusters that come and go, and the sender of their changes.
    pub(crate) fn several() -> (mpsc::Sender<ClusterChange>, Self) {
        let (sender, changes) = mpsc::channel(CHANGES);
        let inbox = Self {
            sources: Turns::default(),
            changes: Some(changes),
        };
        (sender, inbox)
    }

    /// The number of events of each source that wait to be taken.
    pub(super) fn queued(&self) -> BTreeMap<Arc<str>, usize> {
        self.sources.queued()
    }

    /// The next input; `None` after the end of the only source, or of the changes. May be dropped while
    /// it waits.
    pub(super) async fn next(&mut self) -> Option<Input> {
        let Some(changes) = &mut self.changes else {
            let (cluster, event) = self.sources.next().await?;
            return Some(Input::Event(cluster, event));
        };
        // Without sources there is no event at once.
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
            ClusterChange::Joined {
                cluster,
                has_files,
                events,
            } => {
                let most = if has_files { READING } else { BATCH };
                self.sources.insert(Arc::clone(&cluster), events, most);
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
    use portolan_catalog::{Kind, ObjectChange, ObjectKey, ObjectRef};

    use super::*;

    fn event() -> Event {
        Event::Read(1)
    }

    /// An inbox of clusters with the sender of changes of the set, which ends with it, and the senders of events. The
    /// cluster `files` is read from files.
    async fn joined<const N: usize>(
        clusters: [&str; N],
    ) -> (mpsc::Sender<ClusterChange>, Inbox, Vec<mpsc::Sender<Event>>) {
        let (changes, mut inbox) = Inbox::several();
        let mut senders = Vec::new();
        for cluster in clusters {
            let (sender, events) = mpsc::channel(64);
            let joined = ClusterChange::Joined {
                cluster: cluster.into(),
                has_files: cluster == "files",
                events,
            };
            changes.send(joined).await.unwrap();
            assert!(matches!(inbox.next().await, Some(Input::Joined(_))));
            senders.push(sender);
        }
        (changes, inbox, senders)
    }

    /// The cluster of the next event, and its number of changes.
    async fn next(inbox: &mut Inbox) -> (String, usize) {
        match inbox.next().await {
            Some(Input::Event(cluster, Event::Changes(changes))) => {
                (cluster.to_string(), changes.len())
            }
            Some(Input::Event(cluster, _)) => (cluster.to_string(), 0),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn between_two_events_of_a_busy_source_comes_one_of_each_that_waits() {
        let (_changes, mut inbox, senders) = joined(["busy", "idle", "calm", "other"]).await;
        for _ in 0..64 {
            senders[0].try_send(event()).unwrap();
        }
        for turn in 0..20 {
            senders[2].try_send(event()).unwrap();
            senders[3].try_send(event()).unwrap();
            let mut taken = Vec::new();
            for _ in 0..3 {
                taken.push(next(&mut inbox).await.0);
            }
            taken.sort();
            assert_eq!(taken, ["busy", "calm", "other"], "turn {turn}");
        }
    }

    fn changes(count: usize) -> Event {
        let change = |number: usize| {
            let object = ObjectRef {
                kind: Kind::Service,
                key: ObjectKey {
                    cluster: "busy".into(),
                    namespace: "default".into(),
                    name: number.to_string().into(),
                },
            };
            ObjectChange::Delete(object)
        };
        Event::Changes((0..count).map(change).collect())
    }

    #[tokio::test]
    async fn many_changes_at_once_are_taken_a_batch_in_each_turn() {
        let (_changes, mut inbox, senders) = joined(["busy", "calm"]).await;
        senders[0].try_send(changes(2 * BATCH + 1)).unwrap();
        senders[0].try_send(Event::Synced).unwrap();
        senders[1].try_send(changes(2)).unwrap();
        senders[1].try_send(changes(3)).unwrap();
        let mut taken = Vec::new();
        for _ in 0..6 {
            taken.push(next(&mut inbox).await);
        }
        let expected = [
            ("busy", BATCH),
            ("calm", 2),
            ("busy", BATCH),
            ("calm", 3),
            ("busy", 1),
            ("busy", 0),
        ];
        let expected = expected.map(|(cluster, count)| (cluster.to_owned(), count));
        assert_eq!(taken, expected);
    }

    #[tokio::test]
    async fn a_reading_of_files_is_taken_whole_unless_others_would_wait_for_long() {
        let (_changes, mut inbox, senders) = joined(["files", "calm"]).await;
        for count in [2 * BATCH + 1, READING + 1] {
            senders[0].try_send(changes(count)).unwrap();
            senders[1].try_send(changes(2)).unwrap();
        }
        let mut taken = Vec::new();
        for _ in 0..5 {
            taken.push(next(&mut inbox).await);
        }
        let expected = [
            ("files", 2 * BATCH + 1),
            ("calm", 2),
            ("files", READING),
            ("calm", 2),
            ("files", 1),
        ];
        let expected = expected.map(|(cluster, count)| (cluster.to_owned(), count));
        assert_eq!(taken, expected);
    }

    #[tokio::test]
    async fn the_events_of_one_cluster_alone_stay_whole() {
        let (events, receiver) = mpsc::channel(8);
        let mut inbox = Inbox::single("busy".into(), receiver);
        events.try_send(changes(2 * BATCH + 1)).unwrap();
        assert_eq!(next(&mut inbox).await.1, 2 * BATCH + 1);
        drop(events);
        assert!(inbox.next().await.is_none());
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
            has_files: false,
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
