// SPDX-License-Identifier: Apache-2.0

//! The settings of a host from its `Director` and the flags.

use std::collections::BTreeMap;
use std::time::Duration;

use portolan_director::{Binding, DEFAULT_MARKS, Director, Sync, SysctlMode};
use portolan_model::ipvs::SyncDaemon;
use portolan_plan::VipBinding;
use portolan_plan::host::{self, Host, Timeouts};

use super::{Activity, activity};

/// Flags that win over fields of a `Director`.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostFlags {
    /// `--ipvs-tcp-timeout` and its like; 0 if absent.
    pub(crate) timeouts: Timeouts,
    /// `--vip-binding`.
    pub(crate) binding: Option<VipBinding>,
    /// `--short-circuit-mask`.
    pub(crate) marks: Option<u32>,
}

/// The settings that a director and the flags ask for.
pub(crate) fn host_of(director: &Director, flags: &HostFlags, commanded: Activity) -> Host {
    let vips = &director.vips;
    let of_field = match vips.binding {
        Binding::Route => Some(VipBinding::Route),
        Binding::Address => Some(VipBinding::Address),
        Binding::External => None,
    };
    Host {
        timeouts: flags.timeouts.or(&timeouts(director)),
        sysctl_mode: match director.sysctls.mode {
            SysctlMode::Set => host::SysctlMode::Set,
            SysctlMode::Check => host::SysctlMode::Check,
            SysctlMode::Ignore => host::SysctlMode::Ignore,
        },
        sysctls: sysctls(director),
        sync: director.sync.as_ref().map(daemon),
        binding: of_field.map(|of_field| flags.binding.unwrap_or(of_field)),
        interface: vips.interface.clone(),
        is_active: activity(vips.role, commanded) == Activity::Active,
        announcements: vips.announcements,
        announcement_interval: vips.announcement_interval,
        announce_table: director.announce_table,
        marks: flags.marks.or(marks(director)),
        is_stateless: director.stateless_failover,
    }
}

/// Fields of a director that flags hide.
pub(crate) fn overridden(director: &Director, flags: &HostFlags) -> Vec<String> {
    let asked = timeouts(director);
    let Timeouts { tcp, tcp_fin, udp } = flags.timeouts;
    let of_timeouts = [
        ("--ipvs-tcp-timeout", "tcp", tcp, asked.tcp),
        ("--ipvs-tcpfin-timeout", "tcpFin", tcp_fin, asked.tcp_fin),
        ("--ipvs-udp-timeout", "udp", udp, asked.udp),
    ];
    let name = &director.name;
    let mut hidden: Vec<_> = of_timeouts
        .into_iter()
        .filter(|(_, _, flag, field)| *flag != 0 && *field != 0)
        .map(|(flag, field, ..)| format!("Director {name}: spec.timeouts.{field}: {flag} wins"))
        .collect();
    let is_hidden = match (director.vips.binding, flags.binding) {
        (Binding::Address, Some(VipBinding::Route)) => true,
        // The default of the field says nothing.
        _ => false,
    };
    if is_hidden {
        hidden.push(format!(
            "Director {name}: spec.vips.binding: --vip-binding wins"
        ));
    }
    if let (Some(field), Some(flag)) = (marks(director), flags.marks)
        && field != flag
    {
        hidden.push(format!(
            "Director {name}: spec.marks: --short-circuit-mask wins"
        ));
    }
    hidden
}

/// Bits of marks that the field asks for. The default leaves the choice to the agent, beside other programs.
fn marks(director: &Director) -> Option<u32> {
    Some(director.marks).filter(|marks| *marks != DEFAULT_MARKS)
}

fn timeouts(director: &Director) -> Timeouts {
    let timeouts = &director.timeouts;
    Timeouts {
        tcp: timeouts.tcp.map_or(0, seconds),
        tcp_fin: timeouts.tcp_fin.map_or(0, seconds),
        udp: timeouts.udp.map_or(0, seconds),
    }
}

fn seconds(duration: Duration) -> u32 {
    u32::try_from(duration.as_secs()).unwrap_or(u32::MAX)
}

/// Settings by name: those of the file, and those that go with other fields.
fn sysctls(director: &Director) -> BTreeMap<String, String> {
    let mut values = director.sysctls.values.clone();
    let mut set = |name: &str, value: String| values.insert(format!("net.ipv4.vs.{name}"), value);
    if let Some(sync) = &director.sync {
        let (at, each) = sync.threshold;
        set("sync_threshold", format!("{at} {each}"));
        set(
            "sync_refresh_period",
            seconds(sync.refresh_period).to_string(),
        );
        set("sync_retries", sync.retries.to_string());
        set("sync_ports", sync.ports.to_string());
    }
    if director.stateless_failover {
        // A packet in the middle of a connection is scheduled as its first one was.
        set("sloppy_tcp", "1".to_owned());
        set("sloppy_sctp", "1".to_owned());
    }
    values
}

fn daemon(sync: &Sync) -> SyncDaemon {
    SyncDaemon {
        interface: sync.interface.clone(),
        id: sync.id,
        max_length: sync.max_length,
        group: sync.group,
        port: sync.port,
        ttl: sync.ttl,
    }
}
