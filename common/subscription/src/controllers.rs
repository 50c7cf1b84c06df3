// SPDX-License-Identifier: Apache-2.0

//! The controllers that a program may connect to, one after the other.

use std::hash::{BuildHasher as _, RandomState};
use std::time::Duration;

use tonic::transport::Uri;

use crate::{Departure, End, Reconnect, Resolver, Target};

/// Chooses a controller, and the pause before the next attempt.
#[derive(Debug)]
pub struct Controllers {
    endpoints: Vec<Uri>,
    resolver: Resolver,
    reconnect: Reconnect<Target>,
}

impl Controllers {
    /// Controllers by their addresses; a name stands for all addresses that it resolves to.
    #[must_use]
    pub fn new(endpoints: Vec<Uri>) -> Self {
        Self {
            endpoints,
            resolver: Resolver::default(),
            reconnect: Reconnect::new(RandomState::new().hash_one(())),
        }
    }

    /// Whether no controller is configured.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.endpoints.is_empty()
    }

    /// The controller to connect to; `None` if no name resolves. Resolves names when all controllers
    /// have been tried.
    pub async fn current(&mut self) -> Option<Target> {
        if self.reconnect.current().is_none() {
            let targets = self.resolver.resolve(&self.endpoints).await;
            self.reconnect.begin_round(targets);
        }
        self.reconnect.current().cloned()
    }

    /// Whether there are other controllers than the current one.
    #[must_use]
    pub fn has_others(&self) -> bool {
        self.reconnect.has_others()
    }

    /// Time at which this program leaves a controller that is about to stop.
    pub fn departure(&mut self) -> Departure {
        self.reconnect.departure()
    }

    /// Records the end of an attempt or of a stream. Returns the pause before the next attempt.
    pub fn after(&mut self, end: End) -> Duration {
        self.reconnect.after(end)
    }

    /// Whether all controllers have been tried since names were resolved.
    #[must_use]
    pub fn is_round_over(&self) -> bool {
        self.reconnect.current().is_none()
    }
}
