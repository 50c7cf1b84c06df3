// SPDX-License-Identifier: Apache-2.0

//! The way of one packet through a table, as the chains of [`rules`](crate::rules) lead it.
//!
//! It runs on any table, the desired or an observed one, and looks only at what the packet would. Rules are
//! taken as those that we write: [`chain_differences`] tells whether a table has them.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use ipnet::IpNet;
use portolan_model::trace::{Difference, Origin, Outcome, Packet, Server, Step, Way};
use portolan_model::{Family, NodeInfo};
use portolan_netlink::nftables::{Key, Request, TableContent, Value, Verdict};
use portolan_plan::{Config, DetectLocal, NodeFacts};

use crate::layout::{
    ALLOWED, ALLOWED_MANY, CLUSTER_IPS, ENDPOINTS, HAIRPIN, LOCAL_ENDPOINTS, MASQUERADED,
    MASQUERADED_OWN, OUTSIDE, RANGED, SERVICES, STICKY, address_key, hairpin_key, read_destination,
    source_key, source_of_many_key, way_key, way_of_source,
};
use crate::rules::{AWAY, REFUSAL};
use crate::sources::name_in;
use crate::{Surplus, WayKey, plan};

/// Inputs of a table's rules besides its maps.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// Configuration of the agent.
    pub config: &'a Config,
    /// Facts of the Node object.
    pub node: &'a NodeInfo,
    /// Facts of the host.
    pub facts: &'a NodeFacts,
}

/// The way of a packet through a table of its family; `None` for the table if there is none.
#[must_use]
pub fn trace(content: Option<&TableContent>, place: Place<'_>, packet: &Packet) -> Way {
    let nothing = TableContent::default();
    let way = WayKey {
        address: packet.destination.ip(),
        protocol: packet.protocol,
        port: packet.destination.port(),
    };
    let mut walk = Walk {
        content: content.unwrap_or(&nothing),
        place,
        packet,
        way,
        steps: Vec::new(),
    };
    let outcome = walk.decide();
    Way {
        steps: walk.steps,
        outcome,
    }
}

/// The chains that a table lacks or has otherwise than the desired one.
#[must_use]
pub fn chain_differences(wanted: &TableContent, found: Option<&TableContent>) -> Vec<Difference> {
    let difference = |place: String, wanted: &str, found: &str| Difference {
        place,
        wanted: wanted.to_owned(),
        found: found.to_owned(),
    };
    let Some(found) = found else {
        return vec![difference("the table".to_owned(), "present", "absent")];
    };
    let mut chains = BTreeMap::new();
    for request in plan(wanted, Some(found), Surplus::Delete) {
        let (name, wanted, found) = match request {
            Request::AddChain(chain) => (chain.name, "present", "absent"),
            Request::DelChain(name) => (name, "absent", "present"),
            Request::FlushChain(name) | Request::AddRule(name, _) => {
                (name, "the agent's rules", "other rules")
            }
            _ => continue,
        };
        chains.entry(name).or_insert((wanted, found));
    }
    let named = chains.into_iter();
    named
        .map(|(name, (wanted, found))| difference(format!("chain {name}"), wanted, found))
        .collect()
}

struct Walk<'a> {
    content: &'a TableContent,
    place: Place<'a>,
    packet: &'a Packet,
    way: WayKey,
    steps: Vec<Step>,
}

impl<'a> Walk<'a> {
    /// `nat-in` and `nat-out`.
    fn decide(&mut self) -> Outcome {
        let is_ranged = self.look(
            RANGED,
            &way_key(&self.way),
            self.way,
            "only some sources may connect",
        );
        if is_ranged.is_some()
            && let Some(set) = self.missing_in()
        {
            let by = format!("set {set}");
            return Outcome::Dropped { by };
        }
        let is_outside = self.is_own_pod() != Some(true) || self.is_of_other_node();
        if self.packet.origin != Origin::Node
            && is_outside
            // Without the map there are no rules that look into it.
            && self.content.sets.contains_key(OUTSIDE)
            && let Some(outcome) = self.follow(OUTSIDE, LOCAL_ENDPOINTS)
        {
            return outcome;
        }
        if let Some(outcome) = self.follow(SERVICES, ENDPOINTS) {
            return outcome;
        }
        let address = self.way.address;
        let why = "other ports of a cluster IP are refused";
        match self.look(CLUSTER_IPS, &address_key(address), address, why) {
            Some(_) => Outcome::Refused {
                by: format!("set {CLUSTER_IPS}"),
            },
            None => Outcome::Passes {
                why: "no map has it".to_owned(),
            },
        }
    }

