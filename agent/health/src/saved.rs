// SPDX-License-Identifier: Apache-2.0

//! The form of states on disk, and when they are believed again.

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::{Administrative, Assigned, DynamicWeight, Judgement, Reason, State};

/// The age from which saved states are not believed.
pub const MAX_AGE: Duration = Duration::from_secs(600);

/// The states of all backends. `K` is the key of a load balancer. Times are since boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Saved<K> {
    /// Identifier of the boot; empty if it is unknown.
    pub boot: String,
    /// When the states were saved.
    pub at: Duration,
    /// The load balancers, in the order of their keys.
    pub balancers: Vec<SavedBalancer<K>>,
}

impl<K> Saved<K> {
    /// Returns `true` if the states are to be believed: they are of this boot, and younger than
    /// [`MAX_AGE`].
    #[must_use]
    pub fn is_usable(&self, boot: &str, now: Duration) -> bool {
        let age = now.checked_sub(self.at);
        !boot.is_empty() && self.boot == boot && age.is_some_and(|age| age < MAX_AGE)
    }
}

/// The state of one load balancer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedBalancer<K> {
    /// Its key.
    pub key: K,
    /// Whether it has quorum; `None` if that was never decided.
    pub quorum: Option<bool>,
    /// Loss of the quorum by results. Files of earlier versions do not have it: it is decided anew.
    #[serde(default)]
    pub is_lost: bool,
    /// Its backends, in the order of their addresses.
    pub backends: Vec<SavedBackend>,
}

/// The state of one backend.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedBackend {
    /// Its address.
    pub address: SocketAddr,
    /// The checks that gave it its state.
    pub checks: CheckHash,
    /// The state.
    pub state: State,
    /// When it came up or went down.
    pub since: Duration,
    /// Factor of `rise` because of flaps.
    pub factor: u8,
    /// When the factor last changed, or the backend last came up or went down.
    pub quiet_since: Duration,
    /// Judgements of its checks, in the order of the checks; without one a check has no result yet. Files of earlier
    /// versions have none.
    #[serde(default)]
    pub judgements: Vec<Judgement>,
    /// Weights that its checks give, in the order of the checks.
    pub weights: Vec<Option<DynamicWeight>>,
    /// States that it asks for, in the order of the checks.
    pub administrative: Vec<Administrative>,
    /// Reason why it is down.
    pub reason: Option<Reason>,
}

/// Hash of the checks of a backend. It is the same in every process of one version of the agent.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CheckHash([u8; 16]);

impl CheckHash {
    /// The hash of checks in their order. Ways do not count: their marks are given anew at each start.
    pub fn of<'a>(checks: impl IntoIterator<Item = &'a Assigned>) -> Self {
        let mut hasher = blake3::Hasher::new();
        for assigned in checks {
            // Neither a map with keys other than strings nor a failing type is in a check.
            let text = serde_json::to_vec(&*assigned.check).unwrap_or_default();
            hasher.update(&text.len().to_le_bytes());
            hasher.update(&text);
        }
        let mut short = [0; 16];
        short.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
        Self(short)
    }
}

impl fmt::Debug for CheckHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "CheckHash({:032x})", u128::from_be_bytes(self.0))
    }
}

#[cfg(test)]
mod tests {
    use portolan_model::check::{Check, Probe, TcpProbe};

    use super::*;

    #[test]
    fn states_of_another_boot_or_of_long_ago_are_not_believed() {
        let at = Duration::from_secs(1_000);
        let saved = |boot: &str| Saved::<u32> {
            boot: boot.to_owned(),
            at,
            balancers: Vec::new(),
        };
        let this = saved("this");
        assert!(this.is_usable("this", at) && !this.is_usable("other", at));
        assert!(this.is_usable("this", at + MAX_AGE - Duration::from_millis(1)));
        assert!(!this.is_usable("this", at + MAX_AGE));
        assert!(!this.is_usable("this", at - Duration::from_millis(1)));
        assert!(!saved("").is_usable("", at));
    }

    #[test]
    fn every_field_of_a_check_counts() {
        let check = Check::new(Probe::Tcp(TcpProbe::default()));
        let mut other = check.clone();
        other.timers.fall += 1;
        let hash = |checks: &[&Check]| {
            let checks: Vec<_> = checks
                .iter()
                .map(|each| Assigned::direct((*each).clone()))
                .collect();
            CheckHash::of(&checks)
        };
        assert_eq!(hash(&[&check]), hash(&[&check]));
        assert_ne!(hash(&[&check]), hash(&[&other]));
        assert_ne!(hash(&[&check, &other]), hash(&[&other, &check]));
        assert_ne!(hash(&[]), hash(&[&check]));
    }
}
