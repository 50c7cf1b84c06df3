//! What an operator can choose about selection.

use std::str::FromStr;

/// How tables are computed; the same on everybody who computes one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SelectConfig {
    /// What `spec.loadBalancerSourceRanges` hold for.
    pub source_ranges: SourceRanges,
}

/// What `spec.loadBalancerSourceRanges` hold for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum SourceRanges {
    /// For load-balancer IPs, and, where the balancer leaves clients' addresses alone, for node
    /// ports and external IPs of the Service too.
    #[default]
    All,
    /// For load-balancer IPs only, as kube-proxy does.
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

/// A word that does not say what source ranges hold for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected all or load-balancer")]
pub struct ParseSourceRangesError(String);
