// SPDX-License-Identifier: Apache-2.0

//! A packet on its way through chains.

use std::net::{IpAddr, SocketAddr};

use portolan_model::Protocol;
use portolan_model::ipset::{Set, SetEntry, SetKind};
use portolan_model::trace::{Origin, Packet, Step};

use super::is_local;
use super::rule::{Match, Rule, Side, Target};
use crate::{KernelState, NodeFacts, Rules};

/// Deepest nesting of chains; ours have three.
const DEEPEST: usize = 8;

/// The end of a chain for a packet. Texts name the rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    /// The next chain follows.
    Next,
    Accept,
    Drop(String),
    Reject(String),
    Masquerade(String),
}

/// A packet, and what it has met.
#[derive(Debug, Clone)]
pub(super) struct Walk<'a> {
    pub(super) state: &'a KernelState,
    rules: &'a Rules,
    facts: &'a NodeFacts,
    origin: Origin,
    source: IpAddr,
    /// The present destination.
    pub(super) destination: SocketAddr,
    pub(super) protocol: Protocol,
    /// The packet's mark.
    pub(super) mark: u32,
    connection_mark: u32,
    pub(super) steps: Vec<Step>,
}

impl<'a> Walk<'a> {
    pub(super) fn new(
        state: &'a KernelState,
        rules: &'a Rules,
        facts: &'a NodeFacts,
        packet: &Packet,
    ) -> Self {
        Self {
            state,
            rules,
            facts,
            origin: packet.origin,
            source: packet.source,
            destination: packet.destination,
            protocol: packet.protocol,
            mark: 0,
            connection_mark: 0,
            steps: Vec::new(),
        }
    }

    /// The packet as it goes on to a real server.
    pub(super) fn onward(&self, server: SocketAddr) -> Self {
        Self {
            destination: server,
            steps: Vec::new(),
            ..self.clone()
        }
    }

    pub(super) fn is_outgoing(&self) -> bool {
        self.origin == Origin::Node
    }

    pub(super) fn look(&mut self, place: String, found: Option<String>, why: &str) {
        // A set may be matched several times with the same key.
        if self.steps.iter().all(|step| step.place != place) {
            let why = why.to_owned();
            self.steps.push(Step { place, found, why });
        }
    }

    /// Returns `true` if the destination is the node's own, by an address or by our route.
    pub(super) fn look_for_route(&mut self) -> bool {
        let address = self.destination.ip();
        if self.facts.addresses.contains(&address) {
            let found = Some("an address of the node".to_owned());
            self.look(
                format!("address {address}"),
                found,
                "the packet is for the node",
            );
            return true;
        }
        let route = self.state.routes.get(&address);
        let found = route.map(|source| match source {
            Some(source) => format!("local, source {source}"),
            None => "local".to_owned(),
        });
        let is_found = found.is_some();
        self.look(
            format!("route {address}"),
            found,
            "the packet is for the node",
        );
        is_found
    }

    /// Our chains in a chain of the kernel.
    pub(super) fn hook(&mut self, table: &str, hook: &str) -> End {
        // The last one inserted is on top.
        for jump in self.rules.jumps.iter().rev() {
            if jump.table == table && jump.chain == hook {
                match self.chain(table, &jump.target, 0) {
                    End::Next => {}
                    end => return end,
                }
            }
        }
        End::Next
    }

    fn chain(&mut self, table: &str, name: &str, depth: usize) -> End {
        let chains = self.rules.tables.iter().filter(|found| found.name == table);
        let mut chains = chains.flat_map(|table| &table.chains);
        let Some((_, rules)) = chains.find(|(chain, _)| chain == name) else {
            return End::Next;
        };
        if depth > DEEPEST {
            return End::Next;
        }
        for text in rules {
            let Some(rule) = Rule::parse(text) else {
                continue;
            };
            if !rule
                .matches
                .iter()
                .all(|(is, wanted)| self.matches(is) == *wanted)
            {
                continue;
            }
            let by = || format!("rule {table} {name}: {text}");
            match rule.target {
                Target::Return => return End::Next,
                Target::Accept => return End::Accept,
                Target::Drop => return End::Drop(by()),
                Target::Reject => return End::Reject(by()),
                Target::Masquerade => return End::Masquerade(by()),
                Target::Goto(chain) => return self.chain(table, &chain, depth + 1),
                Target::Jump(chain) => match self.chain(table, &chain, depth + 1) {
                    End::Next => {}
                    end => return end,
                },
                Target::Mark(clear, flip) => self.mark = self.mark & !clear ^ flip,
                Target::ConnectionMark(clear, flip) => {
                    self.connection_mark = self.connection_mark & !clear ^ flip;
                }
                Target::MapMark(set) => self.map_mark(&set),
                Target::Clamp => {}
            }
        }
        End::Next
    }

    fn matches(&mut self, is: &Match) -> bool {
        match is {
            Match::Source(network) => network.contains(&self.source),
            Match::OwnInterface => self.origin == Origin::Pod,
            Match::Protocol(protocol) => *protocol == self.protocol,
            // A packet that is traced begins its connection.
            Match::Syn => self.protocol == Protocol::Tcp,
            Match::Set(name, sides) => self.look_in_set(name, sides),
            // The interface of the node's own pods does not have the node's addresses.
            Match::LocalDestination(true) => {
                let is_own = self.facts.addresses.contains(&self.destination.ip());
                is_own && matches!(self.origin, Origin::OtherPod | Origin::Outside)
            }
            Match::LocalDestination(false) => {
                is_local(self.state, self.facts, self.destination.ip())
            }
            Match::LocalSource => is_local(self.state, self.facts, self.source),
            Match::New(is_new) => *is_new,
            Match::Mark(value, mask) => self.mark & mask == *value,
            Match::ConnectionMark(value, mask) => self.connection_mark & mask == *value,
        }
    }

