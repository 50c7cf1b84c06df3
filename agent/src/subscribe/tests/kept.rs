// SPDX-License-Identifier: Apache-2.0

//! The table on disk, and the deletion guard.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_model::ContentHash;
use portolan_proto::buckets::bucket_hashes;
use portolan_proto::reason::Reason;
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_proto::v1::frame::Frame;
use tokio::sync::watch;
use tonic::Status;

use super::super::{Endpoints, GuardConfig, SubscribeConfig};
use super::fake::{Controller, Stream, encoded, next};
use super::support::{Agent, config, patiently, services};

/// For ever, as far as a test is concerned.
const LONG: Duration = Duration::from_secs(3600);

fn at(controller: &Controller) -> SubscribeConfig {
    SubscribeConfig {
        endpoints: vec![format!("http://{}", controller.address).parse().unwrap()].into(),
        ..config()
    }
}

fn in_directory(controller: &Controller, directory: &Path) -> SubscribeConfig {
    SubscribeConfig {
        state_dir: Some(directory.to_owned()),
        ..at(controller)
    }
}

fn guarded(controller: &Controller, time: Option<Duration>) -> SubscribeConfig {
    SubscribeConfig {
        guard: GuardConfig {
            time,
            ..GuardConfig::default()
        },
        ..at(controller)
    }
}

fn many(count: usize) -> Vec<v1::Record> {
    (0..count).map(|i| encoded(&format!("s{i}"))).collect()
}

/// An agent with so many records in force, and its next stream.
async fn with_records(
    controller: &mut Controller,
    config: SubscribeConfig,
    count: usize,
) -> (Agent, Stream) {
    let mut agent = Agent::start_as(config);
    let mut stream = controller.accept().await;
    stream.put(&many(count)).await;
    stream.commit(1, true, &many(count)).await;
    agent.table(|table| table.revision == 1).await;
    assert_eq!(stream.received().await.held, None);
    drop(stream);
    let stream = controller.accept().await;
    (agent, stream)
}

#[tokio::test]
async fn a_restarted_agent_has_its_table_before_it_finds_a_controller() {
    let dir = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let mut agent = Agent::start_as(in_directory(&controller, dir.path()));
    let stream = controller.accept().await;
    stream.put(&many(3)).await;
    stream.commit(7, true, &many(3)).await;
    let before = agent.table(|table| table.revision == 7).await;
    agent.stop().await;
    let mut agent = Agent::start_as(SubscribeConfig {
        // No controller listens there, so the attempt fails at once.
        disk_patience: LONG,
        endpoints: vec!["http://127.0.0.1:1".parse().unwrap()].into(),
        ..in_directory(&controller, dir.path())
    });
    let after = agent.table(|_| true).await;
    assert_eq!(after.table, before.table);
    assert_eq!((after.epoch, after.revision), (5, 7));
    assert!(after.is_from_disk && !before.is_from_disk);
    agent.until(|stats| &stats.stream.connect_failures, 1).await;
    agent.stop().await;
    // It needs to know no controller for that.
    let (_list, followed) = watch::channel(Arc::default());
    let mut agent = Agent::start_as(SubscribeConfig {
        disk_patience: LONG,
        endpoints: Endpoints::Followed(followed),
        ..in_directory(&controller, dir.path())
    });
    let after = agent.table(|_| true).await;
    assert!(after.is_from_disk && after.table == before.table);
    agent.stop().await;
    // And resumes with it.
    let mut agent = Agent::start_as(in_directory(&controller, dir.path()));
    let stream = controller.accept().await;
    assert_eq!((stream.hello.epoch, stream.hello.revision), (5, 7));
    let hash = before.table.records_hash().to_bytes();
    assert_eq!(stream.hello.records_hash, hash);
    let mut more = many(3);
    more.push(encoded("x"));
    stream.put(&more[3..]).await;
    stream.commit(8, false, &more).await;
    let table = agent.table(|table| table.revision == 8).await;
    assert_eq!(services(&table), ["s0", "s1", "s2", "x"]);
    assert!(!table.is_from_disk);
}

