// SPDX-License-Identifier: Apache-2.0

//! Shared records.

use std::sync::Arc;
use std::time::Duration;

use portolan_model::check::Timers;
use portolan_model::ipvs::Flags;
use portolan_model::{Affinity, Balancing, ContentHash, Frontend, Record, Scheduling, ZoneMask};

use super::destinations::{decode_destinations, decode_port, encode_destinations};
use super::frontend::{Decoded, decode_frontend, encode_frontend, select};
use super::key::required_key;
use super::network::{decode_families, encode_families};
use super::{DecodeError, DecodeErrorKind, decode_hash, encode_key};
use crate::v1;

/// The longest name of a group of a record, in bytes.
const MAX_GROUP: usize = 512;

/// The shortest time between two probes of a backend.
const MIN_INTERVAL: Duration = Duration::from_millis(100);
/// The longest affinity that Kubernetes allows, in seconds: a day.
const MAX_AFFINITY_SECONDS: u32 = 86_400;
/// The longest name of a scheduler, in bytes (`IP_VS_SCHEDNAME_MAXLEN` less the NUL).
const MAX_SCHEDULER_LEN: usize = 15;

/// A record as far as this version understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DecodedRecord {
    /// The understood part.
    pub record: Record,
    /// Its hash as the sender stated it; not that of `record` if something was left out.
    pub hash: ContentHash,
    /// Description of the omitted frontends, with the reasons.
    pub left_out: Vec<String>,
}

/// A record with its hash.
#[must_use]
pub fn encode_record(record: &Record, hash: ContentHash) -> v1::Record {
    let (zones, zone_masks) = match &record.zone_mask {
        None => Default::default(),
        Some(mask) => (
            mask.zones.iter().map(|zone| zone.as_ref().into()).collect(),
            mask.masks.clone(),
        ),
    };
    v1::Record {
        key: Some(encode_key(&record.key)),
        hash: hash.to_bytes().into(),
        frontends: encode_frontends(record),
        destinations: encode_destinations(&record.destinations),
        zones,
        zone_masks,
        affinity_seconds: record.affinity.map_or(0, |a| a.timeout_seconds),
        available: encode_families(record.available),
        scheduler: record
            .scheduling
            .scheduler
            .as_deref()
            .unwrap_or_default()
            .to_owned(),
        scheduler_flags: record.scheduling.flags.map(|flags| flags.0),
        drain_seconds: record.drain_seconds,
        health_check_port: record.health_check_port.map_or(0, Into::into),
        balancing: record
            .balancing
            .as_ref()
            .map_or_else(Vec::new, |balancing| balancing.to_json()),
        node_group: record.node_group.as_deref().unwrap_or_default().to_owned(),
    }
}

fn encode_frontends(record: &Record) -> Vec<v1::Frontend> {
    let frontends = record.frontends.iter().map(encode_frontend);
    match record.group() {
        None => frontends.collect(),
        Some(_) => frontends.map(select).collect(),
    }
}

/// Decodes a record.
///
/// # Errors
/// If it breaks a rule of the protocol: the record is refused as a whole.
pub fn decode_record(from: &v1::Record, cluster: &Arc<str>) -> Result<DecodedRecord, DecodeError> {
    let key = required_key(from.key.as_ref(), cluster)?;
    let hash = decode_hash(&from.hash)?;
    let (frontends, left_out) = decode_frontends(&from.frontends)?;
    let lowest_port = if from.balancing.is_empty() { 1 } else { 0 };
    let destinations = decode_destinations(from.destinations.as_ref(), lowest_port)?;
    let balancing = decode_balancing(&from.balancing, destinations.len())?;
    let zone_mask = decode_zone_mask(from, destinations.len())?;
    let affinity = decode_affinity(from.affinity_seconds)?;
    Ok(DecodedRecord {
        record: Record {
            key,
            frontends,
            destinations,
            zone_mask,
            affinity,
            available: decode_families(&from.available),
            scheduling: decode_scheduling(from)?,
            drain_seconds: from.drain_seconds,
            health_check_port: decode_health_check_port(from.health_check_port)?,
            balancing,
            node_group: decode_node_group(from)?,
        },
        hash,
        left_out,
    })
}

