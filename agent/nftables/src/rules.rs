// SPDX-License-Identifier: Apache-2.0

//! Chains and rules of one family. They depend on the configuration, and on how long the longest list is.

use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::{Family, NodeInfo, Protocol};
use portolan_netlink::nftables::{
    Base, Chain, ChainKind, Chains, Ct, Direction, Expression, Header, Hook, Lookup, Meta,
    Operator, Register, Rule, Verdict, Which,
};
use portolan_plan::{Config, DetectLocal};

use crate::layout::{
    AFFINITY, ALLOWED, ALLOWED_MANY, CLUSTER_IPS, ENDPOINTS, HAIRPIN, LOCAL_ENDPOINTS, MASQUERADED,
    MASQUERADED_OWN, OUTSIDE, RANGED, REMOTE, SERVICES, STICKY, address_len, push_address,
};
use crate::needs::{Needs, list_chain, remember_chain};

/// Attempts to draw a number that has a slot.
const ATTEMPTS: usize = 6;
/// Just before `dstnat` and `srcnat`, where others have their chains: of chains with equal priority, the one
/// that was registered last would come first.
const DSTNAT: i32 = -101;
const SRCNAT: i32 = 99;
/// After the translation of destinations.
const AFTER_DSTNAT: i32 = -90;
/// `mangle`: in `postrouting`, where destinations are translated and sources are not.
const MANGLE: i32 = -150;
/// The chains by which packets that arrive, and those of the node itself, enter the rules.
pub(crate) const NAT_IN: &str = "nat-in";
pub(crate) const NAT_OUT: &str = "nat-out";
/// The chain that keeps TCP segments of imports to the size of the path.
pub(crate) const SEGMENTS: &str = "segments";
/// The chain of connections that no node can serve. `reject` is a keyword of `nft`.
pub(crate) const REFUSAL: &str = "refusal";
/// The chain of connections that only other nodes could serve.
pub(crate) const AWAY: &str = "away";

/// All chains with their rules.
pub(crate) fn chains(family: Family, config: &Config, node: &NodeInfo, needs: &Needs) -> Chains {
    let mut writer = Writer {
        family,
        config,
        node,
        chains: Chains::new(),
    };
    writer.refusal();
    writer.away();
    writer.lists(false, needs.inside, needs);
    writer.lists(true, needs.outside, needs);
    writer.base(NAT_IN, ChainKind::Nat, Hook::Prerouting, DSTNAT);
    writer.base(NAT_OUT, ChainKind::Nat, Hook::Output, DSTNAT);
    writer.nat_in(needs.from_outside);
    writer.decide(NAT_OUT);
    writer.base("nat-post", ChainKind::Nat, Hook::Postrouting, SRCNAT);
    let mut translated = is_translated();
    translated.push(Expression::verdict(&Verdict::Jump("source".into())));
    writer.rule("nat-post", translated);
    writer.source();
    if !needs.timeouts.is_empty() {
        writer.remember(needs);
    }
    if needs.clamps {
        writer.segments();
    }
    writer.chains
}

struct Writer<'a> {
    family: Family,
    config: &'a Config,
    node: &'a NodeInfo,
    chains: Chains,
}

