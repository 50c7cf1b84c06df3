// SPDX-License-Identifier: Apache-2.0

//! Base chains of all tables that drop the forwarded packets which no rule of theirs accepts, and such rules.

use std::fmt;
use std::sync::Arc;

use super::{
    Expression, GET_CHAIN, GET_RULE, GET_TABLE, HEADER_LEN, Hook, Nftables, Rule, Verdict, kind,
    reply,
};
use crate::socket::SocketError;
use crate::wire::{Attribute, Attributes, Malformed, Writer};

/// `NF_DROP`.
const DROP: u32 = 0;

/// Family of a table whose chains see packets of IPv4 or IPv6 that are forwarded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TableFamily {
    /// `ip`: IPv4.
    Ip,
    /// `ip6`: IPv6.
    Ip6,
    /// `inet`: both.
    Inet,
}

impl TableFamily {
    const ALL: [Self; 3] = [Self::Ip, Self::Ip6, Self::Inet];

    /// `NFPROTO_IPV4`, `NFPROTO_IPV6`, `NFPROTO_INET`.
    fn number(self) -> u8 {
        match self {
            Self::Ip => 2,
            Self::Ip6 => 10,
            Self::Inet => 1,
        }
    }

    fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|f| f.number() == number)
    }
}

impl fmt::Display for TableFamily {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ip => "ip",
            Self::Ip6 => "ip6",
            Self::Inet => "inet",
        })
    }
}

/// A base chain at the hook of forwarded packets, with the policy to drop.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DropChain {
    /// Family of its table.
    pub family: TableFamily,
    /// Name of its table.
    pub table: String,
    /// Its name.
    pub name: Arc<str>,
    /// All rules of the table, each with the name of its chain.
    pub rules: Vec<(Arc<str>, Rule)>,
}

impl Nftables {
    /// The base chains that drop forwarded packets, of all tables that are awake.
    ///
    /// # Errors
    /// If the kernel refuses, the socket fails, or tables keep changing.
    pub fn drop_chains(&mut self) -> Result<Vec<DropChain>, SocketError> {
        // No family: all of them.
        let all = |writer: &mut Writer| writer.raw(&[0; HEADER_LEN]);
        let read = |chains: &mut Vec<DropChain>, payload: &[u8]| {
            chains.extend(read_drop_chain(payload)?);
            Ok(())
        };
        let mut chains = self.socket.dump(kind(GET_CHAIN), all, read)?;
        let read = |tables: &mut Vec<(TableFamily, String)>, payload: &[u8]| {
            tables.extend(read_dormant(payload)?);
            Ok(())
        };
        let dormant = self.socket.dump(kind(GET_TABLE), all, read)?;
        leave_out_dormant(&mut chains, &dormant);
        for chain in &mut chains {
            chain.rules = self.rules_of(chain.family, &chain.table)?;
        }
        Ok(chains)
    }

    fn rules_of(
        &mut self,
        family: TableFamily,
        table: &str,
    ) -> Result<Vec<(Arc<str>, Rule)>, SocketError> {
        let of_table = |writer: &mut Writer| {
            writer.raw(&[family.number(), 0, 0, 0]);
            writer.string(1, table);
        };
        let read = |rules: &mut Vec<(Arc<str>, Rule)>, payload: &[u8]| {
            rules.extend(reply::read_rule(payload, table)?);
            Ok(())
        };
        self.socket.dump(kind(GET_RULE), of_table, read)
    }
}

/// Family and name of a table that sleeps; `None` if it is awake, or of another family.
pub(super) fn read_dormant(payload: &[u8]) -> Result<Option<(TableFamily, String)>, Malformed> {
    let (name, is_dormant) = reply::read_table(payload)?;
    let family = payload.first().copied();
    let family = family.and_then(TableFamily::from_number);
    Ok(family.filter(|_| is_dormant).map(|family| (family, name)))
}

/// Leaves out the chains of tables that sleep: no packet enters these.
fn leave_out_dormant(chains: &mut Vec<DropChain>, dormant: &[(TableFamily, String)]) {
    let sleeps = |chain: &DropChain| {
        let mut tables = dormant.iter();
        tables.any(|(family, name)| *family == chain.family && *name == chain.table)
    };
    chains.retain(|chain| !sleeps(chain));
}

