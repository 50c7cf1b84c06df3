//! What a Service promises, as a table: who may answer whom, and which source the answering pod
//! sees, for every kind of frontend, traffic policy, place of the asker and state of the endpoints.
//!
//! [`Row::all`] makes the rows, [`expect`] says what has to happen (pure, and written from what
//! kube-proxy's iptables and nftables modes do, not from our code), a [`Stage`] makes it happen
//! with packets, and [`Row::judge`] compares. "Here" is the node that outside traffic and node port
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
