// SPDX-License-Identifier: Apache-2.0

//! The behaviour of a Service as a table: the endpoints that may answer a client, and the source
//! that an endpoint sees, for every kind of frontend, traffic policy, place of the client and state
//! of the endpoints.
//!
//! [`Row::all`] lists the rows. [`expect`] gives the expected result; it is pure, and written from
//! kube-proxy's iptables and nftables modes, not from Portolan's code. A [`Stage`] sends packets,
//! and [`Row::judge`] compares. "Here" is the node at which outside traffic and node port traffic
//! arrives, "there" the other one. Each has one pod that may be an endpoint.

mod differences;
mod expect;
mod objects;
mod row;
mod run;
mod situation;
mod stage;
mod table;

pub use self::differences::{Difference, KnownDifferences};
pub use self::expect::{Expectation, Seen, expect};
pub use self::objects::{Target, node_objects};
pub use self::row::{Kind, Policy, Row, Source};
pub use self::run::{Observation, Outcome, Patience, report};
pub use self::situation::{Endpoint, Place, Situation, State};
pub use self::stage::Stage;
pub use self::table::markdown;
