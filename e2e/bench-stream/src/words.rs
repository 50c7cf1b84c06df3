//! What the driver and its two programs say to each other: lines of JSON.

use serde::{Deserialize, Serialize};

use crate::usage::Usage;

/// To a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Ask {
    /// What has it cost so far?
    Usage,
    /// Wait until it has so many streams.
    Streams(usize),
    /// Publish one transition of so many changes.
    Change(u32),
    /// Publish changes at this rate, per second, for so many seconds.
    Load { rate: u32, seconds: u32 },
}

/// From a server.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Told {
    /// It listens on this port of the loopback.
    Ready {
        port: u16,
    },
    Usage(Usage),
    Streams,
    Published(Published),
    Loaded {
        /// When each change happened, and the revision that has it.
        changes: Vec<Published>,
        /// The most that it had meanwhile, in bytes.
        resident_max: u64,
    },
}

/// A change that is on its way.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Published {
    /// The revision that has it.
    pub(crate) revision: u64,
    /// When it happened.
    pub(crate) at_ns: u64,
}

/// To the thin client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Order {
    /// Connect so many agents, and wait until each has its table.
    Connect(Connect),
    /// Wait until all agents have this revision.
    Reach(u64),
    /// When did the last agent have each revision from here to there?
    Arrivals { first: u64, last: u64 },
    /// Close all connections; what agents have, they keep.
    Leave,
    /// Keep what agents have, for [`Order::Restore`].
    Keep,
    /// Agents have again what they had.
    Restore,
}

/// How agents connect.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Connect {
    /// To this port of the loopback.
    pub(crate) port: u16,
    /// How many.
    pub(crate) agents: u32,
    pub(crate) speak: Speak,
    /// Whether they say what they have.
    pub(crate) resume: bool,
    /// Whether they acknowledge each Commit, as received and as programmed.
    pub(crate) acks: bool,
}

/// What is spoken on a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Speak {
    Plain,
    Tls,
    /// No HTTP: so many bytes are a revision.
    Bare(u32),
}

/// From the thin client.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Done {
    Connected(Connected),
    /// All have it; the last since then. `received` counts the bytes of all of them since they
    /// connected.
    Reached {
        at_ns: u64,
        received: u64,
    },
    /// For each revision, when the last agent had it.
    Arrivals(Vec<u64>),
    Left,
    Kept,
    Restored,
}

/// What it took until all had their tables.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Connected {
    /// From the first connection to the last Commit.
    pub(crate) took_ns: u64,
    /// The bytes of all agents, below TLS's records and above TCP.
    pub(crate) received: u64,
    pub(crate) sent: u64,
    /// The revision that all have at least.
    pub(crate) revision: u64,
    /// How many were asked for the hashes of their buckets.
    pub(crate) asked: u32,
}
