// SPDX-License-Identifier: Apache-2.0

//! Contact with a source: the time of the last answer or read, as a metric and for readiness.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use portolan_runtime::{BlockReady, Readiness};
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::time::{Instant, MissedTickBehavior};

/// The period of readiness checks.
const PERIOD: Duration = Duration::from_secs(1);

/// The time of the last contact.
#[derive(Debug)]
pub struct Contact {
    /// In milliseconds since the start, and 1; 0 for never. The wall clock may jump.
    last: AtomicU64,
    start: Instant,
}

impl Default for Contact {
    fn default() -> Self {
        Self {
            last: AtomicU64::new(0),
            start: Instant::now(),
        }
    }
}

impl Contact {
    /// Records a contact.
    pub fn note(&self) {
        self.note_after(Duration::ZERO);
    }

    /// Records a contact that was this long ago. One before the start counts as at the start.
    pub fn note_after(&self, silence: Duration) {
        let last = self.start.elapsed().saturating_sub(silence);
        let last = u64::try_from(last.as_millis()).unwrap_or(u64::MAX);
        self.last.store(last.saturating_add(1), Ordering::Relaxed);
    }

    /// The time since the last contact; `None` before the first one.
    #[must_use]
    pub fn silence(&self) -> Option<Duration> {
        let last = self.last.load(Ordering::Relaxed).checked_sub(1)?;
        let elapsed = self.start.elapsed();
        Some(elapsed.saturating_sub(Duration::from_millis(last)))
    }
}

/// Keeps the program unready while the source is silent for longer than `limit`.
pub async fn watch_contact(
    silence: impl Fn() -> Option<Duration>,
    limit: Duration,
    readiness: Readiness,
) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut unready = None;
    loop {
        ticks.tick().await;
        judge(silence(), limit, &readiness, &mut unready);
    }
}

fn judge(
    silence: Option<Duration>,
    limit: Duration,
    readiness: &Readiness,
    unready: &mut Option<BlockReady>,
) {
    let is_dead = silence.is_some_and(|silence| silence > limit);
    if is_dead && unready.is_none() {
        tracing::warn!(?limit, "source silent; not ready");
        *unready = Some(readiness.block("source contact"));
    } else if !is_dead && unready.take().is_some() {
        tracing::info!("source answers again");
    }
}

/// The metric of the last contact, computed when metrics are scraped.
pub struct ContactCollector<F>(pub F);

impl<F> fmt::Debug for ContactCollector<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ContactCollector").finish_non_exhaustive()
    }
}

impl<F> Collector for ContactCollector<F>
where
    F: Fn() -> Option<Duration> + Send + Sync + 'static,
{
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        let Some(silence) = (self.0)() else {
            return Ok(());
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let last = now.unwrap_or_default().saturating_sub(silence);
        let metric = ConstGauge::new(last.as_secs_f64());
        let help = "Unix time of the last answer of the source, or of the last successful read of all \
                    files, in seconds; of several watches the one that was silent for longest";
        let name = "source_last_contact_seconds";
        let kind = prometheus_client::metrics::MetricType::Gauge;
        metric.encode(encoder.encode_descriptor(name, help, None, kind)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_contact_may_be_told_later() {
        let contact = Contact::default();
        tokio::time::advance(Duration::from_secs(60)).await;
        for (told, silence) in [(0, 0), (7, 7), (90, 60)] {
            contact.note_after(Duration::from_secs(told));
            assert_eq!(contact.silence(), Some(Duration::from_secs(silence)));
        }
    }

    #[test]
    fn readiness_falls_while_the_source_is_silent_and_comes_back() {
        let readiness = Readiness::default();
        let limit = Duration::from_secs(60);
        let mut unready = None;
        let mut pending_after = |silence: Option<u64>| {
            let silence = silence.map(Duration::from_secs);
            judge(silence, limit, &readiness, &mut unready);
            readiness.pending().len()
        };
        // A source without a first contact has not synced, which blocks readiness by itself.
        assert_eq!(pending_after(None), 0);
        assert_eq!(pending_after(Some(60)), 0);
        assert_eq!(pending_after(Some(61)), 1);
        assert_eq!(pending_after(Some(62)), 1);
        assert_eq!(pending_after(Some(1)), 0);
    }
}
