//! Streams each node's table to its agent.
//!
//! A [`Publisher`] takes what changed, one writer only; a log keeps for each record its newest
//! value and when it changed. A session is no more than a cursor into that log: it pulls
//! what changed since when its agent can take more, so a slow agent costs nothing and receives
//! each record at most once, at its newest value. [`Registry`] knows what each node has.

#![forbid(unsafe_code)]

mod accept;
mod debounce;
mod feed;
mod forward;
mod guard;
mod http;
mod identity;
mod log;
mod origin;
mod publisher;
mod registry;
mod service;
mod session;
mod tables;
#[cfg(test)]
mod testing;
mod wire;

pub use accept::Limits;
pub use debounce::Debounce;
pub use forward::{Committed, ForwardError, Forwarder};
pub use identity::{
    Authentication, Due, KeySet, KeyWanted, Reviewed, Reviews, TokenConfig, TokenVerifier, Verdict,
};
pub use log::{Prepared, Retention};
pub use origin::Origin;
pub use publisher::{Published, Publisher};
pub use registry::{
    ConvergenceSeconds, Counters, HeldTable, NodeStatus, Problem, RefusalReason, Registry,
    Unconfirmed,
};
pub use service::TablesServer;
pub use session::ServeConfig;
pub use tables::{Changed, Standing, Tables};

/// Before the name of a relay where nodes are listed: no node's name has a slash.
pub const RELAY: &str = "relay/";
