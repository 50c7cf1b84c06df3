// SPDX-License-Identifier: Apache-2.0

//! The issuers whose tokens are accepted, each of one cluster.
//!
//! Clusters often have the same issuer, since `https://kubernetes.default.svc.cluster.local` is the default of common
//! installers. The ID of the key then decides: a token that verifies with a key of one cluster alone was signed
//! there. A key ID that several clusters of an issuer have decides nothing, and its tokens are refused.
//!
//! Invariant: a token proves names of the cluster whose key has verified it, and no other ones.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

use crate::keys::{KeySet, KeyWanted};
use crate::token::{TokenConfig, TokenError, quoted};

/// An issuer of tokens of one cluster.
#[derive(Debug)]
pub struct Issuer {
    pub(crate) config: TokenConfig,
    keys: watch::Receiver<Arc<KeySet>>,
    wanted: KeyWanted,
}

/// The accepted issuers.
#[derive(Debug, Default)]
pub struct Issuers(BTreeMap<String, Vec<Issuer>>);

/// A cluster whose tokens cannot be told from those of another one: both have the issuer, and the key ID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SharedKey {
    /// The cluster.
    pub cluster: String,
    /// The other one.
    pub other: String,
    /// The claim `iss` of both.
    pub issuer: String,
    /// The ID of a key of both.
    pub key: String,
}

impl Issuer {
    /// An issuer whose newest keys are used. `wanted` is notified of an unknown key.
    #[must_use]
    pub fn new(config: TokenConfig, keys: watch::Receiver<Arc<KeySet>>, wanted: KeyWanted) -> Self {
        Self {
            config,
            keys,
            wanted,
        }
    }

    fn keys(&self) -> Arc<KeySet> {
        Arc::clone(&self.keys.borrow())
    }
}

impl FromIterator<Issuer> for Issuers {
    fn from_iter<I: IntoIterator<Item = Issuer>>(issuers: I) -> Self {
        let mut map: BTreeMap<String, Vec<Issuer>> = BTreeMap::new();
        for issuer in issuers {
            let same = map.entry(issuer.config.issuer.clone()).or_default();
            same.push(issuer);
        }
        Self(map)
    }
}

impl Issuers {
    /// The only issuer with this name that has the key, and its keys.
    pub(crate) fn of(&self, name: &str, key: &str) -> Result<(&Issuer, Arc<KeySet>), TokenError> {
        let unknown = || TokenError::Issuer(quoted(name));
        let same = self.0.get(name).ok_or_else(unknown)?;
        let knowing = same.iter().map(|issuer| (issuer, issuer.keys()));
        let mut knowing = knowing.filter(|(_, keys)| keys.get(key).is_some());
        match (knowing.next(), knowing.next()) {
            (Some(only), None) => Ok(only),
            (Some(_), Some(_)) => Err(TokenError::SharedKey(quoted(key))),
            (None, _) => {
                same.iter().for_each(|issuer| issuer.wanted.notify_one());
                Err(TokenError::UnknownKey(quoted(key)))
            }
        }
    }

    /// The clusters whose tokens cannot be told from those of another one, each once.
    #[must_use]
    pub fn shared_keys(&self) -> Vec<SharedKey> {
        let mut found = Vec::new();
        for (name, same) in &self.0 {
            for (at, issuer) in same.iter().enumerate() {
                let keys = issuer.keys();
                let others = same.iter().enumerate().filter(|(other, _)| *other != at);
                let mut shared = others.filter_map(|(_, other)| {
                    let theirs = other.keys();
                    let key = keys.ids().find(|id| theirs.get(id).is_some())?;
                    Some(SharedKey {
                        cluster: issuer.config.cluster.clone(),
                        other: other.config.cluster.clone(),
                        issuer: name.clone(),
                        key: key.to_owned(),
                    })
                });
                found.extend(shared.next());
            }
        }
        found
    }
}

impl fmt::Display for SharedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            other, issuer, key, ..
        } = self;
        write!(
            f,
            "{issuer:?} and the key {key:?} are those of Cluster {other:?} too, so their tokens are refused: give each \
             API server a --service-account-issuer of its own"
        )
    }
}

#[cfg(test)]
mod tests;
