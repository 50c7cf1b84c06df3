// SPDX-License-Identifier: Apache-2.0

//! Settings of a director's host: what its `Director` object asks for besides virtual servers.
//!
//! They are few and read as a whole, so that they have a state, steps and a plan of their own beside
//! [`KernelState`](crate::KernelState).

mod lines;
mod plan;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use portolan_model::ipvs::{SyncDaemon, SyncRole};
use serde::{Deserialize, Serialize};

use plan::FORWARDING;
pub use plan::{SYNC_PORTS, plan_host, warnings};
pub use state::{HostState, HostStep, Neighbour, Timeouts};

use crate::VipBinding;

/// Settings that the host's `Director` asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Timeouts of connections; 0 leaves one as it is.
    pub timeouts: Timeouts,
    /// Action for settings that differ.
    pub sysctl_mode: SysctlMode,
    /// Values of settings by name, as `sysctl` spells it: `net.ipv4.vs.sloppy_tcp`.
    pub sysctls: BTreeMap<String, String>,
    /// The sync daemon, which runs in both roles.
    pub sync: Option<SyncDaemon>,
    /// Binding that makes virtual addresses of load balancers the host's own; `None` if somebody else does.
    pub binding: Option<VipBinding>,
    /// The interface to the clients: it answers for virtual addresses, and announces them.
    pub interface: Option<String>,
    /// Whether this director answers for its virtual addresses. One on standby is programmed all the same.
    pub is_active: bool,
    /// Number of announcements of a new virtual address.
    pub announcements: u32,
    /// Time between two of them.
    pub announcement_interval: Duration,
    /// Routing table for the virtual addresses that are served; 0 for none.
    pub announce_table: u32,
    /// Bits of packet marks that the agent may use; `None` for its choice.
    pub marks: Option<u32>,
    /// `true` if packets in the middle of a connection are scheduled as its first one was. Only the scheduler `mh`
    /// chooses the same backend for them.
    pub is_stateless: bool,
}

impl Default for Host {
    fn default() -> Self {
        Self {
            timeouts: Timeouts::default(),
            sysctl_mode: SysctlMode::default(),
            sysctls: BTreeMap::new(),
            sync: None,
            binding: Some(VipBinding::Route),
            interface: None,
            is_active: true,
            announcements: 3,
            announcement_interval: Duration::from_millis(200),
            announce_table: 0,
            marks: None,
            is_stateless: false,
        }
    }
}

/// Action for a kernel setting that differs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SysctlMode {
    /// It is written.
    #[default]
    Set,
    /// It is reported as an error.
    Check,
    /// Nothing.
    Ignore,
}

/// Virtual addresses of the load balancers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Vips {
    /// Those that the host answers for.
    pub bound: BTreeSet<IpAddr>,
    /// Those with a real server that takes new connections, and with their quorum.
    pub served: BTreeSet<IpAddr>,
    /// Checks by way of the service of backends that answer from an IPv4 virtual address: those reached directly or by
    /// a tunnel.
    pub answer: bool,
    /// A load balancer with an IPv6 address has a server behind masquerading: its answers come to this host, with
    /// source NAT too, and are forwarded to the clients.
    pub forwards: bool,
}

/// State of the kernel that a host asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HostDesired {
    /// Timeouts of connections; 0 leaves one as it is.
    pub timeouts: Timeouts,
    /// Action for settings that differ.
    pub sysctl_mode: SysctlMode,
    /// Values of settings.
    pub sysctls: BTreeMap<String, String>,
    /// Settings `rp_filter` that must not be strict (1): 0 and 2 are right.
    pub not_strict: BTreeSet<String>,
    /// Settings `forwarding` that must not be 0: of the interfaces of `neighbours`, and of all for answers of servers
    /// behind masquerading. They are told and never written: an interface that forwards no longer follows router
    /// advertisements.
    pub forwarding: BTreeSet<String>,
    /// The sync daemons.
    pub daemons: BTreeMap<SyncRole, SyncDaemon>,
    /// Addresses that an interface answers neighbour solicitations for.
    pub neighbours: BTreeSet<Neighbour>,
    /// Routes of the announced addresses: table and address.
    pub announced: BTreeSet<(u32, IpAddr)>,
}

