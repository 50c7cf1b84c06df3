// SPDX-License-Identifier: Apache-2.0

//! Flags of kernel settings that the agent can do without.

use std::time::Duration;

use clap::Args;
use portolan_dataplane::{ConntrackTuning, Timeouts, Tuning};
use portolan_runtime::{DurationError, parse_duration};

/// Settings of the kernel. 0 leaves a setting unchanged.
#[derive(Debug, Args)]
#[command(next_help_heading = "Kernel settings")]
pub struct TuneArgs {
    /// Answer ARP requests only for addresses of the interface that receives them, as load balancers
    /// such as MetalLB require (kube-proxy's --ipvs-strict-arp).
    #[arg(long, env = "PORTOLAN_IPVS_STRICT_ARP", default_value_t = false,
        num_args = 0..=1, default_missing_value = "true", require_equals = true,
        action = clap::ArgAction::Set)]
    ipvs_strict_arp: bool,

    /// IPVS timeout of idle TCP connections; 0 leaves it unchanged.
    #[arg(long, env = "PORTOLAN_IPVS_TCP_TIMEOUT", default_value = "0s",
        value_parser = kernel_seconds)]
    ipvs_tcp_timeout: u32,

    /// IPVS timeout of TCP connections that are closing; 0 leaves it unchanged.
    #[arg(long, env = "PORTOLAN_IPVS_TCPFIN_TIMEOUT", default_value = "0s",
        value_parser = kernel_seconds)]
    ipvs_tcpfin_timeout: u32,

    /// IPVS timeout of UDP flows; 0 leaves it unchanged.
    #[arg(long, env = "PORTOLAN_IPVS_UDP_TIMEOUT", default_value = "0s",
        value_parser = kernel_seconds)]
    ipvs_udp_timeout: u32,

    /// Conntrack entries per online processor of the machine; 0 leaves the limits unchanged. The
    /// limit and the hash table (one bucket for four entries) are only ever raised.
    #[arg(long, env = "PORTOLAN_CONNTRACK_MAX_PER_CORE", default_value = "32768")]
    conntrack_max_per_core: u32,

    /// Least number of conntrack entries, unless --conntrack-max-per-core is 0.
    #[arg(long, env = "PORTOLAN_CONNTRACK_MIN", default_value = "131072")]
    conntrack_min: u32,

    /// Conntrack timeout of idle TCP connections; 0 leaves it unchanged.
    #[arg(long, env = "PORTOLAN_CONNTRACK_TCP_TIMEOUT_ESTABLISHED", default_value = "24h",
        value_parser = kernel_seconds)]
    conntrack_tcp_timeout_established: u32,

    /// Conntrack timeout of TCP connections that one side has closed; 0 leaves it unchanged.
    #[arg(long, env = "PORTOLAN_CONNTRACK_TCP_TIMEOUT_CLOSE_WAIT", default_value = "1h",
        value_parser = kernel_seconds)]
    conntrack_tcp_timeout_close_wait: u32,

    /// Accept TCP packets outside of the window as part of their connection.
    #[arg(long, env = "PORTOLAN_CONNTRACK_TCP_BE_LIBERAL", default_value_t = false,
        num_args = 0..=1, default_missing_value = "true", require_equals = true,
        action = clap::ArgAction::Set)]
    conntrack_tcp_be_liberal: bool,

    /// Conntrack timeout of UDP flows without an answer; 0 leaves it unchanged.
    #[arg(long, env = "PORTOLAN_CONNTRACK_UDP_TIMEOUT", default_value = "0s",
        value_parser = kernel_seconds)]
    conntrack_udp_timeout: u32,

    /// Conntrack timeout of UDP flows with an answer; 0 leaves it unchanged.
    #[arg(long, env = "PORTOLAN_CONNTRACK_UDP_TIMEOUT_STREAM", default_value = "0s",
        value_parser = kernel_seconds)]
    conntrack_udp_timeout_stream: u32,
}

impl TuneArgs {
    /// The settings.
    #[must_use]
    pub fn tuning(&self) -> Tuning {
        Tuning {
            strict_arp: self.ipvs_strict_arp,
            timeouts: Timeouts {
                tcp: self.ipvs_tcp_timeout,
                tcp_fin: self.ipvs_tcpfin_timeout,
                udp: self.ipvs_udp_timeout,
            },
            conntrack: ConntrackTuning {
                max_per_core: self.conntrack_max_per_core,
                min: self.conntrack_min,
                tcp_established: self.conntrack_tcp_timeout_established,
                tcp_close_wait: self.conntrack_tcp_timeout_close_wait,
                tcp_be_liberal: self.conntrack_tcp_be_liberal,
                udp: self.conntrack_udp_timeout,
                udp_stream: self.conntrack_udp_timeout_stream,
            },
        }
    }
}

/// Parses a duration as whole seconds. A fraction is rounded up: 0 would leave the setting as it is.
/// The kernel's counters hold at most 24 days.
fn kernel_seconds(text: &str) -> Result<u32, DurationError> {
    const MOST: Duration = Duration::from_secs(24 * 86_400);
    let out_of_range = DurationError::OutOfRange {
        least: Duration::ZERO,
        most: MOST,
    };
    let duration = parse_duration(text)?;
    if duration > MOST {
        return Err(out_of_range);
    }
    let up = u64::from(duration.subsec_nanos() != 0);
    u32::try_from(duration.as_secs() + up).map_err(|_| out_of_range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernel_settings_are_whole_seconds() {
        for (text, expected) in [
            ("0", 0),
            ("0s", 0),
            ("900", 900),
            ("15m0s", 900),
            ("24h0m0s", 86_400),
            ("1h30m", 5400),
            ("500ms", 1),
        ] {
            assert_eq!(kernel_seconds(text), Ok(expected), "{text}");
        }
        for bad in ["", "x", "-5s", "1.5", "10000h"] {
            assert!(kernel_seconds(bad).is_err(), "{bad}");
        }
    }
}
