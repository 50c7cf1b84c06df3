// SPDX-License-Identifier: Apache-2.0

//! Tests of work on its way to an edge.

use portolan_catalog::{ObjectRef, ServiceImport};
use portolan_federate::imports::ImportName;
use portolan_mcs::{Action, Target, WantedSlice, Write, WriteKind};
use serde_json::{Value, json};
use tokio_stream::StreamExt as _;
use v1::centre_message::Message as Answer;

use super::*;
use crate::fake_api::FakeApi;

/// ServiceImports of the cluster, with UIDs that are their names.
fn imports(names: &[(&str, bool)]) -> Event {
    let put = |(name, is_ours): &(&str, bool)| ObjectChange::Put {
        object: Object::ServiceImport(ServiceImport {
            key: ObjectKey {
                cluster: "eu".into(),
                namespace: "shop".into(),
                name: (*name).into(),
            },
            uid: (*name).into(),
            generation: 1,
            created: None,
            own: is_ours.then(Box::default),
        }),
        problems: Vec::new(),
    };
    Event::Changes(names.iter().map(put).collect())
}

/// Deletions of ServiceImports with UIDs that are their names.
fn deletions(names: &[&str]) -> Work {
    let delete = |name: &&str| Write {
        target: Target {
            kind: WriteKind::ServiceImport,
            name: ImportName {
                namespace: "shop".into(),
                name: (*name).into(),
            },
        },
        action: Action::Delete {
            uid: (*name).into(),
        },
    };
    Work {
        writes: Arc::new(names.iter().map(delete).collect()),
        ..Work::default()
    }
}

#[tokio::test]
async fn an_edge_does_the_work_of_the_replica_that_leads() {
    let mut replicas = [
        Replica::start("127.0.0.1:0").await,
        Replica::start_with("127.0.0.1:0", false).await,
    ];
    let mut edge = Edge::start(&[&replicas[0], &replicas[1]]);
    edge.send(imports(&[
        ("a", true),
        ("b", true),
        ("c", true),
        ("foreign", false),
    ]))
    .await;
    edge.send(Event::Synced).await;
    for replica in &mut replicas {
        replica.until(4).await;
    }
    let [first, second] = &replicas;
    first.works.set("eu", deletions(&["a", "b"]));
    edge.until_asked(&["a", "b"]).await;
    second.works.set("eu", deletions(&["c"]));
    first.works.set("eu", deletions(&["b", "foreign"]));
    edge.until_asked(&["b"]).await;
    assert_eq!(edge.stats.refusals(), 1);
    // The lead passes over, and back with the end of a stream.
    second.leading.send_replace(true);
    edge.until_asked(&["c"]).await;
    first.leading.send_replace(false);
    first.leading.send_replace(true);
    let [first, second] = replicas;
    second.stop().await;
    edge.until_asked(&["b"]).await;
    // Without the centre nothing is written.
    first.stop().await;
    edge.until_asked(&[]).await;
}

#[tokio::test]
async fn work_is_what_the_cluster_has_not_lost_meanwhile() {
    let mut replica = Replica::start("127.0.0.1:0").await;
    let mut edge = Edge::start(&[&replica]);
    edge.send(imports(&[("a", true), ("b", true)])).await;
    edge.send(Event::Synced).await;
    replica.until(2).await;
    replica.works.set("eu", deletions(&["a", "b"]));
    edge.until_asked(&["a", "b"]).await;
    let gone = ObjectRef {
        kind: Kind::ServiceImport,
        key: ObjectKey {
            cluster: "eu".into(),
            namespace: "shop".into(),
            name: "a".into(),
        },
    };
    edge.send(Event::Changes(vec![ObjectChange::Delete(gone)]))
        .await;
    edge.until_asked(&["b"]).await;
    assert_eq!(edge.stats.refusals(), 0);
}

