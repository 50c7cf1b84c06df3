// SPDX-License-Identifier: Apache-2.0

//! Expressions of rules.
//!
//! An expression is its name and its attributes as bytes, encoded as the kernel dumps them. So a rule that
//! was read back is compared without a decoder for each kind of expression.

use std::borrow::Cow;

use portolan_model::Family;

use super::Verdict;
use super::request::write_verdict;
use crate::wire::Writer;

/// `NFTA_DATA_VALUE`.
const VALUE: u16 = 1;

/// One expression of a rule.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Expression {
    /// The kernel's name of its kind.
    pub(super) name: Cow<'static, str>,
    /// Attributes by number.
    pub(super) attributes: Vec<(u16, Box<[u8]>)>,
}

/// A register, counted in words of four bytes: 0 to 15.
///
/// Fields that lie in adjacent registers are one key. The verdict has a register of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Register(u8);

impl Register {
    /// Where every key starts.
    pub const FIRST: Self = Self(0);

    /// The register of a word.
    #[must_use]
    pub fn word(word: u8) -> Self {
        debug_assert!(word < 16, "there are sixteen registers of 32 bits");
        Self(word)
    }

    /// The register after as many words as a field of `len` bytes takes.
    #[must_use]
    pub fn after(self, len: usize) -> Self {
        let words = u8::try_from(len.div_ceil(4)).unwrap_or(u8::MAX);
        Self(self.0.saturating_add(words))
    }

    /// The number that the kernel dumps: `NFT_REG_1` to `NFT_REG_4` for each fourth word, else
    /// `NFT_REG32_00` and on.
    fn number(self) -> u32 {
        if self.0.is_multiple_of(4) {
            1 + u32::from(self.0 / 4)
        } else {
            8 + u32::from(self.0)
        }
    }
}

/// Packet header of [`Expression::payload`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// The network header.
    Network = 1,
    /// The transport header.
    Transport = 2,
}

/// Comparison of [`Expression::compare`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operator {
    /// Equal.
    Equal = 0,
    /// Not equal.
    NotEqual = 1,
}

/// Property of a packet (`enum nft_meta_keys`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meta {
    /// Mark; four bytes.
    Mark = 3,
    /// Name of the interface that the packet came by; 16 bytes.
    InputName = 6,
    /// Transport protocol; one byte.
    Protocol = 16,
}

/// Property of the packet's connection (`enum nft_ct_keys`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ct {
    /// State, as a bit; four bytes.
    State,
    /// Status bits; four bytes.
    Status,
    /// Source address of a direction.
    Source(Direction, Family),
    /// Destination address of a direction.
    Destination(Direction, Family),
    /// Source port of a direction.
    SourcePort(Direction),
    /// Destination port of a direction.
    DestinationPort(Direction),
}

/// Direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From the client.
    Original = 0,
    /// To the client.
    Reply = 1,
}

impl Ct {
    /// The bit of [`Ct::State`] of packets of connections that have been answered.
    pub const STATE_ESTABLISHED: u32 = 2;
    /// The bit of [`Ct::State`] of the first packets of connections that another one has announced, and of errors.
    pub const STATE_RELATED: u32 = 4;
    /// The bit of [`Ct::State`] of a connection's packets until one is answered.
    pub const STATE_NEW: u32 = 8;
    /// The bit of [`Ct::Status`] of connections whose first packet has passed the last hook (`IPS_CONFIRMED`).
    pub const STATUS_CONFIRMED: u32 = 8;
    /// The bit of [`Ct::Status`] of connections with a translated destination (`IPS_DST_NAT`).
    pub const STATUS_DNAT: u32 = 0x20;

    fn key(self) -> u32 {
        match self {
            Self::State => 0,
            Self::Status => 2,
            Self::SourcePort(_) => 11,
            Self::DestinationPort(_) => 12,
            Self::Source(_, Family::V4) => 19,
            Self::Destination(_, Family::V4) => 20,
            Self::Source(_, Family::V6) => 21,
            Self::Destination(_, Family::V6) => 22,
        }
    }

    fn direction(self) -> Option<Direction> {
        match self {
            Self::State | Self::Status => None,
            Self::Source(direction, _)
            | Self::Destination(direction, _)
            | Self::SourcePort(direction)
            | Self::DestinationPort(direction) => Some(direction),
        }
    }
}

/// Action of [`Expression::lookup`] with an element.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// Goes on if the set has the key.
    Has,
    /// Goes on if the set lacks the key.
    Lacks,
    /// Goes on with the element's data in the first registers, if the map has the key.
    Data,
    /// Follows the element's verdict, if the map has the key.
    Verdict,
}

