//! The records as SkyDNS messages in etcd, for CoreDNS's etcd plugin:
//!
//! ```text
//! . {
//!     etcd cluster.local in-addr.arpa ip6.arpa {
//!         path /skydns
//!         endpoint http://127.0.0.1:2379
//!     }
//! }
//! ```
//!
//! The plugin answers with everything below a name, so the layout has to hide what is below
//! Services, Namespaces and the apex: see [`layout`]. What it cannot have: several PTR records of
//! an address, the Pods of [`PodMode::Insecure`](crate::PodMode::Insecure), the names of topology
//! zones, SOA records that are at the apex only, and Namespaces that do not show their ExternalName
//! Services at their own name.

mod client;
mod export;
pub mod layout;
mod level;
mod message;
#[cfg(test)]
mod tests;

pub use export::{ExportConfig, export};
pub use layout::{Layout, LayoutError};
pub use message::Message;
