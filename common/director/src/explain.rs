// SPDX-License-Identifier: Apache-2.0

//! Preparation of real servers: the commands that `config explain` prints.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::net::IpAddr;

use portolan_model::Family;

use crate::balancer::{Backend, LoadBalancer};
use crate::forwarding::{Forwarding, Tunnel};

/// The virtual addresses of a family that a server answers for.
fn virtual_addresses(object: &LoadBalancer, backend: &Backend) -> BTreeSet<IpAddr> {
    let addresses = object
        .frontends
        .iter()
        .flat_map(|frontend| frontend.packets.addresses());
    addresses
        .copied()
        .filter(|address| object.serves(backend.address, backend.forwarding, Family::of(*address)))
        .collect()
}

/// The commands for all real servers of an object, grouped by what they need.
#[must_use]
pub fn explain(object: &LoadBalancer) -> String {
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for backend in &object.backends {
        let commands = commands(object, backend);
        match groups.iter_mut().find(|(known, _)| *known == commands) {
            Some((_, names)) => names.push(&backend.name),
            None => groups.push((commands, vec![&backend.name])),
        }
    }
    let mut text = String::new();
    for (commands, names) in groups {
        let _ = writeln!(text, "# {}: {}", object.name, names.join(", "));
        text.push_str(&commands);
    }
    text
}

fn commands(object: &LoadBalancer, backend: &Backend) -> String {
    let mut lines = match backend.forwarding {
        Forwarding::Masquerade if object.source_nat => {
            vec![String::from("# nothing: the director is its client")]
        }
        Forwarding::Masquerade => masqueraded(backend),
        Forwarding::Direct => Vec::new(),
        // Frontends of both families have backends of both.
        Forwarding::Tunnel(tunnel) => {
            let address = virtual_addresses(object, backend).pop_first();
            tunnelled(backend, tunnel, address.map(Family::of))
        }
    };
    if backend.forwarding != Forwarding::Masquerade {
        lines.extend(on_loopback(&virtual_addresses(object, backend)));
    }
    lines.join("\n") + "\n"
}

fn masqueraded(backend: &Backend) -> Vec<String> {
    let family = option(Family::of(backend.address));
    vec![
        String::from("# its default route leads to the director, or the object has sourceNat"),
        format!("ip {family} route replace default via DIRECTOR"),
    ]
}

/// The packet comes with the virtual address, which the server must have but not announce.
fn on_loopback(addresses: &BTreeSet<IpAddr>) -> Vec<String> {
    let mut lines = Vec::new();
    if addresses.iter().any(IpAddr::is_ipv4) {
        for setting in ["arp_ignore=1", "arp_announce=2"] {
            lines.push(format!("sysctl -w net.ipv4.conf.all.{setting}"));
        }
    }
    if addresses.is_empty() {
        lines.push(String::from(
            "# the addresses that the mark stands for, each on lo",
        ));
    }
    for address in addresses {
        let family = Family::of(*address);
        // Duplicate detection would find the director's own address.
        let (length, flag) = match family {
            Family::V4 => (32, ""),
            Family::V6 => (128, " nodad"),
        };
        let command = format!(
            "ip {} address add {address}/{length} dev lo{flag}",
            option(family)
        );
        lines.push(command);
    }
    lines
}

/// The device that takes the outer packet off, by the families of both packets. The inner one is of the outer one's
/// family if it is not known.
fn tunnelled(backend: &Backend, tunnel: Tunnel, inner: Option<Family>) -> Vec<String> {
    let address = backend.address;
    let outer = Family::of(address);
    let is_mixed = inner.is_some_and(|inner| inner != outer);
    let mut lines = Vec::new();
    let is_gue = matches!(tunnel, Tunnel::Gue { .. });
    if is_gue {
        lines.push(match outer {
            Family::V4 => String::from("modprobe fou"),
            Family::V6 => String::from("modprobe fou6"),
        });
    }
    let device = match (tunnel, outer) {
        (Tunnel::Gre { checksum }, _) => {
            let kind = match outer {
                Family::V4 => "gre",
                Family::V6 => "ip6gre",
            };
            // A device takes packets with a checksum only, or without one only.
            let checksum = if checksum { " icsum" } else { "" };
            lines.push(format!(
                "ip link add ptl0 type {kind} local {address} remote any{checksum}"
            ));
            "ptl0"
        }
        (_, Family::V4) if is_mixed => {
            lines.push(String::from("modprobe sit"));
            "sit0"
        }
        (_, Family::V4) => {
            lines.push(String::from("modprobe ipip"));
            "tunl0"
        }
        // It takes IPv6 only.
        (_, Family::V6) if is_gue && !is_mixed => {
            lines.push(String::from("modprobe ip6_tunnel"));
            "ip6tnl0"
        }
        (_, Family::V6) => {
            lines.push(format!(
                "ip link add ptl0 type ip6tnl mode any local {address} remote ::"
            ));
            "ptl0"
        }
    };
    if let Tunnel::Gue { port, .. } = tunnel {
        lines.push(format!("ip {} fou add port {port} gue", option(outer)));
    }
    lines.push(format!("ip link set {device} up"));
    for interface in [device, "all"] {
        lines.push(format!("sysctl -w net.ipv4.conf.{interface}.rp_filter=0"));
    }
    lines
}

fn option(family: Family) -> &'static str {
    match family {
        Family::V4 => "-4",
        Family::V6 => "-6",
    }
}
