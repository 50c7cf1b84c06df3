// SPDX-License-Identifier: Apache-2.0

//! nftables: tables with their sets, maps, chains and rules (kernel: `net/netfilter/nf_tables_api.c`).
//!
//! Changes are transactions of one table, which the kernel makes as a whole or not at all. Every change of
//! anybody in the network namespace gives it a new generation.

mod changes;
mod expression;
mod forward;
mod objects;
mod reply;
mod request;
#[cfg(test)]
mod tests;
mod text;
mod userdata;

use std::sync::Arc;

use portolan_model::Family;

use crate::Errno;
use crate::socket::{Batch, Bus, Socket, SocketError};
use crate::wire::{Malformed, Writer};

pub use changes::Changes;
pub use expression::{Ct, Direction, Expression, Header, Lookup, Meta, Operator, Register, Which};
pub use forward::{DropChain, TableFamily};
pub use objects::{
    Base, Chain, ChainKind, Chains, Data, Elements, Field, Hook, Key, Rule, Set, TableContent,
    Value, Verdict,
};
pub use request::Request;
pub use text::NoText;

/// `NFNL_SUBSYS_NFTABLES`.
const SUBSYSTEM: u16 = 10;
/// `NFT_MSG_GETTABLE`.
const GET_TABLE: u16 = 1;
/// `NFT_MSG_GETCHAIN`.
const GET_CHAIN: u16 = 4;
/// `NFT_MSG_GETRULE`.
const GET_RULE: u16 = 7;
/// `NFT_MSG_GETSET`.
const GET_SET: u16 = 10;
/// `NFT_MSG_GETSETELEM`.
const GET_ELEMENTS: u16 = 13;
/// `NFT_MSG_GETGEN`.
const GET_GENERATION: u16 = 16;
/// `NFNL_MSG_BATCH_BEGIN`.
const BATCH_BEGIN: u16 = 0x10;
/// `NFNL_MSG_BATCH_END`.
const BATCH_END: u16 = 0x11;
/// Length of `struct nfgenmsg`.
const HEADER_LEN: usize = 4;

/// Room for one transaction: a million elements take 42 MB. The kernel doubles it.
const SEND_BUFFER: i32 = 64 << 20;

/// Names of the tables of a family, in the network namespace of the calling thread. A kernel without
/// nftables has none. Needs `CAP_NET_ADMIN`.
///
/// # Errors
/// If the kernel refuses, or the socket fails.
pub fn tables(family: Family) -> Result<Vec<String>, SocketError> {
    match Nftables::open()?.tables(family) {
        // There is no such subsystem.
        Err(SocketError::Refused(Errno::EINVAL)) => Ok(Vec::new()),
        other => other,
    }
}

/// Reason a transaction was not made. Nothing of it was.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// Somebody has changed a table since the generation that the transaction must follow.
    #[error("nftables were changed by another program at the same time")]
    Outdated,
    /// The kernel refused requests: their indices and the errors.
    #[error("the kernel refused {} requests, the first with {}", .0.len(), first(.0))]
    Refused(Vec<(usize, Errno)>),
    /// The kernel refused the transaction as a whole.
    #[error("the kernel refused the transaction: {0}")]
    Whole(Errno),
    /// The socket failed. Unless that was while sending, the transaction may have been made.
    #[error(transparent)]
    Socket(#[from] SocketError),
}

fn first(refused: &[(usize, Errno)]) -> String {
    refused
        .first()
        .map_or_else(String::new, |(_, errno)| errno.to_string())
}

/// nftables of the network namespace of the thread that opened it. Needs `CAP_NET_ADMIN`.
#[derive(Debug)]
pub struct Nftables {
    socket: Socket,
}

impl Nftables {
    /// Opens the socket.
    ///
    /// # Errors
    /// If it cannot be made.
    pub fn open() -> Result<Self, SocketError> {
        let mut socket = Socket::open(Bus::Netfilter)?;
        socket.make_room(SEND_BUFFER)?;
        Ok(Self { socket })
    }

    /// Number of requests so far.
    #[must_use]
    pub fn requests(&self) -> u32 {
        self.socket.requests()
    }

