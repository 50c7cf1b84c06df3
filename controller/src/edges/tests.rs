// SPDX-License-Identifier: Apache-2.0

//! Tests of an edge's streams to the service of replicas, over real connections.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use portolan_catalog::{Kind, Object, ObjectChange, ObjectKey};
use portolan_edge::plans::Plans;
use portolan_listener::Limits;
use portolan_proto::v1;
use portolan_serve::{
    NodeStreams, Registry as Sessions, ServeConfig, ServedClusters, TablesServer,
};
use portolan_source::deletions::GuardConfig as SourceGuard;
use portolan_source::{Sink, edge};
use portolan_subscription::{GuardConfig, Security};
use portolan_tablelog::{Publisher, Retention};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tonic::transport::Uri;
use v1::edge_message::Message;
use v1::federation_client::FederationClient;

use super::*;
use crate::mcs::{Work, Works};

mod plans;
mod tokens;
mod work;

const PATIENCE: Duration = Duration::from_secs(30);

/// A namespace with a name of 200 bytes.
fn namespace(number: usize) -> Object {
    Object::Namespace(ObjectKey {
        cluster: "eu".into(),
        namespace: "".into(),
        name: format!("{number:0>200}").into(),
    })
}

fn put(numbers: std::ops::Range<usize>) -> Event {
    let put = |number| ObjectChange::Put {
        object: namespace(number),
        problems: Vec::new(),
    };
    Event::Changes(numbers.map(put).collect())
}

/// A replica of the centre, which has cluster `eu`.
struct Replica {
    address: SocketAddr,
    events: mpsc::Receiver<Event>,
    seats: EdgeSeats,
    stats: Arc<edge::Stats>,
    /// Planned writes.
    works: Works,
    plans: EdgePlans,
    leading: watch::Sender<bool>,
    token: CancellationToken,
    serving: JoinHandle<()>,
    objects: BTreeSet<Arc<str>>,
    /// Changes that came.
    changes: usize,
    _publisher: Publisher,
}

impl Replica {
    async fn start(address: &str) -> Self {
        Self::start_with(address, true).await
    }

    /// One that leads, or does not.
    async fn start_with(address: &str, is_leading: bool) -> Self {
        let config = ServeConfig {
            clusters: ServedClusters::new(["eu".into()]),
            ..ServeConfig::default()
        };
        Self::serve(address, is_leading, config, None).await
    }

    /// One with a configuration of its server.
    async fn serve(
        address: &str,
        is_leading: bool,
        config: ServeConfig,
        tls: Option<watch::Receiver<Arc<rustls::ServerConfig>>>,
    ) -> Self {
        let (publisher, tables) = Publisher::new(Retention::default());
        let (token, seats) = (CancellationToken::new(), EdgeSeats::default());
        let server =
            TablesServer::new(tables, Arc::new(Sessions::default()), config, token.clone());
        let server = server.with_service(federation(seats.clone()), NodeStreams::Any);
        let listener = TcpListener::bind(address).await.unwrap();
        let address = listener.local_addr().unwrap();
        let streams = seats.open(&"eu".into());
        let (leading, told) = watch::channel(is_leading);
        let (works, plans) = (Works::default(), EdgePlans::default());
        let (sink, events) = Sink::channel(4);
        let stats = Arc::new(edge::Stats::default());
        let options = edge::Options {
            guard: SourceGuard::default(),
            holds: Arc::default(),
            stats: Arc::clone(&stats),
            send_work: send_work(&"eu".into(), works.clone(), Leading::told(told.clone())),
            send_plans: send_plans(&"eu".into(), plans.clone(), Leading::told(told)),
        };
        let receive = edge::receive("eu".into(), streams, sink, options, token.clone());
        tokio::spawn(receive);
        let serving = tokio::spawn(async move {
            let _ = server.serve(listener, tls, Limits::default()).await;
        });
        Self {
            address,
            events,
            seats,
            stats,
            token,
            serving,
            works,
            plans,
            leading,
            objects: BTreeSet::new(),
            changes: 0,
            _publisher: publisher,
        }
    }

