// SPDX-License-Identifier: Apache-2.0

//! Schedulers of IPVS that the kernel has, and those that it lacks.
//!
//! The kernel starts `modprobe` for each virtual server whose scheduler it lacks, and waits for it:
//! seconds in which nothing else is programmed. So each scheduler is probed by itself, and a missing one
//! not again before a pause has passed, however many virtual servers ask for it.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use portolan_netlink::ipvs::IpvsError;
use portolan_plan::Step;

/// Schedulers of this kernel, as far as any virtual server has asked for them.
#[derive(Debug)]
pub(super) struct Schedulers {
    present: BTreeSet<String>,
    /// Missing ones, with the time of their last probe.
    missing: BTreeMap<String, Instant>,
    pause: Duration,
}

impl Schedulers {
    /// Probes a missing scheduler again after `pause`.
    pub(super) fn new(pause: Duration) -> Self {
        Self {
            present: BTreeSet::new(),
            missing: BTreeMap::new(),
            pause,
        }
    }

    /// Returns `true` if the kernel lacks a scheduler, by `probe` if that is not known. A probe
    /// that fails says nothing: the virtual server itself is tried then.
    pub(super) fn lacks(
        &mut self,
        name: &str,
        now: Instant,
        probe: impl FnOnce() -> Result<bool, IpvsError>,
    ) -> bool {
        self.probe(name, now, probe).unwrap_or(false)
    }

    /// Like [`Self::lacks`].
    ///
    /// # Errors
    /// If the probe fails.
    pub(super) fn probe(
        &mut self,
        name: &str,
        now: Instant,
        probe: impl FnOnce() -> Result<bool, IpvsError>,
    ) -> Result<bool, IpvsError> {
        if self.present.contains(name) {
            return Ok(false);
        }
        let probed = self.missing.get(name);
        if probed.is_some_and(|at| now.saturating_duration_since(*at) < self.pause) {
            return Ok(true);
        }
        let is_present = probe()?;
        if is_present {
            self.missing.remove(name);
            self.present.insert(name.to_owned());
        } else {
            self.missing.insert(name.to_owned(), now);
        }
        Ok(!is_present)
    }
}

/// The scheduler that a step needs.
pub(super) fn needed(step: &Step) -> Option<&str> {
    match step {
        Step::AddVirtualServer { config, .. } | Step::SetVirtualServer { config, .. } => {
            Some(&config.scheduler)
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use portolan_netlink::SocketError;

    use super::*;

    const PAUSE: Duration = Duration::from_secs(30);

    #[test]
    fn missing_scheduler_is_probed_once_in_a_pause() {
        let (mut schedulers, start) = (Schedulers::new(PAUSE), Instant::now());
        let mut probes = 0;
        let mut lacks = |name: &str, at: Duration, present: bool| {
            let lacks = schedulers.lacks(name, start + at, || {
                probes += 1;
                Ok(present)
            });
            (lacks, probes)
        };
        let second = Duration::from_secs(1);
        assert_eq!(lacks("rr", Duration::ZERO, true), (false, 1));
        assert_eq!(lacks("rr", PAUSE * 9, false), (false, 1));
        for at in [Duration::ZERO, second, PAUSE - second] {
            assert_eq!(lacks("twos", at, false), (true, 2), "{at:?}");
        }
        assert_eq!(lacks("twos", PAUSE, false), (true, 3));
        // It was loaded meanwhile.
        assert_eq!(lacks("twos", PAUSE * 2, true), (false, 4));
        assert_eq!(lacks("twos", PAUSE * 3, false), (false, 4));
    }

    #[test]
    fn failed_probe_says_nothing() {
        let (mut schedulers, now) = (Schedulers::new(PAUSE), Instant::now());
        let failed = || Err(IpvsError::Socket(SocketError::Timeout));
        assert!(!schedulers.lacks("rr", now, failed));
        assert!(schedulers.probe("rr", now, failed).is_err());
        assert!(schedulers.lacks("rr", now, || Ok(false)));
    }
}
