// SPDX-License-Identifier: Apache-2.0

//! Requests to ipset as messages.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use portolan_model::Family;
use portolan_model::ipset::{MAX_NAME_LEN, SetEntry, SetHeader, SetKind};

use super::attr::{self, command};
use super::entry;
use crate::wire::{self, Writer};

/// The kernel's own default and enough for 1,500 entries.
const HASH_SIZE_MIN: u32 = 1 << 10;
/// 1.5 million entries; a hash grows while it is filled, only more slowly.
const HASH_SIZE_MAX: u32 = 1 << 20;

/// A change of sets. All but an exclusive [`Create`](Self::Create) are idempotent.
///
/// All of them may fail with `EPERM` and `ENOMEM`; other errors are named below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// Creates an empty set. `EEXIST` if there is a set of that name with another header, and if
    /// `exclusive` also if there is one with the same.
    Create {
        /// The set's name, 1 to 31 bytes without NUL, as all names here.
        name: String,
        /// Its type, family and size.
        header: SetHeader,
        /// Approximate number of entries; the kernel's hash table is sized so that it need
        /// not grow. Ignored for `bitmap:port`.
        expected_entries: u32,
        /// Whether an existing set is an error.
        exclusive: bool,
    },
    /// Adds entries to a set; one that has the identity of an entry that is there replaces it.
    /// `ENOENT` without the set; of an entry `IPSET_ERR_HASH_FULL` if the
    /// set has its maximum, of which the kernel may be off by a few per cent, `IPSET_ERR_HASH_ELEM` for the address 0.0.0.0 or :: in a `hash:ip`.
    Add {
        /// The set's name.
        name: String,
        /// Any number of entries, all of the set's type and family.
        entries: Arc<Vec<SetEntry>>,
    },
    /// Deletes entries of a set. `ENOENT` without the set.
    Del {
        /// The set's name.
        name: String,
        /// Any number of entries, all of the set's type and family.
        entries: Arc<Vec<SetEntry>>,
    },
    /// Exchanges the contents of two sets at once; rules that refer to one of them stay with the
    /// name. `ENOENT` without `a`, `IPSET_ERR_EXIST_SETNAME2` without `b`,
    /// `IPSET_ERR_TYPE_MISMATCH` unless they have the same type and family.
    Swap {
        /// A set's name.
        a: String,
        /// The other set's name.
        b: String,
    },
    /// Destroys a set. `IPSET_ERR_BUSY` if a rule or another set refers to it.
    Destroy {
        /// The set's name.
        name: String,
    },
    /// Deletes all entries of a set. `ENOENT` without the set.
    Flush {
        /// The set's name.
        name: String,
    },
}

impl Request {
    /// The entries that are added or deleted.
    pub(super) fn entries(&self) -> &[SetEntry] {
        match self {
            Self::Add { entries, .. } | Self::Del { entries, .. } => entries,
            _ => &[],
        }
    }

    /// A name that the kernel cannot take. The empty one would even mean all sets.
    pub(super) fn bad_name(&self) -> Option<&str> {
        let [first, second] = match self {
            Self::Create { name, .. }
            | Self::Add { name, .. }
            | Self::Del { name, .. }
            | Self::Destroy { name }
            | Self::Flush { name } => [name; 2],
            Self::Swap { a, b } => [a, b],
        };
        let bad = |name: &&String| !(1..=MAX_NAME_LEN).contains(&name.len()) || name.contains('\0');
        [first, second].into_iter().find(bad).map(String::as_str)
    }

    /// The message type.
    pub(super) fn kind(&self) -> u16 {
        attr::SUBSYSTEM
            | match self {
                Self::Create { .. } => command::CREATE,
                Self::Add { .. } => command::ADD,
                Self::Del { .. } => command::DEL,
                Self::Swap { .. } => command::SWAP,
                Self::Destroy { .. } => command::DESTROY,
                Self::Flush { .. } => command::FLUSH,
            }
    }

