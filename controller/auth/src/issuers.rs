// SPDX-License-Identifier: Apache-2.0

//! The issuers whose tokens are accepted, each of one cluster.
//!
//! Clusters often have the same issuer, since `https://kubernetes.default.svc.cluster.local` is the default of common
//! installers. The ID of the key then decides: a token that verifies with a key of one cluster alone was signed
//! there. A key ID that several clusters of an issuer have decides nothing, and its tokens are refused.
//!
//! A cluster may be there twice, for its agents and for its edge controllers: the ServiceAccount tells them apart.
//!
//! Invariant: a token proves names of the cluster whose key has verified it, and no other ones.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use tokio::sync::watch;

use crate::keys::{KeySet, KeyWanted};
use crate::token::{TokenConfig, TokenError, TokenRole, quoted};

/// An issuer of tokens of one cluster, for one kind of clients.
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
    /// Its clients with such tokens.
    pub role: TokenRole,
    /// The other cluster.
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

    /// True if both are of one cluster.
    fn is_of_same(&self, other: &Self) -> bool {
        self.config.cluster == other.config.cluster
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
    /// The issuers with this name that have the key, at least one, all of one cluster, each with its keys.
    pub(crate) fn of(
        &self,
        name: &str,
        key: &str,
    ) -> Result<Vec<(&Issuer, Arc<KeySet>)>, TokenError> {
        let unknown = || TokenError::Issuer(quoted(name));
        let same = self.0.get(name).ok_or_else(unknown)?;
        let knowing = same.iter().map(|issuer| (issuer, issuer.keys()));
        let knowing = knowing.filter(|(_, keys)| keys.get(key).is_some());
        let knowing: Vec<_> = knowing.collect();
        let Some((first, _)) = knowing.first() else {
            same.iter().for_each(|issuer| issuer.wanted.notify_one());
            return Err(TokenError::UnknownKey(quoted(key)));
        };
        match knowing.iter().all(|(issuer, _)| issuer.is_of_same(first)) {
            true => Ok(knowing),
            false => Err(TokenError::SharedKey(quoted(key))),
        }
    }

    /// The clusters whose tokens cannot be told from those of another one, each once for each kind of clients.
    #[must_use]
    pub fn shared_keys(&self) -> Vec<SharedKey> {
        let mut found = Vec::new();
        for (name, same) in &self.0 {
            for issuer in same {
                let keys = issuer.keys();
                let others = same.iter().filter(|other| !issuer.is_of_same(other));
                let mut shared = others.filter_map(|other| {
                    let theirs = other.keys();
                    let key = keys.ids().find(|id| theirs.get(id).is_some())?;
                    Some(SharedKey {
                        cluster: issuer.config.cluster.clone(),
                        role: issuer.config.role,
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
