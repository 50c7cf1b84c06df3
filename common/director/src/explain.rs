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
        Forwarding::Tunnel(tunnel) => tunnelled(backend, tunnel),
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

/// The device that takes the outer packet off, by the family of the outer packet.
fn tunnelled(backend: &Backend, tunnel: Tunnel) -> Vec<String> {
    let family = Family::of(backend.address);
    let address = backend.address;
    let (device, mut lines) = match (tunnel, family) {
        (Tunnel::Ipip, Family::V4) => (
            "tunl0",
            vec![
                String::from("modprobe ipip"),
                String::from("ip link set tunl0 up"),
            ],
        ),
        (Tunnel::Ipip, Family::V6) => (
            "ptl0",
            vec![
                format!("ip link add ptl0 type ip6tnl mode any local {address} remote ::"),
                String::from("ip link set ptl0 up"),
            ],
        ),
        (Tunnel::Gue { port, .. }, family) => {
            let (module, device) = match family {
                Family::V4 => ("fou", "tunl0"),
                Family::V6 => ("fou6", "ip6tnl0"),
            };
            let modules = if family == Family::V4 {
                "ipip"
            } else {
                "ip6_tunnel"
            };
            let lines = vec![
                format!("modprobe {module}"),
                format!("modprobe {modules}"),
                format!("ip {} fou add port {port} gue", option(family)),
                format!("ip link set {device} up"),
            ];
            (device, lines)
        }
        (Tunnel::Gre { .. }, Family::V4) => (
            "ptl0",
            vec![
                format!("ip link add ptl0 type gre local {address} remote any"),
                String::from("ip link set ptl0 up"),
            ],
        ),
        (Tunnel::Gre { .. }, Family::V6) => (
            "ptl0",
            vec![
                format!("ip link add ptl0 type ip6gre local {address} remote any"),
                String::from("ip link set ptl0 up"),
            ],
        ),
    };
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
