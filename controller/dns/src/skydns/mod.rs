// SPDX-License-Identifier: Apache-2.0

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
//! The plugin answers with everything below a name, so the layout has to hide the names below
//! Services, Namespaces and the apex: see [`layout`]. It cannot express:
//!
//! - several PTR records of an address, the Pods of [`PodMode::Insecure`](crate::PodMode::Insecure),
//!   the names of topology zones, addresses of IPv6 beside SRV records;
//! - SOA records at the apex only, SRV and TXT of the apex without all that is below it, and
//!   Namespaces that do not show their ExternalName Services at their own name;
//! - names that exist for some types only: one key, or all below it, is read for every type. So the
//!   name of an address is an alias, an alias a PTR record, and a name between two others
//!   (`_tcp.<service>`, `dns.<zone>`) has the names below it;
//! - addresses at the name of a headless Service's port, other than as aliases to its endpoints;
//! - another name server than `ns.dns.<zone>`.

mod client;
mod export;
pub mod layout;
mod level;
mod message;
#[cfg(test)]
mod tests;

pub use export::{ExportConfig, User, export};
pub use layout::{Layout, LayoutError};
pub use message::Message;
