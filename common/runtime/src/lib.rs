//! What both programs do alike around their work: logs, shutdown, readiness, the admin server.

#![forbid(unsafe_code)]

mod admin;
mod atomic_file;
mod credentials;
mod debug;
mod descriptors;
mod http;
mod listen;
mod liveness;
mod logs;
mod readiness;
mod shutdown;
mod sources;
mod unix;
mod vital;

pub use admin::{Admin, Metrics};
pub use atomic_file::AtomicFile;
pub use credentials::CredentialCollector;
pub use debug::{DebugArgs, DebugSocket, DebugToken};
pub use descriptors::raise_descriptor_limit;
pub use http::{Accept, Connections, Peer, serve_http};
pub use listen::{listen, listen_one_family};
pub use liveness::Liveness;
pub use logs::LogFormat;
pub use readiness::{BlockReady, Readiness};
pub use shutdown::on_signal;
pub use sources::{NoPlace, Origin, Place, Rate, Source, SourceLimits, Sources};
pub use unix::{SocketAccess, SocketFile, SocketGroup, SocketMode, listen_unix};
pub use vital::Vital;