    /// The generation of the network namespace's tables: it changes with every change of anybody.
    ///
    /// # Errors
    /// If the kernel refuses, or the socket fails.
    pub fn generation(&mut self) -> Result<u32, SocketError> {
        let fill = |writer: &mut Writer| writer.raw(&[0; HEADER_LEN]);
        let read = |generation: &mut u32, payload: &[u8]| {
            *generation = reply::read_generation(payload)?;
            Ok(())
        };
        self.socket.request(kind(GET_GENERATION), fill, read)
    }

    /// Names of the tables of a family.
    ///
    /// # Errors
    /// If the kernel refuses, or the socket fails.
    pub fn tables(&mut self, family: Family) -> Result<Vec<String>, SocketError> {
        let tables = self.tables_and_sleep(family)?.into_iter();
        Ok(tables.map(|(name, _)| name).collect())
    }

    /// Names of the tables of a family, and whether each sleeps.
    fn tables_and_sleep(&mut self, family: Family) -> Result<Vec<(String, bool)>, SocketError> {
        let read = |tables: &mut Vec<(String, bool)>, payload: &[u8]| {
            tables.push(reply::read_table(payload)?);
            Ok(())
        };
        self.dump(GET_TABLE, family, &|_| {}, read)
    }

    /// All that is in a table but the elements of dynamic sets, which rules add; `None` if there is no
    /// such table.
    ///
    /// # Errors
    /// If the kernel refuses, the socket fails, or the table keeps changing.
    pub fn content(
        &mut self,
        family: Family,
        table: &str,
    ) -> Result<Option<TableContent>, SocketError> {
        let mut tables = self.tables_and_sleep(family)?.into_iter();
        let Some((_, is_dormant)) = tables.find(|(name, _)| name == table) else {
            return Ok(None);
        };
        let named = |writer: &mut Writer| writer.string(1, table);
        let sets = self.dump(GET_SET, family, &named, |sets: &mut Vec<Set>, payload| {
            sets.extend(reply::read_set(payload, table)?);
            Ok(())
        })?;
        let mut content = TableContent {
            is_dormant,
            ..TableContent::default()
        };
        for set in sets {
            let elements = match set.is_dynamic {
                true => Elements::new(),
                false => self
                    .elements(family, table, &set.name)?
                    .into_iter()
                    .collect(),
            };
            content.sets.insert(Arc::clone(&set.name), (set, elements));
        }
        content.chains = self.chains(family, table)?;
        Ok(Some(content))
    }

    fn chains(&mut self, family: Family, table: &str) -> Result<Chains, SocketError> {
        let named = |writer: &mut Writer| writer.string(1, table);
        let chains = self.dump(
            GET_CHAIN,
            family,
            &|_| {},
            |all: &mut Vec<Chain>, payload| {
                all.extend(reply::read_chain(payload, table)?);
                Ok(())
            },
        )?;
        let rules = self.dump(GET_RULE, family, &named, |all: &mut Vec<_>, payload| {
            all.extend(reply::read_rule(payload, table)?);
            Ok(())
        })?;
        let chains = chains.into_iter();
        let mut chains: Chains = chains
            .map(|chain| (Arc::clone(&chain.name), (chain, Vec::new())))
            .collect();
        for (chain, rule) in rules {
            if let Some((_, rules)) = chains.get_mut(&chain) {
                rules.push(rule);
            }
        }
        Ok(chains)
    }

    /// The elements of a set, those of a dynamic one included.
    ///
    /// While the kernel enlarges the hash table of a set without a size, which goes on for a moment after many
    /// elements were added, some elements may be missing, and others be there twice (`nft_rhash_walk`).
    ///
    /// # Errors
    /// If there is no such set, the kernel refuses, or the socket fails.
    pub fn elements(
        &mut self,
        family: Family,
        table: &str,
        set: &str,
    ) -> Result<Vec<(Key, Value)>, SocketError> {
        let of_set = |writer: &mut Writer| request::write_of_set(writer, table, set);
        let read = |all: &mut Vec<_>, payload: &[u8]| reply::read_elements(payload, all);
        self.dump(GET_ELEMENTS, family, &of_set, read)
    }

