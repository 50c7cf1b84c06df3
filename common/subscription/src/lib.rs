//! The way to an open stream of a controller, as agents and relays go it: whom to dial and when
//! again, how both sides show who they are, and what of a first table is too much to be believed.
//!
//! What comes over the stream is for whoever opened it.

#![forbid(unsafe_code)]

mod connect;
mod connector;
mod endpoint;
mod guard;
mod inflate;
mod patience;
mod reconnect;
mod resolve;
mod security;
mod stay;

pub use connect::{Dialer, Opened, cluster_of, ended_early};
pub use connector::Connector;
pub use endpoint::{AddressError, endpoint};
pub use guard::HoldConfig;
pub use inflate::inflate;
pub use patience::{BEHIND_PATIENCE, Patience};
pub use reconnect::{Departure, End, Reconnect};
pub use resolve::{Resolver, Target};
pub use security::{Security, TlsClient};
pub use stay::Stay;
