// SPDX-License-Identifier: Apache-2.0

//! Kernel settings chosen by the operator.

use portolan_netlink::ipvs::{Ipvs, Timeouts};

/// Optional settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tuning {
    /// `--ipvs-strict-arp`.
    pub strict_arp: bool,
    /// IPVS's own timeouts.
    pub timeouts: Timeouts,
    /// Conntrack's.
    pub conntrack: ConntrackTuning,
}

/// Settings of conntrack; 0 leaves one unchanged.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ConntrackTuning {
    /// Entries per online processor of the machine.
    pub max_per_core: u32,
    /// Entries at least, whatever the number of cores.
    pub min: u32,
    /// Lifetime of an idle TCP connection in seconds.
    pub tcp_established: u32,
    /// Lifetime of a TCP connection closed by one side, in seconds.
    pub tcp_close_wait: u32,
    /// Whether TCP packets out of window belong to their connection.
    pub tcp_be_liberal: bool,
    /// Lifetime of a UDP flow without replies in seconds.
    pub udp: u32,
    /// Lifetime of a UDP flow with replies in seconds.
    pub udp_stream: u32,
}

impl ConntrackTuning {
    /// Maximum of entries on a machine with `cpus` processors; 0 leaves it unchanged.
    pub(super) fn max(&self, cpus: u32) -> u32 {
        match self.max_per_core {
            0 => 0,
            per_core => per_core.saturating_mul(cpus).max(self.min),
        }
    }
}

/// Sets IPVS's timeouts. A failure is logged, as in a container that may not set them.
pub(super) fn apply(tuning: &Tuning, ipvs: &mut Ipvs) {
    if tuning.timeouts != Timeouts::default()
        && let Err(error) = ipvs.set_timeouts(&tuning.timeouts)
    {
        tracing::warn!(%error, "IPVS timeouts cannot be set");
    }
}
