// SPDX-License-Identifier: Apache-2.0

//! Requests of a transaction, and their messages.

use std::sync::Arc;

use super::objects::type_number;
use super::{Base, Chain, Data, Field, Key, Rule, Set, Value, Verdict, be32, userdata};
use crate::wire::Writer;

/// `NFT_MSG_NEWTABLE`.
const NEW_TABLE: u16 = 0;
/// `NFT_MSG_DELTABLE`.
const DEL_TABLE: u16 = 2;
/// `NFT_MSG_NEWCHAIN`.
const NEW_CHAIN: u16 = 3;
/// `NFT_MSG_DELCHAIN`.
const DEL_CHAIN: u16 = 5;
/// `NFT_MSG_NEWRULE`.
const NEW_RULE: u16 = 6;
/// `NFT_MSG_DELRULE`.
const DEL_RULE: u16 = 8;
/// `NFT_MSG_NEWSET`.
const NEW_SET: u16 = 9;
/// `NFT_MSG_DELSET`.
const DEL_SET: u16 = 11;
/// `NFT_MSG_NEWSETELEM`.
const NEW_ELEMENTS: u16 = 12;
/// `NFT_MSG_DELSETELEM`.
const DEL_ELEMENTS: u16 = 14;

/// `NLM_F_CREATE`.
const CREATE: u16 = 0x0400;
/// `NLM_F_APPEND`.
const APPEND: u16 = 0x0800;

/// `NFT_SET_INTERVAL`.
pub(super) const INTERVAL: u32 = 0x4;
/// `NFT_SET_MAP`.
pub(super) const MAP: u32 = 0x8;
/// `NFT_SET_TIMEOUT`.
const TIMEOUT: u32 = 0x10;
/// `NFT_SET_EVAL`.
pub(super) const EVAL: u32 = 0x20;
/// `NFT_SET_CONCAT`.
const CONCAT: u32 = 0x80;
/// `NFT_DATA_VERDICT`, the type of data of verdict maps.
pub(super) const VERDICT_TYPE: u32 = 0xffff_ff00;

/// `NFTA_SET_USERDATA`.
pub(super) const USERDATA: u16 = 13;

/// Most bytes of elements in one message: an attribute has at most 64 KiB.
const ELEMENTS_MAX: usize = 60_000;

/// A change of one table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Creates the table, if it is not there.
    AddTable,
    /// Deletes the table with all that is in it.
    DelTable,
    /// Creates a set, if it is not there. One of the same name and another type is an error.
    AddSet(Set),
    /// Gives a set this size. Elements of the same transaction still need room in the old one. Kernels before Linux 6.12
    /// may ignore it.
    ResizeSet(Set),
    /// Deletes a set, to which nothing refers.
    DelSet(Arc<str>),
    /// Creates a chain, if it is not there.
    AddChain(Chain),
    /// Deletes a chain without rules, to which nothing leads.
    DelChain(Arc<str>),
    /// Appends a rule.
    AddRule(Arc<str>, Rule),
    /// Deletes all rules of a chain.
    FlushChain(Arc<str>),
    /// Adds elements to a set. One that is there with the same value is no error, one with another is.
    AddElements(Arc<str>, Vec<(Key, Value)>),
    /// Deletes elements of a set, all of which must be there.
    DelElements(Arc<str>, Vec<(Key, Value)>),
}

impl Request {
    /// Returns the number of objects that it changes.
    #[must_use]
    pub fn objects(&self) -> usize {
        match self {
            Self::AddElements(_, elements) | Self::DelElements(_, elements) => elements.len(),
            _ => 1,
        }
    }

    /// Calls `push` with type, flags and content of each of its messages.
    pub(super) fn messages<E>(
        &self,
        table: &str,
        mut push: impl FnMut(u16, u16, &dyn Fn(&mut Writer)) -> Result<(), E>,
    ) -> Result<(), E> {
        let named = |kind: u16, name: &Arc<str>| {
            let name = Arc::clone(name);
            move |writer: &mut Writer| {
                writer.string(1, table);
                writer.string(kind, &name);
            }
        };
        match self {
            Self::AddTable => push(NEW_TABLE, CREATE, &|writer| {
                writer.string(1, table);
                be32(writer, 2, 0);
            }),
            Self::DelTable => push(DEL_TABLE, 0, &|writer| writer.string(1, table)),
            Self::AddSet(set) | Self::ResizeSet(set) => {
                push(NEW_SET, CREATE, &|writer| write_set(writer, table, set))
            }
            Self::DelSet(name) => push(DEL_SET, 0, &named(2, name)),
            Self::AddChain(chain) => push(NEW_CHAIN, CREATE, &|writer| {
                write_chain(writer, table, chain);
            }),
            Self::DelChain(name) => push(DEL_CHAIN, 0, &named(3, name)),
            Self::AddRule(chain, rule) => push(NEW_RULE, CREATE | APPEND, &|writer| {
                write_rule(writer, table, chain, rule);
            }),
            Self::FlushChain(name) => push(DEL_RULE, 0, &named(2, name)),
            Self::AddElements(set, elements) => {
                for part in parts(elements) {
                    push(NEW_ELEMENTS, CREATE, &|writer| {
                        write_elements(writer, table, set, part, true);
                    })?;
                }
                Ok(())
            }
            Self::DelElements(set, elements) => {
                for part in parts(elements) {
                    push(DEL_ELEMENTS, 0, &|writer| {
                        write_elements(writer, table, set, part, false);
                    })?;
                }
                Ok(())
            }
        }
    }
}

