// SPDX-License-Identifier: Apache-2.0

//! A table in the words of `nft`, whose `-f` reads it.
//!
//! Pure. Two things differ from the messages of [`Request`](super::Request), since `nft` knows a port only after
//! a match on a protocol: rules that translate a destination begin with such a match, and rules that ask for
//! a port of the connection's other direction are there once for each protocol.

mod loads;
mod rule;
#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::net::IpAddr;

use portolan_model::{Family, Protocol};

use super::{Base, Chain, Data, Elements, Field, Hook, Rule, Set, TableContent, Value, Verdict};

/// A rule that has no text.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("chain {chain}, rule {number}: an expression `{expression}` that has no text")]
pub struct NoText {
    chain: String,
    /// The rule's place in its chain, from 1.
    number: usize,
    expression: String,
}

impl TableContent {
    /// The table as input of `nft -f`. It replaces a table of the name in one transaction.
    ///
    /// # Errors
    /// If a rule has an expression other than those of [`Expression`](super::Expression)'s functions.
    pub fn text(&self, family: Family, table: &str) -> Result<String, NoText> {
        let name = match family {
            Family::V4 => format!("ip {table}"),
            Family::V6 => format!("ip6 {table}"),
        };
        // Without the first line there may be nothing to delete, which is an error.
        let mut text = format!("table {name} {{ }}\ndelete table {name}\ntable {name} {{\n");
        for (set, elements) in self.sets.values() {
            write_set(&mut text, family, set, elements);
        }
        for (chain, rules) in self.chains.values() {
            self.write_chain(&mut text, chain, rules)?;
        }
        text.push_str("}\n");
        Ok(text)
    }

    fn write_chain(&self, text: &mut String, chain: &Chain, rules: &[Rule]) -> Result<(), NoText> {
        // Writing to a string never fails.
        let _ = writeln!(text, "\tchain {} {{", chain.name);
        if let Some(base) = &chain.base {
            let _ = writeln!(text, "\t\t{}", base_text(base));
        }
        for (number, rule) in (1..).zip(rules) {
            let lines = rule::lines(rule, self).map_err(|expression| NoText {
                chain: chain.name.to_string(),
                number,
                expression,
            })?;
            for line in lines {
                let _ = writeln!(text, "\t\t{line}");
            }
        }
        text.push_str("\t}\n");
        Ok(())
    }
}

fn base_text(base: &Base) -> String {
    let hook = match base.hook {
        Hook::Prerouting => "prerouting",
        Hook::Input => "input",
        Hook::Forward => "forward",
        Hook::Output => "output",
        Hook::Postrouting => "postrouting",
    };
    let (kind, priority) = (base.kind.as_str(), base.priority);
    format!("type {kind} hook {hook} priority {priority}; policy accept;")
}

fn write_set(text: &mut String, family: Family, set: &Set, elements: &Elements) {
    let kind = match set.data {
        Data::None => "set",
        _ => "map",
    };
    let data = match &set.data {
        Data::None => String::new(),
        Data::Fields(fields) => format!(" : {}", type_of(family, fields)),
        Data::Verdict => " : verdict".to_owned(),
    };
    let keyword = match has_number(&set.key) {
        true => "typeof",
        false => "type",
    };
    let (name, key) = (&set.name, type_of(family, &set.key));
    let data = match (&set.data, keyword) {
        (Data::Fields(fields), "typeof") => format!(" : {}", expressions(family, fields)),
        _ => data,
    };
    // Writing to a string never fails.
    let _ = writeln!(text, "\t{kind} {name} {{\n\t\t{keyword} {key}{data}");
    if let Some(size) = set.size {
        let _ = writeln!(text, "\t\tsize {size}");
    }
    if set.is_dynamic {
        text.push_str("\t\tflags dynamic,timeout\n");
    }
    if set.is_interval {
        text.push_str("\t\tflags interval\n");
    }
    if !elements.is_empty() {
        text.push_str("\t\telements = {\n");
        for (key, value) in elements {
            let _ = writeln!(text, "\t\t\t{},", element(set, key, value));
        }
        text.push_str("\t\t}\n");
    }
    text.push_str("\t}\n");
}