/// A chain without its rules; `None` if it is another chain than one that drops forwarded packets.
pub(super) fn read_drop_chain(payload: &[u8]) -> Result<Option<DropChain>, Malformed> {
    let attributes = Attributes::new(payload, HEADER_LEN)?;
    let family = payload.first().copied();
    let Some(family) = family.and_then(TableFamily::from_number) else {
        return Ok(None);
    };
    let policy = attributes.find(5)?.map(Attribute::be32).transpose()?;
    let hook = match attributes.find(4)? {
        Some(hook) => Hook::from_number(hook.nested().get(1)?.be32()?),
        None => None,
    };
    if hook != Some(Hook::Forward) || policy != Some(DROP) {
        return Ok(None);
    }
    Ok(Some(DropChain {
        family,
        table: attributes.get(1)?.string(),
        name: attributes.get(3)?.string().into(),
        rules: Vec::new(),
    }))
}

impl Expression {
    /// The verdict that ends the rule here; `None` for another expression.
    #[must_use]
    pub fn given_verdict(&self) -> Option<Verdict> {
        if self.name() != "immediate" {
            return None;
        }
        // NFTA_DATA_VERDICT; data for a register has a value in its place.
        let data = Attributes::new(self.attribute(2)?, 0).ok()?;
        let verdict = data.find(2).ok()??;
        reply::read_verdict(verdict.nested()).ok()
    }

    /// Returns `true` if every packet passes, and stays as it is: a counter, or a comment of iptables.
    #[must_use]
    pub fn is_neutral(&self) -> bool {
        self.name() == "counter" || self.is_match_of_iptables("comment")
    }

    /// Returns `true` if this is the match `conntrack` of iptables, and packets of these states pass it
    /// (`XT_CONNTRACK_STATE_BIT`, `XT_CONNTRACK_STATE_DNAT`).
    #[must_use]
    pub fn passes_states_of_iptables(&self, states: u16) -> bool {
        // struct xt_conntrack_mtinfo3: the fields that it compares, those that it inverts, and states.
        const FIELDS: [usize; 3] = [146, 148, 150];
        // XT_CONNTRACK_STATE.
        const STATE: u16 = 1;
        let revision = self.attribute(2);
        if !self.is_match_of_iptables("conntrack") || revision != Some(&[0, 0, 0, 3][..]) {
            return false;
        }
        let field = |at: usize| {
            let bytes = self.attribute(3)?.get(at..)?.first_chunk::<2>()?;
            Some(u16::from_ne_bytes(*bytes))
        };
        let [compared, inverted, passing] = FIELDS.map(field);
        // A comparison of another field too would let only some of them through.
        let is_of_state = compared == Some(STATE) && inverted == Some(0);
        is_of_state && passing.is_some_and(|passing| passing & states == states)
    }

    fn is_match_of_iptables(&self, name: &str) -> bool {
        let named = self
            .attribute(1)
            .and_then(|bytes| bytes.strip_suffix(&[0_u8]));
        self.name() == "match" && named == Some(name.as_bytes())
    }

