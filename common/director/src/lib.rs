// SPDX-License-Identifier: Apache-2.0

//! The files of a director: `LoadBalancer` and `Director` objects.
//!
//! Pure: texts in, values and texts out; no files, no network, no clock.
//!
//! A text becomes a tree of values that know their line and column (`read`). The tree is checked
//! against the JSON schema of the types of [`document`], which finds every field that is unknown,
//! missing or out of range. The documents then become [`LoadBalancer`] and [`Director`], which
//! hold only what makes sense together, and these become a [`Generation`], in which no two claim
//! the same virtual server.
//!
//! YAML is read by `serde-saphyr`, as elsewhere in the workspace: it is maintained, needs no
//! `unsafe`, limits nesting and aliases, and gives each value its position (`Spanned`). Derived
//! deserialisation stops at the first error, so the tree between is our own.

#![forbid(unsafe_code)]

mod balancer;
mod check;
mod command;
mod convert;
mod director;
pub mod document;
mod explain;
mod fleet;
mod forwarding;
mod frontend;
mod generation;
pub mod import;
mod manual;
mod object;
mod problem;
pub mod read;
mod records;
mod rules;
mod scheduler;
mod schema;
mod unsupported;
mod write;

pub use balancer::{Backend, Hooks, LoadBalancer, SorryServer};
pub use check::{DeclaredCheck, DeclaredTimers};
pub use command::{Answer, check as check_files, explain_files};
pub use director::{CheckLimits, DEFAULT_MARKS, Director, Scripts, Sync, Sysctls, Timeouts, Vips};
pub use document::{
    AdministrativeState, Announce, Binding, Method, PersistenceEngine, Role, SchedulerFlag,
    SchedulerName, SysctlMode, TunnelChecksum,
};
pub use explain::explain;
pub use fleet::{MAX_SENT_BYTES, SentError, unsupported_from_controller};
pub use forwarding::{Forwarding, Persistence, Thresholds, Tunnel};
pub use frontend::{Claim, Frontend, Packets};
pub use generation::{File, Former, Generation, NotOurs, is_ours, parse, parse_again};
pub use manual::manual;
pub use object::{ObjectName, Tags};
pub use problem::{Position, Problem, not_applied};
pub use records::{RecordCache, records};
pub use rules::{Already, Claims, taken};
pub use schema::{schema, schema_text, strict_schema};
pub use unsupported::{unsupported, unsupported_in_fleet};
