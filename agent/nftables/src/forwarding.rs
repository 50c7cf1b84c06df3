// SPDX-License-Identifier: Apache-2.0

//! Base chains of others that drop what the node forwards for Services.
//!
//! A packet is forwarded only if each base chain of the hook accepts it, so that no rule of ours overrules the policy
//! of another table's chain. Such a chain is told to the operator, and never changed.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;

use portolan_netlink::nftables::{
    Ct, DropChain, Expression, Operator, Register, TableFamily, Verdict,
};

/// `XT_CONNTRACK_STATE_BIT(IP_CT_ESTABLISHED)`.
const ESTABLISHED_OF_IPTABLES: u16 = 2;
/// `XT_CONNTRACK_STATE_DNAT`.
const DNAT_OF_IPTABLES: u16 = 0x80;

/// Part of the kernel that gives connections to Services their endpoint, and with it the packets that are forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Translation {
    /// nftables translates before the route is chosen: all packets of a connection are forwarded.
    Nftables,
    /// IPVS sends packets to endpoints itself: only their answers are forwarded.
    Ipvs,
}

impl Translation {
    /// The rule that lets forwarded packets of Services through.
    #[must_use]
    pub fn advice(self) -> &'static str {
        match self {
            Self::Nftables => "ct status dnat accept",
            Self::Ipvs => "ct state established,related accept",
        }
    }

    /// Returns `true` if the packets of Services pass conditions: none, or one about their connection.
    fn passes(self, conditions: &[&Expression]) -> bool {
        match conditions {
            [] => true,
            [one] => one.passes_states_of_iptables(match self {
                Self::Nftables => DNAT_OF_IPTABLES,
                Self::Ipvs => ESTABLISHED_OF_IPTABLES,
            }),
            three => self.is_about(three),
        }
    }

    /// Returns `true` if conditions are those of [`Self::advice`] as nft writes them.
    fn is_about(self, conditions: &[&Expression]) -> bool {
        let (established, related) = (Ct::STATE_ESTABLISHED, Ct::STATE_RELATED);
        let (property, masks) = match self {
            Self::Nftables => (Ct::Status, vec![Ct::STATUS_DNAT]),
            Self::Ipvs => (Ct::State, vec![established, established | related]),
        };
        let first = Register::FIRST;
        masks.iter().any(|mask| {
            let expected = [
                Expression::ct(property, first),
                Expression::bitwise(first, &mask.to_ne_bytes(), &[0; 4]),
                Expression::compare(first, Operator::NotEqual, &[0; 4]),
            ];
            let mut pairs = expected.iter().zip(conditions);
            conditions.len() == expected.len()
                && pairs.all(|(expected, dumped)| expected.is_dumped_as(dumped))
        })
    }

    /// Returns `true` if a rule looks the state of connections up in a map of verdicts, or in a set before it accepts:
    /// any sensible firewall accepts those that are established.
    fn looks_up(self, rule: &[&Expression]) -> bool {
        let state = Expression::ct(Ct::State, Register::FIRST);
        match rule {
            [load, lookup] => {
                self == Self::Ipvs && lookup.name() == "lookup" && state.is_dumped_as(load)
            }
            _ => false,
        }
    }
}

/// A base chain of another table that drops forwarded packets of Services.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ClosedChain {
    family: TableFamily,
    table: String,
    name: Arc<str>,
}

impl ClosedChain {
    /// Returns `true` for the chain `FORWARD` of iptables, in which the rules of IPVS accept answers.
    #[must_use]
    pub fn is_of_iptables(&self) -> bool {
        let is_one_family = self.family != TableFamily::Inet;
        is_one_family && self.table == "filter" && &*self.name == "FORWARD"
    }
}

impl fmt::Display for ClosedChain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            family,
            table,
            name,
        } = self;
        write!(f, "{family} {table} {name}")
    }
}

/// Those of the chains in which no rule lets the packets of Services through. Rules that accept some packets, such as
/// those of one interface, count for nothing.
#[must_use]
pub fn closed_chains(chains: &[DropChain], translation: Translation) -> BTreeSet<ClosedChain> {
    let closed = chains.iter().filter(|chain| !is_open(chain, translation));
    let named = closed.map(|chain| ClosedChain {
        family: chain.family,
        table: chain.table.clone(),
        name: Arc::clone(&chain.name),
    });
    named.collect()
}

/// Returns `true` if a rule of the chain, or of one to which all packets are led, lets the packets of Services through.
fn is_open(chain: &DropChain, translation: Translation) -> bool {
    let mut seen = BTreeSet::new();
    let mut next = vec![Arc::clone(&chain.name)];
    while let Some(name) = next.pop() {
        if !seen.insert(Arc::clone(&name)) {
            continue;
        }
        for (_, rule) in chain.rules.iter().filter(|(of, _)| *of == name) {
            let rule: Vec<&Expression> = rule.iter().filter(|e| !e.is_neutral()).collect();
            let Some((last, conditions)) = rule.split_last() else {
                continue;
            };
            match last.given_verdict() {
                Some(Verdict::Accept)
                    if translation.passes(conditions) || translation.looks_up(conditions) =>
                {
                    return true;
                }
                None if translation.looks_up(&rule) => return true,
                Some(Verdict::Jump(to) | Verdict::Goto(to)) if conditions.is_empty() => {
                    next.push(to);
                }
                _ => {}
            }
        }
    }
    false
}

/// Looks at closed chains, one after another, of which each chain is told once until it has gone.
#[derive(Debug, Default)]
pub struct ClosedLooks {
    last: BTreeSet<ClosedChain>,
    told: BTreeSet<ClosedChain>,
}

impl ClosedLooks {
    /// Takes a look, `None` if all is as it was; returns the chains to tell of now. They were there at two looks in a
    /// row: a firewall that loads its rules anew drops everything for a moment.
    pub fn take(&mut self, found: Option<BTreeSet<ClosedChain>>) -> Vec<ClosedChain> {
        let before = self.last.clone();
        if let Some(found) = found {
            self.last = found;
        }
        self.told.retain(|chain| self.last.contains(chain));
        let lasting = self.last.intersection(&before);
        let new: Vec<_> = lasting
            .filter(|chain| !self.told.contains(*chain))
            .cloned()
            .collect();
        self.told.extend(new.iter().cloned());
        new
    }

    /// Number of the chains that were told and are still there.
    #[must_use]
    pub fn count(&self) -> usize {
        self.told.len()
    }
}

#[cfg(test)]
mod tests;
