//! Copies of a zone on other hosts: an agent answers from what the controller streams to it, and
//! from its disk when there is no controller.
//!
//! What is streamed are the objects that records are made of, reduced to what counts: a Service
//! with its slices is one item, sent whole when its records change. A copy makes the same records
//! of them, because that is pure. Copies with the same items have the same [`digest`], so that an
//! agent that comes back is sent nothing if nothing changed meanwhile.

mod decode;
mod encode;
mod feed;
mod file;
mod follow;
mod serve;
#[cfg(test)]
mod tests;

/// The generated messages and the client.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes,
    reason = "generated code"
)]
pub mod pb {
    tonic::include_proto!("portolan.dns.v1");
}

pub use encode::digest;
pub use file::{load, save};
pub use follow::{Follower, FrameError};
pub use serve::NamesService;
