// SPDX-License-Identifier: Apache-2.0

//! Processor time that the whole machine uses.

use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use portolan_e2e::wait::wait_with_pauses;

/// Steps of a spinning thread for each count.
const STEPS: u32 = 1_000;
/// Time for which the speed of the threads is measured.
const ALONE: Duration = Duration::from_secs(4);

/// Threads, one a processor, that count as long as nothing else runs (`SCHED_IDLE`). What they do not count, others
/// have used.
///
/// `/proc/PID/stat` would not do: the scheduler's clock of User Mode Linux are its ticks. Whoever runs at a tick has
/// the whole time. What timers start runs just after a tick, and is never seen.
#[derive(Debug)]
pub(crate) struct Spinners {
    counted: Arc<AtomicU64>,
    ended: Arc<AtomicBool>,
}

/// A time, and the count of the threads at it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    at: Instant,
    counted: u64,
}

/// A count, and the time that it took.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Count {
    pub(crate) took: Duration,
    counted: u64,
}

impl Spinners {
    pub(crate) fn start() -> Result<Self> {
        let this = Self {
            counted: Arc::default(),
            ended: Arc::default(),
        };
        for _ in 0..thread::available_parallelism()?.get() {
            let (counted, ended) = (Arc::clone(&this.counted), Arc::clone(&this.ended));
            let (send, thread) = mpsc::channel();
            thread::spawn(move || {
                let _ = send.send(rustix::thread::gettid().as_raw_nonzero().to_string());
                spin(&counted, &ended);
            });
            let arguments = ["--idle", "--pid", "0", &thread.recv()?];
            let set = Command::new("chrt").args(arguments).status()?;
            ensure!(set.success(), "chrt: {set}");
        }
        Ok(this)
    }

    pub(crate) fn sample(&self) -> Sample {
        Sample {
            at: Instant::now(),
            counted: self.counted.load(Ordering::Relaxed),
        }
    }

    pub(crate) fn since(&self, before: Sample) -> Count {
        let now = self.sample();
        Count {
            took: now.at - before.at,
            counted: now.counted - before.counted,
        }
    }

    /// Counts while nothing else runs: the speed of a machine drifts by a hundredth within a minute.
    pub(crate) fn alone(&self) -> Result<Count> {
        let before = self.sample();
        let is_over = || (before.at.elapsed() >= ALONE).then_some(());
        wait_with_pauses("spinners", ALONE * 2, ALONE, is_over)?;
        Ok(self.since(before))
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
    }
}

impl Count {
    /// The processor time that others used, given counts from before and after while nothing else ran.
    pub(crate) fn used(self, alone: [Self; 2]) -> Duration {
        let [before, after] = alone.map(Self::speed);
        let free = self.speed() / f64::midpoint(before, after);
        self.took.mul_f64((1.0 - free).max(0.0))
    }

    fn speed(self) -> f64 {
        self.counted as f64 / self.took.as_secs_f64()
    }
}

fn spin(counted: &AtomicU64, ended: &AtomicBool) {
    while !ended.load(Ordering::Relaxed) {
        for step in 0..STEPS {
            std::hint::black_box(step);
        }
        counted.fetch_add(1, Ordering::Relaxed);
    }
}