    /// Looks a key up; what is there.
    fn look(
        &mut self,
        set: &str,
        key: &Key,
        shown: impl std::fmt::Display,
        why: &str,
    ) -> Option<&'a Value> {
        let found = self
            .content
            .sets
            .get(set)
            .and_then(|(_, elements)| elements.get(key));
        let text = found.map(|value| match value {
            Value::Verdict(verdict) => verdict.to_string(),
            _ => "present".to_owned(),
        });
        let kind = match found {
            Some(Value::Verdict(_)) => "map",
            _ if [SERVICES, OUTSIDE, STICKY].contains(&set) => "map",
            _ => "set",
        };
        self.note(format!("{kind} {set} {shown}"), text, why);
        found
    }

    fn note(&mut self, place: String, found: Option<String>, why: &str) {
        let why = why.to_owned();
        self.steps.push(Step { place, found, why });
    }

    /// The set of the way's permitted sources, if the source is none of them.
    fn missing_in(&mut self) -> Option<&'static str> {
        let (way, source) = (way_key(&self.way), self.packet.source);
        let elements = |set: &str| {
            let found = self.content.sets.get(set).into_iter();
            found.flat_map(|(_, elements)| elements)
        };
        let way: &[u8] = &way;
        let of_way = |set: &'static str| {
            elements(name_in(set, self.content))
                .filter(move |(key, _)| way_of_source(set, key) == Some(way))
        };
        let (set, key) = match of_way(ALLOWED_MANY).next() {
            Some(_) => (ALLOWED_MANY, source_of_many_key(&self.way, source)),
            None => (ALLOWED, source_key(&self.way, source)),
        };
        let is_in = of_way(set).any(|(first, value)| match value {
            Value::UpTo(last) => *first <= key && key <= *last,
            _ => *first == key,
        });
        let found = is_in.then(|| "present".to_owned());
        let set = name_in(set, self.content);
        let place = format!("set {set} {} {source}", self.way);
        self.note(place, found, "the source may connect");
        (!is_in).then_some(set)
    }

    /// Whether the packet is one of the node's own pods; `None` if that cannot be recognised.
    fn is_own_pod(&self) -> Option<bool> {
        let family = Family::of(self.way.address);
        let from = |networks: &[IpNet]| {
            let of_family = |network: &&IpNet| Family::of(network.addr()) == family;
            let network = networks.iter().find(of_family)?;
            Some(network.contains(&self.packet.source))
        };
        match &self.place.config.detect_local {
            DetectLocal::ClusterCidr(networks) => from(networks),
            DetectLocal::NodeCidr => from(&self.place.node.pod_cidrs),
            DetectLocal::Bridge(_) | DetectLocal::InterfacePrefix(_) => {
                Some(self.packet.origin == Origin::Pod)
            }
        }
    }

    /// True for a packet of another node's pod, recognised by the network of all pods and the interface.
    fn is_of_other_node(&self) -> bool {
        let is_by_network = matches!(self.place.config.detect_local, DetectLocal::ClusterCidr(_));
        let is_of_node = self.place.facts.addresses.contains(&self.way.address);
        is_by_network
            && is_of_node
            && self.is_own_pod() == Some(true)
            && self.packet.origin != Origin::Pod
    }

    /// Follows the verdict of a map, if it has one.
    fn follow(&mut self, map: &str, slots: &str) -> Option<Outcome> {
        let way = self.way;
        let why = match map {
            OUTSIDE => "clients that are neither pods of the node nor the node itself",
            _ => "a Service has the address and port",
        };
        let Value::Verdict(verdict) = self.look(map, &way_key(&way), way, why)? else {
            return None;
        };
        let chain = match verdict {
            Verdict::Goto(chain) | Verdict::Jump(chain) => chain,
            Verdict::Drop => {
                let by = format!("map {map}");
                return Some(Outcome::Dropped { by });
            }
            Verdict::Accept | Verdict::Other(_) => return None,
        };
        let by = format!("chain {chain}");
        match &**chain {
            REFUSAL => return Some(Outcome::Refused { by }),
            AWAY if self.is_of_other_node() => return Some(Outcome::Refused { by }),
            AWAY => return Some(Outcome::Dropped { by }),
            _ => {}
        }
        let by = format!("map {slots}, {by}");
        let counts = self.slots(slots);
        if counts.is_empty() {
            return Some(Outcome::Dropped { by });
        }
        let servers = counts.into_iter().map(|(address, weight)| {
            let (masquerade, source_by) = self.source(address);
            Server {
                address,
                weight,
                masquerade,
                source_by,
                connections: None,
                why: String::new(),
            }
        });
        let servers = servers.collect();
        Some(Outcome::Forwarded { by, servers })
    }

    /// Returns the number of slots of each destination.
    fn slots(&mut self, map: &str) -> BTreeMap<SocketAddr, u32> {
        let way = way_key(&self.way);
        let family = Family::of(self.way.address);
        let mut counts = BTreeMap::new();
        let elements = self.content.sets.get(map).map(|(_, elements)| elements);
        for (key, value) in elements
            .into_iter()
            .flat_map(|all| all.range(way.clone()..))
        {
            let Some(slot) = key.strip_prefix(&*way) else {
                break;
            };
            let Value::Data(data) = value else { continue };
            if slot.len() == 4
                && let Some(socket) = read_destination(family, data)
            {
                *counts.entry(socket).or_default() += 1;
            }
        }
        let sum: u32 = counts.values().sum();
        let found = (sum > 0).then(|| format!("{sum} slots of {} destinations", counts.len()));
        let place = format!("map {map} {}", self.way);
        self.note(place, found, "one slot is drawn at random");
        counts
    }

    /// Whether a connection to a destination is masqueraded, and by what: the chain `source`.
    fn source(&mut self, server: SocketAddr) -> (bool, String) {
        let way = self.way;
        let key = way_key(&way);
        let is_own = self.is_own_pod();
        let is_of_node = self.place.facts.addresses.contains(&self.packet.source);
        let is_foreign = is_own.map_or(is_of_node, |is_own| !is_own);
        if self.has(
            CLUSTER_IPS,
            &address_key(way.address),
            way.address,
            "a cluster IP",
        ) && (self.place.config.masquerade_all || is_foreign)
        {
            return (
                true,
                format!("set {CLUSTER_IPS}, for clients that are no pods of the node"),
            );
        }
        if self.has(MASQUERADED, &key, way, "all clients are masqueraded") {
            return (true, format!("set {MASQUERADED}"));
        }
        let why = "the node's own clients are masqueraded";
        if is_of_node && self.has(MASQUERADED_OWN, &key, way, why) {
            return (
                true,
                format!("set {MASQUERADED_OWN}, for the node's own clients"),
            );
        }
        let endpoint = WayKey {
            address: server.ip(),
            protocol: way.protocol,
            port: server.port(),
        };
        if server.ip() == self.packet.source && self.is_here(endpoint) {
            return (
                true,
                format!("set {HAIRPIN}, for a pod that connects to itself"),
            );
        }
        (false, "no rule masquerades it".to_owned())
    }

    /// Returns `true` if an endpoint is one of this node.
    fn is_here(&mut self, endpoint: WayKey) -> bool {
        self.has(
            HAIRPIN,
            &hairpin_key(&endpoint),
            endpoint,
            "an endpoint of this node",
        )
    }

    /// Like [`Self::look`], noted once.
    fn has(&mut self, set: &str, key: &Key, shown: impl std::fmt::Display, why: &str) -> bool {
        let place = format!("set {set} {shown}");
        if let Some(step) = self.steps.iter().find(|step| step.place == place) {
            return step.found.is_some();
        }
        self.look(set, key, shown, why).is_some()
    }
}
