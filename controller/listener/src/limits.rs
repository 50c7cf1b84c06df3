//! Limits for unknown peers.

use std::time::Duration;

/// How much unknown peers can hold.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections in all. Those on which no agent was let in are at most half of them and
    /// [`handshakes`](Self::handshakes).
    pub connections: usize,
    /// Connections from one source whose ClientHello is not whole. One more displaces the oldest.
    pub hellos_per_source: usize,
    /// How long a ClientHello can take. It comes in one packet with the end of TCP's handshake.
    pub hello_timeout: Duration,
    /// Handshakes at the same time. Others wait, and the next turn is for the source with the fewest.
    pub handshakes: usize,
    /// How long a handshake can take, from its turn on.
    pub handshake_timeout: Duration,
    /// How long a handshake can take while others wait for their turn, if its source has more than
    /// its share of them; eight times as long if it has not.
    pub crowded_timeout: Duration,
    /// How long a connection can exist without an agent that was let in.
    pub admission_timeout: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 20_000,
            hellos_per_source: 256,
            hello_timeout: Duration::from_secs(3),
            handshakes: 256,
            handshake_timeout: Duration::from_secs(5),
            crowded_timeout: Duration::from_millis(250),
            admission_timeout: Duration::from_secs(15),
        }
    }
}
