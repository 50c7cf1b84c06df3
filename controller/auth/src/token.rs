// SPDX-License-Identifier: Apache-2.0

//! Projected ServiceAccount tokens, verified by public keys alone.
//!
//! A TokenReview for each stream would exceed the limits of an API server when all agents come back
//! at once. Tokens that are bound to a pod name its node since Kubernetes 1.32 (KEP-4193).

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Validation, decode, decode_header};
use portolan_tls::{EdgeName, NodeName, PeerName};
use serde::Deserialize;
use tokio::sync::watch;

use crate::certified::{Certified, LEEWAY};
use crate::issuer::{IssuerError, unverified_issuer};
use crate::issuers::{Issuer, Issuers};
use crate::keys::{KeySet, KeyWanted};
use crate::refusals::{Refusal, RefusalReason};
use crate::reviews::{Reviewed, Reviews};

/// Limit of a quoted value of a token in an error message, in characters.
const MAX_QUOTED: usize = 64;

/// The tokens of an issuer that are accepted.
#[derive(Debug, Clone)]
pub struct TokenConfig {
    /// The claim `iss`: the API server's `--service-account-issuer`.
    pub issuer: String,
    /// The value that the claim `aud` must contain.
    pub audience: String,
    /// The cluster of the tokens' pods, which tokens do not name.
    pub cluster: String,
    /// The accepted ServiceAccounts, as namespace and name. Empty for all.
    pub service_accounts: Vec<(String, String)>,
    /// The clients that show the tokens.
    pub role: TokenRole,
}

/// The clients that show tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum TokenRole {
    /// Agents. A token proves the node that its pod runs on.
    Node,
    /// Edge controllers. A token proves the edge with the name of its pod: each token that is bound to a pod has it, two
    /// replicas on a node differ in it, and it is the host's name in the pod.
    Edge,
}

/// Verifies tokens.
#[derive(Debug)]
pub struct TokenVerifier {
    issuers: watch::Receiver<Arc<Issuers>>,
    reviews: Option<Arc<Reviews>>,
}

/// Reason why a token is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TokenError {
    #[error("expected authorization: Bearer TOKEN")]
    NotBearer,
    #[error("{0}")]
    Invalid(String),
    #[error("it has expired")]
    Expired,
    #[error("its issuer {0:?} is not one of those that are accepted")]
    Issuer(String),
    #[error("the key that signed it ({0:?}) is not known here")]
    UnknownKey(String),
    #[error(
        "its issuer and its key ({0:?}) are those of several clusters: give each API server a \
         --service-account-issuer of its own"
    )]
    SharedKey(String),
    #[error("it is for another audience, not {0:?}")]
    Audience(String),
    #[error("it names no node: it must be bound to a pod, by Kubernetes 1.32 or later")]
    NoNode,
    #[error("it names no pod: it must be bound to one")]
    NoPod,
    #[error("ServiceAccount {0:?} is not one of those that may be used")]
    ServiceAccount(String),
    #[error("the API server does not accept it any more")]
    Revoked,
}

impl TokenError {
    pub(crate) fn reason(&self) -> RefusalReason {
        match self {
            Self::Expired => RefusalReason::Expired,
            Self::Revoked => RefusalReason::Revoked,
            _ => RefusalReason::Token,
        }
    }
}

#[derive(Debug, Deserialize)]
struct Claims {
    exp: u64,
    #[serde(rename = "kubernetes.io")]
    kubernetes: Option<Kubernetes>,
}

#[derive(Debug, Deserialize)]
struct Kubernetes {
    #[serde(default)]
    namespace: String,
    node: Option<Reference>,
    pod: Option<Reference>,
    serviceaccount: Option<Reference>,
}

#[derive(Debug, Deserialize)]
struct Reference {
    name: String,
}

impl TokenVerifier {
    /// Creates a verifier of one issuer's tokens that uses the newest keys, and notifies `wanted` of an unknown key.
    #[must_use]
    pub fn new(config: TokenConfig, keys: watch::Receiver<Arc<KeySet>>, wanted: KeyWanted) -> Self {
        let issuers = Issuers::from_iter([Issuer::new(config, keys, wanted)]);
        Self::of(watch::channel(Arc::new(issuers)).1)
    }

    /// Creates a verifier of the tokens of the newest issuers.
    #[must_use]
    pub fn of(issuers: watch::Receiver<Arc<Issuers>>) -> Self {
        Self {
            issuers,
            reviews: None,
        }
    }

    /// Adds reviews that watch verified tokens. Another task takes their turns.
    #[must_use]
    pub fn reviewed(self, reviews: Arc<Reviews>) -> Self {
        Self {
            reviews: Some(reviews),
            ..self
        }
    }

    /// Verifies a token and begins to watch it, if tokens are reviewed.
    pub(crate) fn admit(&self, token: &str) -> Result<(Certified, Option<Reviewed>), TokenError> {
        let certified = self.verify(token)?;
        let Some(reviews) = &self.reviews else {
            return Ok((certified, None));
        };
        let expires = certified.until.duration_since(SystemTime::now());
        let reviewed = reviews.watch(certified.node(), token, expires.unwrap_or_default());
        let reviewed = reviewed.ok_or(TokenError::Revoked)?;
        Ok((certified, Some(reviewed)))
    }

