// SPDX-License-Identifier: Apache-2.0

//! Probes of backends, and the engine that runs them.
//!
//! [`probe`] runs one check of one backend once.

#![forbid(unsafe_code)]

mod context;
mod engine;
mod fault;
mod kinds;
mod patterns;
mod probe;
mod socket;
mod target;

pub use context::{Context, ProgramUser};
pub use engine::{
    BUCKETS, Clock, Counts, Engine, Handle, Health, Histogram, Inputs, Key, Overrides, Prober,
    ResultKind, Settings, Wanted, kind,
};
pub use probe::probe;
pub use target::{Names, Target};
