// SPDX-License-Identifier: Apache-2.0

//! Steps of a host as lines of a plan.

use std::net::IpAddr;

use portolan_model::ipvs::{SyncDaemon, SyncRole};

use super::{HostState, HostStep, Neighbour, Timeouts};
use crate::export::{Action, ObjectKind, StepLine};

impl HostStep {
    /// The step as a line, with what was there before.
    #[must_use]
    pub fn line(&self, observed: &HostState) -> StepLine {
        use Action::{Add, Change, Delete};
        match self {
            Self::SetTimeouts(timeouts) => {
                let set = timeouts.or(&observed.timeouts);
                let line = StepLine::new(Change, ObjectKind::Setting, set_timeouts(&set));
                line.after(set_timeouts(&observed.timeouts))
            }
            Self::SetSysctl { name, value } => {
                let command = format!("sysctl -w {name}={}", quoted(value));
                let line = StepLine::new(Change, ObjectKind::Setting, command);
                match observed.sysctls.get(name) {
                    Some(Ok(before)) => line.after(before.clone()),
                    _ => line,
                }
            }
            Self::AddDaemon { role, daemon } => {
                StepLine::new(Add, ObjectKind::SyncDaemon, start_daemon(*role, daemon))
            }
            Self::DelDaemon { role } => {
                let command = format!("ipvsadm --stop-daemon {role}");
                let line = StepLine::new(Delete, ObjectKind::SyncDaemon, command);
                match observed.daemons.get(role) {
                    Some(daemon) => line.after(start_daemon(*role, daemon)),
                    None => line,
                }
            }
            Self::AddNeighbour(neighbour) => {
                StepLine::new(Add, ObjectKind::Neighbour, proxy("add", neighbour))
            }
            Self::DelNeighbour(neighbour) => {
                StepLine::new(Delete, ObjectKind::Neighbour, proxy("del", neighbour))
            }
            Self::Announce { table, vip } => {
                StepLine::new(Add, ObjectKind::Route, route("add", *table, *vip))
            }
            Self::Withdraw { table, vip } => {
                StepLine::new(Delete, ObjectKind::Route, route("del", *table, *vip))
            }
        }
    }
}

fn set_timeouts(timeouts: &Timeouts) -> String {
    let Timeouts { tcp, tcp_fin, udp } = timeouts;
    format!("ipvsadm --set {tcp} {tcp_fin} {udp}")
}

fn quoted(value: &str) -> String {
    match value.contains(char::is_whitespace) {
        true => format!("\"{value}\""),
        false => value.to_owned(),
    }
}

fn start_daemon(role: SyncRole, daemon: &SyncDaemon) -> String {
    let SyncDaemon {
        interface,
        id,
        max_length,
        group,
        port,
        ttl,
    } = daemon;
    format!(
        "ipvsadm --start-daemon {role} --mcast-interface {interface} --syncid {id} --sync-maxlen \
         {max_length} --mcast-group {group} --mcast-port {port} --mcast-ttl {ttl}"
    )
}

fn proxy(verb: &str, neighbour: &Neighbour) -> String {
    let Neighbour { interface, address } = neighbour;
    format!("ip neighbour {verb} proxy {address} dev {interface} proto 99")
}

fn route(verb: &str, table: u32, vip: IpAddr) -> String {
    let length = if vip.is_ipv4() { 32 } else { 128 };
    format!("ip route {verb} {vip}/{length} dev lo table {table} proto 99")
}
