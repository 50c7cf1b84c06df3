// SPDX-License-Identifier: Apache-2.0

//! Resource usage and processor affinity of a process.

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use rustix::thread::{CpuSet, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Resources used by this process so far.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub(crate) struct Usage {
    /// User and system time of all threads, in nanoseconds.
    pub(crate) cpu_ns: u64,
    /// Resident memory, in bytes.
    pub(crate) resident: u64,
}

impl Usage {
    pub(crate) fn now() -> Result<Self> {
        let status = std::fs::read_to_string("/proc/self/status").context("/proc/self/status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        let kib = resident.and_then(|text| text.trim().strip_suffix(" kB"));
        let kib: u64 = kib.context("no VmRSS in /proc/self/status")?.parse()?;
        Ok(Self {
            cpu_ns: clock(ClockId::ProcessCPUTime),
            resident: kib * 1024,
        })
    }
}

/// The monotonic clock in nanoseconds, comparable between processes.
pub(crate) fn now_ns() -> u64 {
    clock(ClockId::Monotonic)
}

fn clock(id: ClockId) -> u64 {
    let time = clock_gettime(id);
    // Both clocks count up from zero.
    u64::try_from(time.tv_sec).unwrap_or_default() * 1_000_000_000
        + u64::try_from(time.tv_nsec).unwrap_or_default()
}

/// Pins this process, and the threads that it starts, to one processor.
pub(crate) fn pin(cpu: usize) -> Result<()> {
    let mut cpus = CpuSet::new();
    cpus.set(cpu);
    sched_setaffinity(None, &cpus).with_context(|| format!("pinning to processor {cpu}"))
}

/// Raises the limit of descriptors to its maximum.
pub(crate) fn raise_descriptors() -> Result<()> {
    let limit = getrlimit(Resource::Nofile);
    let all = Rlimit {
        current: limit.maximum,
        maximum: limit.maximum,
    };
    setrlimit(Resource::Nofile, all).context("the limit of descriptors")
}