    /// Returns when the replica has so many objects.
    async fn until(&mut self, count: usize) {
        while self.objects.len() != count {
            let event = timeout(PATIENCE, self.events.recv()).await.unwrap();
            let Event::Changes(changes) = event.unwrap() else {
                continue;
            };
            for change in changes {
                self.changes += 1;
                match change {
                    ObjectChange::Put { object, .. } => {
                        _ = self.objects.insert(object.reference().key.name)
                    }
                    ObjectChange::Delete(object) => _ = self.objects.remove(&object.key.name),
                    _ => {}
                }
            }
        }
    }

    /// Ends all streams, and frees the port.
    async fn stop(self) -> SocketAddr {
        self.token.cancel();
        timeout(PATIENCE, self.serving).await.unwrap().unwrap();
        self.address
    }
}

/// An edge of cluster `eu`.
struct Edge {
    events: mpsc::Sender<Event>,
    stats: Arc<UplinkStats>,
    /// Planned writes.
    work: watch::Receiver<Work>,
    plans: Arc<PlanDesk>,
    uplink: JoinHandle<()>,
    /// Events on their way to the writer.
    _passed: JoinHandle<()>,
}

impl Edge {
    fn start(replicas: &[&Replica]) -> Self {
        Self::start_with(replicas, None)
    }

    /// One with plans of an earlier process.
    fn start_with(replicas: &[&Replica], saved: Option<Plans>) -> Self {
        Self::start_as(replicas, saved, 7)
    }

    /// One with the number of its process.
    fn start_as(replicas: &[&Replica], saved: Option<Plans>, instance: u64) -> Self {
        let upstreams = replicas.iter().map(|replica| {
            let address = format!("http://{}", replica.address);
            address.parse().unwrap()
        });
        let upstreams = upstreams.collect();
        Self::dial(upstreams, Security::Plaintext, "one", saved, instance)
    }

    /// One with a name and a security of its own.
    fn dial(
        upstreams: Vec<Uri>,
        security: Security,
        name: &str,
        saved: Option<Plans>,
        instance: u64,
    ) -> Self {
        let stats = Arc::new(UplinkStats::default());
        let desk = Desk::new(Arc::clone(&stats));
        let work = desk.work();
        let objects = Objects::new(Arc::clone(&stats), Arc::clone(&desk));
        let (events, receiver) = mpsc::channel(4);
        let (reader, mut passed) = mpsc::channel(4);
        tokio::spawn(Arc::clone(&objects).tee(receiver, reader));
        let plans = PlanDesk::new(saved, GuardConfig::default(), Arc::clone(&stats));
        let uplink = Uplink {
            plans: Arc::clone(&plans),
            cluster: "eu".to_owned(),
            name: name.to_owned(),
            instance,
            security,
            objects,
            desk: Some(desk),
            silence: Arc::new(|| Some(Duration::from_millis(1))),
            stats: Arc::clone(&stats),
        };
        Self {
            events,
            stats,
            work,
            plans,
            uplink: tokio::spawn(uplink.run(upstreams)),
            _passed: tokio::spawn(async move { while passed.recv().await.is_some() {} }),
        }
    }

    async fn send(&self, event: Event) {
        self.events.send(event).await.unwrap();
    }

    /// Waits until these ServiceImports are to be deleted, and nothing else is to be written.
    async fn until_asked(&mut self, names: &[&str]) {
        let is_so = |work: &Work| {
            let asked = work.writes.iter().map(|write| &*write.target.name.name);
            asked.eq(names.iter().copied())
        };
        let waited = timeout(PATIENCE, self.work.wait_for(is_so)).await;
        waited
            .unwrap_or_else(|_| panic!("{names:?} are not asked for"))
            .unwrap();
    }
}

