// SPDX-License-Identifier: Apache-2.0

//! Reports to the controller about the health of load balancers' backends: all of it after the first Commit of a
//! stream, then what has changed. There is one message a second at most: the controller closes connections on which
//! agents say too much.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use imbl::ordmap::DiffItem;
use portolan_health::{Administrative, BackendStatus, State, Verdicts};
use portolan_model::RecordKey;
use portolan_probe::Health;
use portolan_proto::convert::encode_key;
use portolan_proto::limits::{MAX_AGENT_MESSAGE_BYTES, problem_text};
use portolan_proto::v1;
use portolan_proto::v1::backend_health as wire;
use prost::Message as _;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::backends::{quorum, since_boot};

/// Shortest time between two messages. A controller allows 64 KiB each second in the long run; messages of
/// [`MESSAGE_BYTES`] leave the rest to acknowledgements.
const PAUSE: Duration = Duration::from_secs(1);
/// Size of the records of one message, in bytes. A record that is larger is cut to this.
const MESSAGE_BYTES: usize = MAX_AGENT_MESSAGE_BYTES * 3 / 4;

/// Verdicts about the records of load balancers, as the checks of this node give them.
pub type BackendHealth = watch::Receiver<Health<RecordKey>>;

/// What one stream has been told, and what it will be told next.
#[derive(Debug, Default)]
pub(super) struct HealthReporter {
    /// `None` if nothing is checked here, or the checks have ended.
    health: Option<BackendHealth>,
    told: Health<RecordKey>,
    /// The health that is being told; `None` if all of it is. It is told to the end before newer changes, so that records
    /// that change all the time leave room for others.
    telling: Option<Health<RecordKey>>,
    message: Option<v1::Health>,
    /// When the next message may be prepared; `None` before the first Commit.
    from: Option<Instant>,
    is_first: bool,
}

impl HealthReporter {
    pub(super) fn new(health: Option<BackendHealth>) -> Self {
        Self {
            health,
            ..Self::default()
        }
    }

    /// A stream begins that has been told nothing.
    pub(super) fn connected(&mut self) {
        *self = Self::new(self.health.take());
    }

    /// The stream had a Commit: reports may follow.
    pub(super) fn committed(&mut self) {
        if self.from.is_some() {
            return;
        }
        self.from = Some(Instant::now());
        self.is_first = true;
        if let Some(health) = &mut self.health {
            health.mark_changed();
        }
    }

    pub(super) fn has_message(&self) -> bool {
        self.message.is_some()
    }

    pub(super) fn next_message(&mut self) -> Option<v1::Health> {
        let message = self.message.take()?;
        self.from = Some(Instant::now() + PAUSE);
        Some(message)
    }

    /// Completes when there is something to report. May be cancelled.
    pub(super) async fn changed(&mut self) {
        let Some(from) = self.from.filter(|_| self.message.is_none()) else {
            return std::future::pending().await;
        };
        let Some(health) = &mut self.health else {
            return std::future::pending().await;
        };
        sleep_until(from).await;
        if self.telling.is_none() && health.changed().await.is_err() {
            self.health = None;
            return;
        }
        self.report(since_boot());
    }

    /// Prepares the next message about what has changed since the last report. `now` is the time since boot.
    fn report(&mut self, now: Duration) {
        let Some(health) = &mut self.health else {
            return;
        };
        let telling = self.telling.take();
        let telling = telling.unwrap_or_else(|| health.borrow_and_update().clone());
        let mut message = v1::Health {
            replace: std::mem::take(&mut self.is_first),
            ..v1::Health::default()
        };
        let mut told = self.told.clone();
        let mut bytes = 0;
        for change in self.told.diff(&telling) {
            let (key, verdicts) = match change {
                DiffItem::Add(key, verdicts) => (key, Some(verdicts)),
                DiffItem::Update { new, .. } => (new.0, Some(new.1)),
                DiffItem::Remove(key, _) => (key, None),
            };
            let put = verdicts.map(|verdicts| record(key, verdicts, now));
            let delete = verdicts.is_none().then(|| encode_key(key));
            let size = put.as_ref().map_or(0, v1::RecordHealth::encoded_len)
                + delete.as_ref().map_or(0, v1::RecordKey::encoded_len)
                + 8;
            if bytes > 0 && bytes + size > MESSAGE_BYTES {
                self.telling = Some(telling.clone());
                break;
            }
            bytes += size;
            message.put.extend(put);
            message.delete.extend(delete);
            match verdicts {
                Some(verdicts) => told.insert(key.clone(), Arc::clone(verdicts)),
                None => told.remove(key),
            };
        }
        self.told = told;
        self.message = (bytes > 0).then_some(message);
    }
}

fn record(key: &RecordKey, verdicts: &Arc<Verdicts>, now: Duration) -> v1::RecordHealth {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let states = || verdicts.states.values();
    let mut record = v1::RecordHealth {
        key: Some(encode_key(key)),
        quorum: quorum(verdicts),
        sorry: verdicts.sorry,
        up: count(states().filter(|status| status.state.is_up()).count()),
        total: count(states().count()),
        backends: verdicts
            .states
            .iter()
            .map(|(address, status)| backend(verdicts, address, status, now))
            .collect(),
    };
    if record.encoded_len() > MESSAGE_BYTES {
        cut(&mut record);
    }
    record
}

/// Leaves out backends until the record fits a message: first those that are not down.
fn cut(record: &mut v1::RecordHealth) {
    let is_down = |backend: &v1::BackendHealth| backend.state() == wire::State::Down;
    let mut all = std::mem::take(&mut record.backends);
    all.sort_by_key(|backend| !is_down(backend));
    let mut room = MESSAGE_BYTES.saturating_sub(record.encoded_len());
    let fits = all.into_iter().take_while(|backend| {
        let size = backend.encoded_len() + 4;
        let is_room = size <= room;
        room = room.saturating_sub(size);
        is_room
    });
    record.backends = fits.collect();
}

fn backend(
    verdicts: &Verdicts,
    address: &SocketAddr,
    status: &BackendStatus,
    now: Duration,
) -> v1::BackendHealth {
    let verdict = verdicts.backends.get(address);
    let reason = status.reason.as_deref().unwrap_or_default();
    v1::BackendHealth {
        address: Some(match address.ip() {
            IpAddr::V4(ip) => wire::Address::V4(ip.into()),
            IpAddr::V6(ip) => wire::Address::V6(ip.octets().to_vec()),
        }),
        port: address.port().into(),
        state: match status.state {
            State::Probing => wire::State::Probing,
            State::Up => wire::State::Up,
            State::Ramping => wire::State::Ramping,
            State::Down => wire::State::Down,
        }
        .into(),
        administrative: match status.administrative {
            Administrative::Enabled => wire::Administrative::Enabled,
            Administrative::Drain => wire::Administrative::Drain,
            Administrative::Disabled => wire::Administrative::Disabled,
        }
        .into(),
        weight: verdict.map_or(0, |verdict| verdict.weight.into()),
        age_seconds: now.saturating_sub(status.since).as_secs(),
        reason: problem_text(reason.to_owned()),
    }
}

#[cfg(test)]
mod tests {
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
}