    /// The mark that a set has for the destination, if it has any.
    fn map_mark(&mut self, name: &str) {
        let (ip, port) = (self.destination.ip(), self.destination.port());
        let identity = SetEntry::IpPortMark(ip, self.protocol, port, 0);
        let set = self.state.sets.get(name);
        let entry = set.and_then(|set| set.of_identity(&identity)).cloned();
        if let Some(SetEntry::IpPortMark(_, _, _, mark)) = &entry {
            self.mark = *mark;
        }
        let key = SetEntry::IpPort(ip, self.protocol, port);
        let found = entry.map(|entry| entry.to_string());
        self.look(
            format!("set {name} {key}"),
            found,
            "the packet gets the entry's mark",
        );
    }

    fn look_in_set(&mut self, name: &str, sides: &[Side]) -> bool {
        let address = |side: &Side| match side {
            Side::Source => self.source,
            Side::Destination => self.destination.ip(),
        };
        let Some(first) = sides.first().map(address) else {
            return false;
        };
        let third = sides.get(2).map(address);
        let set = self.state.sets.get(name);
        let (key, found) = set.map_or((None, None), |set| self.find(set, first, third));
        let found = found.map(|entry| entry.to_string());
        let key = key.unwrap_or_else(|| "(no such set)".to_owned());
        let is_found = found.is_some();
        self.look(format!("set {name} {key}"), found, meaning(name));
        is_found
    }

    /// The key that the packet has in a set, as text, and the entry that matches.
    fn find(
        &self,
        set: &Set,
        first: IpAddr,
        third: Option<IpAddr>,
    ) -> (Option<String>, Option<SetEntry>) {
        let (protocol, port) = (self.protocol, self.destination.port());
        let key = match (set.header.kind, third) {
            (SetKind::HashIp, _) => SetEntry::Ip(first),
            (SetKind::HashIpPort, _) => SetEntry::IpPort(first, protocol, port),
            (SetKind::HashIpPortMark, _) => SetEntry::IpPortMark(first, protocol, port, 0),
            (SetKind::BitmapPort, _) => SetEntry::Port(port),
            (SetKind::HashIpPortIp, Some(ip)) => SetEntry::IpPortIp(first, protocol, port, ip),
            (SetKind::HashIpPortNet, Some(ip)) => {
                let has = |entry: &&SetEntry| match entry {
                    SetEntry::IpPortNet(address, of, at, network) => {
                        (*address, *of, *at) == (first, protocol, port) && network.contains(&ip)
                    }
                    _ => false,
                };
                let found = set.entries.iter().find(has).cloned();
                return (
                    Some(SetEntry::IpPortIp(first, protocol, port, ip).to_string()),
                    found,
                );
            }
            (SetKind::HashIpPortIp | SetKind::HashIpPortNet, None) => return (None, None),
        };
        // A mark is no part of the key.
        let shown = match key {
            SetEntry::IpPortMark(ip, protocol, port, _) => SetEntry::IpPort(ip, protocol, port),
            ref key => key.clone(),
        };
        (Some(shown.to_string()), set.of_identity(&key).cloned())
    }
}

/// Returns the meaning of membership of a set, by the end of its name.
fn meaning(name: &str) -> &'static str {
    const MEANINGS: [(&str, &str); 16] = [
        (
            "LOOP-BACK",
            "an endpoint of this node that connects to itself is masqueraded",
        ),
        (
            "CLUSTER-IP",
            "a cluster IP: clients that are no pods of the node are masqueraded",
        ),
        ("EXTERNAL-IP", "an external IP: clients are masqueraded"),
        (
            "EXTERNAL-IP-LOCAL",
            "an external IP that keeps the client's source",
        ),
        (
            "LOAD-BALANCER",
            "an address of a load balancer: clients are masqueraded",
        ),
        ("LOAD-BALANCER-LOCAL", "it keeps the client's source"),
        ("LOAD-BALANCER-FW", "only some sources may connect"),
        ("LOAD-BALANCER-SOURCE-CIDR", "the source may connect"),
        ("NODE-PORT-TCP", "a node port: clients are masqueraded"),
        ("NODE-PORT-UDP", "a node port: clients are masqueraded"),
        (
            "NODE-PORT-LOCAL-TCP",
            "a node port that keeps the client's source",
        ),
        (
            "NODE-PORT-LOCAL-UDP",
            "a node port that keeps the client's source",
        ),
        (
            "SHORT-CIRCUIT",
            "pods of the node and the node itself use the cluster-wide list",
        ),
        (
            "NO-LOCAL",
            "the policy is Local and the node has no endpoint",
        ),
        (
            "REMOTE",
            "an endpoint of an import: TCP segments are kept to the size of the path",
        ),
        (
            "IPVS-IPS",
            "an address of Services, whose other ports are refused",
        ),
    ];
    let suffix = name.split_once('-').map_or(name, |(_, suffix)| suffix);
    let suffix = suffix.strip_prefix("6-").unwrap_or(suffix);
    let found = MEANINGS.iter().find(|(end, _)| *end == suffix);
    found.map_or("", |(_, meaning)| meaning)
}
