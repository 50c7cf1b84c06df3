// SPDX-License-Identifier: Apache-2.0

//! Refusals of peers, counted by reason and logged once per peer and minute.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use portolan_proto::CLUSTER_ID;
use tonic::Status;
use tracing::warn;

/// Time after a report of a peer in which it is not reported again.
const QUIET: Duration = Duration::from_secs(60);

/// Limit of remembered peers: one attacker can use many addresses.
const MAX_PEERS: usize = 1_024;

macro_rules! reasons {
    ($($(#[$doc:meta])+ $variant:ident => $label:literal,)+) => {
        /// The reason of a refused connection or stream.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum RefusalReason {
            $($(#[$doc])+ $variant,)+
        }

        impl RefusalReason {
            /// All reasons, in order of their declaration.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The label of metrics.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $label,)+
                }
            }
        }
    };
}

reasons! {
    /// The system call to accept a connection failed.
    Accept => "accept",
    /// There were too many connections.
    Limit => "limit",
    /// The TLS handshake failed, for example without a valid certificate.
    Handshake => "handshake",
    /// The TLS handshake took too long.
    HandshakeTimeout => "handshake_timeout",
    /// There was neither a certificate nor a token.
    NoCredential => "no_credential",
    /// The certificate is valid but does not name exactly one node, relay or edge controller.
    Certificate => "certificate",
    /// The token is invalid.
    Token => "token",
    /// Too many tokens come from the same source.
    Rate => "rate",
    /// The node's streams begin too often.
    ReconnectRate => "reconnect_rate",
    /// The certificate or token has expired.
    Expired => "expired",
    /// The API server does not accept the token any more; also ends admitted streams.
    Revoked => "revoked",
    /// The first message was missing, or no Hello that can be answered.
    Hello => "hello",
    /// The agent asked for another node's table.
    WrongNode => "wrong_node",
    /// A peer that is no relay asked for the tables of all nodes.
    NotRelay => "not_relay",
    /// A peer that is no edge controller, or another one, sent the objects of a cluster.
    NotEdge => "not_edge",
    /// The agent asked for another cluster's table.
    WrongCluster => "wrong_cluster",
    /// The node was deleted.
    NodeDeleted => "node_deleted",
    /// The source has no node of that name.
    NodeUnknown => "node_unknown",
    /// The controller does not know yet which cluster it serves.
    Starting => "starting",
    /// The controller is stopping.
    Shutdown => "shutdown",
}

impl RefusalReason {
    /// Returns `true` if the reason lies in a peer's credential.
    #[must_use]
    pub fn is_credential(self) -> bool {
        matches!(
            self,
            Self::NoCredential
                | Self::Certificate
                | Self::Token
                | Self::Rate
                | Self::Expired
                | Self::Revoked
        )
    }
}

/// The refusal of a connection or stream.
#[derive(Debug)]
pub struct Refusal {
    /// The reason, a label of metrics.
    pub reason: RefusalReason,
    /// The answer to the peer.
    pub status: Status,
}

impl Refusal {
    /// A refusal with a given status.
    #[must_use]
    pub fn new(reason: RefusalReason, status: Status) -> Self {
        Self { reason, status }
    }

    /// A refusal of an authenticated peer, as `PERMISSION_DENIED`.
    #[must_use]
    pub fn forbidden(reason: RefusalReason, message: impl Into<String>) -> Self {
        Self::new(reason, Status::permission_denied(message))
    }

    /// A refusal of an agent whose node belongs to another cluster. The status carries the ID of
    /// this one, which the agent reports on its node.
    pub fn other_cluster(ours: &str, theirs: &str) -> Self {
        let message = format!(
            "cluster: this is {ours:?}, and the agent's node belongs to {theirs:?}; if that has \
             changed, run `portolan-agent forget` on the node"
        );
        let mut refusal = Self::forbidden(RefusalReason::WrongCluster, message);
        if let Ok(id) = ours.parse() {
            refusal.status.metadata_mut().insert(CLUSTER_ID, id);
        }
        refusal
    }

    /// A refusal of a peer whose credential has expired after it was verified; also ends admitted streams.
    pub fn expired() -> Self {
        let message = "certificate or token: it has expired meanwhile";
        Self::unauthenticated(RefusalReason::Expired, message)
    }

    pub(crate) fn wrong_node(message: String) -> Self {
        Self::forbidden(RefusalReason::WrongNode, format!("node: {message}"))
    }

    pub(crate) fn unauthenticated(reason: RefusalReason, message: impl Into<String>) -> Self {
        Self::new(reason, Status::unauthenticated(message))
    }
}

/// Counts and reports refusals.
#[derive(Debug)]
pub struct Refusals {
    counts: Vec<AtomicU64>,
    reported: Mutex<HashMap<IpAddr, Instant>>,
}

impl Default for Refusals {
    fn default() -> Self {
        Self {
            counts: RefusalReason::ALL
                .iter()
                .map(|_| AtomicU64::new(0))
                .collect(),
            reported: Mutex::default(),
        }
    }
}

impl Refusals {
    /// Counts a refusal, and logs it if none of the peer was logged for a minute.
    pub fn refuse(&self, peer: IpAddr, reason: RefusalReason, message: &str) {
        self.count(reason, 1);
        let peer = peer.to_canonical();
        if self.is_news(peer, Instant::now()) {
            let reason = reason.as_str();
            warn!(%peer, reason, "refused: {message} (said once a minute)");
        }
    }

    /// Counts refusals that are not logged.
    pub fn count(&self, reason: RefusalReason, by: usize) {
        if let Some(count) = self.counts.get(reason as usize) {
            count.fetch_add(by as u64, Ordering::Relaxed);
        }
    }

    /// Number of refusals by reason.
    #[must_use]
    pub fn read(&self) -> Vec<(RefusalReason, u64)> {
        let counts = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed));
        RefusalReason::ALL.iter().copied().zip(counts).collect()
    }

    /// Returns `true` if a peer is to be reported now; if so, remembers it.
    fn is_news(&self, peer: IpAddr, now: Instant) -> bool {
        let mut reported = self.reported.lock().unwrap_or_else(PoisonError::into_inner);
        let quiet = |at: &Instant| now.saturating_duration_since(*at) < QUIET;
        if reported.get(&peer).is_some_and(quiet) {
            return false;
        }
        if reported.len() >= MAX_PEERS {
            reported.retain(|_, at| quiet(at));
        }
        let room = reported.len() < MAX_PEERS;
        if room {
            reported.insert(peer, now);
        }
        room
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_are_counted_apart() {
        let refusals = Refusals::default();
        refusals.count(RefusalReason::Accept, 2);
        refusals.count(RefusalReason::Shutdown, 1);
        let counts = refusals.read();
        assert_eq!(counts.first(), Some(&(RefusalReason::Accept, 2)));
        assert_eq!(counts.last(), Some(&(RefusalReason::Shutdown, 1)));
        assert_eq!(counts.iter().map(|(_, count)| count).sum::<u64>(), 3);
    }

    #[test]
    fn a_peer_is_reported_once_a_minute_and_peers_are_bounded() {
        let refusals = Refusals::default();
        let now = Instant::now();
        let peer = |n: u32| IpAddr::from(n.to_be_bytes());
        assert!(refusals.is_news(peer(0), now) && !refusals.is_news(peer(0), now + QUIET / 2));
        assert!(refusals.is_news(peer(0), now + QUIET));
        let later = now + QUIET * 3;
        let reported = (0..2_000).filter(|n| refusals.is_news(peer(*n), later));
        assert_eq!(reported.count(), MAX_PEERS);
        assert!(refusals.is_news(peer(3_000), later + QUIET));
    }
}
