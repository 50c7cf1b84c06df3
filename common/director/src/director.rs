// SPDX-License-Identifier: Apache-2.0

//! A checked `Director`.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use portolan_model::check::CheckDefaults;

use crate::document::{Binding, Role, SysctlMode};
use crate::object::Tags;

/// Bits of the firewall mark that the agent uses if no file says otherwise.
pub const DEFAULT_MARKS: u32 = 0x3fff_0000;

/// The settings of one host, with all defaults filled in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Director {
    /// The node's name.
    pub name: String,
    /// Its labels and annotations.
    pub tags: Tags,
    /// Settings of the virtual addresses that the host answers for.
    pub vips: Vips,
    /// The kernel's connection synchronisation.
    pub sync: Option<Sync>,
    /// Whether connections survive a change of director without synchronisation.
    pub stateless_failover: bool,
    /// The kernel's connection timeouts.
    pub timeouts: Timeouts,
    /// The kernel's settings.
    pub sysctls: Sysctls,
    /// Bits of the firewall mark that the agent may use; never 0.
    pub marks: u32,
    /// Routing table for the virtual addresses that are announced; 0 for none.
    pub announce_table: u32,
    /// Limits and defaults of health checks.
    pub checks: CheckLimits,
    /// Whether a director on standby checks its backends.
    pub checks_on_standby: bool,
    /// Absolute path of the directory whose files name backends to drain.
    pub maintenance_directory: Option<String>,
    /// Programs that checks and hooks may start.
    pub scripts: Scripts,
}

impl Director {
    /// A director with the defaults of everything but its name.
    #[must_use]
    pub fn new(name: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            tags: Tags::default(),
            vips: Vips::default(),
            sync: None,
            stateless_failover: false,
            timeouts: Timeouts::default(),
            sysctls: Sysctls::default(),
            marks: DEFAULT_MARKS,
            announce_table: 0,
            checks: CheckLimits::default(),
            checks_on_standby: true,
            maintenance_directory: None,
            scripts: Scripts::default(),
        }
    }
}

/// Settings of the virtual addresses that the host answers for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Vips {
    /// Binding that makes an address the host's own.
    pub binding: Binding,
    /// The interface to the clients, 1 to 15 bytes.
    pub interface: Option<String>,
    /// Condition that makes the director active.
    pub role: Role,
    /// Number of announcements when it becomes active.
    pub announcements: u32,
    /// Time between two announcements.
    pub announcement_interval: Duration,
}

impl Default for Vips {
    fn default() -> Self {
        Self {
            binding: Binding::Route,
            interface: None,
            role: Role::Always,
            announcements: 3,
            announcement_interval: Duration::from_millis(200),
        }
    }
}

/// The kernel's connection synchronisation (`ip_vs_sync.c`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sync {
    /// The interface to the other directors, 1 to 15 bytes.
    pub interface: String,
    /// Directors with equal ids share connections.
    pub id: u8,
    /// The multicast group.
    pub group: IpAddr,
    /// The UDP port of the first thread, never 0.
    pub port: u16,
    /// Time to live of the packets, never 0.
    pub ttl: u8,
    /// Largest message in bytes.
    pub max_length: u16,
    /// Number of threads, a power of 2 up to 64.
    pub ports: u8,
    /// A connection is sent at this inbound packet, and again each time the second number is
    /// through (`sync_threshold`).
    pub threshold: (u32, u32),
    /// Time after which an unchanged connection is sent again; zero for never.
    pub refresh_period: Duration,
    /// Number of times that an unchanged connection is sent within a refresh period, 0 to 3.
    pub retries: u8,
}

impl Sync {
    /// The kernel's defaults on an interface.
    #[must_use]
    pub fn new(interface: impl Into<String>) -> Self {
        Self {
            interface: interface.into(),
            id: 0,
            group: IpAddr::V4(Ipv4Addr::new(224, 0, 0, 81)),
            port: 8848,
            ttl: 1,
            max_length: 1472,
            ports: 1,
            threshold: (3, 50),
            refresh_period: Duration::ZERO,
            retries: 0,
        }
    }
}

/// The kernel's connection timeouts in whole seconds, at least 1; `None` leaves one alone.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Timeouts {
    /// Of established TCP connections.
    pub tcp: Option<Duration>,
    /// Of TCP connections after a FIN.
    pub tcp_fin: Option<Duration>,
    /// Of UDP.
    pub udp: Option<Duration>,
}

/// The kernel's settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Sysctls {
    /// Action of the agent for a setting that differs.
    pub mode: SysctlMode,
    /// Values by name, as `sysctl` spells it.
    pub values: BTreeMap<String, String>,
}

/// Limits and defaults of health checks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckLimits {
    /// Checks that run at a time, 1 to 65,535.
    pub concurrency: u32,
    /// Checks that start in a second, 1 to 1,000,000.
    pub per_second: u32,
    /// Programs that run at a time, 1 to 4,096.
    pub exec_concurrency: u32,
    /// Source and timers of checks that name none.
    pub defaults: CheckDefaults,
}

impl Default for CheckLimits {
    fn default() -> Self {
        Self {
            concurrency: 512,
            per_second: 2000,
            exec_concurrency: 32,
            defaults: CheckDefaults::default(),
        }
    }
}

/// Programs that checks and hooks may start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Scripts {
    /// The user that runs them; `None` for the agent's.
    pub user: Option<String>,
    /// Absolute paths of directories that programs must be in; any if empty.
    pub directories: Vec<String>,
}