impl Writer<'_> {
    fn chain(&mut self, name: &str, base: Option<Base>) {
        let name: Arc<str> = name.into();
        let chain = Chain {
            name: Arc::clone(&name),
            base,
        };
        self.chains.insert(name, (chain, Vec::new()));
    }

    fn base(&mut self, name: &str, kind: ChainKind, hook: Hook, priority: i32) {
        let base = Base {
            kind,
            hook,
            priority,
        };
        self.chain(name, Some(base));
    }

    /// Adds a rule to a chain, which is made if it is not there.
    fn rule(&mut self, chain: &str, rule: impl Into<Rule>) {
        if !self.chains.contains_key(chain) {
            self.chain(chain, None);
        }
        if let Some((_, rules)) = self.chains.get_mut(chain) {
            rules.push(rule.into());
        }
    }

    /// TCP is refused by a reset: the kernel limits ICMP messages to one peer to one a second.
    fn refusal(&mut self) {
        let mut tcp = is_tcp();
        tcp.push(Expression::reset());
        self.rule(REFUSAL, tcp);
        self.rule(REFUSAL, [Expression::refuse(self.family)]);
    }

    /// Connections from outside are dropped. Pods of other nodes are refused.
    fn away(&mut self) {
        if let Some(mut pods) = self.pods_by_network() {
            pods.push(Expression::verdict(&Verdict::Goto(REFUSAL.into())));
            self.rule(AWAY, pods);
        }
        self.rule(AWAY, [Expression::verdict(&Verdict::Drop)]);
    }

    /// The chains of lists up to a class.
    fn lists(&mut self, is_outside: bool, highest: Option<u32>, needs: &Needs) {
        let Some(highest) = highest else {
            return;
        };
        let (prefix, map) = match is_outside {
            false => ("", ENDPOINTS),
            true => ("local-", LOCAL_ENDPOINTS),
        };
        for class in 0..=highest {
            let attempt = format!("{prefix}try-{class}");
            let random = self.pick(class, map);
            self.rule(&attempt, random);
            let pick = list_chain(is_outside, false, class);
            let jump = |to: &str| [Expression::verdict(&Verdict::Jump(to.into()))];
            if let Some(lower) = class.checked_sub(1) {
                for _ in 0..ATTEMPTS {
                    self.rule(&pick, jump(&attempt));
                }
                self.rule(&pick, jump(&format!("{prefix}try-{lower}")));
            } else {
                self.rule(&pick, jump(&attempt));
            }
            // Of a packet that read an old verdict and new slots: it must not leave with a VIP as its
            // destination.
            self.rule(&pick, [Expression::verdict(&Verdict::Drop)]);
            if !needs.timeouts.is_empty() {
                let stick = list_chain(is_outside, true, class);
                let remembered = self.stick();
                self.rule(&stick, remembered);
                self.rule(&stick, [Expression::verdict(&Verdict::Goto(pick))]);
            }
        }
    }

    /// Translates the destination to that of a random slot, if it has any.
    fn pick(&self, class: u32, map: &str) -> Rule {
        let (mut rule, next) = self.load_way(Register::FIRST);
        let modulus = 1_u32.checked_shl(class).unwrap_or(u32::MAX);
        rule.push(Expression::random(modulus, next));
        rule.extend(self.translate(map));
        rule
    }

    /// Translates the destination to the one that the client is remembered with.
    fn stick(&self) -> Rule {
        let mut rule = vec![self.source_address(Register::FIRST)];
        let (way, _) = self.load_way(Register::FIRST.after(self.len()));
        rule.extend(way);
        rule.extend(self.translate(AFFINITY));
        rule
    }

    fn translate(&self, map: &str) -> [Expression; 2] {
        let port = Register::FIRST.after(self.len());
        [
            Expression::lookup(map, Lookup::Data),
            Expression::dnat(self.family, Register::FIRST, port),
        ]
    }

    fn nat_in(&mut self, from_outside: bool) {
        let chain = NAT_IN;
        self.ranges(chain);
        if from_outside {
            self.pods_of_other_nodes(chain);
            let mut outside = self.local(Operator::NotEqual).unwrap_or_default();
            outside.extend(self.way_in(OUTSIDE, Lookup::Verdict));
            self.rule(chain, outside);
        }
        self.services(chain);
    }

    /// The node's own connections.
    fn decide(&mut self, chain: &str) {
        self.ranges(chain);
        self.services(chain);
    }

    fn ranges(&mut self, chain: &str) {
        let mut rule = self.way_in(RANGED, Lookup::Has);
        let (way, next) = self.load_way(Register::FIRST);
        rule.extend(way);
        rule.push(self.source_address(next));
        rule.push(Expression::lookup(ALLOWED, Lookup::Lacks));
        rule.push(self.source_address(Register::FIRST));
        rule.extend(self.load_way(Register::FIRST.after(self.len())).0);
        rule.push(Expression::lookup(ALLOWED_MANY, Lookup::Lacks));
        rule.push(Expression::verdict(&Verdict::Drop));
        self.rule(chain, rule);
    }

    /// Pods of other nodes ask for an address of this node by the interface that has it. They have the endpoints of
    /// this node alone: any other one would answer them directly, and the connection would hang.
    fn pods_of_other_nodes(&mut self, chain: &str) {
        let Some(mut rule) = self.pods_by_network() else {
            return;
        };
        rule.extend(Expression::is_local(Which::DestinationOnArrival));
        rule.extend(self.way_in(OUTSIDE, Lookup::Verdict));
        self.rule(chain, rule);
    }

    /// Matches pods by a network of the whole cluster; `None` if they are recognised otherwise.
    fn pods_by_network(&self) -> Option<Rule> {
        match self.config.detect_local {
            DetectLocal::ClusterCidr(_) => self.local(Operator::Equal),
            _ => None,
        }
    }

    fn services(&mut self, chain: &str) {
        let services = self.way_in(SERVICES, Lookup::Verdict);
        self.rule(chain, services);
        self.rule(
            chain,
            [
                self.destination_address(Register::FIRST),
                Expression::lookup(CLUSTER_IPS, Lookup::Has),
                Expression::verdict(&Verdict::Goto(REFUSAL.into())),
            ],
        );
    }

    /// Masquerades connections whose destination was translated.
    fn source(&mut self) {
        let chain = "source";
        let original = Ct::Destination(Direction::Original, self.family);
        let mut cluster_ip = vec![
            Expression::ct(original, Register::FIRST),
            Expression::lookup(CLUSTER_IPS, Lookup::Has),
        ];
        if !self.config.masquerade_all {
            // Without knowing the node's pods, its own connections: on a host with several networks their
            // source need not be an address of the network that they leave by.
            let local = self.local(Operator::NotEqual);
            let own = || Expression::is_local(Which::Source).into();
            cluster_ip.extend(local.unwrap_or_else(own));
        }
        cluster_ip.push(Expression::masquerade());
        self.rule(chain, cluster_ip);

        let mut all = self.original_way_in(MASQUERADED);
        all.push(Expression::masquerade());
        self.rule(chain, all);

        // The look-up of an address among those of the node costs the most, and few connections get so far.
        let mut own = self.original_way_in(MASQUERADED_OWN);
        own.extend(Expression::is_local(Which::Source));
        own.push(Expression::masquerade());
        self.rule(chain, own);

        let source = self.source_address(Register::FIRST);
        let mut hairpin = self.endpoint_in(source);
        hairpin.push(Expression::masquerade());
        self.rule(chain, hairpin);
    }

    /// Looks an address and the packet's destination up among the endpoints of this node.
    fn endpoint_in(&self, address: Expression) -> Rule {
        let mut rule = vec![address];
        rule.extend(self.load_way(Register::FIRST.after(self.len())).0);
        rule.push(Expression::lookup(HAIRPIN, Lookup::Has));
        rule
    }

    /// Remembers the destinations of clients of ways with affinity, once they are translated. Of a connection, the
    /// first packet alone: it has just drawn an endpoint of the lists. One that is sent again is new as well until it
    /// is answered, and its endpoint may be gone by then.
    fn remember(&mut self, needs: &Needs) {
        for (name, hook) in [("after-in", Hook::Prerouting), ("after-out", Hook::Output)] {
            self.base(name, ChainKind::Filter, hook, AFTER_DSTNAT);
            let mut rule = vec![Expression::ct(Ct::State, Register::FIRST)];
            rule.extend(has_bits(Ct::STATE_NEW));
            rule.extend(is_unconfirmed());
            rule.extend(is_translated());
            rule.push(Expression::verdict(&Verdict::Jump("remember".into())));
            self.rule(name, rule);
        }
        let mut sticky = self.original_way(Register::FIRST).0;
        sticky.push(Expression::lookup(STICKY, Lookup::Verdict));
        self.rule("remember", sticky);
        for seconds in &needs.timeouts {
            let source = Ct::Source(Direction::Original, self.family);
            let mut rule = vec![Expression::ct(source, Register::FIRST)];
            let (way, data) = self.original_way(Register::FIRST.after(self.len()));
            rule.extend(way);
            let reply = Ct::Source(Direction::Reply, self.family);
            rule.extend([
                Expression::ct(reply, data),
                Expression::ct(Ct::SourcePort(Direction::Reply), data.after(self.len())),
                Expression::remember(AFFINITY, data, u64::from(*seconds) * 1000),
            ]);
            self.rule(&remember_chain(*seconds), rule);
        }
    }

    /// Tells endpoints of imports how large their segments may be on the way back: a link between clusters may be
    /// smaller than that of the client, and the ICMP messages about it may be lost.
    fn segments(&mut self) {
        self.base(SEGMENTS, ChainKind::Filter, Hook::Postrouting, MANGLE);
        let mut rule = is_tcp();
        // Of the flags SYN and RST the first one alone.
        rule.extend([
            Expression::payload(Header::Transport, 13, 1, Register::FIRST),
            Expression::bitwise(Register::FIRST, &[0x06], &[0]),
            Expression::compare(Register::FIRST, Operator::Equal, &[0x02]),
        ]);
        rule.extend(self.way_in(REMOTE, Lookup::Has));
        rule.extend(Expression::path_segment(Register::FIRST));
        rule.push(Expression::set_segment(Register::FIRST));
        self.rule(SEGMENTS, rule);
    }

    fn len(&self) -> usize {
        address_len(self.family)
    }

    fn address(&self, v4: u32, v6: u32, to: Register) -> Expression {
        match self.family {
            Family::V4 => Expression::payload(Header::Network, v4, 4, to),
            Family::V6 => Expression::payload(Header::Network, v6, 16, to),
        }
    }

    fn source_address(&self, to: Register) -> Expression {
        self.address(12, 8, to)
    }

    fn destination_address(&self, to: Register) -> Expression {
        self.address(16, 24, to)
    }

    /// Loads the packet's way; the register after it.
    fn load_way(&self, to: Register) -> (Rule, Register) {
        let protocol = to.after(self.len());
        let port = protocol.after(1);
        let load = vec![
            self.destination_address(to),
            Expression::meta(Meta::Protocol, protocol),
            Expression::payload(Header::Transport, 2, 2, port),
        ];
        (load, port.after(2))
    }

    fn way_in(&self, set: &str, lookup: Lookup) -> Rule {
        let (mut rule, _) = self.load_way(Register::FIRST);
        rule.push(Expression::lookup(set, lookup));
        rule
    }

    /// Loads the way that the client asked for; the register after it.
    fn original_way(&self, to: Register) -> (Rule, Register) {
        let protocol = to.after(self.len());
        let port = protocol.after(1);
        let original = Direction::Original;
        let load = vec![
            Expression::ct(Ct::Destination(original, self.family), to),
            Expression::meta(Meta::Protocol, protocol),
            Expression::ct(Ct::DestinationPort(original), port),
        ];
        (load, port.after(2))
    }

    fn original_way_in(&self, set: &str) -> Rule {
        let (mut rule, _) = self.original_way(Register::FIRST);
        rule.push(Expression::lookup(set, Lookup::Has));
        rule
    }

    /// Matches packets of the node's own pods, or all others; `None` if they cannot be recognised.
    fn local(&self, operator: Operator) -> Option<Rule> {
        let network = |networks: &[IpNet]| {
            let mut networks = networks.iter();
            networks
                .find(|network| Family::of(network.addr()) == self.family)
                .copied()
        };
        match &self.config.detect_local {
            DetectLocal::ClusterCidr(networks) => Some(self.within(network(networks)?, operator)),
            DetectLocal::NodeCidr => Some(self.within(network(&self.node.pod_cidrs)?, operator)),
            DetectLocal::Bridge(name) => {
                let mut padded = name.as_bytes().to_vec();
                padded.resize(16, 0);
                Some(arrives_by(&padded, operator))
            }
            DetectLocal::InterfacePrefix(prefix) => Some(arrives_by(prefix.as_bytes(), operator)),
        }
    }

    fn within(&self, network: IpNet, operator: Operator) -> Rule {
        let bytes = |address| {
            let mut bytes = Vec::new();
            push_address(&mut bytes, address);
            bytes
        };
        let (mask, address) = (bytes(network.netmask()), bytes(network.network()));
        vec![
            self.source_address(Register::FIRST),
            Expression::bitwise(Register::FIRST, &mask, &vec![0; mask.len()]),
            Expression::compare(Register::FIRST, operator, &address),
        ]
    }
}

