//! Kubernetes DNS records (specification 1.1.0, as CoreDNS's kubernetes plugin answers), and the
//! ways in which CoreDNS gets them.
//!
//! [`Zone`] is pure: changes go in, answers come out. Around it are the wire format, the gRPC
//! service that CoreDNS's grpc plugin asks, zone files, and the SkyDNS layout in etcd.
//!
//! An answer over gRPC is the plugin's, record by record: also where that contradicts the DNS
//! standards, such as names that exist for some types only, and aliases that are left out if they
//! lead to nothing inside of the zone. What cannot be equal:
//!
//! - Until everything is known everything is SERVFAIL: half of a Service's endpoints are no better
//!   an answer than none. The plugin answers with what it has.
//! - The plugin looks for itself among the endpoints to find its name server's name, and takes the
//!   addresses of its machine if it is not there. We are told the Service
//!   ([`ZoneConfig::name_server`]), and have no addresses without.
//! - A Service's `publishNotReadyAddresses` counts here too. What Kubernetes' own controller makes
//!   of such a Service says already that all is ready; slices made by hand may not.
//! - With `noendpoints` the plugin does not find itself, whatever we are told.
//! - A Namespace exists if a Service or a Pod is in it. An API server has none without; files may.
//! - The serial of the SOA record.
//!
//! [`zone_file`] and [`skydns`] say what these two ways cannot have.

#![forbid(unsafe_code)]

mod bind;
mod compile;
mod config;
pub mod grpc;
mod incoming;
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
