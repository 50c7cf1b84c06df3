//! What an agent keeps: its table on disk, and the one in force while another is held.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use portolan_model::ContentHash;
use portolan_proto::buckets::bucket_hashes;
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message;
use portolan_proto::v1::frame::Frame;
use tonic::Status;

use super::super::{HoldConfig, SubscribeConfig};
use super::fake::{Controller, Stream, encoded, next};
use super::support::{Agent, config, patiently, services};

/// For ever, as far as a test is concerned.
const LONG: Duration = Duration::from_secs(3600);

fn at(controller: &Controller) -> SubscribeConfig {
    SubscribeConfig {
        endpoints: vec![format!("http://{}", controller.address).parse().unwrap()],
        ..config()
    }
}

fn in_directory(controller: &Controller, directory: &Path) -> SubscribeConfig {
    SubscribeConfig {
        state_dir: Some(directory.to_owned()),
        ..at(controller)
    }
}

fn holding(controller: &Controller, confirmed_after: Option<Duration>) -> SubscribeConfig {
    SubscribeConfig {
        hold: HoldConfig {
            above_percent: 50,
            confirmed_after,
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
        // Where nobody is: that is known at once.
        disk_patience: LONG,
        endpoints: vec!["http://127.0.0.1:1".parse().unwrap()],
        ..in_directory(&controller, dir.path())
    });
    let after = agent.table(|_| true).await;
    assert_eq!(after.table, before.table);
    assert_eq!((after.epoch, after.revision), (5, 7));
    assert!(after.is_from_disk && !before.is_from_disk);
    agent.until(|stats| &stats.connect_failures, 1).await;
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
    // Of many that are not there one would be asked before, and the other is.
    let nowhere = "http://127.0.0.1:1".parse().unwrap();
    let mut config = SubscribeConfig {
        disk_patience: LONG,
        ..in_directory(&controller, dir.path())
    };
    config.endpoints.push(nowhere);
    for _ in 0..5 {
        let mut agent = Agent::start_as(config.clone());
        let stream = controller.accept().await;
        assert!(agent.tables.borrow().is_none());
        stream.commit(8, true, &[]).await;
        let first = agent.table(|_| true).await;
        assert_eq!(first.revision, 8);
        agent.stop().await;
        // What was written is the newer one; it resumes with that.
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
    agent.until(|stats| &stats.commits, 2).await;
    drop(stream);
    agent.until(|stats| &stats.table_writes, 2).await;
}

#[tokio::test]
async fn a_file_that_makes_no_sense_is_set_aside_and_the_agent_goes_on() {
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
async fn a_first_table_that_deletes_too_much_waits_for_a_confirmation() {
    let mut controller = Controller::start().await;
    let config = holding(&controller, None);
    let (mut agent, mut stream) = with_records(&mut controller, config, 101).await;
    stream.commit(2, true, &[]).await;
    let received = stream.received().await;
    // The ack and the word that it is held may come one after the other.
    let received = match received.held {
        Some(_) => received,
        None => stream.received().await,
    };
    let held = received.held.unwrap();
    assert_eq!(
        (held.deleted, held.records, held.remaining_ms),
        (101, 101, 0)
    );
    // What is added meanwhile waits too, and another revision confirms nothing.
    stream.put(&many(1)).await;
    stream.commit(3, false, &many(1)).await;
    stream
        .send(Frame::Confirm(v1::Confirm { revision: 9 }))
        .await;
    assert_eq!(stream.received().await.held.unwrap().deleted, 100);
    let in_force = agent.tables.borrow().clone().unwrap();
    assert_eq!(in_force.table.records.len(), 101);
    assert_eq!(agent.holding.held().unwrap().revision, 3);
    let deletions = |agent: &Agent| agent.stats.deletions_held.load(Ordering::Relaxed);
    assert_eq!(deletions(&agent), 100);
    stream
        .send(Frame::Confirm(v1::Confirm { revision: 2 }))
        .await;
    let table = agent.table(|table| table.revision == 3).await;
    assert_eq!(services(&table), ["s0"]);
    assert_eq!(stream.received().await.held, None);
    assert_eq!(agent.holding.held(), None);
    assert_eq!(deletions(&agent), 0);
    assert_eq!(agent.stats.tables_held.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn time_confirms_what_is_held() {
    let mut controller = Controller::start().await;
    let config = holding(&controller, Some(Duration::from_millis(50)));
    let (mut agent, stream) = with_records(&mut controller, config, 101).await;
    stream.commit(2, true, &[]).await;
    let table = agent.table(|table| table.revision == 2).await;
    assert!(table.table.records.is_empty());
    assert_eq!(agent.stats.tables_held.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn an_operator_on_the_node_confirms_with_and_without_a_stream() {
    for ends in [false, true] {
        let mut controller = Controller::start().await;
        let config = holding(&controller, Some(LONG));
        let (mut agent, stream) = with_records(&mut controller, config, 101).await;
        assert!(agent.holding.confirm().is_none());
        stream.commit(2, true, &[]).await;
        agent.until(|stats| &stats.tables_held, 1).await;
        patiently(async {
            while agent.holding.held().is_none() {
                tokio::task::yield_now().await;
            }
        })
        .await;
        let mut controller = Some(controller);
        if ends {
            controller.take();
            drop(stream);
            assert_eq!(agent.holding.confirm().unwrap().deleted, 101);
        } else {
            assert_eq!(agent.holding.confirm().unwrap().deleted, 101);
        }
        let table = agent.table(|table| table.revision == 2).await;
        assert!(table.table.records.is_empty());
    }
}

#[tokio::test]
async fn the_table_in_force_is_the_one_on_disk_while_another_is_held() {
    let dir = tempfile::tempdir().unwrap();
    let mut controller = Controller::start().await;
    let config = SubscribeConfig {
        state_dir: Some(dir.path().to_owned()),
        ..holding(&controller, None)
    };
    let (agent, stream) = with_records(&mut controller, config.clone(), 101).await;
    stream.commit(2, true, &[]).await;
    agent.until(|stats| &stats.tables_held, 1).await;
    agent.stop().await;
    let mut agent = Agent::start_as(config);
    let table = agent.table(|_| true).await;
    assert_eq!((table.revision, table.table.records.len()), (1, 101));
}

#[tokio::test]
async fn a_better_controller_lets_a_held_table_go() {
    let mut bad = Controller::start().await;
    let config = holding(&bad, Some(LONG));
    let (mut agent, stream) = with_records(&mut bad, config, 101).await;
    stream.commit(2, true, &[]).await;
    agent.until(|stats| &stats.tables_held, 1).await;
    let before = agent.tables.borrow().clone().unwrap();
    drop(stream);
    let stream = bad.accept().await;
    stream.put(&many(101)).await;
    stream.commit(3, true, &many(101)).await;
    let table = agent.table(|table| table.revision == 3).await;
    assert_eq!(table.table, before.table);
    assert_eq!(agent.holding.held(), None);
}

#[tokio::test]
async fn buckets_are_said_when_asked_for() {
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
    config.endpoints.extend(at(&other).endpoints);
    let mut agent = Agent::start_as(config);
    // Whichever is first has too little.
    let (first, second) = tokio::select! {
        first = behind.accept() => (first, &mut other),
        first = other.accept() => (first, &mut behind),
    };
    first
        .fail(Status::unavailable("source: behind the agent"))
        .await;
    let stream = second.accept().await;
    stream.commit(1, true, &[]).await;
    agent.table(|table| table.revision == 1).await;
}
