// SPDX-License-Identifier: Apache-2.0

//! Zone files (RFC 1035 §5) for CoreDNS's `file` and `auto` plugins, which survive the controller:
//!
//! ```text
//! cluster.local {
//!     file /var/lib/portolan/db.cluster.local {
//!         reload 10s
//!     }
//! }
//! ```
//!
//! They lack the Pods of [`PodMode::Insecure`](crate::PodMode::Insecure), the names of topology
//! zones, ports without their underscores, and names below a Pod's name, which cannot be listed.
//! The existence of a zone's names does not depend on the type, so that a server follows the
//! standards where the kubernetes plugin does not:
//!
//! - NODATA, not NXDOMAIN, for a name that has records of another type (`dns-version` for A, the
//!   name of an address for anything but PTR, a Namespace's for TXT) or names below it
//!   (`_tcp.<service>`, RFC 8020);
//! - NXDOMAIN, not NODATA, for the SOA of a name that does not exist;
//! - an alias is part of the answer for every target and every type (RFC 1034).

mod export;
mod render;
#[cfg(test)]
mod tests;
mod write;

pub use export::{ExportConfig, export};
pub use render::render;
pub use write::{Written, serial_of, write};
