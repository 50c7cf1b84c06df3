// SPDX-License-Identifier: Apache-2.0

//! Readings of the kernel's counters on request, and the rates between two of them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use portolan_dataplane::{DataplaneError, UsageOf};
use portolan_model::ipvs::VirtualServerKey;
use tokio::sync::Mutex;
use tokio::task::{JoinError, spawn_blocking};
use tokio::time::{Instant, sleep};

use super::{Rates, Usage};

/// Shortest time between two requests that read the kernel.
const PAUSE: Duration = Duration::from_secs(5);
/// Rates over a longer time than this tell nothing about now.
const LONGEST: Duration = Duration::from_secs(60);
/// Time between the two readings of a request that finds none of the last minute: the period in which the kernel
/// brings its counters up to date. In a shorter one they stand still, or have those of two seconds.
const FIRST: Duration = Duration::from_secs(2);

/// Reads the kernel; blocks.
type Read = dyn Fn(&[VirtualServerKey]) -> Result<UsageOf, DataplaneError> + Send + Sync;

/// Reason why counters could not be read.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadingError {
    /// The kernel refused.
    #[error(transparent)]
    Kernel(#[from] DataplaneError),
    /// The thread of the reading ended early.
    #[error(transparent)]
    Thread(#[from] JoinError),
}

/// Reads counters, at most every five seconds.
#[derive(Clone)]
pub(super) struct Meter {
    read: Arc<Read>,
    last: Arc<Mutex<Option<Readings>>>,
}

/// The newest reading, and the one before it.
#[derive(Debug, Clone)]
pub(super) struct Readings {
    now: Arc<Reading>,
    before: Option<Arc<Reading>>,
}

#[derive(Debug)]
struct Reading {
    at: Instant,
    of: Vec<VirtualServerKey>,
    usage: UsageOf,
}

impl std::fmt::Debug for Meter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Meter")
    }
}

impl Meter {
    /// A meter of what `read` reads.
    pub(super) fn new(
        read: impl Fn(&[VirtualServerKey]) -> Result<UsageOf, DataplaneError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            read: Arc::new(read),
            last: Arc::default(),
        }
    }

    /// Counters of now, or of five seconds ago at most. Takes two seconds if there is no earlier reading for
    /// rates. Requests at the same time share the readings.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub(super) async fn readings(
        &self,
        of: Vec<VirtualServerKey>,
    ) -> Result<Readings, ReadingError> {
        let mut last = self.last.lock().await;
        // Another choice of virtual servers is another reading.
        let usable = last.take().filter(|last| last.now.of == of);
        let usable = usable.filter(|last| last.now.at.elapsed() < LONGEST);
        let readings = match usable {
            Some(last) if last.now.at.elapsed() < PAUSE => last,
            Some(last) => Readings {
                now: self.reading(of).await?,
                before: Some(last.now),
            },
            None => {
                let before = self.reading(of.clone()).await?;
                sleep(FIRST).await;
                Readings {
                    now: self.reading(of).await?,
                    before: Some(before),
                }
            }
        };
        *last = Some(readings.clone());
        Ok(readings)
    }

    async fn reading(&self, of: Vec<VirtualServerKey>) -> Result<Arc<Reading>, ReadingError> {
        let read = Arc::clone(&self.read);
        let reading = spawn_blocking(move || {
            let usage = read(&of)?;
            let at = Instant::now();
            Ok(Arc::new(Reading { at, of, usage }))
        });
        reading.await?
    }
}

impl Readings {
    /// The use of each real server of a virtual server.
    pub(super) fn of(&self, key: &VirtualServerKey) -> BTreeMap<SocketAddr, Usage> {
        let Some(now) = self.now.usage.get(key) else {
            return BTreeMap::new();
        };
        let before = self.before.as_ref();
        let with_rates = now.iter().map(|(address, now)| {
            let usage = Usage {
                active: now.connections.active.into(),
                inactive: now.connections.inactive.into(),
                rates: before.and_then(|before| self.rates(before, key, *address)),
            };
            (*address, usage)
        });
        with_rates.collect()
    }

    /// `None` for a real server that was not there before.
    fn rates(
        &self,
        before: &Reading,
        key: &VirtualServerKey,
        address: SocketAddr,
    ) -> Option<Rates> {
        let old = before.usage.get(key)?.get(&address)?;
        let new = self.now.usage.get(key)?.get(&address)?;
        let seconds = self.now.at.duration_since(before.at).as_secs_f64();
        // Counters begin anew when a real server is deleted and added again.
        #[allow(clippy::cast_precision_loss, reason = "a rate has no 53 valid bits")]
        let rate = |old: u64, new: u64| new.saturating_sub(old) as f64 / seconds;
        (seconds > 0.0).then(|| Rates {
            connections: rate(old.total_connections, new.total_connections),
            bytes_in: rate(old.bytes_in, new.bytes_in),
            bytes_out: rate(old.bytes_out, new.bytes_out),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use portolan_model::Protocol;

    use super::*;

    fn key(last: u8) -> VirtualServerKey {
        VirtualServerKey::new(Protocol::Tcp, [192, 0, 2, last].into(), 80)
    }

    fn real() -> SocketAddr {
        ([10, 0, 0, 1], 80).into()
    }

    /// Each reading is 30 connections after the last.
    fn meter() -> (Meter, Arc<AtomicU64>) {
        let count = Arc::new(AtomicU64::new(0));
        let counting = Arc::clone(&count);
        let read = move |keys: &[VirtualServerKey]| {
            let readings = counting.fetch_add(1, Ordering::Relaxed) + 1;
            let usage = portolan_dataplane::Usage {
                total_connections: readings * 30,
                ..portolan_dataplane::Usage::default()
            };
            let of_key = |key: &VirtualServerKey| (*key, [(real(), usage)].into());
            Ok(keys.iter().map(of_key).collect())
        };
        (Meter::new(read), count)
    }

    fn rate(readings: &Readings) -> f64 {
        readings.of(&key(1))[&real()].rates.unwrap().connections
    }

    #[tokio::test(start_paused = true)]
    async fn the_kernel_is_read_at_most_every_five_seconds() {
        let (meter, count) = meter();
        let reads = || count.load(Ordering::Relaxed);
        let first = meter.readings(vec![key(1)]).await.unwrap();
        // Two readings, two seconds apart.
        assert_eq!(reads(), 2);
        assert!((rate(&first) - 15.0).abs() < 0.1, "{}", rate(&first));
        sleep(Duration::from_millis(4_900)).await;
        meter.readings(vec![key(1)]).await.unwrap();
        assert_eq!(reads(), 2);
        sleep(Duration::from_millis(5_100)).await;
        let later = meter.readings(vec![key(1)]).await.unwrap();
        assert_eq!(reads(), 3);
        assert!((rate(&later) - 3.0).abs() < 0.1, "{}", rate(&later));
        // After a long time, and for another virtual server, there is nothing to compare with.
        sleep(Duration::from_secs(61)).await;
        meter.readings(vec![key(1)]).await.unwrap();
        assert_eq!(reads(), 5);
        let other = meter.readings(vec![key(2)]).await.unwrap();
        assert_eq!(reads(), 7);
        assert!(other.of(&key(1)).is_empty());
    }

    #[tokio::test]
    async fn a_failure_is_told_and_not_kept() {
        let meter = Meter::new(|_| Err(std::io::Error::other("no IPVS").into()));
        for _ in 0..2 {
            let error = meter.readings(vec![key(1)]).await.unwrap_err();
            assert_eq!(error.to_string(), "no IPVS");
        }
    }
}
