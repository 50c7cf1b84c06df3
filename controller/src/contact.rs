//! Whether the API server lives: readiness falls while it is silent.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use portolan_runtime::{BlockReady, Readiness};
use portolan_source::kubernetes::Stats;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::gauge::ConstGauge;
use tokio::time::MissedTickBehavior;

/// How often is looked.
const PERIOD: Duration = Duration::from_secs(1);

/// Keeps the program unready while the source is silent for longer than `limit`.
pub(crate) async fn watch(stats: Arc<Stats>, limit: Duration, readiness: Readiness) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut unready = None;
    loop {
        ticks.tick().await;
        judge(stats.silence(), limit, &readiness, &mut unready);
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
        tracing::warn!(?limit, "the source is silent, not ready");
        *unready = Some(readiness.block("source contact"));
    } else if !is_dead && unready.take().is_some() {
        tracing::info!("the source answers again");
    }
}

/// Reads when the source was heard of last.
#[derive(Debug)]
pub(crate) struct ContactCollector(pub(crate) Arc<Stats>);

impl Collector for ContactCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let Some(silence) = self.0.silence() else {
            return Ok(());
        };
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let last = now.unwrap_or_default().saturating_sub(silence);
        let metric = ConstGauge::new(last.as_secs_f64());
        let help = "Unix time at which the source was last heard of, in seconds; of several watches \
                    the one that was silent for longest";
        let name = "source_last_contact_seconds";
        let kind = prometheus_client::metrics::MetricType::Gauge;
        metric.encode(encoder.encode_descriptor(name, help, None, kind)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        // What was never heard of has not synced, which is another reason.
        assert_eq!(pending_after(None), 0);
        assert_eq!(pending_after(Some(60)), 0);
        assert_eq!(pending_after(Some(61)), 1);
        assert_eq!(pending_after(Some(62)), 1);
        assert_eq!(pending_after(Some(1)), 0);
    }
}
