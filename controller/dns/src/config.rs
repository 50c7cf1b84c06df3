// SPDX-License-Identifier: Apache-2.0

//! Configuration of the zones.

use std::collections::BTreeSet;

use hickory_proto::rr::Name;
use ipnet::IpNet;

use crate::input::ServiceKey;
use crate::name;

/// The Pods that have names (`<a-b-c-d>.<namespace>.pod.<zone>`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum PodMode {
    /// None has.
    #[default]
    Disabled,
    /// Any address in an existing Namespace, with or without such a Pod.
    Insecure,
    /// Pods that exist have.
    Verified,
}

/// Kind of a zone: the Services that its names stand for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ZoneKind {
    /// The Services of one cluster (Kubernetes' DNS specification 1.1.0).
    #[default]
    Cluster,
    /// The Services that one cluster imports (that of the Multi-Cluster Services API, 1.0.0). Endpoints of
    /// headless ones are named `<host>.<cluster>.<service>…`; there are neither PTR records nor Pods.
    ClusterSet,
}

impl ZoneKind {
    /// The version of the specification that the records follow.
    pub(crate) fn schema_version(self) -> &'static str {
        match self {
            Self::Cluster => "1.1.0",
            Self::ClusterSet => "1.0.0",
        }
    }
}

/// The configuration of a zone, apart from the cluster's objects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneConfig {
    /// Its kind.
    pub kind: ZoneKind,
    /// The zones with the cluster's names. PTR records point into the first one.
    pub zones: Vec<Name>,
    /// The zones with PTR records, below `in-addr.arpa.` and `ip6.arpa.`.
    pub reverse: Vec<Name>,
    /// TTL of answers, in seconds, 0 to 3600. CoreDNS's default is 5.
    pub ttl: u32,
    /// The Pods that have names.
    pub pods: PodMode,
    /// Endpoints without a hostname are named after their Pod instead of their address.
    pub endpoint_pod_names: bool,
    /// Headless Services have names for their endpoints in one topology zone:
    /// `<topology zone>.{pin,prefer}._zone.<service>…`.
    pub zonal: bool,
    /// Services with cluster IPs but without a ready endpoint have no name (CoreDNS: `ignore
    /// empty_service`).
    pub ignore_empty: bool,
    /// The Namespaces that have names, in lower case; empty for all (CoreDNS: `namespaces`).
    pub namespaces: BTreeSet<String>,
    /// Whether endpoints have names. Without them headless Services have none (CoreDNS:
    /// `noendpoints`).
    pub endpoints: bool,
    /// The Service of the name servers. NS records point to it while it exists, and to
    /// `ns.dns.<zone>` otherwise.
    pub name_server: Option<ServiceKey>,
}

/// The longest TTL that CoreDNS's kubernetes plugin takes, in seconds.
pub const MAX_TTL: u32 = 3600;

/// The TTL of CoreDNS's kubernetes plugin, in seconds.
pub const DEFAULT_TTL: u32 = 5;

/// A setting that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A zone's name is no domain name.
    #[error("zone {zone:?}: {reason}")]
    Zone {
        /// The zone as configured.
        zone: String,
        /// The reason for the refusal.
        reason: String,
    },
    /// A TTL out of range.
    #[error("ttl: {0} is not in 0..=3600 seconds")]
    Ttl(u32),
    /// Two settings that exclude each other.
    #[error("{0} needs the names of endpoints")]
    NeedsEndpoints(&'static str),
    /// Nothing to serve.
    #[error("no zone is configured")]
    NoZone,
    /// A setting that zones of imported Services cannot have.
    #[error("{0} is not for names of imported Services")]
    NotOfClusterSet(&'static str),
}

impl ZoneConfig {
    /// CoreDNS's defaults for a cluster domain such as `cluster.local`, with all of
    /// `in-addr.arpa` and `ip6.arpa`.
    ///
    /// # Errors
    ///
    /// If `zone` is no domain name.
    pub fn new(zone: &str) -> Result<Self, ConfigError> {
        let mut config = Self {
            kind: ZoneKind::Cluster,
            zones: Vec::new(),
            reverse: vec![parse("in-addr.arpa")?, parse("ip6.arpa")?],
            ttl: DEFAULT_TTL,
            pods: PodMode::default(),
            endpoint_pod_names: false,
            zonal: false,
            ignore_empty: false,
            namespaces: BTreeSet::new(),
            endpoints: true,
            name_server: None,
        };
        config.add_zone(zone)?;
        Ok(config)
    }

    /// The names of imported Services, in a zone such as `clusterset.local`.
    ///
    /// # Errors
    ///
    /// If `zone` is no domain name.
    pub fn clusterset(zone: &str) -> Result<Self, ConfigError> {
        Ok(Self {
            kind: ZoneKind::ClusterSet,
            reverse: Vec::new(),
            ..Self::new(zone)?
        })
    }

    /// Serves the cluster's names in one more zone.
    ///
    /// # Errors
    ///
    /// If `zone` is no domain name.
    pub fn add_zone(&mut self, zone: &str) -> Result<(), ConfigError> {
        self.zones.push(parse(zone)?);
        Ok(())
    }

    /// Serves PTR records for these networks only.
    #[must_use]
    pub fn with_networks(mut self, networks: &[IpNet]) -> Self {
        self.reverse = networks
            .iter()
            .flat_map(|net| name::reverse_zones(*net))
            .collect();
        self.reverse.sort();
        self.reverse.dedup();
        self
    }

    /// Returns `true` if the objects of a Namespace have names.
    pub(crate) fn exposes(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.contains(&namespace.to_ascii_lowercase())
    }

    /// Checks the values that the types do not restrict.
    ///
    /// # Errors
    ///
    /// The first invalid setting.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.ttl > MAX_TTL {
            return Err(ConfigError::Ttl(self.ttl));
        }
        if self.zones.is_empty() {
            return Err(ConfigError::NoZone);
        }
        for (setting, name) in [(self.zonal, "zonal"), (self.ignore_empty, "ignore_empty")] {
            if setting && !self.endpoints {
                return Err(ConfigError::NeedsEndpoints(name));
            }
        }
        if self.kind == ZoneKind::ClusterSet {
            for (is_set, name) in [
                (!self.reverse.is_empty(), "reverse"),
                (self.pods != PodMode::Disabled, "pods"),
                (self.endpoint_pod_names, "endpoint_pod_names"),
                (self.zonal, "zonal"),
                (self.ignore_empty, "ignore_empty"),
                (!self.endpoints, "noendpoints"),
            ] {
                if is_set {
                    return Err(ConfigError::NotOfClusterSet(name));
                }
            }
        }
        for zone in &self.reverse {
            if !name::is_reverse(zone) {
                return Err(ConfigError::Zone {
                    zone: zone.to_string(),
                    reason: "is not below in-addr.arpa or ip6.arpa".to_owned(),
                });
            }
        }
        Ok(())
    }
}

fn parse(zone: &str) -> Result<Name, ConfigError> {
    let error = |reason: String| ConfigError::Zone {
        zone: zone.to_owned(),
        reason,
    };
    let name = name::absolute(zone).ok_or_else(|| error("is no domain name".to_owned()))?;
    if name.is_root() {
        return Err(error("is the root".to_owned()));
    }
    Ok(name.to_lowercase())
}
