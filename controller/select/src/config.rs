//! What an operator can choose about selection.

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
