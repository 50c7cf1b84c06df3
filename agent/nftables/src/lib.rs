// SPDX-License-Identifier: Apache-2.0

//! Desired nftables of a node's table, and the requests that lead there.
//!
//! Pure: no I/O, no clock. Each family has one table. Its rules never name a Service: what the node answers
//! for is in maps, so that a change of a Service is a change of elements. Only nat chains decide, so that
//! rules see the first packet of a connection and no other.

#![forbid(unsafe_code)]

mod advance;
mod clients;
mod desire;
mod detach;
mod effects;
mod export;
mod forwarding;
mod incremental;
mod lacking;
mod layout;
mod needs;
mod order;
mod plan;
mod refusals;
mod room;
mod rules;
mod size;
mod slots;
mod sources;
#[cfg(test)]
mod tests;
pub mod trace;
mod unmark;
mod ways;

pub use advance::advance;
pub use clients::{Client, Place};
pub use desire::{Desired, desire, everything};
pub use detach::detach_requests;
pub use effects::{changes_udp, has_way, numbers, strands_clients, ways_with_endpoints};
pub use export::export;
pub use forwarding::{ClosedChain, ClosedLooks, Translation, closed_chains};
pub use incremental::{Touched, plan_touched};
pub use lacking::Lacking;
pub use layout::{AFFINITY, SERVICES, TABLE};
pub use order::transactions;
pub use plan::{Surplus, plan};
pub use refusals::LeftOut;
pub use sources::{renew_sources, renews_sources};
pub use unmark::{unmark, unmark_requests};
pub use ways::{Hairpin, List, Masquerade, Refused, Way, WayKey, Ways};
