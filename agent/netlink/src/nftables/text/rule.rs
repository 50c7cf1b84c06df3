// SPDX-License-Identifier: Apache-2.0

//! Rules in the words of `nft`, from their expressions: registers hold the text of what was loaded.

use std::collections::BTreeMap;

use super::super::reply::read_verdict;
use super::super::{Data, Expression, Field, Rule, TableContent};
use super::loads::{Kind, ct, meta, payload};
use super::{address_text, protocol_text, verdict_text};
use crate::wire::Attributes;

/// Text in front of a rule that needs a protocol, and takes any of a Service.
const ANY_PROTOCOL: &str = "meta l4proto { tcp, udp, sctp }";
/// The protocols of rules that need one.
const PROTOCOLS: [&str; 3] = ["tcp", "udp", "sctp"];
/// `IFNAMSIZ`.
const NAME_LEN: usize = 16;

/// The lines of a rule, or the name of an expression that has no text.
pub(super) fn lines(rule: &Rule, table: &TableContent) -> Result<Vec<String>, String> {
    let mut reader = Reader {
        table,
        registers: BTreeMap::new(),
        words: Vec::new(),
    };
    for expression in rule {
        let read = reader.read(expression);
        read.ok_or_else(|| expression.name().to_owned())?;
    }
    Ok(with_protocols(&reader.words))
}

/// Adds the matches on a protocol that ports need.
fn with_protocols(words: &[String]) -> Vec<String> {
    let needs_one = |word: &String| word.contains(" proto-dst") || word.contains(" proto-src");
    let needs_any = |word: &String| word.starts_with("dnat ");
    let lines = |at: usize, protocols: Vec<String>| {
        let line = |protocol: String| {
            let mut words = words.to_vec();
            words.insert(at, protocol);
            words.join(" ")
        };
        protocols.into_iter().map(line).collect()
    };
    if let Some(at) = words.iter().position(needs_one) {
        let of = |protocol: &str| format!("meta l4proto {protocol}");
        lines(at, PROTOCOLS.map(of).into())
    } else if let Some(at) = words.iter().position(needs_any) {
        lines(at, vec![ANY_PROTOCOL.to_owned()])
    } else {
        vec![words.join(" ")]
    }
}

/// Content of a register.
#[derive(Debug, Clone)]
struct Loaded {
    text: String,
    kind: Kind,
    /// Mask that a bitwise expression has applied to it.
    mask: Option<Box<[u8]>>,
}

struct Reader<'a> {
    table: &'a TableContent,
    /// By word.
    registers: BTreeMap<u32, Loaded>,
    words: Vec<String>,
}

impl Expression {
    fn bytes(&self, kind: u16) -> Option<&[u8]> {
        let mut attributes = self.attributes.iter();
        attributes
            .find(|(number, _)| *number == kind)
            .map(|(_, value)| &**value)
    }

    pub(super) fn be32(&self, kind: u16) -> Option<u32> {
        self.bytes(kind)?.try_into().ok().map(u32::from_be_bytes)
    }

    fn text(&self, kind: u16) -> Option<String> {
        let bytes = self.bytes(kind)?;
        let bytes = bytes.strip_suffix(&[0]).unwrap_or(bytes);
        Some(String::from_utf8_lossy(bytes).into_owned())
    }

    /// The word of a register; `NFT_REG_1` to `NFT_REG_4` are each four words.
    fn word(&self, kind: u16) -> Option<u32> {
        match self.be32(kind)? {
            number @ 1..=4 => Some((number - 1) * 4),
            number => number.checked_sub(8),
        }
    }

    /// The value of a `nft_data` attribute.
    fn data(&self, kind: u16) -> Option<&[u8]> {
        let nest = Attributes::new(self.bytes(kind)?, 0).ok()?;
        Some(nest.get(1).ok()?.payload)
    }
}

