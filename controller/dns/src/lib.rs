// SPDX-License-Identifier: Apache-2.0

//! Kubernetes DNS records (specification 1.1.0, as CoreDNS's kubernetes plugin answers), and their
//! ways to CoreDNS.
//!
//! [`Zone`] is pure: changes go in, answers come out. Around it are the wire format, the gRPC
//! service that CoreDNS's grpc plugin asks, zone files, and the SkyDNS layout in etcd.
//!
//! An answer over gRPC is the plugin's, record by record: also where that contradicts the DNS
//! standards, such as names that exist for some types only, and aliases that are left out if they
//! lead to nothing inside of the zone. The differences:
//!
//! - Every answer is SERVFAIL until all objects are known: half of a Service's endpoints are no
//!   better an answer than none. The plugin answers with the objects it has.
//! - The plugin looks for itself among the endpoints to find its name server's name, and takes the
//!   addresses of its machine if it is not there. Here the Service is configured
//!   ([`ZoneConfig::name_server`]), and there are no addresses without it.
//! - A Service's `publishNotReadyAddresses` counts here. Kubernetes' own controller marks all
//!   endpoints of such a Service as ready; slices written by hand may not.
//! - With `noendpoints` the plugin does not find itself; the configured Service is used here.
//! - A Namespace exists if a Service or a Pod is in it. In an API server it always does; in files
//!   it may be missing.
//! - The serial of the SOA record.
//!
//! A zone of imported Services ([`ZoneKind::ClusterSet`]) has the answers of the plugin's option `multicluster`, with
//! one more difference: the version of the schema, which is that of the Multi-Cluster Services API.
//!
//! [`zone_file`] and [`skydns`] document their own limits.

#![forbid(unsafe_code)]

mod args;
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
mod walk;
mod wire;
mod zone;
pub mod zone_file;

pub use args::DnsServerArgs;
pub use bind::{Bind, BindError, Bound};
pub use config::{ConfigError, DEFAULT_TTL, MAX_TTL, PodMode, ZoneConfig, ZoneKind};
pub use hickory_proto::rr::{Name, RecordType};
pub use input::{
    Endpoint, Kind, Listing, NamesChange, Pod, PodKey, Port, Service, ServiceKey, Slice, SliceKey,
    Subject,
};
pub use metrics::{LagCollector, Metrics, code_name, encode_lags};
pub use problem::{Object, RecordProblem};
pub use records::{RecordSet, ServiceRecords, Srv};
pub use server::Server;
pub use shared::{Dirty, SharedZone, Subscription};
pub use upstream::Upstream;
pub use walk::ReadZone;
pub use wire::MAX_MESSAGE;
pub use zone::{Answer, Applied, NameEntry, Zone};
