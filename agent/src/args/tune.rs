//! Settings of the kernel beyond those that the agent cannot do without.

use std::time::Duration;

use clap::Args;
use portolan_dataplane::{ConntrackTuning, Timeouts, Tuning};

/// Settings of the kernel; 0 leaves one as it is. Durations are in seconds, or as `15m0s`.
#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Answer ARP requests only for addresses of the interface that is asked, as load balancers
    /// such as MetalLB need it (kube-proxy's --ipvs-strict-arp).
    #[arg(long, env = "PORTOLAN_IPVS_STRICT_ARP", default_value_t = false,
        num_args = 0..=1, default_missing_value = "true", require_equals = true,
        action = clap::ArgAction::Set)]
    ipvs_strict_arp: bool,

    /// How long IPVS remembers an idle TCP connection.
    #[arg(long, env = "PORTOLAN_IPVS_TCP_TIMEOUT", default_value = "0", value_parser = seconds)]
    ipvs_tcp_timeout: u32,

    /// How long IPVS remembers a TCP connection that is closing.
    #[arg(long, env = "PORTOLAN_IPVS_TCPFIN_TIMEOUT", default_value = "0", value_parser = seconds)]
    ipvs_tcpfin_timeout: u32,

    /// How long IPVS remembers a UDP flow.
    #[arg(long, env = "PORTOLAN_IPVS_UDP_TIMEOUT", default_value = "0", value_parser = seconds)]
    ipvs_udp_timeout: u32,

    /// Room for conntrack entries per processor of the machine that is online. The maximum and the hash
    /// table (a bucket for four entries) are only ever enlarged.
    #[arg(long, env = "PORTOLAN_CONNTRACK_MAX_PER_CORE", default_value = "32768")]
    conntrack_max_per_core: u32,

    /// Room for conntrack entries at least, unless --conntrack-max-per-core is 0.
    #[arg(long, env = "PORTOLAN_CONNTRACK_MIN", default_value = "131072")]
    conntrack_min: u32,

    /// How long conntrack remembers an idle TCP connection.
    #[arg(long, env = "PORTOLAN_CONNTRACK_TCP_TIMEOUT_ESTABLISHED", default_value = "24h",
        value_parser = seconds)]
    conntrack_tcp_timeout_established: u32,

    /// How long conntrack remembers a TCP connection that one side has closed.
    #[arg(long, env = "PORTOLAN_CONNTRACK_TCP_TIMEOUT_CLOSE_WAIT", default_value = "1h",
        value_parser = seconds)]
    conntrack_tcp_timeout_close_wait: u32,

    /// Take TCP packets out of window for part of their connection.
    #[arg(long, env = "PORTOLAN_CONNTRACK_TCP_BE_LIBERAL", default_value_t = false,
        num_args = 0..=1, default_missing_value = "true", require_equals = true,
        action = clap::ArgAction::Set)]
    conntrack_tcp_be_liberal: bool,

    /// How long conntrack remembers a UDP flow that was not answered.
    #[arg(long, env = "PORTOLAN_CONNTRACK_UDP_TIMEOUT", default_value = "0",
        value_parser = seconds)]
    conntrack_udp_timeout: u32,

    /// How long conntrack remembers a UDP flow that was answered.
    #[arg(long, env = "PORTOLAN_CONNTRACK_UDP_TIMEOUT_STREAM", default_value = "0",
        value_parser = seconds)]
    conntrack_udp_timeout_stream: u32,
}

impl TuneArgs {
    /// What to set.
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

/// Whole seconds from a number of them, or from a duration as Go writes it. At most 24 days, which
/// is what the kernel's own counters take.
pub(super) fn seconds(text: &str) -> Result<u32, String> {
    const MAX: Duration = Duration::from_secs(24 * 86_400);
    let duration = match text.parse() {
        Ok(seconds) => Duration::from_secs(seconds),
        Err(_) => {
            let parsed = text.parse::<jiff::SignedDuration>();
            let duration = parsed.map_err(|error| format!("expected seconds or 15m0s: {error}"))?;
            Duration::try_from(duration).map_err(|_| "expected no negative duration".to_owned())?
        }
    };
    if duration > MAX {
        return Err("expected 24 days at most".to_owned());
    }
    // A fraction of a second is not nothing: 0 would mean to leave the setting as it is.
    let up = u64::from(duration.subsec_nanos() != 0);
    u32::try_from(duration.as_secs() + up).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn seconds_and_gos_durations_are_taken() {
        for (text, expected) in [
            ("0", 0),
            ("0s", 0),
            ("900", 900),
            ("15m0s", 900),
            ("15m", 900),
            ("24h0m0s", 86_400),
            ("1h30m", 5400),
            ("500ms", 1),
        ] {
            assert_eq!(seconds(text), Ok(expected), "{text}");
        }
        for bad in ["", "x", "-5s", "-5", "1.5", "10000h"] {
            assert!(seconds(bad).is_err(), "{bad}");
        }
    }
}