    fn dump<T: Default>(
        &mut self,
        message: u16,
        family: Family,
        fill: &dyn Fn(&mut Writer),
        read: impl Fn(&mut T, &[u8]) -> Result<(), Malformed>,
    ) -> Result<T, SocketError> {
        let fill = |writer: &mut Writer| {
            writer.raw(&header(family));
            fill(writer);
        };
        self.socket.dump(kind(message), fill, read)
    }

    /// Makes all changes of a table, or none of them. With a generation, only if it is still the present
    /// one.
    ///
    /// # Errors
    /// If the kernel refuses anything, or the socket fails.
    pub fn commit(
        &mut self,
        family: Family,
        table: &str,
        requests: &[Request],
        generation: Option<u32>,
    ) -> Result<(), CommitError> {
        self.transact(family, table, requests, generation, true)
    }

    /// Has the kernel check a transaction that is not made.
    ///
    /// # Errors
    /// Same as [`Self::commit`].
    pub fn check(
        &mut self,
        family: Family,
        table: &str,
        requests: &[Request],
    ) -> Result<(), CommitError> {
        self.transact(family, table, requests, None, false)
    }

    /// The bytes of a transaction, which is not sent.
    ///
    /// # Errors
    /// If it is larger than the kernel takes.
    pub fn encode(
        &mut self,
        family: Family,
        table: &str,
        requests: &[Request],
    ) -> Result<Vec<u8>, SocketError> {
        let (batch, _) = self.batch(family, table, requests, None, true)?;
        Ok(batch.into_bytes())
    }

    /// A transaction, and the request of each of its messages; the first message begins it.
    fn batch(
        &mut self,
        family: Family,
        table: &str,
        requests: &[Request],
        generation: Option<u32>,
        is_final: bool,
    ) -> Result<(Batch<'_>, Vec<Option<usize>>), SocketError> {
        let mut of_message = vec![None];
        let mut batch = self.socket.atomic_batch();
        batch.push(BATCH_BEGIN, 0, |writer| {
            writer.raw(&batch_header());
            request::write_begin(writer, generation);
        })?;
        for (index, request) in requests.iter().enumerate() {
            request.messages(table, |message, flags, fill| {
                of_message.push(Some(index));
                batch.push(kind(message), flags, |writer| {
                    writer.raw(&header(family));
                    fill(writer);
                })
            })?;
        }
        batch.end_here();
        if is_final {
            batch.push(BATCH_END, 0, |writer| writer.raw(&batch_header()))?;
        }
        Ok((batch, of_message))
    }

    fn transact(
        &mut self,
        family: Family,
        table: &str,
        requests: &[Request],
        generation: Option<u32>,
        is_final: bool,
    ) -> Result<(), CommitError> {
        if requests.is_empty() {
            return Ok(());
        }
        let (batch, of_message) = self.batch(family, table, requests, generation, is_final)?;
        let refused = batch.finish()?;
        let mut by_request = Vec::new();
        for refused in refused {
            match of_message.get(refused.index).copied().flatten() {
                Some(index) => by_request.push((index, refused.errno)),
                None if refused.errno == Errno::ERESTART => return Err(CommitError::Outdated),
                None => return Err(CommitError::Whole(refused.errno)),
            }
        }
        match by_request.is_empty() {
            true => Ok(()),
            false => Err(CommitError::Refused(by_request)),
        }
    }
}

fn kind(message: u16) -> u16 {
    (SUBSYSTEM << 8) | message
}

fn family_number(family: Family) -> u8 {
    let number = match family {
        Family::V4 => libc::AF_INET,
        Family::V6 => libc::AF_INET6,
    };
    u8::try_from(number).unwrap_or_default()
}

/// `struct nfgenmsg`: the family, version 0, and nothing.
fn header(family: Family) -> [u8; HEADER_LEN] {
    [family_number(family), 0, 0, 0]
}

/// `struct nfgenmsg` of a batch: no family, version 0, and the subsystem in network byte order.
fn batch_header() -> [u8; HEADER_LEN] {
    let [high, low] = SUBSYSTEM.to_be_bytes();
    [0, 0, high, low]
}

/// In network byte order, without the flag that says so: as the kernel dumps it.
fn be32(writer: &mut Writer, kind: u16, value: u32) {
    writer.attribute(kind, &value.to_be_bytes());
}
