//! What both ends of the stream need for TLS: certificates and keys in files that change, and the
//! form in which a certificate names a node.
//!
//! TLS 1.3 only, one provider (aws-lc-rs), and no session is resumed: a resumed one would skip the
//! check of the other side's certificate.

#![forbid(unsafe_code)]

mod certificate;
mod config;
mod file;
#[cfg(feature = "issue")]
pub mod issue;
mod name;
mod rotate;

pub use certificate::{Facts, facts};
pub use config::{ALPN, ClientFiles, ServerFiles};
pub use file::{File, FileError, MAX_FILE_BYTES, read};
pub use name::{NameError, NodeName, PeerName, RelayName};
pub use rotate::{Health, Loaded, POLL, Rotating};
