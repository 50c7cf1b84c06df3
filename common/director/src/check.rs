// SPDX-License-Identifier: Apache-2.0

//! A health check as a file declares it, before the director's defaults.

use std::net::IpAddr;
use std::time::Duration;

use portolan_model::check::{Check, CheckDefaults, Inherited, Probe, Source, Timers, Via};

/// A health check whose timers and source may be the director's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeclaredCheck {
    /// Request, and the answer that passes.
    pub probe: Probe,
    /// Address to check instead of the backend's.
    pub address: Option<IpAddr>,
    /// Port to check instead of the backend's.
    pub port: Option<u16>,
    /// The way of the probe to the backend.
    pub via: Via,
    /// Source of the packets; `None` for the director's.
    pub source: Option<Source>,
    /// Intervals and counts.
    pub timers: DeclaredTimers,
    /// Whether each failure is logged.
    pub log_failures: bool,
}

impl DeclaredCheck {
    /// The check with what a director gives where the file says nothing.
    #[must_use]
    pub fn resolve(&self, defaults: &CheckDefaults) -> Check {
        Check {
            probe: self.probe.clone(),
            address: self.address,
            port: self.port,
            via: self.via.clone(),
            source: self
                .source
                .clone()
                .unwrap_or_else(|| defaults.source.clone()),
            timers: self.timers.resolve(defaults.timers),
            log_failures: self.log_failures,
            inherited: Inherited::default(),
        }
    }

    /// The check for hosts that each have defaults of their own. Its other fields are the built-in ones, for agents
    /// that do not know of this.
    #[must_use]
    pub fn for_each_host(&self) -> Check {
        let DeclaredTimers {
            interval,
            fast_interval,
            timeout,
            rise,
            fall,
        } = self.timers;
        Check {
            inherited: Inherited {
                source: self.source.is_none(),
                interval: interval.is_none(),
                fast_interval: fast_interval.is_none(),
                timeout: timeout.is_none(),
                rise: rise.is_none(),
                fall: fall.is_none(),
            },
            ..self.resolve(&CheckDefaults::default())
        }
    }
}

/// Intervals and counts; `None` for the director's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeclaredTimers {
    /// Time between two probes, at least 100 ms.
    pub interval: Option<Duration>,
    /// Time to the next probe after a result that contradicts the state, at least 100 ms.
    pub fast_interval: Option<Duration>,
    /// Time for a whole exchange, at least 10 ms.
    pub timeout: Option<Duration>,
    /// Passes in a row after which a backend is up, 1 to 1,000.
    pub rise: Option<u32>,
    /// Failures in a row after which a backend is down, 1 to 1,000.
    pub fall: Option<u32>,
}

impl DeclaredTimers {
    /// The timers with `defaults` where there are none.
    #[must_use]
    pub fn resolve(&self, defaults: Timers) -> Timers {
        Timers {
            interval: self.interval.unwrap_or(defaults.interval),
            fast_interval: self.fast_interval.unwrap_or(defaults.fast_interval),
            timeout: self.timeout.unwrap_or(defaults.timeout),
            rise: self.rise.unwrap_or(defaults.rise),
            fall: self.fall.unwrap_or(defaults.fall),
        }
    }
}