/// The understood frontends, sorted, and descriptions of left-out ones.
fn decode_frontends(from: &[v1::Frontend]) -> Result<(Vec<Frontend>, Vec<String>), DecodeError> {
    let mut taken = Vec::with_capacity(from.len());
    let mut left_out = Vec::new();
    for (index, frontend) in from.iter().enumerate() {
        match decode_frontend(frontend)? {
            Decoded::Taken(frontend) => taken.push(frontend),
            Decoded::LeftOut(why) => left_out.push(format!("frontend {index} left out: {why}")),
        }
    }
    // No column runs beside them, so their order can be mended.
    taken.sort();
    taken.dedup();
    Ok((taken, left_out))
}

fn decode_node_group(from: &v1::Record) -> Result<Option<Arc<str>>, DecodeError> {
    let group = from.node_group.as_str();
    if group.len() > MAX_GROUP {
        let found = group.len();
        return Err(DecodeError::length("node_group", MAX_GROUP, found));
    }
    Ok((!group.is_empty()).then(|| group.into()))
}

fn decode_balancing(json: &[u8], count: usize) -> Result<Option<Arc<Balancing>>, DecodeError> {
    if json.is_empty() {
        return Ok(None);
    }
    let balancing = Balancing::from_json(json)
        .map_err(|error| DecodeError::new("balancing", DecodeErrorKind::Json(error.to_string())))?;
    if !balancing.fits(count) {
        let found = balancing.profile_of.len();
        return Err(DecodeError::length("balancing.profile_of", count, found));
    }
    let mut checks = balancing
        .profiles
        .iter()
        .flat_map(|profile| &profile.checks);
    if !checks.all(|check| is_bounded(check.timers)) {
        let field = "balancing.profiles.checks.timers";
        return Err(DecodeError::new(field, DecodeErrorKind::Range(0)));
    }
    Ok(Some(Arc::new(balancing)))
}

/// Returns `true` if timers keep the bounds of files, so that no sender makes a node probe without
/// a pause.
fn is_bounded(timers: Timers) -> bool {
    timers.interval >= MIN_INTERVAL
        && timers.fast_interval >= MIN_INTERVAL
        && !timers.timeout.is_zero()
        && timers.rise > 0
        && timers.fall > 0
}

fn decode_zone_mask(
    from: &v1::Record,
    destinations: usize,
) -> Result<Option<ZoneMask>, DecodeError> {
    let (zones, masks) = (&from.zones, &from.zone_masks);
    let expected = if zones.is_empty() { 0 } else { destinations };
    if masks.len() != expected {
        return Err(DecodeError::length("zone_masks", expected, masks.len()));
    }
    if zones.len() > ZoneMask::MAX_ZONES {
        let max = ZoneMask::MAX_ZONES;
        return Err(DecodeError::length("zones", max, zones.len()));
    }
    if !zones.is_sorted_by(|a, b| a < b) {
        return Err(DecodeError::new("zones", DecodeErrorKind::Unsorted));
    }
    Ok((!zones.is_empty()).then(|| ZoneMask {
        zones: zones.iter().map(|zone| zone.as_str().into()).collect(),
        masks: masks.clone(),
    }))
}

fn decode_affinity(seconds: u32) -> Result<Option<Affinity>, DecodeError> {
    match seconds {
        0 => Ok(None),
        1..=MAX_AFFINITY_SECONDS => Ok(Some(Affinity {
            timeout_seconds: seconds,
        })),
        _ => Err(DecodeError::new(
            "affinity_seconds",
            DecodeErrorKind::Range(seconds),
        )),
    }
}

fn decode_scheduling(from: &v1::Record) -> Result<Scheduling, DecodeError> {
    let length = from.scheduler.len();
    if length > MAX_SCHEDULER_LEN {
        return Err(DecodeError::length("scheduler", MAX_SCHEDULER_LEN, length));
    }
    Ok(Scheduling {
        scheduler: (length > 0).then(|| from.scheduler.as_str().into()),
        flags: from.scheduler_flags.map(Flags),
    })
}

fn decode_health_check_port(number: u32) -> Result<Option<u16>, DecodeError> {
    match number {
        0 => Ok(None),
        _ => decode_port("health_check_port", number).map(Some),
    }
}
