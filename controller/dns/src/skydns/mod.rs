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
//! Services, Namespaces and the apex: see [`layout`]. What it cannot have:
//!
//! - several PTR records of an address, the Pods of [`PodMode::Insecure`](crate::PodMode::Insecure),
//!   the names of topology zones;
//! - SOA records at the apex only, SRV and TXT of the apex without all that is below it, and
//!   Namespaces that do not show their ExternalName Services at their own name;
//! - names of ports and protocols without addresses, and SRV records of endpoints' own names;
//! - names between keys of the reverse tree, for PTR and CNAME;
//! - a name for other types than the one that leads somewhere: an alias is a PTR record too, and
//!   the name of an address an alias;
//! - keys that are not names: `x.<a-b-c-d>.<namespace>.pod` has the address too.

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
