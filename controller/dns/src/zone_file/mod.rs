//! Zone files (RFC 1035 §5) for CoreDNS's `file` and `auto` plugins: names that go on being
//! answered when the controller does not:
//!
//! ```text
//! cluster.local {
//!     file /var/lib/portolan/db.cluster.local {
//!         reload 10s
//!     }
//! }
//! ```
//!
//! Not in them are the Pods of [`PodMode::Insecure`](crate::PodMode::Insecure) and the names of
//! topology zones, of which there is no list.

mod export;
mod render;
#[cfg(test)]
mod tests;
mod write;

pub use export::{ExportConfig, export};
pub use render::render;
pub use write::{Written, serial_of, write};