    /// The message's flags.
    pub(super) fn flags(&self) -> u16 {
        match self {
            Self::Create {
                exclusive: true, ..
            } => wire::EXCLUSIVE,
            _ => 0,
        }
    }

    /// Writes the message's payload, with some of the entries, which are numbered from 1.
    pub(super) fn write(
        &self,
        writer: &mut Writer,
        range: Range<usize>,
        revisions: &BTreeMap<SetKind, u8>,
    ) {
        write_header(writer);
        match self {
            Self::Create {
                name,
                header,
                expected_entries,
                ..
            } => {
                writer.string(attr::NAME, name);
                let revision = revisions.get(&header.kind).copied().unwrap_or_default();
                write_create(writer, header, revision, *expected_entries);
            }
            Self::Add { name, entries } | Self::Del { name, entries } => {
                writer.string(attr::NAME, name);
                write_entries(writer, &entries[range]);
            }
            Self::Swap { a, b } => {
                writer.string(attr::NAME, a);
                writer.string(attr::NAME2, b);
            }
            Self::Destroy { name } | Self::Flush { name } => writer.string(attr::NAME, name),
        }
    }
}

/// `struct nfgenmsg`, whose family ipset ignores, and the protocol's version.
pub(super) fn write_header(writer: &mut Writer) {
    writer.raw(&[attr::UNSPECIFIED, 0, 0, 0]);
    writer.u8(attr::PROTOCOL, attr::PROTOCOL_VERSION);
}

fn write_create(writer: &mut Writer, header: &SetHeader, revision: u8, expected_entries: u32) {
    writer.string(attr::TYPE_NAME, header.kind.type_name());
    writer.u8(attr::REVISION, revision);
    writer.u8(attr::FAMILY, family_number(header.kind, header.family));
    writer.nest(attr::DATA, |nest| {
        if header.kind == SetKind::BitmapPort {
            nest.be16(attr::create::PORT_FROM, 0);
            nest.be16(attr::create::PORT_TO, u16::MAX);
        } else {
            nest.be32(attr::create::HASH_SIZE, hash_size(expected_entries));
            nest.be32(attr::create::MAX_ENTRIES, header.max_entries);
            if header.kind == SetKind::HashIpPortMark {
                nest.be32(attr::create::FLAGS, attr::WITH_MARKS);
            }
        }
    });
}

fn write_entries(writer: &mut Writer, entries: &[SetEntry]) {
    // The kernel replaces it by the bad entry's, and without it would not return the message.
    writer.u32(attr::LINE, 0);
    writer.nest(attr::ENTRIES, |nest| {
        for (line, entry) in (1..).zip(entries) {
            nest.nest(attr::DATA, |nest| {
                entry::write(nest, entry);
                nest.u32(attr::LINE, line);
            });
        }
    });
}

/// The family as a number, which for `bitmap:port` is none.
pub(super) fn family_number(kind: SetKind, family: Family) -> u8 {
    match (kind, family) {
        (SetKind::BitmapPort, _) => attr::UNSPECIFIED,
        (_, Family::V4) => attr::IPV4,
        (_, Family::V6) => attr::IPV6,
    }
}

/// At most 1.5 entries a bucket: measured 2.5 times faster than a hash that grows.
fn hash_size(expected_entries: u32) -> u32 {
    let buckets = expected_entries - expected_entries / 3;
    buckets
        .clamp(HASH_SIZE_MIN, HASH_SIZE_MAX)
        .next_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_hashes() {
        for (entries, size) in [
            (0, 1024),
            (1536, 1024),
            (1538, 2048),
            (65_536, 65_536),
            (98_304, 65_536),
            (100_000, 131_072),
            (u32::MAX, 1 << 20),
        ] {
            assert_eq!(hash_size(entries), size, "{entries}");
        }
    }
}
