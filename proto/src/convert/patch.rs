// SPDX-License-Identifier: Apache-2.0

//! Patches of records with many destinations.

use std::cmp::Ordering;
use std::net::SocketAddr;

use portolan_model::{ContentHash, Destination, Record, ZoneMask};

use super::destinations::{
    decode_addresses, decode_destinations, encode_addresses, encode_destinations,
};
use super::{DecodeError, DecodeErrorKind, encode_key};
use crate::v1;

/// A destination with its zone mask; 0 in a record without zones.
type Row = (Destination, u64);

/// The patch from `old` to `new`; `None` if they differ in more than destinations and masks.
#[must_use]
pub fn make_patch(
    old: &Record,
    old_hash: ContentHash,
    new: &Record,
    new_hash: ContentHash,
) -> Option<v1::RecordPatch> {
    if !differ_in_destinations_only(old, new) {
        return None;
    }
    let (mut put, mut remove) = (Vec::new(), Vec::new());
    merge(rows(old), rows(new), |before, after| {
        match (before, after) {
            (before, Some(after)) if before != Some(after) => put.push(after),
            (Some((gone, _)), None) => remove.push(gone.address),
            _ => {}
        }
    });
    let (put, masks): (Vec<Destination>, Vec<u64>) = put.into_iter().unzip();
    Some(v1::RecordPatch {
        key: Some(encode_key(&new.key)),
        base: old_hash.to_bytes().into(),
        hash: new_hash.to_bytes().into(),
        put: encode_destinations(&put),
        put_zone_masks: new.zone_mask.as_ref().map_or_else(Vec::new, |_| masks),
        remove: encode_addresses(remove.into_iter()),
    })
}

/// The record that a patch makes of its base. That `base` is the one which the patch names by its
/// hash is the caller's to know.
///
/// # Errors
/// If the patch breaks a rule of the protocol, or removes a destination that the base does not have.
pub fn apply_patch(base: &Record, patch: &v1::RecordPatch) -> Result<Record, DecodeError> {
    if base.balancing.is_some() {
        return Err(DecodeError::new("patch.base", DecodeErrorKind::Balanced));
    }
    let put = decode_put(base, patch)?;
    let remove = decode_remove(patch)?;
    let zoned = base.zone_mask.is_some();
    let room = base.destinations.len() + put.len();
    let mut destinations = Vec::with_capacity(room);
    let mut masks = Vec::with_capacity(if zoned { room } else { 0 });
    let mut keep = |(destination, mask): Row| {
        destinations.push(destination);
        if zoned {
            masks.push(mask);
        }
    };
    let mut remove = remove.into_iter().peekable();
    merge(rows(base), put.into_iter(), |before, after| {
        let Some((destination, mask)) = after.or(before) else {
            return;
        };
        // A put that is removed too leaves this one behind, which is the error below.
        let gone = after.is_none() && remove.next_if_eq(&destination.address).is_some();
        if !gone {
            keep((destination, mask));
        }
    });
    if remove.next().is_some() {
        return Err(DecodeError::new("patch.remove", DecodeErrorKind::Absent));
    }
    Ok(Record {
        destinations,
        zone_mask: base.zone_mask.as_ref().map(|mask| ZoneMask {
            zones: mask.zones.clone(),
            masks,
        }),
        ..base_without_destinations(base)
    })
}

/// Names every field, so that a new one cannot be forgotten here.
fn differ_in_destinations_only(old: &Record, new: &Record) -> bool {
    let Record {
        key,
        frontends,
        destinations: _,
        zone_mask,
        affinity,
        available,
        scheduling,
        drain_seconds,
        health_check_port,
        balancing,
        node_group,
    } = old;
    let zones = |mask: &Option<ZoneMask>| mask.as_ref().map(|mask| mask.zones.clone());
    // Its columns run beside the destinations.
    let is_balanced = balancing.is_some() || new.balancing.is_some();
    !is_balanced
        && *key == new.key
        && *frontends == new.frontends
        && zones(zone_mask) == zones(&new.zone_mask)
        && *affinity == new.affinity
        && *available == new.available
        && *scheduling == new.scheduling
        && *drain_seconds == new.drain_seconds
        && *health_check_port == new.health_check_port
        && *node_group == new.node_group
}

/// The rest of a record, without a copy of its longest list.
fn base_without_destinations(base: &Record) -> Record {
    Record {
        key: base.key.clone(),
        frontends: base.frontends.clone(),
        destinations: Vec::new(),
        zone_mask: None,
        affinity: base.affinity,
        available: base.available,
        scheduling: base.scheduling.clone(),
        drain_seconds: base.drain_seconds,
        health_check_port: base.health_check_port,
        balancing: None,
        node_group: base.node_group.clone(),
    }
}

fn decode_put(base: &Record, patch: &v1::RecordPatch) -> Result<Vec<Row>, DecodeError> {
    let put = decode_destinations(patch.put.as_ref(), 1)?;
    let masks = &patch.put_zone_masks;
    let expected = base.zone_mask.as_ref().map_or(0, |_| put.len());
    if masks.len() != expected {
        return Err(DecodeError::length(
            "patch.put_zone_masks",
            expected,
            masks.len(),
        ));
    }
    let masks = masks.iter().copied().chain(std::iter::repeat(0));
    Ok(put.into_iter().zip(masks).collect())
}

fn decode_remove(patch: &v1::RecordPatch) -> Result<Vec<SocketAddr>, DecodeError> {
    let weights = patch.remove.as_ref().map_or(0, |r| r.weights.len());
    if weights > 0 {
        return Err(DecodeError::length("patch.remove.weights", 0, weights));
    }
    decode_addresses(patch.remove.as_ref(), 1)
}

fn rows(record: &Record) -> impl Iterator<Item = Row> {
    let masks = record.zone_mask.iter().flat_map(|mask| &mask.masks);
    let masks = masks.copied().chain(std::iter::repeat(0));
    record.destinations.iter().copied().zip(masks)
}

/// Walks two sorted lists, and passes on both elements of each address.
fn merge(
    before: impl Iterator<Item = Row>,
    after: impl Iterator<Item = Row>,
    mut take: impl FnMut(Option<Row>, Option<Row>),
) {
    let (mut before, mut after) = (before.peekable(), after.peekable());
    loop {
        let order = match (before.peek(), after.peek()) {
            (None, None) => return,
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some((b, _)), Some((a, _))) => b.address.cmp(&a.address),
        };
        let before = before.next_if(|_| order.is_le());
        let after = after.next_if(|_| order.is_ge());
        take(before, after);
    }
}