fn arrives_by(name: &[u8], operator: Operator) -> Rule {
    vec![
        Expression::meta(Meta::InputName, Register::FIRST),
        Expression::compare(Register::FIRST, operator, name),
    ]
}

fn is_tcp() -> Rule {
    let tcp = [Protocol::Tcp.number()];
    vec![
        Expression::meta(Meta::Protocol, Register::FIRST),
        Expression::compare(Register::FIRST, Operator::Equal, &tcp),
    ]
}

/// Whether the first register has any of these bits.
pub(crate) fn has_bits(bits: u32) -> [Expression; 2] {
    [
        Expression::bitwise(Register::FIRST, &bits.to_ne_bytes(), &[0; 4]),
        Expression::compare(Register::FIRST, Operator::NotEqual, &[0; 4]),
    ]
}

/// The expressions that match until a packet of the connection has passed the last hook: in chains of the first hooks,
/// they match its first packet.
fn is_unconfirmed() -> [Expression; 3] {
    let bits = Ct::STATUS_CONFIRMED.to_ne_bytes();
    [
        Expression::ct(Ct::Status, Register::FIRST),
        Expression::bitwise(Register::FIRST, &bits, &[0; 4]),
        Expression::compare(Register::FIRST, Operator::Equal, &[0; 4]),
    ]
}

pub(crate) fn is_translated() -> Rule {
    let mut rule = vec![Expression::ct(Ct::Status, Register::FIRST)];
    rule.extend(has_bits(Ct::STATUS_DNAT));
    rule
}
