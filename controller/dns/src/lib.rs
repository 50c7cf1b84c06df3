//! Kubernetes DNS records (specification 1.1.0, as CoreDNS's kubernetes plugin answers), and the
//! ways in which CoreDNS gets them.
//!
//! [`Zone`] is pure: changes go in, answers come out. Around it are the wire format, the gRPC
//! service that CoreDNS's grpc plugin asks, zone files, and the SkyDNS layout in etcd.

#![forbid(unsafe_code)]

mod compile;
mod config;
pub mod grpc;
mod input;
mod label;
mod name;
mod problem;
mod records;
mod server;
mod shared;
pub mod skydns;
#[cfg(test)]
mod testing;
mod upstream;
mod wire;
mod zone;
pub mod zone_file;

pub use config::{ConfigError, DEFAULT_TTL, MAX_TTL, PodMode, ZoneConfig};
pub use hickory_proto::rr::{Name, RecordType};
pub use input::{
    Change, Endpoint, Kind, Pod, PodKey, Port, Service, ServiceKey, Slice, SliceKey, Subject,
};
pub use problem::{Object, Problem};
pub use records::{RecordSet, ServiceRecords, Srv};
pub use server::Server;
pub use shared::{Dirty, SharedZone, Subscription};
pub use upstream::Upstream;
pub use wire::MAX_MESSAGE;
pub use zone::{Answer, Applied, Entry, Zone};
