// SPDX-License-Identifier: Apache-2.0

//! Objects in dumps of the kernel.

use std::borrow::Cow;
use std::sync::Arc;

use super::objects::type_number;
use super::request::{EVAL, INTERVAL, MAP, VERDICT_TYPE};
use super::{
    Base, Chain, ChainKind, Data, Expression, Field, HEADER_LEN, Hook, Key, Rule, Set, Value,
    Verdict,
};
use crate::wire::{Attribute, Attributes, Malformed};

/// `NF_ACCEPT`.
const ACCEPT: u32 = 1;

/// An object, if it belongs to the table.
type OfTable<T> = Result<Option<T>, Malformed>;

/// The attributes of an object of a table; the table's name is attribute 1 of all of them.
fn of_table<'a>(payload: &'a [u8], table: &str) -> OfTable<Attributes<'a>> {
    let attributes = Attributes::new(payload, HEADER_LEN)?;
    let is_ours = attributes.get(1)?.string() == table;
    Ok(is_ours.then_some(attributes))
}

pub(super) fn read_name(payload: &[u8]) -> Result<String, Malformed> {
    Ok(Attributes::new(payload, HEADER_LEN)?.get(1)?.string())
}

/// Name of a table, and whether it sleeps (`NFT_TABLE_F_DORMANT`).
pub(super) fn read_table(payload: &[u8]) -> Result<(String, bool), Malformed> {
    let attributes = Attributes::new(payload, HEADER_LEN)?;
    let flags = attributes.find(2)?.map(Attribute::be32).transpose()?;
    let is_dormant = flags.is_some_and(|flags| flags & 1 != 0);
    Ok((attributes.get(1)?.string(), is_dormant))
}

/// `NFTA_GEN_ID`.
pub(super) fn read_generation(payload: &[u8]) -> Result<u32, Malformed> {
    Attributes::new(payload, HEADER_LEN)?.get(1)?.be32()
}

pub(super) fn read_chain(payload: &[u8], table: &str) -> OfTable<Chain> {
    let Some(attributes) = of_table(payload, table)? else {
        return Ok(None);
    };
    let base = match attributes.find(4)? {
        None => None,
        Some(hook) => read_base(hook.nested(), &attributes)?,
    };
    let name = attributes.get(3)?.string().into();
    Ok(Some(Chain { name, base }))
}

/// A kind, hook or policy that we do not use makes it no base chain of ours.
fn read_base(hook: Attributes<'_>, chain: &Attributes<'_>) -> OfTable<Base> {
    let policy = chain.find(5)?.map(Attribute::be32).transpose()?;
    if policy.is_some_and(|policy| policy != ACCEPT) {
        return Ok(None);
    }
    let priority = i32::from_be_bytes(hook.get(2)?.exact()?);
    let hook = Hook::from_number(hook.get(1)?.be32()?);
    let kind = match chain.get(7)?.string().as_str() {
        "filter" => Some(ChainKind::Filter),
        "nat" => Some(ChainKind::Nat),
        _ => None,
    };
    Ok(hook.zip(kind).map(|(hook, kind)| Base {
        kind,
        hook,
        priority,
    }))
}

/// A rule and the name of its chain.
pub(super) fn read_rule(payload: &[u8], table: &str) -> OfTable<(Arc<str>, Rule)> {
    let Some(attributes) = of_table(payload, table)? else {
        return Ok(None);
    };
    let chain = attributes.get(2)?.string().into();
    let mut rule = Vec::new();
    if let Some(list) = attributes.find(4)? {
        for expression in list.nested() {
            rule.push(read_expression(expression?)?);
        }
    }
    Ok(Some((chain, rule)))
}

fn read_expression(expression: Attribute<'_>) -> Result<Expression, Malformed> {
    let fields = expression.nested();
    let mut attributes = Vec::new();
    if let Some(data) = fields.find(2)? {
        for attribute in data.nested() {
            let attribute = attribute?;
            attributes.push((attribute.kind, attribute.payload.into()));
        }
    }
    Ok(Expression {
        name: Cow::Owned(fields.get(1)?.string()),
        attributes,
    })
}

pub(super) fn read_set(payload: &[u8], table: &str) -> OfTable<Set> {
    let Some(attributes) = of_table(payload, table)? else {
        return Ok(None);
    };
    let number = |kind| attributes.find(kind)?.map(Attribute::be32).transpose();
    let flags = number(3)?.unwrap_or(0);
    let data = match number(6)? {
        Some(VERDICT_TYPE) => Data::Verdict,
        Some(kind) if flags & MAP != 0 => Data::Fields(fields(kind)),
        _ => Data::None,
    };
    let size = match attributes.find(9)? {
        Some(description) => description.nested().find(1)?,
        None => None,
    };
    let size = size.map(Attribute::be32).transpose()?;
    Ok(Some(Set {
        name: attributes.get(2)?.string().into(),
        key: fields(number(4)?.unwrap_or(0)),
        data,
        is_interval: flags & INTERVAL != 0,
        size,
        is_dynamic: flags & EVAL != 0,
    }))
}

/// The fields of `nft`'s number of a concatenation; none if one is unknown, which equals no set of ours.
fn fields(number: u32) -> Vec<Field> {
    const ALL: [Field; 5] = [
        Field::Ipv4,
        Field::Ipv6,
        Field::Protocol,
        Field::Port,
        Field::Number,
    ];
    let mut fields = Vec::new();
    let mut rest = number;
    while rest != 0 {
        let known = ALL.into_iter().find(|f| type_number(&[*f]) == rest & 0x3f);
        let Some(field) = known else {
            return Vec::new();
        };
        fields.insert(0, field);
        rest >>= 6;
    }
    fields
}

/// Adds the elements of a message of a dump.
pub(super) fn read_elements(
    payload: &[u8],
    elements: &mut Vec<(Key, Value)>,
) -> Result<(), Malformed> {
    let Some(list) = Attributes::new(payload, HEADER_LEN)?.find(3)? else {
        return Ok(());
    };
    for element in list.nested() {
        elements.extend(read_element(element?.nested())?);
    }
    Ok(())
}

/// `None` for an element without a key: a catch-all, which is never ours.
fn read_element(element: Attributes<'_>) -> OfTable<(Key, Value)> {
    let bytes = |nest: Attribute<'_>| -> Result<Key, Malformed> {
        Ok(nest.nested().get(1)?.payload.into())
    };
    let Some(key) = element.find(1)? else {
        return Ok(None);
    };
    let value = match (element.find(10)?, element.find(2)?) {
        (Some(end), _) => Value::UpTo(bytes(end)?),
        (None, Some(data)) => match data.nested().find(2)? {
            Some(verdict) => Value::Verdict(read_verdict(verdict.nested())?),
            None => Value::Data(bytes(data)?),
        },
        (None, None) => Value::Present,
    };
    Ok(Some((bytes(key)?, value)))
}

pub(super) fn read_verdict(verdict: Attributes<'_>) -> Result<Verdict, Malformed> {
    let code = i32::from_be_bytes(verdict.get(1)?.exact()?);
    let chain = verdict.find(2)?.map(|chain| Arc::from(chain.string()));
    Ok(match (code, chain) {
        (0, _) => Verdict::Drop,
        (1, _) => Verdict::Accept,
        (-3, Some(chain)) => Verdict::Jump(chain),
        (-4, Some(chain)) => Verdict::Goto(chain),
        (code, _) => Verdict::Other(code),
    })
}
