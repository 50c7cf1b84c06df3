// SPDX-License-Identifier: Apache-2.0

//! Steps from the observed to the desired state of a host.

use std::collections::BTreeMap;

use portolan_model::ipvs::{SyncDaemon, SyncRole};

use super::{HostDesired, HostState, HostStep, Owned, SysctlMode, Timeouts};

/// Number of threads of a sync daemon. A running daemon keeps its own.
pub const SYNC_PORTS: &str = "net.ipv4.vs.sync_ports";
/// Forwarding of IPv6 by all interfaces. Writing it writes the setting of each.
pub(super) const FORWARDING: &str = "net.ipv6.conf.all.forwarding";
/// Consequence of an interface that does not forward.
const SILENT: &str = "neighbours get no answers for virtual addresses";
/// Consequence of a host that does not forward.
const UNANSWERED: &str = "IPv6 clients get no answers from servers behind Masquerade";

/// Returns the ordered steps from `observed` to `desired`, and what is wrong and is not to be changed.
///
/// Removals come first, then settings, then additions: a daemon that changes is stopped before it is started
/// again, with the settings in force. A daemon that is not desired is stopped only if it is the one in `owned`.
#[must_use]
pub fn plan_host(
    desired: &HostDesired,
    observed: &HostState,
    owned: &Owned,
) -> (Vec<HostStep>, Vec<String>) {
    let (settings, problems) = sysctls(desired, observed);
    let is_threads =
        |step: &HostStep| matches!(step, HostStep::SetSysctl { name, .. } if name == SYNC_PORTS);
    let restart = settings.iter().any(is_threads);
    let mut steps: Vec<HostStep> = stopped(desired, observed, owned, restart).collect();
    let gone = observed.neighbours.difference(&desired.neighbours);
    steps.extend(gone.cloned().map(HostStep::DelNeighbour));
    let gone = observed.announced.difference(&desired.announced);
    steps.extend(gone.map(|(table, vip)| HostStep::Withdraw {
        table: *table,
        vip: *vip,
    }));
    let timeouts = desired.timeouts.missing_from(&observed.timeouts);
    if timeouts != Timeouts::default() {
        steps.push(HostStep::SetTimeouts(timeouts));
    }
    steps.extend(settings);
    let started = desired.daemons.iter();
    let started = started.filter(|(role, daemon)| restart || !runs(observed, **role, daemon));
    steps.extend(started.map(|(role, daemon)| HostStep::AddDaemon {
        role: *role,
        daemon: daemon.clone(),
    }));
    let new = desired.neighbours.difference(&observed.neighbours);
    steps.extend(new.cloned().map(HostStep::AddNeighbour));
    let new = desired.announced.difference(&observed.announced);
    steps.extend(new.map(|(table, vip)| HostStep::Announce {
        table: *table,
        vip: *vip,
    }));
    (steps, problems)
}

fn runs(observed: &HostState, role: SyncRole, daemon: &SyncDaemon) -> bool {
    let there = observed.daemons.get(&role);
    there.is_some_and(|there| daemon.is_in_force(role, there))
}

/// Daemons to be stopped: those that differ, and those of ours that are not desired.
fn stopped(
    desired: &HostDesired,
    observed: &HostState,
    owned: &Owned,
    restart: bool,
) -> impl Iterator<Item = HostStep> {
    let is_stopped = move |role: &SyncRole| match desired.daemons.get(role) {
        Some(daemon) => restart || !runs(observed, *role, daemon),
        None => {
            let ours = owned.daemons.get(role);
            ours.is_some_and(|ours| runs(observed, *role, ours))
        }
    };
    let stopped = observed.daemons.keys().copied().filter(is_stopped);
    stopped
        .map(|role| HostStep::DelDaemon { role })
        .collect::<Vec<_>>()
        .into_iter()
}

/// Settings to be written, and those that are wrong otherwise.
fn sysctls(desired: &HostDesired, observed: &HostState) -> (Vec<HostStep>, Vec<String>) {
    let (mut steps, mut problems) = (Vec::new(), Vec::new());
    if desired.sysctl_mode == SysctlMode::Ignore {
        return (steps, problems);
    }
    let loose = loosened(desired, observed);
    for (name, value) in wrong(&desired.sysctls, observed).chain(wrong(&loose, observed)) {
        match (observed.sysctls.get(name), desired.sysctl_mode) {
            (Some(Ok(_)), SysctlMode::Set) => steps.push(HostStep::SetSysctl {
                name: name.clone(),
                value: value.clone(),
            }),
            (Some(Ok(found)), _) => {
                problems.push(format!("{name} is {found}: expected {value}"));
            }
            (Some(Err(error)), _) => {
                problems.push(format!("{name}: {error}: expected {value}"));
            }
            (None, _) => problems.push(format!("{name} was not read: expected {value}")),
        }
    }
    (steps, problems)
}

/// Warnings about a host with these steps of [`plan_host`]: interfaces that are to answer neighbour solicitations and
/// do not forward, and a host that is to forward answers of masqueraded servers and does not. They are no errors. The
/// kernel (`ndisc_recv_ns`) answers for a proxy neighbour only where the interface forwards, and drops the answers
/// (`ip6_forward`) unless all do. The agent never writes the setting: an error would stay for ever.
#[must_use]
pub fn warnings(desired: &HostDesired, observed: &HostState, steps: &[HostStep]) -> Vec<String> {
    let is_of_all =
        |step: &HostStep| matches!(step, HostStep::SetSysctl { name, .. } if name == FORWARDING);
    if desired.sysctl_mode == SysctlMode::Ignore || steps.iter().any(is_of_all) {
        return Vec::new();
    }
    let is_off = |name: &&String| match observed.sysctls.get(*name) {
        Some(Ok(value)) => value == "0",
        // One of an interface that is missing cannot be read, which `proxy_ndp` tells.
        _ => false,
    };
    let consequence = |name: &String| match name == FORWARDING {
        true => UNANSWERED,
        false => SILENT,
    };
    let off = desired.forwarding.iter().filter(is_off);
    off.map(|name| format!("{name} is 0: expected 1, or {}", consequence(name)))
        .collect()
}

/// The settings that are strict and must not be, with the value that is right whatever other interfaces have.
fn loosened(desired: &HostDesired, observed: &HostState) -> BTreeMap<String, String> {
    let is_strict = |name: &&String| match observed.sysctls.get(*name) {
        Some(Ok(value)) => value == "1",
        // Told like that of any other setting.
        _ => true,
    };
    let strict = desired.not_strict.iter().filter(is_strict);
    strict.map(|name| (name.clone(), "2".to_owned())).collect()
}

fn wrong<'a>(
    desired: &'a BTreeMap<String, String>,
    observed: &'a HostState,
) -> impl Iterator<Item = (&'a String, &'a String)> {
    let is_right = |name: &String, value: &String| {
        let found = observed.sysctls.get(name);
        found.is_some_and(|found| found.as_ref() == Ok(&plain(value)))
    };
    desired
        .iter()
        .filter(move |(name, value)| !is_right(name, value))
}

/// A value with one space between its fields, as the kernel's are read.
fn plain(value: &str) -> String {
    value.split_whitespace().collect::<Vec<_>>().join(" ")
}
