// SPDX-License-Identifier: Apache-2.0

//! The controller's own certificate authority, in a Secret that exists.
//!
//! Every replica reads the Secret and signs its serving certificate in memory. Whoever sees first that a
//! change is due writes it, at the version that it has read; the others are refused and read again.

mod args;
mod content;
mod keeper;
mod leaf;

pub(crate) use args::SelfManagedArgs;
pub(crate) use keeper::{Bundle, Keeper, KeeperConfig};
