// SPDX-License-Identifier: Apache-2.0

//! Verdicts for the kernel. The planner has the order in which it gets them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use serde::Serialize;

use crate::backend::halved;
use crate::{Administrative, Reason, State};

/// Desired state of one backend in a virtual server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub struct Verdict {
    /// Weight of the real server.
    pub weight: u16,
    /// Whether there is a real server.
    pub presence: Presence,
}

/// Whether a virtual server has a backend as its real server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Presence {
    /// It has.
    Present,
    /// It has until the connections have ended or the drain's time is over. The weight is 0.
    Leaving,
    /// It has not, and connections break. The weight is 0.
    Absent,
}

/// The verdicts about all backends of one load balancer.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Verdicts {
    /// Verdicts by backend.
    pub backends: BTreeMap<SocketAddr, Verdict>,
    /// Whether the sorry server serves. Then no backend has a weight.
    pub sorry: bool,
    /// Whether enough weight is healthy.
    pub quorum: bool,
    /// A quorum that backends without a result can still bring.
    pub is_quorum_open: bool,
    /// Configured weight of all healthy backends.
    pub healthy_weight: u64,
    /// States by backend, for people and metrics.
    pub states: BTreeMap<SocketAddr, BackendStatus>,
}

/// The state of one backend, for people and metrics.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct BackendStatus {
    /// The state that its checks give it.
    pub state: State,
    /// The time since boot at which it came up or went down.
    pub since: Duration,
    /// The state that it has by will: the commanded one, else the stronger of those that the configuration and the
    /// backend itself ask for.
    pub administrative: Administrative,
    /// The state that an operator's command gives it.
    pub commanded: Option<Administrative>,
    /// The state that the backend asks for itself.
    pub said: Administrative,
    /// Reason why it is down.
    pub reason: Option<Reason>,
    /// Whether it fails, but keeps its weight because too few others are healthy.
    pub is_kept: bool,
    /// Rises and falls since the agent started.
    pub changes: u64,
    /// Factor of `rise` because of flaps, as of `since`: 1, 2, 4 or 8.
    pub flap_factor: u8,
}

impl BackendStatus {
    /// The factor of `rise` at a time since boot: quiet time halves it.
    ///
    /// Verdicts are published when something happens, and time alone is nothing that happens.
    #[must_use]
    pub fn flap_factor_at(&self, now: Duration) -> u8 {
        halved(self.flap_factor, now.saturating_sub(self.since))
    }
}