#[tokio::test]
async fn an_edge_that_writes_nothing_is_sent_no_work() {
    let mut replica = Replica::start("127.0.0.1:0").await;
    replica.works.join(&"eu".into());
    let address = format!("http://{}", replica.address);
    let mut client = FederationClient::connect(address).await.unwrap();
    let hello = Message::Hello(v1::EdgeHello {
        version: 1,
        cluster: "eu".to_owned(),
        name: "old".to_owned(),
        ..v1::EdgeHello::default()
    });
    let commit = Message::Commit(v1::EdgeCommit {
        number: 1,
        listing: true,
        hash: vec![0; 16],
        ..v1::EdgeCommit::default()
    });
    let messages = [hello, commit].map(|message| v1::EdgeMessage {
        message: Some(message),
    });
    let messages = tokio_stream::iter(messages).chain(tokio_stream::pending());
    let mut answers = client.sync(messages).await.unwrap().into_inner();
    for _ in 0..2 {
        let answer = answers.message().await.unwrap().unwrap().message;
        let is_answer = matches!(answer, Some(Answer::Welcome(_) | Answer::Accepted(_)));
        assert!(is_answer, "{answer:?}");
    }
    assert_eq!(replica.works.clusters(), Vec::<Arc<str>>::new());
    replica.until(0).await;
}

fn named(name: &str) -> ImportName {
    ImportName {
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn write(kind: WriteKind, name: &str, action: Action) -> Write {
    let name = named(name);
    let target = Target { kind, name };
    Write { target, action }
}

/// A centre in other hands plans what no centre plans. The edge does the rest.
#[tokio::test]
async fn a_hostile_centre_reaches_no_other_object() {
    let mut replica = Replica::start("127.0.0.1:0").await;
    let edge = Edge::start(&[&replica]);
    let api = FakeApi::default();
    let executor = Executor {
        client: api.client(),
        cluster: "eu".into(),
        work: edge.work.clone(),
        leading: Leading::always(),
        counts: WriteCounts::default(),
    };
    tokio::spawn(executor.run());
    edge.send(imports(&[("ours", true), ("foreign", false)]))
        .await;
    edge.send(Event::Synced).await;
    replica.until(2).await;
    let object = |kind: &str, name: &str| -> Value {
        json!({"apiVersion": "v1", "kind": kind, "metadata": {"namespace": "shop", "name": name}})
    };
    let import = WriteKind::ServiceImport;
    let delete = |uid: &str| Action::Delete { uid: uid.into() };
    let mut slice = object("EndpointSlice", "web-1");
    slice["apiVersion"] = "discovery.k8s.io/v1".into();
    slice["metadata"]["labels"] = json!({
        "kubernetes.io/service-name": "web",
        "endpointslice.kubernetes.io/managed-by": "portolan.dev",
    });
    slice["addressType"] = "IPv4".into();
    slice["ports"] = json!([]);
    slice["endpoints"] = json!([]);
    let slice = WantedSlice {
        import: named("ours"),
        object: slice,
    };
    let mut status = object("ServiceExport", "web");
    status["spec"] = json!({});
    let hostile = Work {
        writes: Arc::new(vec![
            write(import, "secret", Action::Create(object("Secret", "secret"))),
            write(
                import,
                "other",
                Action::Create(object("ServiceImport", "elsewhere")),
            ),
            write(WriteKind::ServiceExport, "web", Action::ApplyStatus(status)),
            write(WriteKind::ServiceExport, "api", delete("api")),
            write(WriteKind::EndpointSlice, "api-1", delete("api-1")),
            write(import, "foreign", delete("foreign")),
            write(import, "ours", delete("ours")),
        ]),
        slices: Some(Arc::new([(named("web-1"), slice)].into())),
        ..Work::default()
    };
    replica.works.set("eu", hostile);
    let mut requests = Vec::new();
    let good = "DELETE /apis/multicluster.x-k8s.io/v1beta1/namespaces/shop/serviceimports/ours 404";
    let listing = "GET /apis/discovery.k8s.io/v1/endpointslices 404";
    // The listing comes when there is nothing else to write.
    timeout(PATIENCE, async {
        while !requests.iter().any(|request| request == listing) {
            requests.extend(api.requests());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(requests, [good, listing]);
    assert_eq!(edge.stats.refusals(), 7);
}
