// SPDX-License-Identifier: Apache-2.0

//! Desired state of the kernel for a node's table, and the ordered steps that lead to it.
//!
//! Pure: no I/O, no clock. [`desire`] computes the desired state, [`plan`] the steps from the observed
//! state. No prefix of the steps forwards packets un-masqueraded, refers to a missing set, or removes an
//! object in use.

#![forbid(unsafe_code)]

mod advance;
mod config;
mod desire;
pub mod export;
pub mod host;
pub mod kube_proxy;
mod local_ports;
mod mark_users;
mod marks;
mod names;
mod ours;
mod plan;
mod rules;
mod state;
pub mod trace;
mod ways;

pub use config::{Config, DetectLocal, InvalidMask, MarkMask, NodeFacts, RulesMode, VipBinding};
pub use desire::{Desired, IncrementalDesired, Note, Refused, Touched, desire, is_behind};
pub use local_ports::LocalPorts;
pub use mark_users::{MarkUsers, MaskError};
pub use names::{Names, SetName, ownership_entry};
pub use plan::{plan, plan_additions, plan_touched};
pub use rules::{Jump, Rules, Table, rules};
pub use state::{KernelState, Step};
pub use ways::{WayTo, Ways, has_ways, way_of};
