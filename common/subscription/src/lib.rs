// SPDX-License-Identifier: Apache-2.0

//! The client of a table stream, for agents and relays: finds controllers, connects to one of them,
//! keeps a stream open, and holds back implausibly large deletions. A [`Subscriber`] takes the
//! tables.

#![forbid(unsafe_code)]

mod acknowledgements;
mod args;
mod connect;
mod controller_file;
mod controllers;
mod endpoint;
mod guard;
mod inflate;
mod patience;
mod reconnect;
mod resolve;
mod security;
mod stats;
mod stay;
mod subscriber;

pub use acknowledgements::Acknowledgements;
pub use args::{FollowedFiles, GuardArgs, Identity, IdentityError, Token};
pub use connect::{Dialer, ended_early};
pub use controller_file::{follow_controllers, keep_controllers, read_controllers};
pub use controllers::{Controllers, Endpoints};
pub use endpoint::{AddressError, endpoint};
pub use guard::{DeletionGuard, GuardConfig, GuardStats, HeldDeletions};
pub use inflate::{InflateError, inflate};
pub use patience::{BEHIND_PATIENCE, Patience};
pub use reconnect::{Departure, End, Reconnect};
pub use resolve::{Resolver, Target};
pub use security::{Security, TlsClient};
pub use stats::StreamStats;
pub use stay::Stay;
pub use subscriber::{Client, Subscriber, Taken, at};

/// The usual limit of a controller's silence before its first Commit. A lone controller gets more.
pub const FIRST_COMMIT_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(10);
