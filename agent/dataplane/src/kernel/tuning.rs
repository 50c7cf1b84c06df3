// SPDX-License-Identifier: Apache-2.0

//! Kernel settings chosen by the operator.

use std::fs;
use std::io;
use std::path::Path;

use portolan_netlink::ipvs::{Ipvs, Timeouts};

use super::machine::online_cpus;
use super::sysctl::write_setting;
use crate::DataplaneError;

/// The maximum of entries; below `/proc/sys`, as all names here.
const CONNTRACK_MAX: &str = "net/netfilter/nf_conntrack_max";

/// Number of buckets of conntrack's hash table. The kernel accepts it in the initial network namespace
/// only (`nf_conntrack_set_hashsize`).
const HASH_SIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// Strict ARP, so that others can announce VIPs: reply only for addresses of the receiving interface, and
/// announce only those.
const STRICT_ARP: [(&str, &str); 2] = [
    ("net/ipv4/conf/all/arp_ignore", "1"),
    ("net/ipv4/conf/all/arp_announce", "2"),
];

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
    fn max(&self, cpus: u32) -> u32 {
        match self.max_per_core {
            0 => 0,
            per_core => per_core.saturating_mul(cpus).max(self.min),
        }
    }

    /// Settings to write on a machine with `cpus` processors and a present maximum of entries, which is
    /// only ever raised: an operator may have set a higher one.
    fn settings(&self, cpus: u32, max: Option<u32>) -> Vec<(&'static str, u32)> {
        let wanted = self.max(cpus);
        let raised = if max.is_none_or(|max| max < wanted) {
            wanted
        } else {
            0
        };
        let settings = [
            (CONNTRACK_MAX, raised),
            (
                "net/netfilter/nf_conntrack_tcp_timeout_established",
                self.tcp_established,
            ),
            (
                "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
                self.tcp_close_wait,
            ),
            (
                "net/netfilter/nf_conntrack_tcp_be_liberal",
                u32::from(self.tcp_be_liberal),
            ),
            ("net/netfilter/nf_conntrack_udp_timeout", self.udp),
            (
                "net/netfilter/nf_conntrack_udp_timeout_stream",
                self.udp_stream,
            ),
        ];
        settings
            .into_iter()
            .filter(|(_, value)| *value != 0)
            .collect()
    }
}

/// Writes the settings. A failure of strict ARP is an error; others are logged, as in a container that may
/// not write them.
pub(super) fn apply(tuning: &Tuning, ipvs: &mut Ipvs) -> Result<(), DataplaneError> {
    if tuning.strict_arp {
        for (name, value) in STRICT_ARP {
            write_setting(name, value).map_err(|error| DataplaneError::Sysctl { name, error })?;
        }
    }
    if tuning.timeouts != Timeouts::default()
        && let Err(error) = ipvs.set_timeouts(&tuning.timeouts)
    {
        tracing::warn!(%error, "IPVS timeouts cannot be set");
    }
    let max = fs::read_to_string(Path::new("/proc/sys").join(CONNTRACK_MAX));
    let max = max.ok().and_then(|text| text.trim().parse().ok());
    let cpus = online_cpus();
    for (name, value) in tuning.conntrack.settings(cpus, max) {
        if let Err(error) = write_setting(name, &value.to_string()) {
            tracing::warn!(sysctl = name, value, %error, "conntrack setting cannot be written");
        }
    }
    let buckets = buckets(tuning.conntrack.max(cpus));
    if let Err(error) = raise(Path::new(HASH_SIZE), buckets) {
        tracing::warn!(path = HASH_SIZE, buckets, %error,
            "conntrack's hash table cannot be enlarged: with many connections lookups get slow");
    }
    Ok(())
}

/// Buckets for a maximum of entries: four entries a bucket on average, as in kube-proxy.
fn buckets(max: u32) -> u32 {
    max / 4
}

/// Writes a number to a file, unless the present one is at least as large.
fn raise(path: &Path, number: u32) -> io::Result<()> {
    if number == 0 {
        return Ok(());
    }
    let now: u32 = fs::read_to_string(path)?
        .trim()
        .parse()
        .map_err(io::Error::other)?;
    if now >= number {
        return Ok(());
    }
    fs::write(path, number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maximum_is_only_raised() {
        let tuning = ConntrackTuning {
            max_per_core: 32_768,
            min: 131_072,
            ..ConntrackTuning::default()
        };
        for (cores, max, expected) in [
            (2, Some(65_536), Some(131_072)),
            (8, Some(65_536), Some(262_144)),
            (8, Some(262_144), None),
            (8, Some(1_000_000), None),
            (1, None, Some(131_072)),
        ] {
            let expected: Vec<_> = expected
                .map(|max| (CONNTRACK_MAX, max))
                .into_iter()
                .collect();
            assert_eq!(tuning.settings(cores, max), expected, "{cores} {max:?}");
        }
    }

    #[test]
    fn hash_table_is_only_enlarged() {
        let tuning = ConntrackTuning {
            max_per_core: 32_768,
            min: 131_072,
            ..ConntrackTuning::default()
        };
        assert_eq!(buckets(tuning.max(8)), 65_536);
        assert_eq!(buckets(tuning.max(1)), 32_768);
        assert_eq!(buckets(ConntrackTuning::default().max(8)), 0);
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("hashsize");
        for (before, wanted, after) in [
            ("16384\n", 65_536, "65536"),
            ("65536\n", 65_536, "65536\n"),
            ("262144\n", 65_536, "262144\n"),
            ("16384\n", 0, "16384\n"),
        ] {
            fs::write(&path, before).unwrap();
            raise(&path, wanted).unwrap();
            assert_eq!(
                fs::read_to_string(&path).unwrap(),
                after,
                "{before:?} {wanted}"
            );
        }
        let missing = directory.path().join("nothing");
        assert!(raise(&missing, 1).is_err() && raise(&missing, 0).is_ok());
    }

    #[test]
    fn zero_leaves_a_setting_alone() {
        let nothing = ConntrackTuning {
            min: 131_072,
            ..ConntrackTuning::default()
        };
        assert_eq!(nothing.settings(64, Some(1)), []);
        let some = ConntrackTuning {
            tcp_close_wait: 3600,
            tcp_be_liberal: true,
            ..ConntrackTuning::default()
        };
        let expected = [
            ("net/netfilter/nf_conntrack_tcp_timeout_close_wait", 3600),
            ("net/netfilter/nf_conntrack_tcp_be_liberal", 1),
        ];
        assert_eq!(some.settings(64, Some(1)), expected);
    }
}
