// SPDX-License-Identifier: Apache-2.0

//! Keeps a copy up to date with the frames that come.

use std::sync::Arc;

use super::decode;
use super::pb::item::Item as Kind;
use super::pb::{Frame, Item};
use crate::input::NamesChange;
use crate::shared::SharedZone;
use crate::zone::Zone;

/// An invalid frame. The stream must be closed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {value:?} makes no sense")]
pub struct FrameError {
    /// The field.
    pub field: &'static str,
    /// The invalid value.
    pub value: String,
}

/// Takes frames. Everything at once is put in place at its Commit, and not before; changes after
/// that are put in place as they come.
#[derive(Debug)]
pub struct Follower {
    zone: Arc<SharedZone>,
    /// A copy that is not complete yet.
    coming: Option<Zone>,
}

impl Follower {
    /// A follower of one stream, which begins with the whole zone, or with a Commit if the copy is
    /// up to date.
    #[must_use]
    pub fn new(zone: Arc<SharedZone>) -> Self {
        Self { zone, coming: None }
    }

    /// Applies a frame; returns whether it had a Commit.
    ///
    /// # Errors If the frame is invalid; earlier frames stay applied.
    pub fn apply_frame(&mut self, frame: Frame) -> Result<bool, FrameError> {
        let mut committed = false;
        for item in frame.items {
            committed |= self.item(item)?;
        }
        Ok(committed)
    }

    fn item(&mut self, Item { item }: Item) -> Result<bool, FrameError> {
        let change = match item {
            // An item of a newer controller.
            None => return Ok(false),
            Some(Kind::Begin(settings)) => {
                let config = decode::settings(settings)?;
                let zone = Zone::new(config, 0).map_err(|error| FrameError {
                    field: "begin",
                    value: error.to_string(),
                })?;
                self.coming = Some(zone);
                return Ok(false);
            }
            Some(Kind::Commit(commit)) => {
                if let Some(mut zone) = self.coming.take() {
                    zone.apply(NamesChange::Synced);
                    zone.set_serial(commit.serial);
                    self.zone.replace(zone);
                }
                return Ok(true);
            }
            Some(Kind::Namespace(namespace)) => decode::namespace(namespace),
            Some(Kind::Service(service)) => decode::service(service)?,
            Some(Kind::Pod(pod)) => decode::pod(pod)?,
        };
        match &mut self.coming {
            Some(zone) => _ = zone.apply(change),
            None => _ = self.zone.apply([change]),
        }
        Ok(false)
    }
}
