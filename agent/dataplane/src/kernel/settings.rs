// SPDX-License-Identifier: Apache-2.0

//! Settings of the kernel below `/proc/sys` that a run writes, and the comparison with the present ones.
//!
//! A container without privileges reads `/proc/sys` and cannot write it. Settings that are right already
//! are therefore not written, and a wrong one ends a run only if Services cannot be forwarded with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use portolan_model::ipvs::{ForwardingMethod, RealServerConfig};
use portolan_plan::{RulesMode, Step};

use super::machine::{kernel_version, online_cpus};
use super::tuning::{ConntrackTuning, Tuning};
use crate::DataplaneError;

/// Number of buckets of conntrack's hash table. The kernel accepts it in the initial network namespace
/// only (`nf_conntrack_set_hashsize`).
const HASH_SIZE: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// Consequence of a wrong setting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Consequence {
    /// Services are not forwarded: a run ends.
    NoForwarding,
    /// Services are forwarded, and this holds.
    Limited(&'static str),
}

/// A setting that a run writes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    name: &'static str,
    value: u32,
    /// Acceptance of larger values.
    at_least: bool,
    consequence: Consequence,
}

/// A setting that is not as a run needs it.
#[derive(Debug)]
pub struct WrongSetting {
    /// The setting.
    pub setting: Setting,
    /// The present value; `None` if it cannot be read.
    pub found: Option<u32>,
    /// Reason why it cannot be read or written, if that was tried.
    pub error: Option<io::Error>,
}

impl std::fmt::Display for WrongSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Setting {
            name,
            value,
            at_least,
            ..
        } = self.setting;
        let least = if at_least { "at least " } else { "" };
        match self.found {
            Some(found) => write!(f, "{name} is {found}, and must be {least}{value}")?,
            None => write!(f, "{name} must be {least}{value}")?,
        }
        match &self.error {
            Some(error) => write!(f, " ({error})"),
            None => Ok(()),
        }
    }
}

impl Setting {
    const fn new(name: &'static str, value: u32, consequence: Consequence) -> Self {
        Self {
            name,
            value,
            at_least: false,
            consequence,
        }
    }

    const fn at_least(self) -> Self {
        Self {
            at_least: true,
            ..self
        }
    }

    /// Its name: a path below `/proc/sys`, or an absolute path.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Consequence of a wrong value.
    #[must_use]
    pub fn consequence(&self) -> Consequence {
        self.consequence
    }

    fn path(&self) -> PathBuf {
        // An absolute name replaces the directory.
        Path::new("/proc/sys").join(self.name)
    }

    /// Compares the setting with the present value.
    ///
    /// # Errors
    /// If it is wrong, or cannot be read.
    pub fn compare(&self) -> Result<(), WrongSetting> {
        self.compare_at(&self.path())
    }

    /// Opens the file of the setting for writing, and writes nothing.
    ///
    /// # Errors
    /// If it cannot.
    pub fn try_writing(&self) -> io::Result<()> {
        let opened = fs::OpenOptions::new().write(true).open(self.path());
        opened.map(drop)
    }

    /// Writes the setting unless it is right already.
    ///
    /// # Errors
    /// If it is wrong and cannot be written.
    pub fn write(&self) -> Result<(), WrongSetting> {
        self.write_at(&self.path())
    }

    fn compare_at(&self, path: &Path) -> Result<(), WrongSetting> {
        let wrong = |found, error| WrongSetting {
            setting: *self,
            found,
            error,
        };
        let text = fs::read_to_string(path).map_err(|error| wrong(None, Some(error)))?;
        let found: u32 = text
            .trim()
            .parse()
            .map_err(|error| wrong(None, Some(io::Error::other(error))))?;
        let is_right = found == self.value || self.at_least && found > self.value;
        is_right
            .then_some(())
            .ok_or_else(|| wrong(Some(found), None))
    }

    fn write_at(&self, path: &Path) -> Result<(), WrongSetting> {
        let Err(wrong) = self.compare_at(path) else {
            return Ok(());
        };
        if wrong.error.is_some() {
            return Err(wrong);
        }
        fs::write(path, self.value.to_string()).map_err(|error| WrongSetting {
            error: Some(error),
            ..wrong
        })
    }
}

/// The settings that a run with this tuning may write.
#[must_use]
pub fn settings(tuning: &Tuning) -> Vec<Setting> {
    let mut all = required(kernel_version());
    if tuning.strict_arp {
        all.extend(STRICT_ARP);
    }
    all.extend(of_conntrack(&tuning.conntrack, online_cpus()));
    all
}

/// The settings of [`settings`] that a run writes at its start.
///
/// With rules on demand conntrack comes with the first rules or the first masqueraded server: until then each packet to
/// a load balancer passes by it, which costs less. It stays afterwards, since connections may depend on it.
#[must_use]
pub fn settings_at_start(tuning: &Tuning, mode: RulesMode) -> Vec<Setting> {
    let mut all = settings(tuning);
    all.retain(|setting| mode == RulesMode::Always || *setting != CONNTRACK);
    all
}

/// Connections of IPVS in conntrack, which source NAT and rules about new connections need. Answers of masqueraded servers
/// are invalid otherwise for firewalls of the host; those of other servers do not come by.
pub const CONNTRACK: Setting = Setting::new("net/ipv4/vs/conntrack", 1, Consequence::NoForwarding);

