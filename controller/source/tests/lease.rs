// SPDX-License-Identifier: Apache-2.0

//! Contenders for a Lease of a real API server.

#![cfg(feature = "kubernetes")]

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use portolan_e2e::servers::Servers;
use portolan_source::kubernetes;
use portolan_source::lease::{LeaseConfig, lead};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

const LONG: Duration = Duration::from_secs(60);

/// The writers in turn, and their greatest number at a time.
#[derive(Clone)]
struct Desk {
    seated: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
    began: mpsc::Sender<&'static str>,
    ended: mpsc::Sender<&'static str>,
}

/// A writer at work; dropping it ends the work.
struct Seat(Desk, &'static str);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.seated.fetch_sub(1, Ordering::SeqCst);
        let _ = self.0.ended.try_send(self.1);
    }
}

impl Desk {
    async fn write(self, name: &'static str, stop: CancellationToken) {
        let seated = self.seated.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(seated, Ordering::SeqCst);
        let seat = Seat(self.clone(), name);
        self.began.send(name).await.expect("a test that runs");
        stop.cancelled().await;
        drop(seat);
    }
}

struct Office {
    client: kube::Client,
    desk: Desk,
    began: mpsc::Receiver<&'static str>,
    ended: mpsc::Receiver<&'static str>,
}

struct Contender {
    token: CancellationToken,
    task: JoinHandle<()>,
}

impl Office {
    async fn open(servers: &Servers) -> Self {
        let client = kubernetes::client(Some(servers.kubeconfig()), None).await;
        let (began, began_events) = mpsc::channel(64);
        let (ended, ended_events) = mpsc::channel(64);
        let desk = Desk {
            seated: Arc::default(),
            most: Arc::default(),
            began,
            ended,
        };
        Self {
            client: client.expect("a client"),
            desk,
            began: began_events,
            ended: ended_events,
        }
    }

    fn contend(&self, name: &'static str, duration: Duration) -> Contender {
        let token = CancellationToken::new();
        let config = LeaseConfig {
            duration,
            renew_deadline: duration * 3 / 4,
            retry: Duration::from_millis(200),
            ..LeaseConfig::new("default", "writers", name)
        };
        let desk = self.desk.clone();
        let writer = move |stop| desk.clone().write(name, stop);
        let task = tokio::spawn(lead(self.client.clone(), config, token.clone(), writer));
        Contender { token, task }
    }

    async fn next_writer(&mut self) -> &'static str {
        let next = timeout(LONG, self.began.recv()).await;
        next.expect("a writer in time").expect("an open desk")
    }

    async fn next_end(&mut self) -> &'static str {
        let next = timeout(LONG, self.ended.recv()).await;
        next.expect("an end in time").expect("an open desk")
    }
}

#[test]
fn there_is_one_writer_at_a_time_and_always_another() {
    let dir = tempfile::tempdir().unwrap();
    let Some(servers) = Servers::start_or_skip("lease", dir.path()) else {
        return;
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(contest(&servers));
}

async fn contest(servers: &Servers) {
    let short = Duration::from_secs(8);
    let mut office = Office::open(servers).await;
    let first = office.contend("first", short);
    assert_eq!(office.next_writer().await, "first");
    let second = office.contend("second", short);
    // Longer than a Lease is valid: it is renewed.
    let nobody = timeout(short * 5 / 4, office.began.recv()).await;
    assert!(nobody.is_err(), "{nobody:?}");

    // Killed: the other has to wait until the Lease has run out.
    let killed = Instant::now();
    first.task.abort();
    assert_eq!(office.next_end().await, "first");
    assert_eq!(office.next_writer().await, "second");
    let waited = killed.elapsed();
    // A writer renews within three quarters of it.
    assert!(waited > short / 4, "{waited:?}");

    // Stopped: the next need not wait.
    let third = office.contend("third", Duration::from_secs(600));
    let stopped = Instant::now();
    second.token.cancel();
    assert_eq!(office.next_end().await, "second");
    assert_eq!(office.next_writer().await, "third");
    let waited = stopped.elapsed();
    assert!(waited < short, "{waited:?}");
    second.task.await.expect("no panic");

    // Robbed: it stops as soon as it sees that.
    let robbed = r#"{"spec": {"holderIdentity": "robber", "leaseDurationSeconds": 1}}"#;
    let patch = ["patch", "lease", "writers", "--type", "merge", "-p", robbed];
    servers.kubectl(&patch).expect("a patch");
    assert_eq!(office.next_end().await, "third");
    // It holds the Lease again after the other one's has expired.
    assert_eq!(office.next_writer().await, "third");
    assert_eq!(office.desk.most.load(Ordering::SeqCst), 1);

    third.token.cancel();
    third.task.await.expect("no panic");
    let holder = [
        "get",
        "lease",
        "writers",
        "-o",
        "jsonpath={.spec.holderIdentity}",
    ];
    assert_eq!(servers.kubectl(&holder).expect("a Lease"), "");
}
