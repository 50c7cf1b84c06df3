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
    /// For load-balancer IPs, and for the Service's node ports and external IPs too where the status
    /// says that the balancer keeps clients' addresses (`ipMode` `VIP`, its default).
    All,
    /// For load-balancer IPs only, as kube-proxy does. A balancer that proxies reaches node ports
    /// from addresses of its own, and most of them do not say so by an `ipMode`.
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

/// A word that does not say what source ranges hold for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?}: expected all or load-balancer")]
pub struct ParseSourceRangesError(String);
