// SPDX-License-Identifier: Apache-2.0

//! Replies of ipset.

use std::collections::{BTreeMap, BTreeSet};

use portolan_model::Family;
use portolan_model::ipset::{Set, SetHeader, SetKind};

use super::{attr, entry};
use crate::wire::{Attributes, Malformed};

/// The length of `struct nfgenmsg`.
const HEADER_LEN: usize = 4;

/// All sets of a network namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listing {
    /// The sets of known types, by name. A `bitmap:port` has no family and is listed as one
    /// of IPv4, with the size of its range as the maximum of entries.
    pub sets: BTreeMap<String, Set>,
    /// The names of all other sets.
    pub other: BTreeSet<String>,
    /// Number of entries of `sets` that are left out: those of other protocols, and exceptions
    /// (`nomatch`).
    pub skipped: usize,
}

/// Adds a part of a listing: the first one of a set has its header, any may have entries.
pub(super) fn read(listing: &mut Listing, payload: &[u8]) -> Result<(), Malformed> {
    let attributes = Attributes::new(payload, HEADER_LEN)?;
    let name = attributes.get(attr::NAME)?.string();
    if attributes.find(attr::TYPE_NAME)?.is_some() {
        let entries = BTreeSet::new();
        match read_header(&attributes)? {
            None => drop(listing.other.insert(name.clone())),
            Some(header) => drop(listing.sets.insert(name.clone(), Set { header, entries })),
        }
    }
    let Some(data) = attributes.find(attr::ENTRIES)? else {
        return Ok(());
    };
    let Some(set) = listing.sets.get_mut(&name) else {
        return Ok(());
    };
    for entry in data.nested() {
        match entry::read(set.header.kind, entry?.nested())? {
            Some(entry) => drop(set.entries.insert(entry)),
            None => listing.skipped += 1,
        }
    }
    Ok(())
}

/// `None` for an unknown type or family.
fn read_header(attributes: &Attributes<'_>) -> Result<Option<SetHeader>, Malformed> {
    let type_name = attributes.get(attr::TYPE_NAME)?.string();
    let data = attributes.get(attr::DATA)?.nested();
    let flags = match data.find(attr::create::FLAGS)? {
        Some(flags) => flags.be32()?,
        None => 0,
    };
    let Some(kind) = SetKind::from_type_name(&type_name, flags & attr::WITH_MARKS != 0) else {
        return Ok(None);
    };
    if kind == SetKind::BitmapPort {
        let from = data.get(attr::create::PORT_FROM)?.be16()?;
        let to = data.get(attr::create::PORT_TO)?.be16()?;
        let max_entries = u32::from(to.saturating_sub(from)) + 1;
        return Ok(Some(SetHeader {
            kind,
            family: Family::V4,
            max_entries,
        }));
    }
    let max_entries = data.get(attr::create::MAX_ENTRIES)?.be32()?;
    let family = match attributes.get(attr::FAMILY)?.u8()? {
        attr::IPV4 => Family::V4,
        attr::IPV6 => Family::V6,
        _ => return Ok(None),
    };
    Ok(Some(SetHeader {
        kind,
        family,
        max_entries,
    }))
}

/// Adds the header and the number of entries of a set of a known type.
pub(super) fn read_count(
    counts: &mut BTreeMap<String, (SetHeader, u32)>,
    payload: &[u8],
) -> Result<(), Malformed> {
    let attributes = Attributes::new(payload, HEADER_LEN)?;
    if attributes.find(attr::TYPE_NAME)?.is_none() {
        return Ok(());
    }
    let data = attributes.get(attr::DATA)?.nested();
    if let Some(header) = read_header(&attributes)? {
        let count = data.get(attr::create::ENTRY_COUNT)?.be32()?;
        counts.insert(attributes.get(attr::NAME)?.string(), (header, count));
    }
    Ok(())
}

/// Adds the name of a part of a listing.
pub(super) fn read_name(names: &mut BTreeSet<String>, payload: &[u8]) -> Result<(), Malformed> {
    let attributes = Attributes::new(payload, HEADER_LEN)?;
    names.insert(attributes.get(attr::NAME)?.string());
    Ok(())
}

/// Reads the newest revision of a set type.
pub(super) fn read_revision(revision: &mut u8, payload: &[u8]) -> Result<(), Malformed> {
    *revision = Attributes::new(payload, HEADER_LEN)?
        .get(attr::REVISION)?
        .u8()?;
    Ok(())
}

/// Reads the protocol's version.
pub(super) fn read_protocol(version: &mut u8, payload: &[u8]) -> Result<(), Malformed> {
    *version = Attributes::new(payload, HEADER_LEN)?
        .get(attr::PROTOCOL)?
        .u8()?;
    Ok(())
}

/// The index of the entry that the kernel found bad, of the request as it returns it.
pub(super) fn bad_entry(echo: &[u8]) -> Option<usize> {
    let line = Attributes::new(echo, HEADER_LEN)
        .ok()?
        .find(attr::LINE)
        .ok()??
        .u32()
        .ok()?;
    line.checked_sub(1).map(|index| index as usize)
}
