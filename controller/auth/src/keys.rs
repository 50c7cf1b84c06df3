// SPDX-License-Identifier: Apache-2.0

//! The public keys of token issuers, as a JSON Web Key Set.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use jsonwebtoken::jwk::{AlgorithmParameters, EllipticCurve, Jwk, JwkSet, KeyAlgorithm};
use jsonwebtoken::{Algorithm, DecodingKey};
use tokio::sync::Notify;

/// Notified when a token was signed with an unknown key, which a newer key set may have.
pub type KeyWanted = Arc<Notify>;

/// Keys by ID. Each key is for one algorithm, independent of a token's header.
#[derive(Default)]
pub struct KeySet {
    keys: HashMap<String, (Algorithm, DecodingKey)>,
}

/// Bytes that are no usable key set.
#[derive(Debug, thiserror::Error)]
pub enum KeySetError {
    /// Not a JSON Web Key Set.
    #[error("JSON Web Key Set: {0}")]
    Json(#[from] serde_json::Error),
    /// There is no key that can verify a token.
    #[error("keys: none that can be used: RS256, ES256 or ES384, with a kid")]
    NoUsableKey,
}

impl KeySet {
    /// Reads a key set. Keys that are not for RS256, ES256 or ES384, or have no ID, are left out.
    ///
    /// # Errors
    /// If `json` is not a key set, or has no usable key.
    pub fn parse(json: &[u8]) -> Result<Self, KeySetError> {
        let set: JwkSet = serde_json::from_slice(json)?;
        let keys: HashMap<_, _> = set.keys.iter().filter_map(usable).collect();
        if keys.is_empty() {
            return Err(KeySetError::NoUsableKey);
        }
        Ok(Self { keys })
    }

    pub(crate) fn get(&self, id: &str) -> Option<&(Algorithm, DecodingKey)> {
        self.keys.get(id)
    }

    /// The IDs of the keys, in no order.
    pub(crate) fn ids(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }
}

fn usable(key: &Jwk) -> Option<(String, (Algorithm, DecodingKey))> {
    let id = key.common.key_id.clone()?;
    let algorithm = match &key.algorithm {
        AlgorithmParameters::RSA(_) => Algorithm::RS256,
        AlgorithmParameters::EllipticCurve(curve) => match curve.curve {
            EllipticCurve::P256 => Algorithm::ES256,
            EllipticCurve::P384 => Algorithm::ES384,
            _ => return None,
        },
        _ => return None,
    };
    let said = match key.common.key_algorithm {
        None => algorithm,
        Some(KeyAlgorithm::RS256) => Algorithm::RS256,
        Some(KeyAlgorithm::ES256) => Algorithm::ES256,
        Some(KeyAlgorithm::ES384) => Algorithm::ES384,
        Some(_) => return None,
    };
    let decoding = DecodingKey::from_jwk(key).ok()?;
    (said == algorithm).then_some((id, (algorithm, decoding)))
}

impl fmt::Debug for KeySet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.keys.keys()).finish()
    }
}
