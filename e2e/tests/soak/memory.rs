// SPDX-License-Identifier: Apache-2.0

//! Memory and descriptors of processes that live throughout.

use portolan_e2e::figure::{Goal, figure};

/// The permitted ratio of growth between the second and the last quarter of the run. The tables
/// change size all the time, and allocators return little memory.
const RATIO: f64 = 1.25;
/// Additional permitted growth for small processes, in KiB.
const SLACK_KIB: u64 = 8 * 1024;
/// Permitted growth of descriptors, which vary with connections.
const SLACK_DESCRIPTORS: u64 = 16;

/// Samples of some processes.
pub(crate) struct Memory {
    processes: Vec<History>,
}

struct History {
    name: String,
    pid: u32,
    early: Usage,
    late: Usage,
}

/// The highest usage seen.
#[derive(Clone, Copy, Default)]
struct Usage {
    resident_kib: u64,
    descriptors: u64,
}

impl Memory {
    pub(crate) fn of(processes: &[(String, u32)]) -> Self {
        let history = |(name, pid): &(String, u32)| History {
            name: name.clone(),
            pid: *pid,
            early: Usage::default(),
            late: Usage::default(),
        };
        Self {
            processes: processes.iter().map(history).collect(),
        }
    }

    /// Samples all processes. `progress` is the elapsed part of the run, 0 to 1.
    pub(crate) fn sample(&mut self, progress: f64) {
        for history in &mut self.processes {
            let now = usage(history.pid);
            if (0.25..0.5).contains(&progress) {
                history.early.raise(now);
            } else if progress >= 0.75 {
                history.late.raise(now);
            }
        }
    }

    pub(crate) fn assert_flat(&self) {
        for History {
            name, early, late, ..
        } in &self.processes
        {
            println!(
                "{name}: {} then {} KiB resident, {} then {} descriptors",
                early.resident_kib, late.resident_kib, early.descriptors, late.descriptors
            );
            assert!(
                early.resident_kib > 0 && late.resident_kib > 0,
                "{name} was sampled"
            );
            let ratio = kib(late.resident_kib) / kib(early.resident_kib);
            figure(
                &format!("soak_{name}_memory"),
                ratio,
                "x",
                Some(Goal::AtMost(RATIO)),
            );
            let flat = ratio <= RATIO || late.resident_kib <= early.resident_kib + SLACK_KIB;
            assert!(
                flat,
                "{name} grew from {} to {} KiB",
                early.resident_kib, late.resident_kib
            );
            let descriptors = late.descriptors <= early.descriptors + SLACK_DESCRIPTORS;
            assert!(descriptors, "{name} has {} descriptors", late.descriptors);
        }
    }
}

impl Usage {
    fn raise(&mut self, other: Self) {
        self.resident_kib = self.resident_kib.max(other.resident_kib);
        self.descriptors = self.descriptors.max(other.descriptors);
    }
}

fn kib(value: u64) -> f64 {
    f64::from(u32::try_from(value).unwrap())
}

fn usage(pid: u32) -> Usage {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let resident = resident.and_then(|line| line.trim().strip_suffix(" kB"));
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .count();
    Usage {
        resident_kib: resident.unwrap().trim().parse().unwrap(),
        descriptors: u64::try_from(descriptors).unwrap(),
    }
}
