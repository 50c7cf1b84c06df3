// SPDX-License-Identifier: Apache-2.0

//! Time since boot.

use std::fmt;
use std::fs;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The kernel's random identifier of this boot (proc(5)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Seconds since boot, time asleep included (`CLOCK_BOOTTIME`).
const UPTIME: &str = "/proc/uptime";

/// A clock that cannot be set: it counts from boot, and identifies the boot.
#[derive(Clone)]
pub struct BootClock {
    boot: Arc<str>,
    now: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl BootClock {
    /// The machine's clock; a clock that counts from now, of an unknown boot, if that cannot be read.
    #[must_use]
    pub fn system() -> Self {
        let start = Instant::now();
        let read = || Ok::<_, io::Error>((fs::read_to_string(BOOT_ID)?, uptime()?));
        match read() {
            Ok((boot, first)) => Self::new(boot.trim(), move || {
                uptime().unwrap_or_else(|_| first + start.elapsed())
            }),
            Err(error) => {
                tracing::warn!(%error,
                    "time since boot cannot be read: a restarted agent begins all drains again");
                Self::new("", move || start.elapsed())
            }
        }
    }

    /// A clock for tests. An empty `boot` is an unknown one.
    pub fn new(boot: &str, now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self {
            boot: boot.into(),
            now: Arc::new(now),
        }
    }

    /// The time since boot.
    #[must_use]
    pub fn now(&self) -> Duration {
        (self.now)()
    }

    /// The identifier of the boot.
    #[must_use]
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// Returns `true` if times of a boot are comparable with this clock's.
    #[must_use]
    pub fn is_of(&self, boot: &str) -> bool {
        !boot.is_empty() && *boot == *self.boot
    }
}

fn uptime() -> io::Result<Duration> {
    let text = fs::read_to_string(UPTIME)?;
    let seconds = text.split(' ').next().and_then(|first| first.parse().ok());
    let uptime = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    uptime.ok_or_else(|| io::Error::other(format!("{UPTIME}: {text:?}")))
}

impl fmt::Debug for BootClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BootClock({})", self.boot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_clock_advances_and_is_recognised() {
        let (clock, again) = (BootClock::system(), BootClock::system());
        assert!(clock.is_of(again.boot()));
        assert!(!clock.is_of("another") && !BootClock::new("", Duration::default).is_of(""));
        let first = clock.now();
        assert!(!first.is_zero());
        while clock.now() == first {
            std::thread::yield_now();
        }
        assert!(again.now() > first);
    }
}
