//! Who an agent is, and which node it may speak for.
//!
//! A stream gets the table of one node, and says what that node has programmed. So it must be that
//! node's agent: its name comes from a certificate or a token, never from what it says alone.

mod keys;
mod token;

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use portolan_model::NodeKey;
use portolan_tls::NodeName;
use tonic::Status;
use tonic::metadata::MetadataMap;

use crate::accept::Peer;
use crate::registry::RefusalReason;
pub use keys::{KeySet, KeyWanted};
use token::TokenError;
pub use token::{TokenConfig, TokenVerifier};

/// What an agent must show.
#[derive(Debug, Clone, Default)]
pub enum Authentication {
    /// Nothing: it is whoever it says. For connections without TLS, and never else.
    #[default]
    Nothing,
    /// A certificate, or a token if there is a verifier.
    Required(Option<Arc<TokenVerifier>>),
}

/// Who an agent has shown to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Identity {
    /// Whoever it says.
    Anyone,
    /// A node's agent.
    Agent(Certified),
}

/// A node, and until when that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Certified {
    pub(crate) node: NodeName,
    pub(crate) until: SystemTime,
}

/// Why an agent is not let in.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) reason: RefusalReason,
    pub(crate) status: Status,
}

impl Certified {
    /// Reads a certificate that was verified: it must name one node, once.
    pub(crate) fn read(der: &[u8]) -> Result<Self, String> {
        let facts = portolan_tls::facts(der)?;
        let mut names = facts.uris.iter().filter(|uri| NodeName::claims(uri));
        let name = names.next();
        let name = name.ok_or("the certificate has no URI portolan://CLUSTER/node/NODE")?;
        if names.next().is_some() {
            return Err("the certificate names more than one node".to_owned());
        }
        Ok(Self {
            node: name.parse().map_err(|error| format!("URI {error}"))?,
            until: facts.expires,
        })
    }
}

impl Identity {
    /// Whether it may speak for a node.
    pub(crate) fn authorize(&self, node: &NodeKey) -> Result<(), Refusal> {
        let Self::Agent(Certified { node: name, .. }) = self else {
            return Ok(());
        };
        if *name.cluster != *node.cluster {
            let message = format!("cluster: yours is {:?}", name.cluster);
            return Err(Refusal::forbidden(RefusalReason::WrongCluster, message));
        }
        if *name.node != *node.name {
            let message = format!("node: you are {:?}", name.node);
            return Err(Refusal::forbidden(RefusalReason::WrongNode, message));
        }
        Ok(())
    }

    /// How long a stream of it may last, with a grace after what it has shown expires.
    pub(crate) fn remaining(&self, grace: Duration) -> Option<Duration> {
        let Self::Agent(Certified { until, .. }) = self else {
            return None;
        };
        let end = until.checked_add(grace)?;
        Some(end.duration_since(SystemTime::now()).unwrap_or_default())
    }
}

impl Refusal {
    pub(crate) fn new(reason: RefusalReason, status: Status) -> Self {
        Self { reason, status }
    }

    pub(crate) fn forbidden(reason: RefusalReason, message: impl Into<String>) -> Self {
        Self::new(reason, Status::permission_denied(message))
    }

    fn unauthenticated(reason: RefusalReason, message: impl Into<String>) -> Self {
        Self::new(reason, Status::unauthenticated(message))
    }
}

impl From<TokenError> for Refusal {
    fn from(error: TokenError) -> Self {
        Self::unauthenticated(error.reason(), format!("token: {error}"))
    }
}

/// Who sends a request. A certificate that names a node goes before a token.
pub(crate) fn authenticate(
    authentication: &Authentication,
    peer: Option<&Peer>,
    metadata: &MetadataMap,
) -> Result<Identity, Refusal> {
    let Authentication::Required(tokens) = authentication else {
        return Ok(Identity::Anyone);
    };
    let certificate = peer.and_then(Peer::certificate);
    if let Some(Ok(certified)) = certificate {
        return Ok(Identity::Agent(certified.clone()));
    }
    if let Some(verifier) = tokens
        && let Some(token) = bearer(metadata)?
    {
        return Ok(Identity::Agent(verifier.verify(token)?));
    }
    Err(match certificate {
        Some(Err(reason)) => Refusal::unauthenticated(RefusalReason::Certificate, reason.as_str()),
        _ => Refusal::unauthenticated(RefusalReason::NoCredential, expected(tokens.is_some())),
    })
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
