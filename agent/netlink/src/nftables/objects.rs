// SPDX-License-Identifier: Apache-2.0

//! Objects of a table, as values.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::Expression;

/// A chain, without its rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chain {
    /// Its name, unique in the table.
    pub name: Arc<str>,
    /// Where packets enter it; `None` if only rules and verdict maps lead to it.
    pub base: Option<Base>,
}

/// The way of packets into a base chain, whose policy is to accept. A chain with another policy is read as one without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Base {
    /// Type of the chain.
    pub kind: ChainKind,
    /// Hook of the packet path.
    pub hook: Hook,
    /// Order among the chains of the hook, lowest first. Of nat chains with equal priority the one that
    /// was registered last comes first.
    pub priority: i32,
}

/// Type of a base chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainKind {
    /// `filter`: every packet.
    Filter,
    /// `nat`: the first packet of each connection.
    Nat,
}

impl ChainKind {
    /// The kernel's name.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Filter => "filter",
            Self::Nat => "nat",
        }
    }
}

/// Hook of the packet path (`enum nf_inet_hooks`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// Packets that arrive.
    Prerouting = 0,
    /// Packets for the node itself.
    Input = 1,
    /// Packets that are routed through.
    Forward = 2,
    /// Packets of the node itself.
    Output = 3,
    /// Packets that leave.
    Postrouting = 4,
}

impl Hook {
    /// All hooks, by number.
    pub const ALL: [Self; 5] = [
        Self::Prerouting,
        Self::Input,
        Self::Forward,
        Self::Output,
        Self::Postrouting,
    ];

    pub(super) fn number(self) -> u32 {
        self as u32
    }

    pub(super) fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|hook| hook.number() == number)
    }
}

/// A set, or a map if it has data; without its elements.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Set {
    /// Its name, unique in the table.
    pub name: Arc<str>,
    /// The fields of a key, in order.
    pub key: Vec<Field>,
    /// Type of the data that a key maps to.
    pub data: Data,
    /// Whether an element is a range in each field.
    pub is_interval: bool,
    /// Most elements that it may have. The kernel makes its hash table for as many; without a size, the table grows
    /// with the elements, which costs a third of the time that many take (`nft_hash` and `nft_rhash`).
    pub size: Option<u32>,
    /// Rules add its elements, which expire.
    pub is_dynamic: bool,
}

impl Set {
    /// A set, or a map if `data` is not [`Data::None`], whose elements are single keys.
    #[must_use]
    pub fn new(name: &str, key: &[Field], data: Data) -> Self {
        Self {
            name: name.into(),
            key: key.to_vec(),
            data,
            is_interval: false,
            size: None,
            is_dynamic: false,
        }
    }

    /// Length of a key in bytes: each field is padded to four.
    #[must_use]
    pub fn key_len(&self) -> usize {
        self.key.iter().map(|field| field.padded_len()).sum()
    }
}

/// Type of the data that a set's keys map to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Data {
    /// Nothing: it is a set.
    None,
    /// Fields, padded as those of a key.
    Fields(Vec<Field>),
    /// Verdicts.
    Verdict,
}

/// Field of a key or of data: `nft`'s data types. The kernel stores their numbers for `nft` alone, and
/// knows the length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Field {
    /// `ipv4_addr`.
    Ipv4,
    /// `ipv6_addr`.
    Ipv6,
    /// `inet_proto`.
    Protocol,
    /// `inet_service`.
    Port,
    /// `mark`: a number of 32 bits in the host's byte order.
    Number,
}

impl Field {
    /// Length in bytes without padding.
    #[must_use]
    pub fn bytes(self) -> usize {
        match self {
            Self::Protocol => 1,
            Self::Port => 2,
            Self::Ipv4 | Self::Number => 4,
            Self::Ipv6 => 16,
        }
    }

    /// Length in a key.
    #[must_use]
    pub fn padded_len(self) -> usize {
        self.bytes().next_multiple_of(4)
    }

    /// `nft`'s number of the type (nftables: `include/datatype.h`).
    fn number(self) -> u32 {
        match self {
            Self::Ipv4 => 7,
            Self::Ipv6 => 8,
            Self::Protocol => 12,
            Self::Port => 13,
            Self::Number => 19,
        }
    }
}

/// `nft`'s number of a concatenation: six bits for each field.
pub(super) fn type_number(fields: &[Field]) -> u32 {
    fields
        .iter()
        .fold(0, |number, field| number << 6 | field.number())
}

/// Key of an element, or the last key of a range: its fields, each padded to four bytes, in network byte
/// order except [`Field::Number`].
pub type Key = Box<[u8]>;

/// Content of an element besides its key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    /// Nothing.
    Present,
    /// The last key of a range, which belongs to it.
    UpTo(Key),
    /// Data of a map.
    Data(Key),
    /// Verdict of a verdict map.
    Verdict(Verdict),
}

/// Verdict on a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It is dropped.
    Drop,
    /// It passes this hook's chains of our priority.
    Accept,
    /// It goes through a chain and comes back.
    Jump(Arc<str>),
    /// It goes through a chain, and back to where the present chain was jumped to from.
    Goto(Arc<str>),
    /// Another code, which is never ours.
    Other(i32),
}

impl fmt::Display for Verdict {
    /// The spelling of `nft`, which has no word for another code.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Drop => f.write_str("drop"),
            Self::Accept => f.write_str("accept"),
            Self::Jump(chain) => write!(f, "jump {chain}"),
            Self::Goto(chain) => write!(f, "goto {chain}"),
            Self::Other(code) => write!(f, "verdict {code}"),
        }
    }
}

/// Elements by key.
pub type Elements = BTreeMap<Key, Value>;

/// A rule of a chain: expressions that run until one does not match.
pub type Rule = Vec<Expression>;

/// Chains with their rules, by name.
pub type Chains = BTreeMap<Arc<str>, (Chain, Vec<Rule>)>;

/// All objects of one table.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TableContent {
    /// Sets and maps with their elements, by name.
    pub sets: BTreeMap<Arc<str>, (Set, Elements)>,
    /// Chains with their rules, by name.
    pub chains: Chains,
    /// Dormancy of the table: no packet enters its chains. We never ask for it.
    pub is_dormant: bool,
}