    fn attribute(&self, kind: u16) -> Option<&[u8]> {
        let mut all = self.attributes.iter();
        all.find(|(found, _)| *found == kind)
            .map(|(_, payload)| &**payload)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::{Ct, Operator, Register};

    /// A chain as the kernel dumps it.
    fn dumped(family: u8, hook: u32, policy: Option<u32>) -> Vec<u8> {
        let mut writer = Writer::default();
        writer.raw(&[family, 0, 0, 0]);
        writer.string(1, "filter");
        writer.string(3, "FORWARD");
        writer.nest(4, |base| {
            base.be32(1, hook);
            base.be32(2, 0);
        });
        if let Some(policy) = policy {
            writer.be32(5, policy);
        }
        writer.as_bytes().to_vec()
    }

    #[test]
    fn only_base_chains_that_drop_forwarded_packets_are_read() {
        let read = |bytes: &[u8]| read_drop_chain(bytes).unwrap();
        for (number, family) in [(2, "ip"), (10, "ip6"), (1, "inet")] {
            let chain = read(&dumped(number, 2, Some(0))).unwrap();
            assert_eq!(chain.family.to_string(), family);
            assert_eq!((chain.table.as_str(), &*chain.name), ("filter", "FORWARD"));
        }
        for other in [
            dumped(7, 2, Some(0)),
            dumped(2, 1, Some(0)),
            dumped(2, 2, Some(1)),
            dumped(2, 2, None),
        ] {
            assert_eq!(read(&other), None);
        }
        let mut regular = Writer::default();
        regular.raw(&[2, 0, 0, 0]);
        regular.string(1, "filter");
        regular.string(3, "DOCKER");
        assert_eq!(read(regular.as_bytes()), None);
    }

    #[test]
    fn chains_of_tables_that_sleep_drop_nothing() {
        let table = |family: u8, name: &str, flags: u32| {
            let mut writer = Writer::default();
            writer.raw(&[family, 0, 0, 0]);
            writer.string(1, name);
            writer.be32(2, flags);
            read_dormant(writer.as_bytes()).unwrap()
        };
        assert_eq!(table(2, "filter", 0), None);
        assert_eq!(table(7, "filter", 1), None);
        let dormant = [table(2, "filter", 1), table(1, "other", 1)];
        let dormant = dormant.map(Option::unwrap);
        let mut chains = [2, 10, 1]
            .map(|family| {
                read_drop_chain(&dumped(family, 2, Some(0)))
                    .unwrap()
                    .unwrap()
            })
            .to_vec();
        leave_out_dormant(&mut chains, &dormant);
        let families: Vec<_> = chains.iter().map(|chain| chain.family).collect();
        assert_eq!(families, [TableFamily::Ip6, TableFamily::Inet]);
    }

    /// A match of iptables with fields of its structure.
    fn matching(name: &str, revision: u8, fields: &[(usize, u16)]) -> Expression {
        let mut info = [0; 168];
        for (at, value) in fields {
            info[*at..*at + 2].copy_from_slice(&value.to_ne_bytes());
        }
        let name: Vec<u8> = name.bytes().chain([0]).collect();
        Expression {
            name: "match".into(),
            attributes: vec![
                (1, name.into()),
                (2, [0, 0, 0, revision].into()),
                (3, info.into()),
            ],
        }
    }

    #[test]
    fn states_of_iptables_are_read() {
        let conntrack = |fields: &[(usize, u16)]| matching("conntrack", 3, fields);
        let dnat = conntrack(&[(146, 1), (150, 128)]);
        assert!(dnat.passes_states_of_iptables(128));
        assert!(!dnat.passes_states_of_iptables(2));
        let both = conntrack(&[(146, 1), (150, 6)]);
        assert!(both.passes_states_of_iptables(2));
        assert!(!both.passes_states_of_iptables(128));
        for other in [
            conntrack(&[(146, 1), (148, 1), (150, 128)]),
            conntrack(&[(146, 3), (150, 128)]),
            conntrack(&[(150, 128)]),
            matching("conntrack", 1, &[(146, 1), (150, 128)]),
            matching("set", 3, &[(146, 1), (150, 128)]),
            Expression::verdict(&Verdict::Accept),
        ] {
            assert!(!other.passes_states_of_iptables(128), "{other:?}");
        }
        assert!(matching("comment", 0, &[]).is_neutral());
        assert!(!dnat.is_neutral());
    }

    #[test]
    fn verdicts_of_rules_are_read() {
        for verdict in [
            Verdict::Accept,
            Verdict::Drop,
            Verdict::Jump("a".into()),
            Verdict::Goto("b".into()),
        ] {
            let read = Expression::verdict(&verdict).given_verdict();
            assert_eq!(read, Some(verdict));
        }
        let load = Expression::ct(Ct::Status, Register::FIRST);
        let compare = Expression::compare(Register::FIRST, Operator::Equal, &[6]);
        assert_eq!(load.given_verdict(), None);
        assert_eq!(compare.given_verdict(), None);
    }
}
