//! Kubernetes DNS records (specification 1.1.0, as CoreDNS's kubernetes plugin answers), and the
//! ways in which CoreDNS gets them.
//!
//! [`Zone`] is pure: changes go in, answers come out. Around it are the wire format, the gRPC
//! service that CoreDNS's grpc plugin asks, zone files, and the SkyDNS layout in etcd.
//!
//! Where the plugin contradicts the DNS standards, the standards win, so that all three ways give
//! the same answers:
//!
//! - A name with others below it exists (RFC 8020): `_tcp.<service>`, `dns.<zone>`, the upper
//!   labels of the reverse tree, and a Namespace's name for TXT as for any type. So does a name of
//!   another type: `dns-version` for A, an address's name for anything but PTR. The plugin says
//!   NXDOMAIN to these.
//! - The name of a port, `_http._tcp.<service>`, has SRV records only. The plugin gives it
//!   addresses too, and takes it without the underscores.
//! - An alias is part of the answer even if it leads to nothing, and for every type (RFC 1034,
//!   RFC 6604). The plugin leaves it out.
//! - Until everything is known, everything is SERVFAIL: half of a Service's endpoints are no
//!   better an answer than none. The plugin answers with what it has.
//! - A name that does not exist is NXDOMAIN for SOA too, and what is below a Pod's name does not
//!   exist. The plugin says NODATA to the one, and gives the Pod's address to the other.
//! - A Pod's name has no SRV record. The plugin gives it one with port 0.
//! - A slice whose Service does not exist has no PTR records. The plugin's lead to no name.
//! - An endpoint that is in two slices for a moment weighs once in SRV records.
//! - A Pod has a name for each of its addresses. The plugin knows the first one.
//! - A Namespace exists if a Service or a Pod is in it, whether it is declared or not.

#![forbid(unsafe_code)]

mod bind;
mod compile;
mod config;
pub mod grpc;
mod input;
mod label;
mod metrics;
mod name;
mod problem;
mod records;
pub mod replica;
mod server;
mod shared;
pub mod skydns;
#[cfg(test)]
mod testing;
mod upstream;
mod wire;
mod zone;
pub mod zone_file;

pub use bind::{Bind, BindError, Bound};
pub use config::{ConfigError, DEFAULT_TTL, MAX_TTL, PodMode, ZoneConfig};
pub use hickory_proto::rr::{Name, RecordType};
pub use input::{
    Change, Endpoint, Kind, Listing, Pod, PodKey, Port, Service, ServiceKey, Slice, SliceKey,
    Subject,
};
pub use metrics::{LagCollector, Metrics, code_name};
pub use problem::{Object, Problem};
pub use records::{RecordSet, ServiceRecords, Srv};
pub use server::Server;
pub use shared::{Dirty, SharedZone, Subscription};
pub use upstream::Upstream;
pub use wire::MAX_MESSAGE;
pub use zone::{Answer, Applied, Entry, Zone};