/// Address of [`Expression::is_local`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which {
    /// The packet's source.
    Source,
    /// The packet's destination.
    Destination,
    /// The packet's destination, on the interface that it came by.
    DestinationOnArrival,
}

impl Expression {
    fn new(name: &'static str) -> Self {
        Self {
            name: Cow::Borrowed(name),
            attributes: Vec::new(),
        }
    }

    fn raw(mut self, kind: u16, value: &[u8]) -> Self {
        self.attributes.push((kind, value.into()));
        self
    }

    fn number(self, kind: u16, value: u32) -> Self {
        self.raw(kind, &value.to_be_bytes())
    }

    fn register(self, kind: u16, register: Register) -> Self {
        self.number(kind, register.number())
    }

    fn string(self, kind: u16, value: &str) -> Self {
        let bytes: Vec<u8> = value.bytes().chain([0]).collect();
        self.raw(kind, &bytes)
    }

    fn nest(self, kind: u16, fill: impl FnOnce(&mut Writer)) -> Self {
        let mut writer = Writer::default();
        fill(&mut writer);
        self.raw(kind, writer.as_bytes())
    }

    fn value(self, kind: u16, value: &[u8]) -> Self {
        self.nest(kind, |writer| writer.attribute(VALUE, value))
    }

    /// The kernel's name of its kind.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns `true` if an expression that the kernel dumps is this one: it has all its
    /// attributes, and others that the kernel fills in.
    #[must_use]
    pub fn is_dumped_as(&self, dumped: &Self) -> bool {
        let has = |attribute| dumped.attributes.contains(attribute);
        self.name == dumped.name && self.attributes.iter().all(has)
    }

    /// Loads bytes of a packet header.
    #[must_use]
    pub fn payload(header: Header, offset: u32, len: u32, to: Register) -> Self {
        Self::new("payload")
            .register(1, to)
            .number(2, header as u32)
            .number(3, offset)
            .number(4, len)
    }

    /// Loads a property of the packet.
    #[must_use]
    pub fn meta(meta: Meta, to: Register) -> Self {
        Self::new("meta").number(2, meta as u32).register(1, to)
    }

    /// Writes the packet's mark.
    #[must_use]
    pub fn set_mark(from: Register) -> Self {
        Self::new("meta")
            .number(2, Meta::Mark as u32)
            .register(3, from)
    }

    /// Loads a property of the connection.
    #[must_use]
    pub fn ct(ct: Ct, to: Register) -> Self {
        let this = Self::new("ct").register(1, to).number(2, ct.key());
        match ct.direction() {
            Some(direction) => this.raw(3, &[direction as u8]),
            None => this,
        }
    }

    /// Goes on if a register compares so with a value of at most 16 bytes.
    #[must_use]
    pub fn compare(register: Register, operator: Operator, value: &[u8]) -> Self {
        Self::new("cmp")
            .register(1, register)
            .number(2, operator as u32)
            .value(3, value)
    }

    /// Replaces a register by `register & mask ^ xor`; both have the length of the value.
    #[must_use]
    pub fn bitwise(register: Register, mask: &[u8], xor: &[u8]) -> Self {
        let len = u32::try_from(mask.len()).unwrap_or(u32::MAX);
        Self::new("bitwise")
            .register(1, register)
            .register(2, register)
            .number(3, len)
            .value(4, mask)
            .value(5, xor)
    }

    /// Loads the largest TCP segment that fits the routes to both ends of the packet, in the network's byte order;
    /// two bytes. Chains of `forward`, `output` and `postrouting` can have it.
    #[must_use]
    pub fn path_segment(to: Register) -> [Self; 2] {
        // NFT_RT_TCPMSS, then NFT_BYTEORDER_HTON of a number of two bytes.
        let load = Self::new("rt").register(1, to).number(2, 3);
        let order = Self::new("byteorder");
        let order = order.register(1, to).register(2, to).number(3, 1);
        [load, order.number(4, 2).number(5, 2)]
    }

    /// Writes the largest segment that a TCP packet announces, if the register has a smaller one. A packet that
    /// announces none stays as it is.
    #[must_use]
    pub fn set_segment(from: Register) -> Self {
        // TCPOPT_MSS: its value follows its kind and its length. NFT_EXTHDR_OP_TCPOPT.
        let option = Self::new("exthdr").raw(2, &[2]).number(3, 2).number(4, 2);
        option.number(6, 1).register(7, from)
    }

    /// Looks the key in the first registers up.
    #[must_use]
    pub fn lookup(set: &str, lookup: Lookup) -> Self {
        let this = Self::new("lookup")
            .string(1, set)
            .register(2, Register::FIRST);
        match lookup {
            Lookup::Has => this.number(5, 0),
            Lookup::Lacks => this.number(5, 1),
            Lookup::Data => this.register(3, Register::FIRST).number(5, 0),
            // The register of the verdict is number 0.
            Lookup::Verdict => this.number(3, 0).number(5, 0),
        }
    }

