// SPDX-License-Identifier: Apache-2.0

//! What all probes share.

use std::sync::Arc;

use crate::kinds::icmp::Pinger;
use crate::kinds::tls::Configs;
use crate::patterns::Patterns;

/// What all probes share: compiled patterns, TLS configurations, ICMP sockets. A clone is the same.
#[derive(Debug, Clone, Default)]
pub struct Context(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    patterns: Patterns,
    tls: Configs,
    pinger: Pinger,
    user: Option<ProgramUser>,
}

/// The user as whom programs run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProgramUser {
    /// User.
    pub uid: u32,
    /// Group; supplementary groups are those of the agent.
    pub gid: u32,
}

impl Context {
    /// A context whose programs run as `user`, or as the agent's own user.
    #[must_use]
    pub fn new(user: Option<ProgramUser>) -> Self {
        Self(Arc::new(Shared {
            user,
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

    pub(crate) fn user(&self) -> Option<ProgramUser> {
        self.0.user
    }
}