/// Returns `true` if a step may add a masqueraded server.
pub(super) fn masquerades(step: &Step) -> bool {
    let is_nat = |config: &RealServerConfig| config.forwarding == ForwardingMethod::Masquerade;
    match step {
        Step::FillVirtualServer { real_servers, .. } => real_servers.values().any(is_nat),
        Step::AddRealServer { config, .. } | Step::SetRealServer { config, .. } => is_nat(config),
        _ => false,
    }
}

/// Settings of every run (of the node's network namespace).
///
/// * `conntrack`: without it IPVS connections bypass conntrack and cannot be masqueraded.
/// * `expire_nodest_conn`: connections of a deleted real server are reset, not ignored.
/// * `expire_quiescent_template`: ClientIP affinity releases draining real servers.
/// * `ip_forward`: the node routes to its pods.
fn required(version: Option<(u32, u32)>) -> Vec<Setting> {
    use Consequence::{Limited, NoForwarding};
    let hangs = "connections to deleted endpoints hang until their clients give up";
    let clings = "ClientIP affinity leads clients to endpoints that drain";
    let delays = "connections from a port that a client used before take a second to open";
    let mut all = vec![
        CONNTRACK,
        Setting::new("net/ipv4/vs/expire_nodest_conn", 1, Limited(hangs)),
        Setting::new("net/ipv4/vs/expire_quiescent_template", 1, Limited(clings)),
        Setting::new("net/ipv4/ip_forward", 1, NoForwarding),
    ];
    let reuse = version.and_then(conn_reuse_mode);
    all.extend(reuse.map(|value| Setting::new(CONN_REUSE_MODE, value, Limited(delays))));
    all
}

/// Treatment of a packet that opens a connection from a client's address and port in use before.
const CONN_REUSE_MODE: &str = "net/ipv4/vs/conn_reuse_mode";

/// Value of `conn_reuse_mode` for a kernel version; `None` leaves it unchanged.
///
/// Up to Linux 5.8 the default, 1, drops the first packet of a connection that reuses a client's port, so
/// the connection takes a second to open (kubernetes/kubernetes#93297). Linux 5.9 fixes that
/// (f0a5e4d7a594, "ipvs: allow connection reuse for unconfirmed conntrack"), and 0 would do harm there:
/// such connections would go to real servers with weight 0. Linux before 4.1 has no such setting.
fn conn_reuse_mode(version: (u32, u32)) -> Option<u32> {
    ((4, 1)..(5, 9)).contains(&version).then_some(0)
}

const NOT_STRICT: Consequence =
    Consequence::Limited("the node answers ARP requests for addresses of other interfaces");

/// Strict ARP, so that others can announce VIPs: reply only for addresses of the receiving interface, and
/// announce only those.
const STRICT_ARP: [Setting; 2] = [
    Setting::new("net/ipv4/conf/all/arp_ignore", 1, NOT_STRICT),
    Setting::new("net/ipv4/conf/all/arp_announce", 2, NOT_STRICT),
];

const UNTUNED: Consequence = Consequence::Limited("conntrack is not tuned as the flags say");

/// Conntrack's settings on a machine with `cpus` processors. The maximum of entries is only ever raised:
/// an operator may have set a higher one.
fn of_conntrack(tuning: &ConntrackTuning, cpus: u32) -> Vec<Setting> {
    let max = tuning.max(cpus);
    let exact = [
        (
            "net/netfilter/nf_conntrack_tcp_timeout_established",
            tuning.tcp_established,
        ),
        (
            "net/netfilter/nf_conntrack_tcp_timeout_close_wait",
            tuning.tcp_close_wait,
        ),
        (
            "net/netfilter/nf_conntrack_tcp_be_liberal",
            u32::from(tuning.tcp_be_liberal),
        ),
        ("net/netfilter/nf_conntrack_udp_timeout", tuning.udp),
        (
            "net/netfilter/nf_conntrack_udp_timeout_stream",
            tuning.udp_stream,
        ),
    ];
    let exact = exact.map(|(name, value)| Setting::new(name, value, UNTUNED));
    let full = Consequence::Limited("new connections are dropped when conntrack is full");
    let slow = Consequence::Limited("lookups of conntrack are slow with many connections");
    let least = [
        Setting::new("net/netfilter/nf_conntrack_max", max, full).at_least(),
        // Four entries a bucket on average, as in kube-proxy.
        Setting::new(HASH_SIZE, max / 4, slow).at_least(),
    ];
    let all = least.into_iter().chain(exact);
    all.filter(|setting| setting.value != 0).collect()
}

/// Writes the settings that are wrong. Logs those that stay wrong while Services are forwarded.
///
/// # Errors
/// With all settings that stay wrong and without which Services are not forwarded.
pub(super) fn write(all: &[Setting]) -> Result<(), DataplaneError> {
    let mut vital = Vec::new();
    for wrong in all.iter().filter_map(|setting| setting.write().err()) {
        match wrong.setting.consequence {
            Consequence::NoForwarding => vital.push(wrong),
            Consequence::Limited(consequence) => {
                tracing::warn!(consequence, "kernel setting {wrong}: not written");
            }
        }
    }
    if vital.is_empty() {
        return Ok(());
    }
    let wrong = vital.iter().map(ToString::to_string);
    let wrong = wrong.collect::<Vec<_>>().join("; ");
    Err(DataplaneError::Settings { wrong })
}

#[cfg(test)]
mod tests;