#[tokio::test]
async fn a_table_from_disk_does_not_come_before_all_controllers_were_tried() {
    let dir = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let mut agent = Agent::start_as(in_directory(&controller, dir.path()));
    let stream = controller.accept().await;
    stream.put(&many(3)).await;
    stream.commit(7, true, &many(3)).await;
    agent.table(|table| table.revision == 7).await;
    agent.stop().await;
    // The unreachable address may be tried first; the other one is tried in any case.
    let nowhere = "http://127.0.0.1:1".parse().unwrap();
    let mut config = SubscribeConfig {
        disk_patience: LONG,
        ..in_directory(&controller, dir.path())
    };
    let here = format!("http://{}", controller.address).parse().unwrap();
    config.endpoints = vec![here, nowhere].into();
    for _ in 0..5 {
        let mut agent = Agent::start_as(config.clone());
        let stream = controller.accept().await;
        assert!(agent.tables.borrow().is_none());
        stream.commit(8, true, &[]).await;
        let first = agent.table(|_| true).await;
        assert_eq!(first.revision, 8);
        agent.stop().await;
        // The newer table was written; the next run resumes with it.
    }
}

#[tokio::test]
async fn a_table_from_disk_does_not_come_before_that_of_a_controller() {
    let dir = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let config = SubscribeConfig {
        disk_patience: LONG,
        ..in_directory(&controller, dir.path())
    };
    let mut agent = Agent::start_as(config.clone());
    let stream = controller.accept().await;
    stream.put(&many(3)).await;
    stream.commit(7, true, &many(3)).await;
    agent.table(|table| table.revision == 7).await;
    agent.stop().await;
    let mut agent = Agent::start_as(config);
    let stream = controller.accept().await;
    assert_eq!(stream.hello.revision, 7);
    assert!(agent.tables.borrow().is_none());
    stream.commit(8, true, &[]).await;
    let first = agent.table(|_| true).await;
    assert_eq!(first.revision, 8);
}

#[tokio::test]
async fn a_table_is_written_while_its_stream_lives_and_when_it_ends() {
    let dir = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let agent = Agent::start_as(in_directory(&controller, dir.path()));
    let stream = controller.accept().await;
    stream.put(&many(3)).await;
    stream.commit(1, true, &many(3)).await;
    agent.until(|stats| &stats.table_writes, 1).await;
    stream.commit(2, true, &[]).await;
    agent.until(|stats| &stats.stream.commits, 2).await;
    drop(stream);
    agent.until(|stats| &stats.table_writes, 2).await;
}

#[tokio::test]
async fn a_file_of_no_use_is_renamed_and_the_agent_starts() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("table"), "no table").unwrap();
    let mut controller = Controller::start().await;
    let mut agent = Agent::start_as(in_directory(&controller, dir.path()));
    let stream = controller.accept().await;
    assert!(stream.hello.records_hash.is_empty());
    let set_aside = &agent.stats.table_files_set_aside;
    assert_eq!(set_aside.load(Ordering::Relaxed), 1);
    assert!(dir.path().join("table.corrupt").exists());
    stream.commit(1, true, &[]).await;
    agent.table(|table| table.revision == 1).await;
}

