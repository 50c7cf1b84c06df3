// SPDX-License-Identifier: Apache-2.0

//! Rules about the fields of an object together.
//!
//! A rule is not applied to fields that are wrong by themselves: what it would say follows from
//! them only.

mod probes;
mod scheduling;
mod servers;
mod sockets;
mod together;

pub(crate) use probes::frontend_of;
pub(crate) use sockets::{Same, Sockets};
pub use together::{Already, Claims, taken};
pub(crate) use together::{Placed, together};

use crate::balancer::LoadBalancer;
use crate::convert::Findings;

/// Applies all rules to one object.
pub(crate) fn check(object: &LoadBalancer, findings: &mut Findings) {
    scheduling::check(object, findings);
    if !findings.is_broken("spec.frontends") {
        servers::check(object, findings);
        probes::check(object, findings);
    }
}
