// SPDX-License-Identifier: Apache-2.0

//! Tests of the receiving task, with the edge's own outbox at the other end.

use portolan_catalog::{Object, ObjectKey, Pod};
use portolan_edge::{Outbox, StreamId};
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Code;

use super::*;

mod pace;
mod resumed;

const PATIENCE: Duration = Duration::from_secs(5);

fn key(name: &str) -> ObjectKey {
    ObjectKey {
        cluster: "eu".into(),
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn namespace(name: &str) -> Object {
    Object::Namespace(ObjectKey {
        namespace: "".into(),
        ..key(name)
    })
}

fn put(object: Object) -> ObjectChange {
    let problems = Vec::new();
    ObjectChange::Put { object, problems }
}

/// Sends parts of work without end.
fn sends_work(stream: &EdgeStream) -> Option<Sending> {
    let work = stream.work.clone();
    let part = Answer::Work(v1::CentreWork::default());
    let message = Some(part);
    let message = v1::CentreMessage { message };
    let sending = async move { while work.send(Ok(message.clone())).await.is_ok() {} };
    stream.writes.then(|| Box::pin(sending) as Sending)
}

/// Sends one part of plans to those that ask.
fn sends_plans(stream: &EdgeStream) -> Option<Sending> {
    let work = stream.work.clone();
    let message = Some(Answer::Plans(v1::CentrePlans::default()));
    let message = v1::CentreMessage { message };
    let sending = async move { _ = work.send(Ok(message)).await };
    stream.plans.is_some().then(|| Box::pin(sending) as Sending)
}

/// The centre's side of cluster `eu`.
struct Centre {
    streams: mpsc::Sender<EdgeStream>,
    events: mpsc::Receiver<Event>,
    stats: Arc<Stats>,
    holds: Arc<HeldDeletions>,
    task: JoinHandle<()>,
}

/// The edge's side of a stream.
struct Edge {
    messages: mpsc::Sender<Result<v1::EdgeMessage, Status>>,
    answers: mpsc::Receiver<Answered>,
    work: mpsc::Receiver<Answered>,
    stream: Option<StreamId>,
}

impl Centre {
    fn new() -> Self {
        Self::after(Arc::default())
    }

    /// With what the sources before have left.
    fn after(holds: Arc<HeldDeletions>) -> Self {
        let (streams, receiver) = mpsc::channel(1);
        let (sink, events) = Sink::channel(64);
        let stats = Arc::new(Stats::default());
        let options = Options {
            guard: GuardConfig::default(),
            holds: Arc::clone(&holds),
            stats: Arc::clone(&stats),
            send_work: Box::new(sends_work),
            send_plans: Box::new(sends_plans),
        };
        let token = CancellationToken::new();
        let task = receive("eu".into(), receiver, sink, options, token);
        Self {
            streams,
            events,
            stats,
            holds,
            task: tokio::spawn(task),
        }
    }

    /// Connects as the only process of an edge.
    async fn connect(&self, edge: &str) -> Edge {
        let instance = edge.bytes().map(u64::from).sum();
        self.connect_as(edge, instance).await
    }

    async fn connect_as(&self, edge: &str, instance: u64) -> Edge {
        let (messages, receiver) = mpsc::channel(64);
        let (sender, answers) = mpsc::channel(4);
        let (work, sent) = mpsc::channel(1);
        let stream = EdgeStream {
            edge: edge.into(),
            instance,
            version: "1".to_owned(),
            messages: Box::pin(ReceiverStream::new(receiver)),
            answers: sender,
            writes: edge != "reader" && !edge.starts_with("server"),
            plans: edge.starts_with("server").then(Vec::new),
            work,
        };
        self.streams.send(stream).await.unwrap();
        Edge {
            messages,
            answers,
            work: sent,
            stream: None,
        }
    }

    /// The changes until nothing more comes, and whether the cluster has synced meanwhile.
    async fn changes(&mut self) -> (Vec<ObjectChange>, bool) {
        let (mut all, mut synced) = (Vec::new(), false);
        while let Ok(event) = timeout(Duration::from_millis(50), self.events.recv()).await {
            match event.unwrap() {
                Event::Changes(changes) => all.extend(changes),
                Event::Synced => synced = true,
                other => panic!("{other:?}"),
            }
        }
        (all, synced)
    }
}

impl Edge {
    async fn answer(&mut self) -> Result<Answer, Status> {
        let answer = timeout(PATIENCE, self.answers.recv()).await.unwrap();
        answer.unwrap().map(|answer| answer.message.unwrap())
    }

    async fn say(&self, message: Message) {
        let message = Some(message);
        let message = Ok(v1::EdgeMessage { message });
        self.messages.send(message).await.unwrap();
    }

    async fn welcome(&mut self, outbox: &mut Outbox) {
        let Answer::Welcome(welcome) = self.answer().await.unwrap() else {
            panic!("no welcome");
        };
        self.stream = Some(outbox.begin(&welcome.bucket_hashes).unwrap());
    }

    /// Sends all that the centre lacks.
    async fn send(&mut self, outbox: &mut Outbox) -> Result<(), Status> {
        while let Some(transition) = outbox.take(self.stream.unwrap()) {
            let (parts, commit) = transition.into_parts(1_000);
            for part in parts {
                self.say(Message::Objects(part)).await;
            }
            let number = commit.number;
            self.say(Message::Commit(commit)).await;
            let accepted = Answer::Accepted(v1::CentreAccepted { number });
            assert_eq!(self.answer().await?, accepted);
        }
        Ok(())
    }
}

fn outbox(objects: impl IntoIterator<Item = Object>) -> Outbox {
    let mut outbox = Outbox::default();
    for object in objects {
        outbox.apply(&put(object)).unwrap();
    }
    outbox
}

/// The changes but those that end listings.
fn news(changes: &[ObjectChange]) -> Vec<&ObjectChange> {
    let is_news = |change: &&ObjectChange| !matches!(change, ObjectChange::Retain { .. });
    changes.iter().filter(is_news).collect()
}

#[tokio::test(start_paused = true)]
async fn a_listing_is_followed_by_changes() {
    let (mut centre, mut outbox) = (Centre::new(), outbox([namespace("shop")]));
    outbox
        .apply(&ObjectChange::Reached {
            kind: Kind::Service,
            cluster: "eu".into(),
            version: 7,
        })
        .unwrap();
    let mut edge = centre.connect("one").await;
    edge.welcome(&mut outbox).await;
    assert_eq!(
        centre.changes().await,
        (vec![], false),
        "nothing before a commit"
    );
    edge.send(&mut outbox).await.unwrap();
    let (changes, synced) = centre.changes().await;
    assert!(synced);
    let reached = ObjectChange::Reached {
        kind: Kind::Service,
        cluster: "eu".into(),
        version: 7,
    };
    assert_eq!(news(&changes), [&put(namespace("shop")), &reached]);
    let swept = changes.iter().filter_map(|change| match change {
        ObjectChange::Retain { kind, keep, .. } => Some((*kind, keep.len())),
        _ => None,
    });
    let swept: Vec<_> = swept.collect();
    assert_eq!(swept.len(), 8, "all kinds are swept");
    assert!(swept.contains(&(Kind::Namespace, 1)), "{swept:?}");

    outbox.apply(&put(namespace("blog"))).unwrap();
    edge.send(&mut outbox).await.unwrap();
    let (changes, synced) = centre.changes().await;
    assert!(!synced, "once");
    assert_eq!(changes, [put(namespace("blog")), reached]);
    let gone = ObjectChange::Delete(namespace("blog").reference());
    outbox.apply(&gone).unwrap();
    edge.send(&mut outbox).await.unwrap();
    assert!(centre.changes().await.0.contains(&gone));
    assert_eq!(centre.stats.edge().as_deref(), Some("one"));
}

#[tokio::test(start_paused = true)]
async fn edges_that_serve_imports_wait_with_plans_and_one_takes_over() {
    let (mut centre, mut objects) = (Centre::new(), outbox([namespace("shop")]));
    let mut first = centre.connect("server-1").await;
    first.welcome(&mut objects).await;
    first.send(&mut objects).await.unwrap();
    let waiting = |answer: Result<Answer, Status>| match answer {
        Ok(Answer::Standby(standby)) => assert_eq!(standby.edge, "server-1"),
        other => panic!("{other:?}"),
    };
    let mut second = centre.connect("server-2").await;
    waiting(second.answer().await);
    let plans = second.work.recv().await.unwrap().unwrap().message;
    assert!(matches!(plans, Some(Answer::Plans(_))), "{plans:?}");
    let mut third = centre.connect("server-3").await;
    waiting(third.answer().await);
    // One that has gone meanwhile is passed over, and plans are not begun again.
    drop(second);
    drop(first);
    let mut other = outbox([namespace("shop"), namespace("blog")]);
    third.welcome(&mut other).await;
    third.send(&mut other).await.unwrap();
    assert!(centre.changes().await.0.contains(&put(namespace("blog"))));
    assert_eq!(centre.stats.edge().as_deref(), Some("server-3"));
    third.work.recv().await.unwrap().unwrap();
    let more = timeout(Duration::from_secs(1), third.work.recv()).await;
    assert!(more.is_err(), "plans begun twice");

    // One that is silent gives way to one that waits.
    let mut fourth = centre.connect("server-4").await;
    assert!(matches!(fourth.answer().await, Ok(Answer::Standby(_))));
    tokio::time::sleep(SILENT).await;
    fourth.welcome(&mut other).await;
    assert_eq!(third.answer().await.unwrap_err().code(), Code::Aborted);
    // Only so many wait.
    let mut waiting = Vec::new();
    for number in 0..7 {
        let mut edge = centre.connect(&format!("server-{number}{number}")).await;
        assert!(matches!(edge.answer().await, Ok(Answer::Standby(_))));
        waiting.push(edge);
    }
    let refused = centre.connect("server-one-more").await.answer().await;
    assert_eq!(refused.unwrap_err().code(), Code::AlreadyExists);
}

#[tokio::test(start_paused = true)]
async fn another_edge_takes_over_when_the_first_is_silent() {
    let (mut centre, mut objects) = (Centre::new(), outbox([namespace("shop")]));
    let mut first = centre.connect("one").await;
    first.welcome(&mut objects).await;
    first.send(&mut objects).await.unwrap();
    let refused = centre.connect("two").await.answer().await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
    assert!(refused.message().contains("\"one\""), "{refused}");
    // Another process with the same name, as of two replicas with one certificate.
    let refused = centre.connect_as("one", 1).await.answer().await;
    assert_eq!(refused.unwrap_err().code(), Code::AlreadyExists);

    // A newer stream of the same process: the older one may hang.
    let mut again = centre.connect("one").await;
    again.welcome(&mut objects).await;
    assert_eq!(first.answer().await.unwrap_err().code(), Code::Aborted);
    again.send(&mut objects).await.unwrap();

    tokio::time::advance(SILENT / 2).await;
    again
        .say(Message::Alive(v1::EdgeAlive { silence_ms: 400 }))
        .await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let silence = centre.stats.contact.silence().unwrap();
    assert_eq!(silence, Duration::from_millis(1_400));
    tokio::time::advance(SILENT / 2).await;
    assert!(centre.connect("two").await.answer().await.is_err());
    tokio::time::advance(SILENT).await;
    let mut second = centre.connect("two").await;
    let mut other = outbox([namespace("shop"), namespace("blog")]);
    second.welcome(&mut other).await;
    assert_eq!(again.answer().await.unwrap_err().code(), Code::Aborted);
    second.send(&mut other).await.unwrap();
    assert!(centre.changes().await.0.contains(&put(namespace("blog"))));
    let ended = centre.stats.ended();
    assert_eq!((ended["other_edge"], ended["replaced"]), (3, 2));
}

#[tokio::test(start_paused = true)]
async fn an_edge_that_ends_leaves_the_objects_as_they_were() {
    let (mut centre, mut objects) = (Centre::new(), outbox([namespace("shop")]));
    let mut edge = centre.connect("one").await;
    edge.welcome(&mut objects).await;
    edge.send(&mut objects).await.unwrap();
    centre.changes().await;
    drop(edge);
    assert_eq!(centre.changes().await, (vec![], false));
    assert_eq!(centre.stats.edge(), None);
}

#[tokio::test(start_paused = true)]
async fn a_cluster_that_comes_back_empty_is_held_until_it_is_confirmed() {
    let mut centre = Centre::new();
    let names: Vec<_> = (0..80).map(|number| format!("n-{number}")).collect();
    let mut objects = outbox(names.iter().map(|name| namespace(name)));
    let mut edge = centre.connect("one").await;
    edge.welcome(&mut objects).await;
    edge.send(&mut objects).await.unwrap();
    centre.changes().await;

    let mut emptied = outbox([namespace("n-0")]);
    let mut edge = centre.connect("one").await;
    edge.welcome(&mut emptied).await;
    edge.send(&mut emptied).await.unwrap();
    let (changes, _) = centre.changes().await;
    let kept = changes.iter().find_map(|change| match change {
        ObjectChange::Retain {
            kind: Kind::Namespace,
            keep,
            ..
        } => Some(keep.len()),
        _ => None,
    });
    assert_eq!(kept, Some(80));
    assert_eq!(centre.holds.confirm().len(), 1);
    let (changes, _) = centre.changes().await;
    assert_eq!(changes.len(), 79);
    assert!(changes.contains(&ObjectChange::Delete(namespace("n-1").reference())));
}

#[tokio::test(start_paused = true)]
async fn a_commit_of_other_objects_ends_the_stream_and_changes_nothing() {
    let (mut centre, mut objects) = (Centre::new(), outbox([namespace("shop")]));
    let mut edge = centre.connect("one").await;
    edge.welcome(&mut objects).await;
    edge.send(&mut objects).await.unwrap();
    centre.changes().await;
    let commit = v1::EdgeCommit {
        number: 2,
        hash: vec![1; 16],
        ..v1::EdgeCommit::default()
    };
    edge.say(Message::Commit(commit)).await;
    assert_eq!(edge.answer().await.unwrap_err().code(), Code::DataLoss);
    assert_eq!(centre.changes().await, (vec![], false));
    let mut edge = centre.connect("one").await;
    edge.welcome(&mut objects).await;
    edge.send(&mut objects).await.unwrap();
    let (changes, _) = centre.changes().await;
    assert_eq!(news(&changes), [&put(namespace("shop"))]);
}

#[tokio::test(start_paused = true)]
async fn an_object_that_breaks_a_rule_is_named_in_listings_too() {
    let bad = Object::Pod(Pod {
        key: key("web"),
        weight: u32::MAX,
    });
    let (mut centre, mut objects) = (Centre::new(), outbox([namespace("shop"), bad.clone()]));
    for _ in 0..2 {
        let mut edge = centre.connect("one").await;
        edge.welcome(&mut objects).await;
        edge.send(&mut objects).await.unwrap();
        let (changes, _) = centre.changes().await;
        let refused = changes.iter().find_map(|change| match change {
            ObjectChange::Refused { object, problems } => Some((object, &problems[0].field)),
            _ => None,
        });
        assert_eq!(refused, Some((&bad.reference(), &"pod.weight".to_owned())));
        let kept = changes.iter().any(|change| {
            matches!(change, ObjectChange::Retain { kind: Kind::Pod, keep, .. }
                if keep.contains(&key("web")))
        });
        assert!(kept, "its last version stays");
    }
}

#[tokio::test(start_paused = true)]
async fn streams_that_begin_too_often_are_refused() {
    let (centre, mut objects) = (Centre::new(), outbox([]));
    for _ in 0..STREAMS {
        centre.connect("one").await.welcome(&mut objects).await;
    }
    let refused = centre.connect("one").await.answer().await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    tokio::time::advance(STREAMS_WITHIN).await;
    centre.connect("one").await.welcome(&mut objects).await;
}

#[tokio::test(start_paused = true)]
async fn a_stream_whose_answers_nobody_takes_ends() {
    let (centre, mut objects) = (Centre::new(), outbox([namespace("shop")]));
    let mut edge = centre.connect("one").await;
    edge.welcome(&mut objects).await;
    edge.send(&mut objects).await.unwrap();
    // The guard of the listener ends the answers with the credential; the edge may go on to send.
    let Edge {
        messages, answers, ..
    } = edge;
    drop(answers);
    timeout(PATIENCE, messages.closed()).await.unwrap();
    assert_eq!(centre.stats.edge(), None);
}

#[tokio::test(start_paused = true)]
async fn work_is_sent_beside_the_answers_while_a_stream_counts() {
    let (centre, mut objects) = (Centre::new(), outbox([namespace("shop")]));
    let mut edge = centre.connect("one").await;
    // The queue of work is full, and nobody reads it.
    edge.welcome(&mut objects).await;
    edge.send(&mut objects).await.unwrap();
    let part = timeout(PATIENCE, edge.work.recv()).await.unwrap();
    let part = part.unwrap().unwrap().message;
    assert!(matches!(part, Some(Answer::Work(_))), "{part:?}");
    // Another process of the edge is refused, and sent none.
    let mut second = centre.connect("two").await;
    assert!(second.answer().await.is_err());
    assert_eq!(second.work.recv().await.map(drop), None);
    // A newer stream of the same process ends that of the older one.
    let mut again = centre.connect("one").await;
    again.welcome(&mut objects).await;
    timeout(PATIENCE, async {
        while edge.work.recv().await.is_some() {}
    })
    .await
    .unwrap();
    assert!(
        timeout(PATIENCE, again.work.recv())
            .await
            .unwrap()
            .is_some()
    );
    let process = "one".bytes().map(u64::from).sum();
    let mut reader = centre.connect_as("reader", process).await;
    reader.welcome(&mut objects).await;
    let sent = timeout(Duration::from_secs(1), reader.work.recv()).await;
    assert!(sent.is_err(), "{sent:?}");
}
