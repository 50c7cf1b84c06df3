// SPDX-License-Identifier: Apache-2.0

//! The protocol between the driver and its two child processes: lines of JSON.

use serde::{Deserialize, Serialize};

use crate::usage::Usage;

/// An order to a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// Report the resources used so far.
    Usage,
    /// Wait until this many streams are open.
    Streams(usize),
    /// Publish one transition of this many changes.
    Change(u32),
    /// Publish changes at this rate, per second, for this many seconds.
    Load { rate: u32, seconds: u32 },
}

/// An answer of a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Told {
    /// The server listens on this port of the loopback.
    Ready {
        port: u16,
    },
    Usage(Usage),
    Streams,
    Published(Published),
    Loaded {
        /// The time and the revision of each change.
        changes: Vec<Published>,
        /// The highest resident memory during the load, in bytes.
        resident_max: u64,
    },
}

/// A published change.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Published {
    /// The first revision that contains it.
    pub(crate) revision: u64,
    /// The time of the change, by the monotonic clock, in nanoseconds.
    pub(crate) at_ns: u64,
}

/// An order to the thin client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Connect agents, and wait until each has its table.
    Connect(Connect),
    /// Wait until all agents have this revision.
    Reach(u64),
    /// Report when the last agent reached each revision of an inclusive range.
    Arrivals { first: u64, last: u64 },
    /// Close all connections. Agents keep their state.
    Leave,
    /// Save the agents' state for [`Order::Restore`].
    Keep,
    /// Restore the agents' saved state.
    Restore,
}

/// Parameters of the agents' connections.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Connect {
    /// The server's port of the loopback.
    pub(crate) port: u16,
    /// The number of agents.
    pub(crate) agents: u32,
    pub(crate) speak: Speak,
    /// Whether an agent's Hello states the table that it holds.
    pub(crate) resume: bool,
    /// Whether agents acknowledge each Commit, as received and as programmed.
    pub(crate) acks: bool,
}

/// The protocol of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Speak {
    Plain,
    Tls,
    /// No HTTP: each revision is this many bytes.
    Bare(u32),
}

/// An answer of the thin client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Done {
    Connected(Connected),
    /// All agents have the revision; the last since `at_ns`. `received` counts the bytes that all
    /// agents received since they connected.
    Reached {
        at_ns: u64,
        received: u64,
    },
    /// The time at which the last agent reached each revision, in nanoseconds.
    Arrivals(Vec<u64>),
    Left,
    Kept,
    Restored,
}

/// The cost of connecting all agents until each has its table.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Connected {
    /// Time from the first connection to the last first Commit, in nanoseconds.
    pub(crate) took_ns: u64,
    /// Bytes that all agents received, above TCP; with TLS, without its records' overhead.
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// The lowest revision among the agents.
    pub(crate) revision: u64,
    /// The number of agents asked for the hashes of their buckets.
    pub(crate) asked: u32,
}
