// SPDX-License-Identifier: Apache-2.0

//! Controllers of other clusters.

use std::sync::atomic::Ordering;

use portolan_proto::CLUSTER_ID;
use portolan_proto::v1;
use portolan_proto::v1::frame::Frame;
use tonic::Status;

use super::super::{ClusterPin, SubscribeConfig, forget};
use super::fake::{Controller, Stream, encoded};
use super::support::{Agent, config, services};

fn in_directory(controller: &Controller, directory: &std::path::Path) -> SubscribeConfig {
    SubscribeConfig {
        endpoints: vec![format!("http://{}", controller.address).parse().unwrap()].into(),
        state_dir: Some(directory.to_owned()),
        pin: ClusterPin::open(directory),
        ..config()
    }
}

async fn serve(stream: &Stream, cluster_id: &str, revision: u64, service: &str) {
    let welcome = v1::Welcome {
        version: 1,
        epoch: 5,
        cluster_id: cluster_id.to_owned(),
    };
    stream.send(Frame::Welcome(welcome)).await;
    stream.put(&[encoded(service)]).await;
    stream.commit(revision, true, &[encoded(service)]).await;
}

#[tokio::test]
async fn a_table_of_another_cluster_is_not_taken_before_the_node_is_told_to_forget() {
    let dir = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let config = in_directory(&controller, dir.path());
    let pin = config.pin.clone();
    let mut agent = Agent::start_as(config);
    let stream = controller.accept().await;
    assert_eq!(stream.hello.cluster_id, "");
    serve(&stream, "ours", 1, "x").await;
    agent.table(|table| table.revision == 1).await;
    drop(stream);

    // By Welcome, and by a refusal.
    let stream = controller.accept().await;
    assert_eq!(stream.hello.cluster_id, "ours");
    serve(&stream, "theirs", 2, "y").await;
    agent.until(|stats| &stats.stream.wrong_cluster, 1).await;
    assert_eq!(pin.status().refused.as_deref(), Some("theirs"));
    drop(stream);
    let stream = controller.accept().await;
    let mut status = Status::permission_denied("cluster");
    status
        .metadata_mut()
        .insert(CLUSTER_ID, "theirs".parse().unwrap());
    stream.fail(status).await;
    agent.until(|stats| &stats.stream.wrong_cluster, 2).await;
    let in_force = agent.tables.borrow().clone().unwrap();
    assert_eq!(services(&in_force), ["x"]);
    agent.stop().await;

    // Also after a restart; and no longer after `forget`, while it runs.
    let mut agent = Agent::start_as(in_directory(&controller, dir.path()));
    let stream = controller.accept().await;
    serve(&stream, "theirs", 2, "y").await;
    agent.until(|stats| &stats.stream.wrong_cluster, 1).await;
    assert_eq!(agent.stats.stream.commits.load(Ordering::Relaxed), 0);
    drop(stream);
    assert_eq!(forget(dir.path()).unwrap().as_deref(), Some("ours"));
    let stream = controller.accept().await;
    serve(&stream, "theirs", 2, "y").await;
    let table = agent.table(|table| table.revision == 2).await;
    assert_eq!(services(&table), ["y"]);
    drop(stream);
    let stream = controller.accept().await;
    assert_eq!(stream.hello.cluster_id, "theirs");
    assert_eq!(ClusterPin::open(dir.path()).id(), "theirs");
}

/// The API server of another cluster may be younger and have less.
#[tokio::test]
async fn after_forget_the_next_cluster_is_believed_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let mut agent = Agent::start_as(in_directory(&controller, dir.path()));
    let many: Vec<_> = (0..101).map(|i| encoded(&format!("s{i}"))).collect();
    let welcome = |id: &str| {
        Frame::Welcome(v1::Welcome {
            version: 1,
            epoch: 5,
            cluster_id: id.to_owned(),
        })
    };
    for while_it_runs in [true, false] {
        let (ours, theirs) = match while_it_runs {
            true => ("a", "b"),
            false => ("b", "c"),
        };
        let stream = controller.accept().await;
        stream.send(welcome(ours)).await;
        stream.put(&many).await;
        stream.commit_at(1, &many, vec![7, 8, 9]).await;
        agent.table(|table| table.table.records.len() == 101).await;
        if while_it_runs {
            forget(dir.path()).unwrap().unwrap();
            drop(stream);
        } else {
            drop(stream);
            agent.stop().await;
            forget(dir.path()).unwrap().unwrap();
            agent = Agent::start_as(in_directory(&controller, dir.path()));
        }
        let stream = controller.accept().await;
        assert!(stream.hello.source_versions.is_empty());
        stream.send(welcome(theirs)).await;
        stream.put(&many[..1]).await;
        stream.commit_at(1, &many[..1], vec![1, 1, 1]).await;
        let is_new = |table: &crate::subscribe::Subscribed| table.table.records.len() == 1;
        agent.table(is_new).await;
        drop(stream);
    }
}