impl Reader<'_> {
    /// `None` if the expression has no text.
    fn read(&mut self, expression: &Expression) -> Option<()> {
        match expression.name() {
            "payload" => self.load(expression, 1, payload(expression)?),
            "meta" => self.load(expression, 1, meta(expression.be32(2)?)?),
            "ct" => {
                let direction = expression.bytes(3).and_then(|bytes| bytes.first());
                let loaded = ct(expression.be32(2)?, direction.copied())?;
                self.load(expression, 1, loaded)
            }
            "fib" => {
                let what = match (expression.be32(2)?, expression.be32(3)?) {
                    (3, 1) => "fib saddr type",
                    (3, 2) => "fib daddr type",
                    (3, 10) => "fib daddr . iif type",
                    _ => return None,
                };
                self.load(expression, 1, (what.to_owned(), Kind::AddressType))
            }
            "numgen" if expression.be32(3)? == 1 && expression.be32(4)? == 0 => {
                let random = format!("numgen random mod {}", expression.be32(2)?);
                self.load(expression, 1, (random, Kind::Other))
            }
            "rt" if expression.be32(2)? == 3 => {
                self.load(expression, 1, ("rt mtu".to_owned(), Kind::Other))
            }
            // Values in words have no byte order.
            "byteorder" if expression.word(1)? == expression.word(2)? => Some(()),
            "bitwise" => self.bitwise(expression),
            "cmp" => self.compare(expression),
            "lookup" => self.lookup(expression),
            "immediate" if expression.be32(1)? == 0 => {
                let nest = Attributes::new(expression.bytes(2)?, 0).ok()?;
                let verdict = read_verdict(nest.get(2).ok()?.nested()).ok()?;
                self.words.push(verdict_text(&verdict));
                Some(())
            }
            _ => {
                let statement = self.statement(expression)?;
                self.words.push(statement);
                Some(())
            }
        }
    }

    fn statement(&self, expression: &Expression) -> Option<String> {
        Some(match expression.name() {
            "nat" if expression.be32(1)? == 1 => {
                let family = match expression.be32(2)? {
                    2 => "ip",
                    _ => "ip6",
                };
                let to = &self.registers.get(&expression.word(3)?)?.text;
                format!("dnat {family} to {to}")
            }
            "masq" if expression.be32(1)? == 16 => "masquerade fully-random".to_owned(),
            "reject" if expression.be32(1)? == 1 => "reject with tcp reset".to_owned(),
            "reject" => "reject".to_owned(),
            "exthdr" if expression.be32(6)? == 1 && expression.bytes(2)? == [2] => {
                let size = &self.registers.get(&expression.word(7)?)?.text;
                format!("tcp option maxseg size set {size}")
            }
            "dynset" if expression.be32(3)? == 1 => {
                let name = expression.text(1)?;
                let (set, _) = self.table.sets.get(&*name)?;
                let Data::Fields(data) = &set.data else {
                    return None;
                };
                let key = self.key(expression.word(4)?, &set.key)?;
                let data = self.key(expression.word(5)?, data)?;
                let timeout = u64::from_be_bytes(expression.bytes(6)?.try_into().ok()?);
                let seconds = timeout / 1000;
                format!("update @{name} {{ {key} timeout {seconds}s : {data} }}")
            }
            _ => return None,
        })
    }

    fn load(
        &mut self,
        expression: &Expression,
        to: u16,
        (text, kind): (String, Kind),
    ) -> Option<()> {
        let mask = None;
        let loaded = Loaded { text, kind, mask };
        self.registers.insert(expression.word(to)?, loaded);
        Some(())
    }

    /// The fields of a key that lies in registers from a word on.
    fn key(&self, from: u32, fields: &[Field]) -> Option<String> {
        let mut word = from;
        let mut texts = Vec::new();
        for field in fields {
            texts.push(self.registers.get(&word)?.text.as_str());
            word += u32::try_from(field.padded_len() / 4).ok()?;
        }
        Some(texts.join(" . "))
    }

    /// A mask of a comparison that follows.
    fn bitwise(&mut self, expression: &Expression) -> Option<()> {
        let (mask, xor) = (expression.data(4)?, expression.data(5)?);
        let loaded = self.registers.get_mut(&expression.word(1)?)?;
        if xor.iter().any(|byte| *byte != 0) {
            return None;
        }
        loaded.mask = Some(mask.into());
        Some(())
    }

    fn compare(&mut self, expression: &Expression) -> Option<()> {
        let loaded = self.registers.get(&expression.word(1)?)?;
        let value = expression.data(3)?;
        let operator = match expression.be32(2)? {
            0 => "",
            1 => "!= ",
            _ => return None,
        };
        // Compared with 0: any bit of a mask is set, or none is.
        let bits = || {
            let mask = loaded.mask.as_deref()?.try_into().ok()?;
            let is_zero = value.iter().all(|byte| *byte == 0);
            is_zero.then(|| u32::from_ne_bytes(mask))
        };
        let is_any = !operator.is_empty();
        let text = &loaded.text;
        self.words.push(match loaded.kind {
            Kind::Address => {
                let ones = |mask: &[u8]| mask.iter().map(|byte| byte.count_ones()).sum::<u32>();
                let prefix = loaded
                    .mask
                    .as_deref()
                    .map(|mask| format!("/{}", ones(mask)));
                let (address, prefix) = (address_text(value), prefix.unwrap_or_default());
                format!("{text} {operator}{address}{prefix}")
            }
            Kind::Protocol => format!("{text} {operator}{}", protocol_text(*value.first()?)),
            Kind::Interface => {
                let end = value.iter().position(|byte| *byte == 0);
                let name = String::from_utf8_lossy(&value[..end.unwrap_or(value.len())]);
                // A comparison of fewer bytes is one with the beginning of the name.
                let any = if value.len() < NAME_LEN { "*" } else { "" };
                format!("{text} {operator}\"{name}{any}\"")
            }
            Kind::TcpFlags
                if loaded.mask.as_deref()? == [6] && operator.is_empty() && value == [2] =>
            {
                format!("{text} & (syn | rst) == syn")
            }
            Kind::State if is_any && bits()? == 8 => format!("{text} new"),
            Kind::Status if is_any && bits()? == 0x20 => format!("{text} dnat"),
            Kind::Status if !is_any && bits()? == 8 => format!("{text} ! confirmed"),
            Kind::AddressType if value == u32::from(libc::RTN_LOCAL).to_ne_bytes() => {
                format!("{text} {operator}local")
            }
            _ => return None,
        });
        Some(())
    }

    fn lookup(&mut self, expression: &Expression) -> Option<()> {
        let name = expression.text(1)?;
        let (set, _) = self.table.sets.get(&*name)?;
        let key = self.key(expression.word(2)?, &set.key)?;
        match (expression.be32(3), expression.be32(5).unwrap_or(0)) {
            (None, 0) => self.words.push(format!("{key} @{name}")),
            (None, 1) => self.words.push(format!("{key} != @{name}")),
            (Some(0), 0) => self.words.push(format!("{key} vmap @{name}")),
            (Some(_), 0) => {
                let mapped = (format!("{key} map @{name}"), Kind::Other);
                return self.load(expression, 3, mapped);
            }
            _ => return None,
        }
        Some(())
    }
}
