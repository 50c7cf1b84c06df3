// SPDX-License-Identifier: Apache-2.0

//! Types that the controller and the agent share.
//!
//! Pure: no I/O, no clock, no async. There are two vocabularies: the *table* of a node
//! ([`Record`], [`NodeOverlay`], [`NodeTable`]) and the *kernel objects* that an agent programs
//! ([`ipvs`], [`ipset`]).

#![forbid(unsafe_code)]

mod balancing;
pub mod check;
mod deletions;
pub mod hash;
pub mod ipset;
pub mod ipvs;
mod key;
mod node;
mod record;
mod table;
pub mod trace;

pub use balancing::{
    AdministrativeState, Balancing, Persistence, Profile, RecordHealth, SorryServer, Standing,
};
pub use deletions::{Loss, TableSize, replaced};
pub use hash::{ContentHash, SetHash, node_hash};
pub use key::{Families, Family, NodeKey, ParseProtocolError, Protocol, RecordKey, Scope};
pub use node::{NodeInfo, group_name, import_group};
pub use record::{
    Affinity, Destination, Frontend, FrontendAddress, FrontendKind, Lists, NodeOverlay, PortRange,
    Record, Scheduling, ZoneMask,
};
pub use table::{ByRecord, NodeTable};