    /// Verifies a token. Returns the node or the edge that it proves.
    pub(crate) fn verify(&self, token: &str) -> Result<Certified, TokenError> {
        let header = decode_header(token).map_err(|error| invalid(error.kind()))?;
        let key = header
            .kid
            .ok_or_else(|| TokenError::Invalid("its header has no kid".to_owned()))?;
        // A wrong issuer in a token selects keys that do not verify it.
        let name = unverified_issuer(token)?;
        let issuers = Arc::clone(&self.issuers.borrow());
        // The ServiceAccount decides between agents and edge controllers of the cluster. What else is wrong with a token
        // says more than that it is of none of them.
        let mut refused = None;
        for (issuer, keys) in issuers.of(&name, &key)? {
            match issuer.config.certify(token, &key, &keys) {
                Ok(certified) => return Ok(certified),
                Err(error @ TokenError::ServiceAccount(_)) => refused = refused.or(Some(error)),
                Err(error) => refused = Some(error),
            }
        }
        Err(refused.unwrap_or(TokenError::UnknownKey(quoted(&key))))
    }
}

impl TokenConfig {
    /// Verifies a token of this issuer.
    fn certify(&self, token: &str, id: &str, keys: &KeySet) -> Result<Certified, TokenError> {
        let claims = self.claims(token, id, keys)?;
        let until = UNIX_EPOCH.checked_add(Duration::from_secs(claims.exp));
        let bound = claims.kubernetes.ok_or_else(|| self.unbound())?;
        self.check_account(&bound)?;
        Ok(Certified {
            name: self.name(bound)?,
            // An expiry beyond the range of `SystemTime`.
            until: until.unwrap_or_else(far_away),
        })
    }

    fn claims(&self, token: &str, id: &str, keys: &KeySet) -> Result<Claims, TokenError> {
        let unknown = || TokenError::UnknownKey(quoted(id));
        let (algorithm, key) = keys.get(id).ok_or_else(unknown)?;
        // The key determines the algorithm. A token whose header names another one is refused.
        let mut validation = Validation::new(*algorithm);
        validation.set_issuer(&[&self.issuer]);
        validation.set_audience(&[&self.audience]);
        validation.set_required_spec_claims(&["exp", "iss", "aud"]);
        validation.validate_nbf = true;
        validation.leeway = LEEWAY.as_secs();
        let data = decode::<Claims>(token, key, &validation).map_err(|e| self.named(e.kind()))?;
        Ok(data.claims)
    }

    fn named(&self, error: &ErrorKind) -> TokenError {
        match error {
            ErrorKind::InvalidAudience => TokenError::Audience(self.audience.clone()),
            other => invalid(other),
        }
    }

    fn unbound(&self) -> TokenError {
        match self.role {
            TokenRole::Node => TokenError::NoNode,
            TokenRole::Edge => TokenError::NoPod,
        }
    }

    /// The name that a token with these claims proves, in the cluster of its issuer.
    fn name(&self, bound: Kubernetes) -> Result<PeerName, TokenError> {
        let reference = match self.role {
            TokenRole::Node => bound.node,
            TokenRole::Edge => bound.pod,
        };
        let Reference { name } = reference.ok_or_else(|| self.unbound())?;
        let name = match self.role {
            TokenRole::Node => NodeName::new(&self.cluster, &name).map(PeerName::Node),
            TokenRole::Edge => EdgeName::new(&self.cluster, &name).map(PeerName::Edge),
        };
        name.map_err(|error| TokenError::Invalid(error.to_string()))
    }

    fn check_account(&self, bound: &Kubernetes) -> Result<(), TokenError> {
        let allowed = &self.service_accounts;
        let name = bound.serviceaccount.as_ref().map(|account| &account.name);
        let is_one = |(namespace, account): &(String, String)| {
            *namespace == bound.namespace && Some(account) == name
        };
        if allowed.is_empty() || allowed.iter().any(is_one) {
            return Ok(());
        }
        let name = name.map_or("", String::as_str);
        let full = format!("{}/{name}", bound.namespace);
        Err(TokenError::ServiceAccount(quoted(&full)))
    }
}

impl From<IssuerError> for TokenError {
    fn from(error: IssuerError) -> Self {
        Self::Invalid(match error {
            IssuerError::NotToken => "it is malformed".to_owned(),
            IssuerError::NoIssuer => error.to_string(),
        })
    }
}

fn invalid(error: &ErrorKind) -> TokenError {
    let reason = match error {
        ErrorKind::ExpiredSignature => return TokenError::Expired,
        ErrorKind::ImmatureSignature => "it is not valid yet".to_owned(),
        ErrorKind::InvalidSignature => "its signature is wrong".to_owned(),
        ErrorKind::InvalidAlgorithm => "its algorithm is not its key's".to_owned(),
        ErrorKind::MissingRequiredClaim(claim) => format!("it has no claim {claim}"),
        // The content of a token must not be logged.
        _ => "it is malformed".to_owned(),
    };
    TokenError::Invalid(reason)
}

pub(crate) fn quoted(text: &str) -> String {
    text.chars().take(MAX_QUOTED).collect()
}

fn far_away() -> SystemTime {
    SystemTime::now() + Duration::from_secs(100 * 365 * 86_400)
}

impl Refusal {
    /// A refusal of a stream whose token was found to be revoked by a review.
    pub fn revoked() -> Self {
        TokenError::Revoked.into()
    }
}

impl From<TokenError> for Refusal {
    fn from(error: TokenError) -> Self {
        Self::unauthenticated(error.reason(), format!("token: {error}"))
    }
}
