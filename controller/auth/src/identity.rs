// SPDX-License-Identifier: Apache-2.0

//! The identity of a peer, and the node or relay that it may act for.
//!
//! A stream receives the table of one node and reports its programmed state. The peer must be that
//! node's agent: its name comes from a certificate or a token, never from its Hello alone. A stream
//! with the tables of all nodes must be a relay's, which only a certificate can prove.

use std::future::pending;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use portolan_model::NodeKey;
use portolan_tls::PeerName;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::certified::{Certified, CertifiedError};
use crate::refusals::{Refusal, RefusalReason};
use crate::reviews::Reviewed;
use crate::token::{TokenError, TokenVerifier};

/// The credentials that an agent must present.
#[derive(Debug, Clone, Default)]
pub enum Authentication {
    /// None: the names in a Hello are believed. Only for connections without TLS.
    #[default]
    Nothing,
    /// A certificate, or a token if there is a verifier.
    Required(Option<Arc<TokenVerifier>>),
}

/// The identity of an authenticated peer.
#[derive(Debug)]
pub enum Identity {
    /// Not authenticated: the names in its Hello are believed.
    Anyone,
    /// A node's agent, a relay or an edge controller, with the watch of its token if tokens are reviewed.
    Known(Certified, Option<Reviewed>),
}

impl Identity {
    /// Checks that the peer may ask for a node's table and report its programmed state.
    ///
    /// # Errors
    /// If the peer is another node, a relay, or of another cluster.
    pub fn authorize_node(&self, node: &NodeKey) -> Result<(), Refusal> {
        let Some(name) = self.name_in(&node.cluster)? else {
            return Ok(());
        };
        match name {
            PeerName::Node(own) if *own.node == *node.name => Ok(()),
            PeerName::Node(own) => Err(Refusal::wrong_node(format!("you are {:?}", own.node))),
            PeerName::Relay(own) => Err(Refusal::wrong_node(format!(
                "you are the relay {:?}",
                own.relay
            ))),
            PeerName::Edge(own) => Err(Refusal::wrong_node(format!(
                "you are the edge {:?}",
                own.edge
            ))),
        }
    }

    /// Checks that the peer may ask for the tables of all nodes as a relay of this name.
    ///
    /// # Errors
    /// If the peer is a node, another relay, or of another cluster.
    pub fn authorize_relay(&self, cluster: &str, relay: &str) -> Result<(), Refusal> {
        let Some(name) = self.name_in(cluster)? else {
            return Ok(());
        };
        match name {
            PeerName::Relay(own) if *own.relay == *relay => Ok(()),
            PeerName::Relay(own) => Err(Refusal::wrong_node(format!(
                "you are the relay {:?}",
                own.relay
            ))),
            PeerName::Node(own) => {
                let message = format!("want: you are the node {:?}, no relay", own.node);
                Err(Refusal::forbidden(RefusalReason::NotRelay, message))
            }
            PeerName::Edge(own) => {
                let message = format!("want: you are the edge {:?}, no relay", own.edge);
                Err(Refusal::forbidden(RefusalReason::NotRelay, message))
            }
        }
    }

    /// Checks that the peer may send the objects of a cluster as an edge controller of this name.
    ///
    /// # Errors
    /// If the peer is a node, a relay, another edge, or of another cluster.
    pub fn authorize_edge(&self, cluster: &str, edge: &str) -> Result<(), Refusal> {
        let not_edge = |what: &str, name: &str| {
            let message = format!("name: you are the {what} {name:?}, no edge");
            Err(Refusal::forbidden(RefusalReason::NotEdge, message))
        };
        match self.name_in(cluster)? {
            None => Ok(()),
            Some(PeerName::Edge(own)) if *own.edge == *edge => Ok(()),
            Some(PeerName::Edge(own)) => {
                let message = format!("name: you are the edge {:?}", own.edge);
                Err(Refusal::forbidden(RefusalReason::NotEdge, message))
            }
            Some(PeerName::Node(own)) => not_edge("node", &own.node),
            Some(PeerName::Relay(own)) => not_edge("relay", &own.relay),
        }
    }

    /// The authenticated name; `None` if the peer needs none.
    fn name_in(&self, cluster: &str) -> Result<Option<&PeerName>, Refusal> {
        let Self::Known(Certified { name, .. }, _) = self else {
            return Ok(None);
        };
        if name.cluster() != cluster {
            let message = format!("cluster: yours is {:?}", name.cluster());
            return Err(Refusal::forbidden(RefusalReason::WrongCluster, message));
        }
        Ok(Some(name))
    }

