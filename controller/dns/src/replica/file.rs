// SPDX-License-Identifier: Apache-2.0

//! A copy on disk.

use std::sync::Arc;

use prost::Message as _;

use super::encode;
use super::follow::{Follower, FrameError};
use super::pb::Frame;
use crate::shared::SharedZone;

/// The beginning of a file, with the version of its format.
const MAGIC: &[u8] = b"portolan names 1\n";

/// The zone as bytes, with a hash against truncation.
#[must_use]
pub fn save(zone: &SharedZone) -> Vec<u8> {
    let commit = encode::commit(zone.read().serial());
    let items = encode::all_items(zone).chain([commit]).collect();
    let frame = Frame { items }.encode_to_vec();
    let hash = blake3::hash(&frame);
    [MAGIC, hash.as_bytes(), &frame].concat()
}

/// Replaces the zone by a saved one.
///
/// # Errors If the bytes are not those that [`save`] made.
pub fn load(zone: &Arc<SharedZone>, bytes: &[u8]) -> Result<(), FrameError> {
    let wrong = |field, value: &str| FrameError {
        field,
        value: value.to_owned(),
    };
    let rest = bytes.strip_prefix(MAGIC);
    let rest = rest.ok_or_else(|| wrong("file", "not a file of names"))?;
    let parts = rest.split_at_checked(32);
    let (hash, frame) = parts.ok_or_else(|| wrong("file", "cut short"))?;
    if blake3::hash(frame).as_bytes() != hash {
        return Err(wrong("file", "does not match its hash"));
    }
    let frame = Frame::decode(frame).map_err(|error| wrong("file", &error.to_string()))?;
    Follower::new(Arc::clone(zone))
        .apply_frame(frame)
        .map(|_| ())
}
