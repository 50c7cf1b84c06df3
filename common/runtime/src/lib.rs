// SPDX-License-Identifier: Apache-2.0

//! Plumbing that the agent and the controller share: logs, shutdown, readiness, the admin server,
//! limits of connections, and common flags.

#![deny(unsafe_code)]

mod admin;
mod atomic_file;
mod credentials;
mod debug;
mod descriptors;
mod docs;
mod duration;
mod heap;
mod http;
mod journal;
mod listen;
mod liveness;
mod logs;
mod peer_cluster;
mod process;
mod readiness;
mod scrape;
mod shutdown;
mod sources;
mod unix;
mod vital;

pub use admin::{Admin, Metrics, Pages};
pub use atomic_file::AtomicFile;
pub use credentials::CredentialCollector;
pub use debug::{DebugArgs, DebugSocket, DebugToken};
pub use descriptors::raise_descriptor_limit;
pub use docs::DocsCommand;
pub use duration::{DurationError, duration_within, milliseconds_within, parse_duration};
pub use heap::share_heap;
pub use http::{ANSWER_WITHIN, Accept, Connections, Peer, serve_http};
pub use listen::{listen, listen_one_family};
pub use liveness::Liveness;
pub use logs::{LogArgs, LogFormat};
pub use peer_cluster::PeerCluster;
pub use process::{BUILD, BuildInfo, register_process};
pub use readiness::{BlockReady, Readiness};
pub use scrape::{HistogramValues, Scrape, gauge_value};
pub use shutdown::on_signal;
pub use sources::{ConnectionSlots, Origin, Rate, Slot, SlotError, SlotLimits, Source};
pub use unix::{SocketAccess, SocketFile, SocketFlagError, SocketGroup, SocketMode, listen_unix};
pub use vital::Vital;
