//! Time since the machine was started.

use std::fmt;
use std::fs;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The kernel's random name of this start of the machine (proc(5)).
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";
/// Seconds since the machine's start, time asleep included (`CLOCK_BOOTTIME`).
const UPTIME: &str = "/proc/uptime";

/// A clock that nobody sets: it counts from the machine's start, and says which start that was.
#[derive(Clone)]
pub struct BootClock {
    boot: Arc<str>,
    now: Arc<dyn Fn() -> Duration + Send + Sync>,
}

impl BootClock {
    /// The machine's. If it cannot be read, a clock that counts from now, in a start of its own.
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
                    "the time since the machine's start cannot be read: an agent that starts anew \
                     begins all drains anew");
                Self::new("", move || start.elapsed())
            }
        }
    }

    /// A clock of one's own. An empty `boot` is none that can be known again.
    pub fn new(boot: &str, now: impl Fn() -> Duration + Send + Sync + 'static) -> Self {
        Self {
            boot: boot.into(),
            now: Arc::new(now),
        }
    }

    /// The time since the machine's start.
    #[must_use]
    pub fn now(&self) -> Duration {
        (self.now)()
    }

    /// Which start of the machine that is.
    #[must_use]
    pub fn boot(&self) -> &str {
        &self.boot
    }

    /// Whether times that were taken in a start of the machine are comparable with this clock's.
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
    fn the_machines_clock_goes_on_and_is_known_again() {
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