    /// Ends the rule with a verdict.
    #[must_use]
    pub fn verdict(verdict: &Verdict) -> Self {
        Self::new("immediate")
            .number(1, 0)
            .nest(2, |writer| write_verdict(writer, verdict))
    }

    /// Loads a random number below `modulus`.
    #[must_use]
    pub fn random(modulus: u32, to: Register) -> Self {
        Self::new("numgen")
            .register(1, to)
            .number(2, modulus)
            .number(3, 1)
            .number(4, 0)
    }

    /// Goes on if an address is one of the node's own.
    #[must_use]
    pub fn is_local(which: Which) -> [Self; 2] {
        let flags = match which {
            Which::Source => 1,
            Which::Destination => 2,
            Which::DestinationOnArrival => 2 | 8,
        };
        let kind = Self::new("fib")
            .register(1, Register::FIRST)
            .number(2, 3)
            .number(3, flags);
        // RTN_LOCAL, in the host's byte order.
        let local = libc::RTN_LOCAL;
        let local = u32::from(local).to_ne_bytes();
        [
            kind,
            Self::compare(Register::FIRST, Operator::Equal, &local),
        ]
    }

    /// Translates the destination to the address and port in the registers.
    #[must_use]
    pub fn dnat(family: Family, address: Register, port: Register) -> Self {
        Self::new("nat")
            .number(1, 1)
            .number(2, family_number(family))
            .register(3, address)
            .register(5, port)
    }

    /// Gives the connection the address of the outgoing interface as its source, and a random port.
    #[must_use]
    pub fn masquerade() -> Self {
        // NF_NAT_RANGE_PROTO_RANDOM_FULLY.
        Self::new("masq").number(1, 16)
    }

    /// Refuses with a TCP reset.
    #[must_use]
    pub fn reset() -> Self {
        Self::new("reject").number(1, 1)
    }

    /// Refuses with an ICMP message about the port.
    #[must_use]
    pub fn refuse(family: Family) -> Self {
        // ICMP_PORT_UNREACH, ICMPV6_PORT_UNREACH.
        let code = match family {
            Family::V4 => 3,
            Family::V6 => 4,
        };
        Self::new("reject").number(1, 0).raw(2, &[code])
    }

    /// Adds the key in the first registers to a map, with data of other registers, or renews it.
    #[must_use]
    pub fn remember(set: &str, data: Register, timeout_ms: u64) -> Self {
        Self::new("dynset")
            .string(1, set)
            .number(3, 1)
            .register(4, Register::FIRST)
            .register(5, data)
            .raw(6, &timeout_ms.to_be_bytes())
    }

    pub(super) fn write(&self, writer: &mut Writer) {
        writer.string(1, &self.name);
        writer.nest(2, |data| {
            for (kind, value) in &self.attributes {
                data.attribute(*kind, value);
            }
        });
    }
}

fn family_number(family: Family) -> u32 {
    u32::from(super::family_number(family))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nftables::be32;

    #[test]
    fn registers_have_the_numbers_of_dumps() {
        let numbers: Vec<u32> = (0..16).map(|word| Register::word(word).number()).collect();
        let expected = [1, 9, 10, 11, 2, 13, 14, 15, 3, 17, 18, 19, 4, 21, 22, 23];
        assert_eq!(numbers, expected);
        assert_eq!(Register::FIRST.after(1).after(16), Register::word(5));
    }

    #[test]
    fn a_dump_has_more_attributes_and_not_fewer() {
        let wanted = Expression::lookup("services", Lookup::Has);
        let mut dumped = wanted.clone();
        dumped.attributes.reverse();
        dumped.attributes.push((9, Box::new([1])));
        assert!(wanted.is_dumped_as(&dumped));
        assert!(!dumped.is_dumped_as(&wanted));
        let other = Expression::lookup("service", Lookup::Has);
        assert!(!wanted.is_dumped_as(&other));
    }

    #[test]
    fn a_verdict_is_nested_as_the_kernel_dumps_it() {
        let jump = Expression::verdict(&Verdict::Jump("ab".into()));
        let (kind, bytes) = jump.attributes.last().unwrap();
        let mut code = Writer::default();
        be32(&mut code, 1, 0xffff_fffd);
        let mut expected = vec![20, 0, 2, 0];
        expected.extend_from_slice(code.as_bytes());
        expected.extend_from_slice(&[7, 0, 2, 0, b'a', b'b', 0, 0]);
        assert_eq!((*kind, &**bytes), (2, &expected[..]));
    }
}
