// SPDX-License-Identifier: Apache-2.0

//! Limits for unknown peers.

use std::time::Duration;

/// Limits of the resources that unknown peers hold.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections in total. Those without an admitted agent are at most half of this number plus
    /// [`handshakes`](Self::handshakes).
    pub connections: usize,
    /// Connections of one source whose ClientHello is incomplete. One more displaces the oldest.
    pub hellos_per_source: usize,
    /// Time limit of a ClientHello. It comes in one packet with the end of TCP's handshake.
    pub hello_timeout: Duration,
    /// Concurrent handshakes. Others wait, and the next turn is for the source with the fewest.
    pub handshakes: usize,
    /// Time limit of a handshake, from its turn on.
    pub handshake_timeout: Duration,
    /// Time limit of a handshake while others wait for a turn, if its source has more than its
    /// share of the turns; eight times as long if it has not.
    pub crowded_timeout: Duration,
    /// Time limit of a connection without an admitted agent.
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