    /// Finds the cluster of the peer's credential among those that are served. `None` for a peer without a
    /// credential.
    ///
    /// # Errors
    /// If `served` does not find it.
    pub fn authorize_cluster<C>(
        &self,
        served: impl FnOnce(&str) -> Option<C>,
    ) -> Result<Option<C>, Refusal> {
        let Some(name) = self.cluster() else {
            return Ok(None);
        };
        served(name).map(Some).ok_or_else(|| {
            let message = format!("cluster: yours is {name:?}");
            Refusal::forbidden(RefusalReason::WrongCluster, message)
        })
    }

    /// The cluster of the peer's credential, if it has one.
    #[must_use]
    pub fn cluster(&self) -> Option<&str> {
        match self {
            Self::Known(Certified { name, .. }, _) => Some(name.cluster()),
            Self::Anyone => None,
        }
    }

    /// Returns `true` if the peer is authenticated.
    #[must_use]
    pub fn is_known(&self) -> bool {
        matches!(self, Self::Known(..))
    }

    /// The node whose agent the peer is, if it is authenticated as one.
    pub fn node(&self) -> Option<NodeKey> {
        match self {
            Self::Known(
                Certified {
                    name: PeerName::Node(own),
                    ..
                },
                _,
            ) => Some(NodeKey {
                cluster: own.cluster.as_str().into(),
                name: own.node.as_str().into(),
            }),
            Self::Known(..) | Self::Anyone => None,
        }
    }

    /// Remaining time of its streams, which ends `grace` after the credential's expiry. `None` for
    /// no limit.
    pub fn remaining(&self, grace: Duration) -> Option<Duration> {
        let Self::Known(Certified { until, .. }, _) = self else {
            return None;
        };
        let end = until.checked_add(grace)?;
        Some(end.duration_since(SystemTime::now()).unwrap_or_default())
    }

    /// The watch of the token, if tokens are reviewed.
    #[must_use]
    pub fn reviewed(&self) -> Option<&Reviewed> {
        match self {
            Self::Known(_, reviewed) => reviewed.as_ref(),
            Self::Anyone => None,
        }
    }

    /// The watch of the token, which a stream holds while it lives.
    pub fn into_reviewed(self) -> Option<Reviewed> {
        match self {
            Self::Known(_, reviewed) => reviewed,
            Self::Anyone => None,
        }
    }
}

/// Authenticates the peer of a request. A certificate that names a node or relay precedes a token.
/// A token is verified only if `may_verify` permits it, by which the caller limits their rate.
///
/// # Errors
/// If the credential is missing or not accepted.
pub fn authenticate(
    authentication: &Authentication,
    certificate: Option<&Result<Certified, CertifiedError>>,
    metadata: &MetadataMap,
    may_verify: impl FnOnce() -> bool,
) -> Result<Identity, Refusal> {
    let Authentication::Required(tokens) = authentication else {
        return Ok(Identity::Anyone);
    };
    if let Some(Ok(certified)) = certificate {
        return Ok(Identity::Known(certified.clone(), None));
    }
    if let Some(verifier) = tokens
        && let Some(token) = bearer(metadata)?
    {
        if !may_verify() {
            let status = Status::resource_exhausted("token: too many from this address");
            return Err(Refusal::new(RefusalReason::Rate, status));
        }
        let (certified, reviewed) = verifier.admit(token)?;
        return Ok(Identity::Known(certified, reviewed));
    }
    Err(match certificate {
        Some(Err(error)) => Refusal::unauthenticated(RefusalReason::Certificate, error.to_string()),
        _ => Refusal::unauthenticated(RefusalReason::NoCredential, expected(tokens.is_some())),
    })
}

/// Completes when the token of a stream was found to be revoked; never without reviews.
pub async fn revoked(reviewed: Option<&Reviewed>) {
    match reviewed {
        Some(reviewed) => reviewed.revoked().await,
        None => pending().await,
    }
}

fn expected(tokens: bool) -> &'static str {
    if tokens {
        "neither a token nor a certificate was given"
    } else {
        "no certificate was given"
    }
}

/// The token of `authorization: Bearer TOKEN`, if there is one.
fn bearer(metadata: &MetadataMap) -> Result<Option<&str>, Refusal> {
    let Some(value) = metadata.get("authorization") else {
        return Ok(None);
    };
    let token = value.to_str().ok().and_then(|text| {
        let (scheme, token) = text.split_once(' ')?;
        scheme.eq_ignore_ascii_case("bearer").then_some(token)
    });
    let malformed = || Refusal::from(TokenError::NotBearer);
    token.map(Some).ok_or_else(malformed)
}

#[cfg(test)]
mod tests;