/// Splits elements so that each part fits an attribute.
fn parts(mut elements: &[(Key, Value)]) -> impl Iterator<Item = &[(Key, Value)]> {
    std::iter::from_fn(move || {
        let mut len = 0;
        let fitting = elements.iter().take_while(|(key, value)| {
            len += encoded_len(key, value);
            len <= ELEMENTS_MAX
        });
        // An element has less than a kilobyte.
        let (part, rest) = elements.split_at(fitting.count());
        elements = rest;
        (!part.is_empty()).then_some(part)
    })
}

/// An upper bound of an element's length in a message.
fn encoded_len(key: &[u8], value: &Value) -> usize {
    let value = match value {
        Value::Present => 0,
        Value::UpTo(key) | Value::Data(key) => 12 + key.len(),
        Value::Verdict(Verdict::Jump(chain) | Verdict::Goto(chain)) => 24 + chain.len(),
        Value::Verdict(_) => 16,
    };
    16 + key.len() + value
}

fn write_set(writer: &mut Writer, table: &str, set: &Set) {
    let mut flags = 0;
    writer.string(1, table);
    writer.string(2, &set.name);
    be32(writer, 4, type_number(&set.key));
    be32(writer, 5, len(set.key_len()));
    match &set.data {
        Data::None => {}
        Data::Fields(fields) => {
            flags |= MAP;
            be32(writer, 6, type_number(fields));
            let bytes = fields.iter().map(|field| field.padded_len()).sum();
            be32(writer, 7, len(bytes));
        }
        Data::Verdict => {
            flags |= MAP;
            be32(writer, 6, VERDICT_TYPE);
        }
    }
    if set.is_interval {
        flags |= INTERVAL | if set.key.len() > 1 { CONCAT } else { 0 };
    }
    if set.is_dynamic {
        flags |= EVAL | TIMEOUT;
    }
    be32(writer, 3, flags);
    if set.size.is_some() || set.is_interval {
        writer.nest(9, |desc| write_description(desc, set));
    }
    // The kernel wants a number for references within the batch; ours are by name.
    be32(writer, 10, 1);
    if let Some(userdata) = userdata::of_set(set) {
        writer.attribute(USERDATA, &userdata);
    }
}

/// Size of a set, and lengths of the fields of ranges.
fn write_description(writer: &mut Writer, set: &Set) {
    if let Some(size) = set.size {
        be32(writer, 1, size);
    }
    if set.is_interval && set.key.len() > 1 {
        let field = |field: &Field| len(field.bytes());
        writer.nest(2, |fields| {
            for bytes in set.key.iter().map(field) {
                fields.nest(1, |field| be32(field, 1, bytes));
            }
        });
    }
}

fn write_chain(writer: &mut Writer, table: &str, chain: &Chain) {
    writer.string(1, table);
    writer.string(3, &chain.name);
    let Some(Base {
        kind,
        hook,
        priority,
    }) = chain.base
    else {
        return;
    };
    writer.nest(4, |nest| {
        be32(nest, 1, hook.number());
        nest.attribute(2, &priority.to_be_bytes());
    });
    // NF_ACCEPT.
    be32(writer, 5, 1);
    writer.string(7, kind.as_str());
}

fn write_rule(writer: &mut Writer, table: &str, chain: &str, rule: &Rule) {
    writer.string(1, table);
    writer.string(2, chain);
    writer.nest(4, |expressions| {
        for expression in rule {
            expressions.nest(1, |nest| expression.write(nest));
        }
    });
}

fn write_elements(
    writer: &mut Writer,
    table: &str,
    set: &str,
    elements: &[(Key, Value)],
    with_values: bool,
) {
    writer.string(1, table);
    writer.string(2, set);
    writer.nest(3, |list| {
        for (key, value) in elements {
            list.nest(1, |element| {
                write_element(element, key, value, with_values);
            });
        }
    });
}

fn write_element(writer: &mut Writer, key: &[u8], value: &Value, with_value: bool) {
    writer.nest(1, |nest| nest.attribute(1, key));
    match value {
        Value::UpTo(end) => writer.nest(10, |nest| nest.attribute(1, end)),
        Value::Data(data) if with_value => writer.nest(2, |nest| nest.attribute(1, data)),
        Value::Verdict(verdict) if with_value => {
            writer.nest(2, |nest| write_verdict(nest, verdict));
        }
        Value::Present | Value::Data(_) | Value::Verdict(_) => {}
    }
}

/// `NFTA_DATA_VERDICT`; without flags, as the kernel dumps it.
pub(super) fn write_verdict(writer: &mut Writer, verdict: &Verdict) {
    let (code, chain) = match verdict {
        Verdict::Drop => (0, None),
        Verdict::Accept => (1, None),
        Verdict::Jump(chain) => (-3, Some(chain)),
        Verdict::Goto(chain) => (-4, Some(chain)),
        Verdict::Other(code) => (*code, None),
    };
    let mut nest = Writer::default();
    nest.attribute(1, &i32::to_be_bytes(code));
    if let Some(chain) = chain {
        nest.string(2, chain);
    }
    writer.attribute(2, nest.as_bytes());
}

fn len(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

/// Content of the message that begins a batch, with the generation that it must follow.
pub(super) fn write_begin(writer: &mut Writer, generation: Option<u32>) {
    if let Some(generation) = generation {
        be32(writer, 1, generation);
    }
}

/// Content of a request for elements.
pub(super) fn write_of_set(writer: &mut Writer, table: &str, set: &str) {
    writer.string(1, table);
    writer.string(2, set);
}
