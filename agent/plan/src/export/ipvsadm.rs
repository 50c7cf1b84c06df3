// SPDX-License-Identifier: Apache-2.0

//! Virtual servers as arguments of `ipvsadm`, whose `-R` reads what [`save`] writes.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};

use portolan_model::ipvs::{
    Flags, ForwardingMethod, GueChecksum, RealServerConfig, Tunnel, VirtualServerConfig,
    VirtualServerKey,
};
use portolan_model::{Families, Family, NodeTable, Protocol};

use super::Export;
use super::commands::{add_entry, create_set, restore_program, route};
use crate::{Config, KernelState, NodeFacts, desire};

/// All virtual servers of a state, one command a line, as `ipvsadm -Sn` prints them.
#[must_use]
pub fn save(state: &KernelState) -> String {
    save_families(state, Family::ALL.into_iter().collect(), false)
}

/// A state of some families: all virtual servers, one command a line, as `ipvsadm -Sn` prints them. After
/// them come, if it is to be full, commands for sets, routes and rules as comments: for people alone, since
/// `ipvsadm -R` ends with an error at a comment.
#[must_use]
pub fn save_families(state: &KernelState, families: Families, is_full: bool) -> String {
    let mut text = String::new();
    for (key, server) in &state.virtual_servers {
        if !families.contains(key.family()) {
            continue;
        }
        // Writing to a string never fails.
        let _ = writeln!(text, "{}", add_service(key, &server.config));
        for (address, config) in server.real_servers.iter() {
            let _ = writeln!(text, "{}", add_real_server(key, address, *config));
        }
    }
    if is_full {
        for line in others(state, families) {
            let _ = writeln!(text, "# {line}");
        }
    }
    text
}

/// The same of the state that a table leads to in an empty kernel: marks are the first free ones.
#[must_use]
pub fn ipvsadm(
    table: &NodeTable,
    facts: &NodeFacts,
    config: &Config,
    families: Families,
    is_full: bool,
) -> Export {
    let desired = desire(table, facts, config, &KernelState::default());
    Export {
        text: save_families(&desired.state, families, is_full),
        notes: desired.refused.iter().map(ToString::to_string).collect(),
    }
}

/// Commands for what virtual servers need besides.
fn others(state: &KernelState, families: Families) -> Vec<String> {
    let mut lines = Vec::new();
    let sets = state.sets.iter();
    for (name, set) in sets.filter(|(_, set)| families.contains(set.header.family)) {
        lines.push(create_set(name, &set.header));
        lines.extend(set.entries.iter().map(|entry| add_entry(name, entry)));
    }
    let routes = state.routes.iter();
    let routes = routes.filter(|(vip, _)| families.contains(Family::of(**vip)));
    lines.extend(routes.map(|(vip, source)| route("add", *vip, *source)));
    for family in families.iter() {
        let Some(rules) = state.rules.get(&family) else {
            continue;
        };
        lines.push(format!("{} --noflush", restore_program(family)));
        let jumps: Vec<_> = rules.jumps.iter().collect();
        let input = rules.restore_input(&jumps, &[]);
        lines.extend(input.lines().map(str::to_owned));
    }
    lines
}

pub(super) fn add_service(key: &VirtualServerKey, config: &VirtualServerConfig) -> String {
    format!("-A {}", service(key, config))
}

pub(super) fn edit_service(key: &VirtualServerKey, config: &VirtualServerConfig) -> String {
    format!("-E {}", service(key, config))
}

pub(super) fn delete_service(key: &VirtualServerKey) -> String {
    format!("-D {}", identity(key))
}

pub(super) fn add_real_server(
    key: &VirtualServerKey,
    address: SocketAddr,
    config: RealServerConfig,
) -> String {
    format!("-a {}", real_server(key, address, config))
}

pub(super) fn edit_real_server(
    key: &VirtualServerKey,
    address: SocketAddr,
    config: RealServerConfig,
) -> String {
    format!("-e {}", real_server(key, address, config))
}

pub(super) fn delete_real_server(key: &VirtualServerKey, address: SocketAddr) -> String {
    format!("-d {} -r {address}", identity(key))
}

/// The virtual server alone.
fn identity(key: &VirtualServerKey) -> String {
    match key {
        VirtualServerKey::Address {
            protocol,
            address,
            port,
        } => {
            let option = match protocol {
                Protocol::Tcp => "-t",
                Protocol::Udp => "-u",
                Protocol::Sctp => "--sctp-service",
            };
            format!("{option} {}", SocketAddr::new(*address, *port))
        }
        VirtualServerKey::Mark {
            family: Family::V4,
            mark,
        } => format!("-f {mark}"),
        VirtualServerKey::Mark {
            family: Family::V6,
            mark,
        } => format!("-f {mark} -6"),
    }
}

fn service(key: &VirtualServerKey, config: &VirtualServerConfig) -> String {
    let mut text = format!("{} -s {}", identity(key), config.scheduler);
    if let Some(seconds) = config.persistence {
        let _ = write!(text, " -p {seconds}");
    }
    if let Some(netmask) = config.netmask {
        let _ = match key.family() {
            Family::V4 => write!(text, " -M {}", Ipv4Addr::from_bits(netmask)),
            Family::V6 => write!(text, " -M {netmask}"),
        };
    }
    if let Some(engine) = &config.engine {
        let _ = write!(text, " --pe {engine}");
    }
    let Flags(flags) = config.flags;
    if flags & Flags::ONE_PACKET != 0 {
        text.push_str(" -o");
    }
    let names = [
        (Flags::SCHED1, "flag-1"),
        (Flags::SCHED2, "flag-2"),
        (Flags::SCHED3, "flag-3"),
    ];
    let set = names.into_iter().filter(|(flag, _)| flags & flag != 0);
    let set: Vec<_> = set.map(|(_, name)| name).collect();
    if !set.is_empty() {
        let _ = write!(text, " -b {}", set.join(","));
    }
    text
}

fn real_server(key: &VirtualServerKey, address: SocketAddr, config: RealServerConfig) -> String {
    let method = match config.forwarding {
        ForwardingMethod::Masquerade | ForwardingMethod::Local => "-m",
        ForwardingMethod::Tunnel(_) => "-i",
        ForwardingMethod::Direct => "-g",
    };
    let weight = config.weight;
    let mut text = format!("{} -r {address} {method} -w {weight}", identity(key));
    if let ForwardingMethod::Tunnel(tunnel) = config.forwarding {
        text.push_str(&encapsulation(tunnel));
    }
    for (option, threshold) in [
        ("-x", config.thresholds.upper),
        ("-y", config.thresholds.lower),
    ] {
        if threshold != 0 {
            let _ = write!(text, " {option} {threshold}");
        }
    }
    text
}

/// Options of a tunnel.
fn encapsulation(tunnel: Tunnel) -> String {
    match tunnel {
        Tunnel::Ipip => " --tun-type ipip".to_owned(),
        Tunnel::Gue { port, checksum } => {
            let checksum = match checksum {
                GueChecksum::None => " --tun-nocsum",
                GueChecksum::Full => " --tun-csum",
                GueChecksum::Remote => " --tun-remcsum",
            };
            format!(" --tun-type gue --tun-port {port}{checksum}")
        }
        Tunnel::Gre { checksum } => {
            let checksum = if checksum { "csum" } else { "nocsum" };
            format!(" --tun-type gre --tun-{checksum}")
        }
    }
}

#[cfg(test)]
mod tests;
