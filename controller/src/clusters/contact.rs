// SPDX-License-Identifier: Apache-2.0

//! Contact with the source of a cluster.

use std::sync::Arc;
use std::time::Duration;

use portolan_source::kubernetes::Stats;
use portolan_source::{Contact, edge};

/// Contact with the source of a cluster.
#[derive(Debug, Clone)]
pub(crate) enum SourceContact {
    /// With its files: the last good reading.
    Files(Arc<Contact>),
    /// With its API server: the watch that has been silent for longest.
    Watches(Arc<Stats>),
    /// Of its edge controller, as that tells it.
    Edge(Arc<edge::Stats>),
}

impl SourceContact {
    /// The time since the last contact; `None` before the first one.
    pub(crate) fn silence(&self) -> Option<Duration> {
        match self {
            Self::Files(contact) => contact.silence(),
            Self::Watches(stats) => stats.silence(),
            Self::Edge(stats) => stats.contact.silence(),
        }
    }
}