impl HostDesired {
    /// The state for these virtual addresses.
    #[must_use]
    pub fn new(host: &Host, vips: &Vips) -> Self {
        let mut sysctls = host.sysctls.clone();
        let (mut neighbours, mut forwarding) = (BTreeSet::new(), BTreeSet::new());
        if let Some(interface) = host.interface.as_deref().filter(|_| host.answers()) {
            let of_v6 = vips.bound.iter().filter(|ip| ip.is_ipv6());
            neighbours.extend(of_v6.map(|ip| Neighbour {
                interface: interface.to_owned(),
                address: *ip,
            }));
            if !neighbours.is_empty() {
                sysctls.insert(of_interface_v6("proxy_ndp", interface), "1".to_owned());
                forwarding.insert(of_interface_v6("forwarding", interface));
            }
        }
        if vips.forwards {
            forwarding.insert(FORWARDING.to_owned());
        }
        // Another value of the file is compared as those of all settings are.
        let is_off = |value: &String| value.trim() == "0";
        forwarding.retain(|name| sysctls.get(name).is_none_or(is_off));
        let mut not_strict = BTreeSet::new();
        if vips.answer {
            // Otherwise the kernel drops packets from an address of its own. They arrive on the interface to the
            // backends, which need not be that to the clients.
            sysctls
                .entry(of_interface("accept_local", "all"))
                .or_insert_with(|| "1".to_owned());
            let interfaces = ["all"].into_iter().chain(host.interface.as_deref());
            let filters = interfaces.map(|name| of_interface("rp_filter", name));
            not_strict.extend(filters.filter(|name| !sysctls.contains_key(name)));
        }
        let announced = vips.served.iter().map(|ip| (host.announce_table, *ip));
        let is_announced = host.is_active && host.announce_table != 0;
        let daemons = host.sync.iter().flat_map(|daemon| {
            let of_role = |role| (role, daemon.clone());
            SyncRole::ALL.map(of_role)
        });
        Self {
            timeouts: host.timeouts,
            sysctl_mode: host.sysctl_mode,
            sysctls,
            not_strict,
            forwarding,
            daemons: daemons.collect(),
            neighbours,
            announced: announced.filter(|_| is_announced).collect(),
        }
    }
}

impl Host {
    /// Returns `true` if it asks for anything but what every host does.
    #[must_use]
    pub fn asks_for_anything(&self) -> bool {
        *self != Self::default()
    }

    /// Returns `true` if it answers for virtual addresses by itself.
    #[must_use]
    pub fn answers(&self) -> bool {
        self.is_active && self.binding.is_some()
    }
}

/// An IPv4 setting of an interface, or of all.
fn of_interface(setting: &str, interface: &str) -> String {
    let interface = interface.replace('.', "/");
    format!("net.ipv4.conf.{interface}.{setting}")
}

/// An IPv6 setting of an interface. In the notation of `sysctl` the dots of a name are slashes.
fn of_interface_v6(setting: &str, interface: &str) -> String {
    let interface = interface.replace('.', "/");
    format!("net.ipv6.conf.{interface}.{setting}")
}

/// State of the kernel that this agent, or an earlier run of it, has made, and that the kernel does not say of itself.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Owned {
    /// The sync daemons as they were asked for.
    pub daemons: BTreeMap<SyncRole, SyncDaemon>,
    /// Tables with routes of announced addresses.
    pub tables: BTreeSet<u32>,
    /// True if the virtual addresses are left to another director or program. Before the files are read, a
    /// table from disk then binds none of them.
    #[serde(default)]
    pub stands_by: bool,
}

impl Owned {
    /// Notes what will be ours when the desired state is programmed. Called before that: an agent that is
    /// killed in between still knows it.
    #[must_use]
    pub fn with(&self, desired: &HostDesired) -> Self {
        let mut owned = self.clone();
        let daemons = desired.daemons.iter();
        owned
            .daemons
            .extend(daemons.map(|(role, daemon)| (*role, daemon.clone())));
        let tables = desired.announced.iter();
        owned.tables.extend(tables.map(|(table, _)| *table));
        owned
    }

    /// Forgets what is no longer there.
    #[must_use]
    pub fn only(desired: &HostDesired) -> Self {
        Self::default().with(desired)
    }

    /// With whether a host leaves its virtual addresses to others.
    #[must_use]
    pub fn of(self, host: &Host) -> Self {
        Self {
            stands_by: !host.answers(),
            ..self
        }
    }
}