#[tokio::test]
async fn deletions_of_a_first_table_wait_for_a_confirmation_and_nothing_else_does() {
    let mut controller = Controller::start().await;
    let config = guarded(&controller, None);
    let (mut agent, mut stream) = with_records(&mut controller, config, 101).await;
    stream.put(&[encoded("new")]).await;
    stream.commit(2, true, &[encoded("new")]).await;
    let held = stream.received().await.held.unwrap();
    assert_eq!(
        (held.deleted, held.records, held.remaining_ms),
        (101, 101, 0)
    );
    let table = agent.table(|table| table.revision == 2).await;
    assert_eq!(table.table.records.len(), 102);
    // It returns.
    let now = [many(1), vec![encoded("new")]].concat();
    stream.put(&many(1)).await;
    stream.commit(3, false, &now).await;
    assert_eq!(stream.received().await.held.unwrap().deleted, 100);
    // Deletions of the stream are believed meanwhile.
    stream.delete("new").await;
    stream.commit(4, false, &many(1)).await;
    assert_eq!(stream.received().await.held.unwrap().deleted, 100);
    let table = agent.table(|table| table.revision == 4).await;
    assert_eq!(table.table.records.len(), 101);
    // Another revision confirms nothing.
    stream
        .send(Frame::Confirm(v1::Confirm { revision: 9 }))
        .await;
    assert_eq!(agent.held.held().unwrap().revision, 4);
    let deletions = |agent: &Agent| {
        let guard = &agent.stats.stream.guard;
        guard.deletions_held.load(Ordering::Relaxed)
    };
    assert_eq!(deletions(&agent), 100);
    stream
        .send(Frame::Confirm(v1::Confirm { revision: 2 }))
        .await;
    let table = agent.table(|table| table.table.records.len() == 1).await;
    assert_eq!(services(&table), ["s0"]);
    assert_eq!(stream.received().await.held, None);
    assert_eq!(agent.held.held(), None);
    assert_eq!(deletions(&agent), 0);
    let held = &agent.stats.stream.guard.tables_held;
    assert_eq!(held.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn time_confirms_deletions() {
    let mut controller = Controller::start().await;
    let config = guarded(&controller, Some(Duration::from_millis(50)));
    let (mut agent, stream) = with_records(&mut controller, config, 101).await;
    stream.commit(2, true, &[]).await;
    agent.table(|table| table.table.records.is_empty()).await;
    let held = &agent.stats.stream.guard.tables_held;
    assert_eq!(held.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_operator_on_the_node_confirms_with_and_without_a_stream() {
    for ends in [false, true] {
        let mut controller = Controller::start().await;
        let config = guarded(&controller, Some(LONG));
        let (mut agent, stream) = with_records(&mut controller, config, 101).await;
        assert!(agent.held.confirm().is_none());
        stream.commit(2, true, &[]).await;
        agent.table(|table| table.revision == 2).await;
        patiently(async {
            while agent.held.held().is_none() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let mut controller = Some(controller);
        let mut stream = Some(stream);
        if ends {
            controller.take();
            stream.take();
        }
        assert_eq!(agent.held.confirm().unwrap().loss.lost.records, 101);
        let table = agent.table(|table| table.table.records.is_empty()).await;
        assert_eq!(table.revision, 2);
    }
}

/// The controller restarts against an empty API server, and the agent too.
#[tokio::test]
async fn deletions_stay_held_over_restarts_of_the_agent_and_of_the_controller() {
    let dir = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let config = SubscribeConfig {
        state_dir: Some(dir.path().to_owned()),
        ..guarded(&controller, Some(LONG))
    };
    let (mut agent, stream) = with_records(&mut controller, config.clone(), 101).await;
    stream.put(&[encoded("new")]).await;
    stream.commit(2, true, &[encoded("new")]).await;
    agent.table(|table| table.revision == 2).await;
    agent.stop().await;

    let mut agent = Agent::start_as(config.clone());
    let stream = controller.accept().await;
    // It resumes with the controller's table, not with the one in force.
    assert_eq!((stream.hello.epoch, stream.hello.revision), (5, 2));
    stream.commit(2, false, &[encoded("new")]).await;
    let table = agent.table(|table| !table.is_from_disk).await;
    assert_eq!(table.table.records.len(), 102);
    assert_eq!(agent.held.held().unwrap().loss.lost.records, 101);
    // Many additions make it a small share, and it stays held.
    drop(stream);
    let stream = controller.accept().await;
    let more: Vec<_> = (0..1000).map(|i| encoded(&format!("t{i}"))).collect();
    stream.put(&more).await;
    stream.commit(1, true, &more).await;
    let table = agent.table(|table| table.table.records.len() > 1000).await;
    // The one record that was new is deleted, as the others were.
    assert_eq!(table.table.records.len(), 1102);
    agent.stop().await;

    let mut agent = Agent::start_as(config);
    let stream = controller.accept().await;
    stream.put(&more).await;
    stream.commit(1, true, &more).await;
    let table = agent.table(|table| !table.is_from_disk).await;
    assert_eq!(table.table.records.len(), 1102);
    assert!(agent.held.confirm().is_some());
    let table = agent.table(|table| table.table.records.len() < 1102).await;
    assert_eq!(table.table.records.len(), 1000);
}

#[tokio::test]
async fn a_better_controller_ends_the_hold() {
    let mut bad = Controller::start().await;
    let config = guarded(&bad, Some(LONG));
    let (mut agent, stream) = with_records(&mut bad, config, 101).await;
    let before = agent.tables.borrow().clone().unwrap();
    stream.commit(2, true, &[]).await;
    agent.table(|table| table.revision == 2).await;
    drop(stream);
    let mut stream = bad.accept().await;
    stream.put(&many(101)).await;
    stream.commit(3, true, &many(101)).await;
    let table = agent.table(|table| table.revision == 3).await;
    assert_eq!(table.table, before.table);
    assert_eq!(stream.received().await.held, None);
    assert_eq!(agent.held.held(), None);
}

#[tokio::test]
async fn services_that_lose_all_their_endpoints_keep_them() {
    let mut controller = Controller::start().await;
    let config = guarded(&controller, Some(LONG));
    let (mut agent, stream) = with_records(&mut controller, config, 101).await;
    let before = agent.tables.borrow().clone().unwrap();
    let without = |i: usize| {
        let mut record = super::support::record(&format!("s{i}"));
        record.destinations.clear();
        portolan_proto::convert::encode_record(&record, record.content_hash())
    };
    let mut empty: Vec<_> = (0..101).map(without).collect();
    stream.put(&empty).await;
    stream.commit(2, true, &empty).await;
    let table = agent.table(|table| table.revision == 2).await;
    assert_eq!(table.table, before.table);
    // A record that has endpoints again has the controller's value.
    empty[0] = encoded("s0");
    stream.put(&empty[..1]).await;
    stream.commit(3, false, &empty).await;
    agent.table(|table| table.revision == 3).await;
    assert_eq!(agent.held.held().unwrap().loss.lost.records, 100);
}

#[tokio::test]
async fn a_table_that_cannot_be_read_stays_on_disk() {
    let dir = tempfile::tempdir().unwrap();
    // Reading a directory fails.
    std::fs::create_dir(dir.path().join("table")).unwrap();
    let controller = Controller::start().await;
    let agent = Agent::start_as(in_directory(&controller, dir.path()));
    agent.until(|stats| &stats.table_read_failures, 3).await;
    assert!(dir.path().join("table").is_dir());
    assert!(!dir.path().join("table.corrupt").exists());
    let set_aside = &agent.stats.table_files_set_aside;
    assert_eq!(set_aside.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn the_hashes_of_buckets_are_sent_when_asked_for() {
    let mut controller = Controller::start().await;
    let config = at(&controller);
    let (_agent, mut stream) = with_records(&mut controller, config, 9).await;
    let ask = v1::AskBuckets { count: 16 };
    stream.send(Frame::AskBuckets(ask)).await;
    let records = many(9);
    let hash = |r: &v1::Record| ContentHash::from_bytes(&r.hash).unwrap();
    let records = records.iter().map(|r| (r.key.as_ref().unwrap(), hash(r)));
    match next(&mut stream.messages).await {
        Message::Buckets(buckets) => assert_eq!(buckets.hashes, bucket_hashes(records, 16)),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_controller_that_is_behind_is_left_for_another() {
    let mut behind = Controller::start().await;
    let mut other = Controller::start().await;
    let mut config = at(&behind);
    let uri = |controller: &Controller| format!("http://{}", controller.address).parse().unwrap();
    config.endpoints = vec![uri(&behind), uri(&other)].into();
    let mut agent = Agent::start_as(config);
    // Whichever is first has too little.
    let (first, second) = tokio::select! {
        first = behind.accept() => (first, &mut other),
        first = other.accept() => (first, &mut behind),
    };
    first
        .fail(Reason::AgentAhead.state(Status::unavailable("for people")))
        .await;
    let stream = second.accept().await;
    stream.commit(1, true, &[]).await;
    agent.table(|table| table.revision == 1).await;
}