fn has_number(fields: &[Field]) -> bool {
    fields.contains(&Field::Number)
}

/// The type of a key. A number has a type only as that of an expression.
fn type_of(family: Family, fields: &[Field]) -> String {
    if has_number(fields) {
        return expressions(family, fields);
    }
    let names = fields.iter().map(|field| match field {
        Field::Ipv4 => "ipv4_addr",
        Field::Ipv6 => "ipv6_addr",
        Field::Protocol => "inet_proto",
        Field::Port => "inet_service",
        Field::Number => "mark",
    });
    names.collect::<Vec<_>>().join(" . ")
}

/// Expressions that have these types.
fn expressions(family: Family, fields: &[Field]) -> String {
    let address = match family {
        Family::V4 => "ip daddr",
        Family::V6 => "ip6 daddr",
    };
    let texts = fields.iter().map(|field| match field {
        Field::Ipv4 | Field::Ipv6 => address,
        Field::Protocol => "meta l4proto",
        Field::Port => "th dport",
        Field::Number => "numgen random mod 2",
    });
    texts.collect::<Vec<_>>().join(" . ")
}

fn element(set: &Set, key: &[u8], value: &Value) -> String {
    let first = fields(&set.key, key);
    match value {
        Value::Present => first.join(" . "),
        Value::UpTo(last) => {
            let last = fields(&set.key, last);
            let ranges = first.into_iter().zip(last);
            let ranges = ranges.map(|(first, last)| match first == last {
                true => first,
                false => format!("{first}-{last}"),
            });
            ranges.collect::<Vec<_>>().join(" . ")
        }
        Value::Data(data) => {
            let of = match &set.data {
                Data::Fields(fields) => &fields[..],
                _ => &[],
            };
            format!("{} : {}", first.join(" . "), fields(of, data).join(" . "))
        }
        Value::Verdict(verdict) => format!("{} : {}", first.join(" . "), verdict_text(verdict)),
    }
}

/// The values of a key's fields.
fn fields(of: &[Field], mut key: &[u8]) -> Vec<String> {
    let mut texts = Vec::new();
    for field in of {
        let Some((bytes, rest)) = key.split_at_checked(field.padded_len()) else {
            break;
        };
        texts.push(value_text(*field, bytes));
        key = rest;
    }
    texts
}

fn value_text(field: Field, bytes: &[u8]) -> String {
    match field {
        Field::Ipv4 | Field::Ipv6 => address_text(bytes),
        Field::Protocol => protocol_text(bytes.first().copied().unwrap_or(0)),
        Field::Port => {
            let port = bytes.first_chunk().copied().map(u16::from_be_bytes);
            port.unwrap_or(0).to_string()
        }
        Field::Number => {
            let number = bytes.first_chunk().copied().map(u32::from_ne_bytes);
            number.unwrap_or(0).to_string()
        }
    }
}

fn address_text(bytes: &[u8]) -> String {
    let v4 = || <[u8; 4]>::try_from(bytes).map(IpAddr::from);
    let v6 = || <[u8; 16]>::try_from(bytes).map(IpAddr::from);
    v4().or_else(|_| v6())
        .map_or_else(|_| String::new(), |ip| ip.to_string())
}

fn protocol_text(number: u8) -> String {
    match Protocol::from_number(number.into()) {
        Some(protocol) => protocol.as_str().to_ascii_lowercase(),
        None => number.to_string(),
    }
}

fn verdict_text(verdict: &Verdict) -> String {
    match verdict {
        Verdict::Other(_) => format!("# {verdict}"),
        _ => verdict.to_string(),
    }
}
