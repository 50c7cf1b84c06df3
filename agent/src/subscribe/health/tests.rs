// SPDX-License-Identifier: Apache-2.0

use futures_util::FutureExt as _;
use portolan_health::{Presence, Verdict};
use portolan_model::Protocol;
use tokio::time::timeout_at;

use super::*;

fn key(service: &str) -> RecordKey {
    RecordKey {
        cluster: "".into(),
        namespace: "default".into(),
        service: service.into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    }
}

fn address(index: u32) -> SocketAddr {
    let ip = std::net::Ipv4Addr::from(0x0a00_0000 + index);
    SocketAddr::from((ip, 8080))
}

fn verdicts(states: &[State], reason: &str) -> Arc<Verdicts> {
    let status = |state: State| BackendStatus {
        state,
        since: Duration::from_secs(40),
        administrative: Administrative::Enabled,
        commanded: None,
        said: Administrative::Enabled,
        reason: (state == State::Down).then(|| reason.into()),
        is_kept: false,
        changes: 0,
        flap_factor: 1,
    };
    let numbered = || (0..).zip(states);
    Arc::new(Verdicts {
        backends: numbered()
            .map(|(index, state)| {
                let verdict = Verdict {
                    weight: u16::from(state.is_up()),
                    presence: Presence::Present,
                };
                (address(index), verdict)
            })
            .collect(),
        states: numbered()
            .map(|(index, state)| (address(index), status(*state)))
            .collect(),
        quorum: states.iter().any(|state| state.is_up()),
        ..Verdicts::default()
    })
}

/// A reporter on a stream with its first Commit.
fn reporter(health: Health<RecordKey>) -> (HealthReporter, watch::Sender<Health<RecordKey>>) {
    let (sender, receiver) = watch::channel(health);
    let mut reporter = HealthReporter::new(Some(receiver));
    reporter.connected();
    reporter.committed();
    (reporter, sender)
}

fn messages(reporter: &mut HealthReporter) -> Vec<v1::Health> {
    std::iter::from_fn(|| reporter.next_message()).collect()
}

/// The messages of a stream that takes all at once.
async fn messages_within(reporter: &mut HealthReporter, time: Duration) -> Vec<v1::Health> {
    let mut all = Vec::new();
    let end = Instant::now() + time;
    while timeout_at(end, reporter.changed()).await.is_ok() {
        all.extend(messages(reporter));
    }
    all
}

#[tokio::test(start_paused = true)]
async fn all_is_told_first_and_then_what_has_changed() {
    let both = [State::Up, State::Down];
    let health = Health::from_iter([
        (key("a"), verdicts(&both, "status 503")),
        (key("b"), verdicts(&[State::Up], "")),
    ]);
    let (mut reporter, sender) = reporter(health.clone());
    reporter.changed().await;
    let first = messages(&mut reporter);
    assert_eq!(first.len(), 1);
    assert!(first[0].replace && first[0].delete.is_empty());
    let a = &first[0].put[0];
    assert_eq!((a.quorum, a.up, a.total), (Some(true), 1, 2));
    let down = &a.backends[1];
    assert_eq!(down.state(), wire::State::Down);
    assert_eq!((&*down.reason, down.weight), ("status 503", 0));
    assert_eq!(down.address, Some(wire::Address::V4(0x0a00_0001)));

    let mut after = health.without(&key("b"));
    after.insert(key("c"), verdicts(&[State::Probing], ""));
    sender.send_replace(after);
    // Not within a second of the first.
    assert_eq!(reporter.changed().now_or_never(), None);
    reporter.report(Duration::from_secs(100));
    let second = messages(&mut reporter);
    assert_eq!(second.len(), 1);
    assert!(!second[0].replace);
    let put: Vec<_> = second[0].put.iter().collect();
    assert_eq!(put.len(), 1);
    assert_eq!((put[0].quorum, put[0].up), (None, 0));
    assert_eq!(put[0].backends[0].age_seconds, 60);
    assert_eq!(second[0].delete, [encode_key(&key("b"))]);
}

#[tokio::test]
async fn nothing_is_told_before_a_commit_nor_without_load_balancers() {
    let (sender, receiver) = watch::channel(Health::new());
    let mut reporter = HealthReporter::new(Some(receiver));
    sender.send_replace(Health::from_iter([(key("a"), verdicts(&[State::Up], ""))]));
    reporter.connected();
    assert_eq!(reporter.changed().now_or_never(), None);
    reporter.committed();
    reporter.changed().await;
    assert_eq!(messages(&mut reporter).len(), 1);
    // A new stream is told all again.
    reporter.connected();
    reporter.committed();
    reporter.changed().await;
    assert!(messages(&mut reporter)[0].replace);
    let (mut none, _sender) = self::reporter(Health::new());
    none.changed().await;
    assert!(!none.has_message());
}

#[tokio::test(start_paused = true)]
async fn large_reports_are_several_messages_that_the_controller_takes() {
    let long = "x".repeat(300);
    let many = vec![State::Down; 100];
    let mut health: Health<RecordKey> = (0..20)
        .map(|index| (key(&format!("a{index:02}")), verdicts(&many, &long)))
        .collect();
    let mut huge = vec![State::Up; 9_000];
    huge.push(State::Down);
    health.insert(key("huge"), verdicts(&huge, "no answer"));
    let (mut reporter, _sender) = reporter(health);
    let messages = messages_within(&mut reporter, Duration::from_secs(60)).await;
    assert!(messages.len() > 5);
    let largest = messages.iter().map(v1::Health::encoded_len).max();
    assert!(
        largest.unwrap() + 16 < MAX_AGENT_MESSAGE_BYTES,
        "{largest:?}"
    );
    let first: Vec<_> = messages.iter().map(|message| message.replace).collect();
    assert_eq!(first.iter().position(|replace| *replace), Some(0));
    assert_eq!(first.iter().filter(|replace| **replace).count(), 1);
    let records: Vec<_> = messages.iter().flat_map(|message| &message.put).collect();
    assert_eq!(records.len(), 21);
    let huge = records[20];
    assert_eq!((huge.total, huge.up), (9_001, 9_000));
    assert!(huge.backends.len() > 1_000);
    assert_eq!(huge.backends[0].reason, "no answer");
}

/// The controller allows 64 KiB each second beyond its burst.
#[tokio::test(start_paused = true)]
async fn a_large_report_is_told_at_a_rate_that_the_controller_allows() {
    let reason = "x".repeat(120);
    let records = |state: State| -> Health<RecordKey> {
        let verdicts = verdicts(&[state; 100], &reason);
        let names = (0..100).map(|index| format!("a{index:02}"));
        names.map(|name| (key(&name), verdicts.clone())).collect()
    };
    let (mut reporter, sender) = reporter(records(State::Down));
    let start = messages_within(&mut reporter, Duration::from_secs(5)).await;
    let bytes: usize = start.iter().map(v1::Health::encoded_len).sum();
    assert!((3 << 16..5 << 16).contains(&bytes), "{bytes} bytes");
    // What changes meanwhile is told afterwards.
    sender.send_replace(records(State::Up).without(&key("a99")));
    let rest = messages_within(&mut reporter, Duration::from_secs(120)).await;
    let mut told = std::collections::BTreeMap::new();
    for message in start.iter().chain(&rest) {
        for record in &message.put {
            told.insert(record.key.clone().unwrap().service, record.up);
        }
        for key in &message.delete {
            told.remove(&key.service);
        }
    }
    assert_eq!(told.len(), 99);
    assert!(told.values().all(|up| *up == 100), "{told:?}");
    assert!(!reporter.has_message());
}