#[tokio::test]
async fn every_replica_gets_all_objects_and_their_changes() {
    let mut replicas = [
        Replica::start("127.0.0.1:0").await,
        Replica::start("127.0.0.1:0").await,
    ];
    let edge = Edge::start(&[&replicas[0], &replicas[1]]);
    // More than one message.
    edge.send(put(0..3_000)).await;
    edge.send(Event::Synced).await;
    for replica in &mut replicas {
        replica.until(3_000).await;
    }
    edge.send(put(3_000..3_001)).await;
    for replica in &mut replicas {
        let before = replica.changes;
        replica.until(3_001).await;
        // The eight kinds of the listing are swept once.
        assert!(replica.changes <= before + 9, "{} changes", replica.changes);
        assert_eq!(replica.stats.edge().as_deref(), Some("one"));
        assert!(replica.stats.contact.silence().is_some());
    }
}

#[tokio::test]
async fn an_edge_has_more_objects_than_an_agent_may_send() {
    let mut replica = Replica::start("127.0.0.1:0").await;
    let edge = Edge::start(&[&replica]);
    // 4 MiB, in parts that fit the channel of the edge.
    for part in 0..20 {
        edge.send(put(part * 1_000..(part + 1) * 1_000)).await;
    }
    edge.send(Event::Synced).await;
    replica.until(20_000).await;
    assert_eq!(edge.stats.failures(), 0);
}

#[tokio::test]
async fn a_replica_that_returns_is_sent_the_objects_again() {
    // Of an IP address at which no other test takes the port meanwhile.
    let mut replica = Replica::start("127.0.0.3:0").await;
    let edge = Edge::start(&[&replica]);
    edge.send(put(0..10)).await;
    edge.send(Event::Synced).await;
    replica.until(10).await;
    let address = replica.stop().await;
    let gone = ObjectChange::Delete(namespace(0).reference());
    edge.send(Event::Changes(vec![gone])).await;
    let mut replica = Replica::start(&address.to_string()).await;
    replica.until(9).await;
    assert!(!replica.objects.contains(&namespace(0).reference().key.name));
    assert!(edge.stats.failures() > 0);
}

#[tokio::test]
async fn nothing_is_sent_before_the_source_has_synced() {
    let replica = Replica::start("127.0.0.1:0").await;
    let edge = Edge::start(&[&replica]);
    edge.send(put(0..1)).await;
    edge.send(Event::Changes(vec![ObjectChange::Retain {
        kind: Kind::Namespace,
        cluster: "eu".into(),
        keep: BTreeSet::from([namespace(0).reference().key]),
    }]))
    .await;
    // The queue is empty: the events have been taken in.
    while edge.events.capacity() < 4 {
        tokio::task::yield_now().await;
    }
    assert_eq!(replica.stats.edge(), None);
    edge.send(Event::Synced).await;
    timeout(PATIENCE, async {
        while replica.stats.edge().is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn a_stream_without_a_good_hello_is_refused() {
    let replica = Replica::start("127.0.0.1:0").await;
    let good = v1::EdgeHello {
        version: 1,
        cluster: "eu".to_owned(),
        name: "one".to_owned(),
        ..v1::EdgeHello::default()
    };
    let hello = |change: &dyn Fn(&mut v1::EdgeHello)| {
        let mut hello = good.clone();
        change(&mut hello);
        Message::Hello(hello)
    };
    for (first, named) in [
        (Message::Alive(v1::EdgeAlive::default()), "not Hello"),
        (hello(&|hello| hello.version = 0), "version: 0"),
        (hello(&|hello| hello.name = "a/b".to_owned()), "a/b"),
        (
            hello(&|hello| hello.cluster = "us".to_owned()),
            "no Cluster of this name",
        ),
    ] {
        let address = format!("http://{}", replica.address);
        let mut client = FederationClient::connect(address).await.unwrap();
        let message = v1::EdgeMessage {
            message: Some(first),
        };
        let messages = tokio_stream::iter([message]);
        let refused = client.sync(messages).await.unwrap_err();
        assert!(refused.message().contains(named), "{refused}");
    }
    assert_eq!(replica.stats.edge(), None);
}
