// SPDX-License-Identifier: Apache-2.0

//! The operator's settings of selection.

use std::str::FromStr;

/// Settings of the computation of tables; equal in all programs that compute them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SelectConfig {
    /// The frontends that `spec.loadBalancerSourceRanges` apply to.
    pub source_ranges: SourceRanges,
}

/// The frontends that `spec.loadBalancerSourceRanges` apply to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SourceRanges {
    /// Load-balancer IPs, and the Service's node ports and external IPs too if the status says that
    /// the balancer preserves clients' addresses (`ipMode` `VIP`, its default).
    All,
    /// Load-balancer IPs only, as in kube-proxy. A proxying balancer reaches node ports from its
    /// own addresses, and most do not set `ipMode`.
    #[default]
    LoadBalancer,
}

impl FromStr for SourceRanges {
    type Err = ParseSourceRangesError;

    fn from_str(word: &str) -> Result<Self, Self::Err> {
        match word {
            "all" => Ok(Self::All),
            "load-balancer" => Ok(Self::LoadBalancer),
            other => Err(ParseSourceRangesError(other.to_owned())),
        }
    }
}

/// An unknown value of the source ranges setting.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected all or load-balancer")]
pub struct ParseSourceRangesError(String);
