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

/// Health that one stream has been told, and health that it will be told next.
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
mod tests;
