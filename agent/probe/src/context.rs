// SPDX-License-Identifier: Apache-2.0

//! State that all probes share.

use std::sync::Arc;

use crate::blocking::Files;
use crate::connects::Connects;
use crate::kinds::icmp::Pinger;
use crate::kinds::tls::Configs;
use crate::patterns::Patterns;
use crate::programs::Programs;

/// Shared state of all probes: compiled patterns, TLS configurations, ICMP sockets, reads of files, connections. A clone
/// is the same.
#[derive(Debug, Clone, Default)]
pub struct Context(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    patterns: Patterns,
    tls: Configs,
    pinger: Pinger,
    programs: Programs,
    files: Files,
    connects: Connects,
}

impl Context {
    /// A context that starts programs by these rules.
    #[must_use]
    pub fn new(programs: Programs) -> Self {
        Self(Arc::new(Shared {
            programs,
            ..Shared::default()
        }))
    }

    pub(crate) fn patterns(&self) -> &Patterns {
        &self.0.patterns
    }

    pub(crate) fn tls(&self) -> &Configs {
        &self.0.tls
    }

    pub(crate) fn pinger(&self) -> &Pinger {
        &self.0.pinger
    }

    pub(crate) fn programs(&self) -> &Programs {
        &self.0.programs
    }

    pub(crate) fn files(&self) -> &Files {
        &self.0.files
    }

    pub(crate) fn connects(&self) -> &Connects {
        &self.0.connects
    }
}
