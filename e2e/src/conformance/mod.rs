//! The promises of a Service as a table: which endpoint may answer which client, and which source the endpoint
//! sees, for every kind of frontend, traffic policy, place of the client and state of the endpoints.
//!
//! [`Row::all`] makes the rows, [`expect`] gives the expected result (pure, and written from kube-proxy's
//! iptables and nftables modes, not from our code), a [`Stage`] sends packets, and [`Row::judge`] compares. "Here" is the node that outside traffic and node port
//! traffic arrives at, "there" the other one; each has one pod that may be an endpoint.

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
