// SPDX-License-Identifier: Apache-2.0

//! TLS of both ends of the stream: certificates and keys in files that change, and the names of nodes,
//! relays and edge controllers in certificates.
//!
//! TLS 1.3 only, with one provider (aws-lc-rs). Sessions are not resumed: resumption skips the check of
//! the peer's certificate.

#![forbid(unsafe_code)]

mod certificate;
#[cfg(feature = "channel")]
mod channel;
mod config;
mod file;
#[cfg(feature = "issue")]
pub mod issue;
mod name;
mod rotate;

pub use certificate::{CertificateError, CertificateFacts, read_certificate, read_pem};
#[cfg(feature = "channel")]
pub use channel::{ChannelError, secure_channel};
pub use config::{ALPN, ClientFiles, ServerFiles, server, without_certificate};
pub use file::{File, FileError, MAX_FILE_BYTES, read};
pub use name::{EdgeName, NameError, NodeName, PeerName, RelayName};
pub use rotate::{Health, Loaded, POLL, Rotating};
