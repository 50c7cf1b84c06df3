// SPDX-License-Identifier: Apache-2.0

//! The way of one packet through rules, sets and virtual servers: an interpreter of our own rules.
//!
//! It runs on any [`KernelState`], the desired or an observed one, and looks only at what the packet
//! would. Rules are those of [`rules`](crate::rules); it knows no others.

mod reason;
mod rule;
mod walk;

use std::net::{IpAddr, SocketAddr};

use portolan_model::Family;
use portolan_model::ipvs::{ForwardingMethod, VirtualServer, VirtualServerKey};
use portolan_model::trace::{Outcome, Packet, Server, Way};

pub use reason::{reason, record_in_words, record_of};
use walk::{End, Walk};

use crate::{KernelState, NodeFacts, Rules};

/// The way of a packet, and the virtual server that it reaches.
pub type Traced = (Way, Option<VirtualServerKey>);

/// The way of a packet through a state of the kernel with these rules, which are the desired ones even if
/// the state's are not certain.
#[must_use]
pub fn trace(state: &KernelState, rules: &Rules, facts: &NodeFacts, packet: &Packet) -> Traced {
    let mut walk = Walk::new(state, rules, facts, packet);
    let (outcome, key) = match arrive(&mut walk) {
        Some(outcome) => (outcome, None),
        None => serve(&mut walk),
    };
    let steps = walk.steps;
    (Way { steps, outcome }, key)
}

/// The hooks before IPVS; the packet's end, if it ends there.
fn arrive(walk: &mut Walk<'_>) -> Option<Outcome> {
    let hook = if walk.is_outgoing() {
        "OUTPUT"
    } else {
        "PREROUTING"
    };
    for table in ["mangle", "nat"] {
        if let Some(outcome) = ended(walk.hook(table, hook)) {
            return Some(outcome);
        }
    }
    if walk.is_outgoing() {
        return None;
    }
    let address = walk.destination.ip();
    if !walk.look_for_route() {
        let why = format!("{address} is neither an address of the node nor bound to it");
        return Some(Outcome::Passes { why });
    }
    ended(walk.hook("filter", "INPUT"))
}

fn ended(end: End) -> Option<Outcome> {
    match end {
        End::Drop(by) => Some(Outcome::Dropped { by }),
        End::Reject(by) => Some(Outcome::Refused { by }),
        End::Next | End::Accept | End::Masquerade(_) => None,
    }
}

/// IPVS, and the hook after it.
fn serve(walk: &mut Walk<'_>) -> (Outcome, Option<VirtualServerKey>) {
    let Some((key, server)) = find(walk) else {
        let why = "no virtual server has it".to_owned();
        return (Outcome::Passes { why }, None);
    };
    let by = format!("virtual server {key} ({})", server.config.scheduler);
    if server
        .real_servers
        .values()
        .all(|config| config.weight == 0)
    {
        return (Outcome::Refused { by }, Some(key));
    }
    let servers = server.real_servers.iter().map(|(address, config)| {
        let (masquerade, source_by) = match config.forwarding {
            ForwardingMethod::Masquerade => masquerade(walk, translated(address, walk)),
            _ => (
                false,
                "the forwarding method, which keeps the packet".to_owned(),
            ),
        };
        Server {
            address,
            weight: config.weight,
            masquerade,
            source_by,
            connections: None,
            why: String::new(),
        }
    });
    let servers = servers.collect();
    (Outcome::Forwarded { by, servers }, Some(key))
}

/// The virtual server of the packet: that of its mark, of its address and port, or of all ports.
fn find<'a>(walk: &mut Walk<'a>) -> Option<(VirtualServerKey, &'a VirtualServer)> {
    let destination = walk.destination;
    let (family, mark) = (Family::of(destination.ip()), walk.mark);
    let by_mark = (mark != 0).then_some(VirtualServerKey::Mark { family, mark });
    let by_port = |port| VirtualServerKey::new(walk.protocol, destination.ip(), port);
    let keys = [by_mark, Some(by_port(destination.port())), Some(by_port(0))];
    let found = keys
        .into_iter()
        .flatten()
        .find_map(|key| Some((key, walk.state.virtual_servers.get(&key)?)));
    let (place, what, why) = match found {
        None => (
            by_port(destination.port()),
            None,
            "nobody serves the address",
        ),
        Some((key, server)) => {
            let affinity = server
                .config
                .persistence
                .map(|s| format!(", clients stay for {s} s"));
            let what = format!(
                "{}{}, {} real servers for new connections",
                server.config.scheduler,
                affinity.unwrap_or_default(),
                server
                    .real_servers
                    .values()
                    .filter(|c| c.weight > 0)
                    .count()
            );
            let why = match key {
                VirtualServerKey::Mark { .. } => "the packet has its mark",
                VirtualServerKey::Address { .. } => "it has the address and port",
            };
            (key, Some(what), why)
        }
    };
    walk.look(format!("virtual server {place}"), what, why);
    found
}

/// The address that a packet has behind IPVS; a real server of port 0 keeps the port.
fn translated(server: SocketAddr, walk: &Walk<'_>) -> SocketAddr {
    match server.port() {
        0 => SocketAddr::new(server.ip(), walk.destination.port()),
        _ => server,
    }
}

/// Whether the packet is masqueraded on its way to a real server, and by what.
fn masquerade(walk: &mut Walk<'_>, server: SocketAddr) -> (bool, String) {
    let mut onward = walk.onward(server);
    onward.hook("mangle", "POSTROUTING");
    let end = onward.hook("nat", "POSTROUTING");
    walk.steps.append(&mut onward.steps);
    match end {
        End::Masquerade(by) => (true, by),
        _ => (false, "no rule masquerades it".to_owned()),
    }
}

/// Returns `true` if an address is one that packets to the node may have.
fn is_local(state: &KernelState, facts: &NodeFacts, address: IpAddr) -> bool {
    facts.addresses.contains(&address) || state.routes.contains_key(&address)
}

#[cfg(test)]
mod tests;
