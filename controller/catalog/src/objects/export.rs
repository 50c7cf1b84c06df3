// SPDX-License-Identifier: Apache-2.0

//! Services that other clusters may import.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_model::{Family, Protocol};
use serde::Serialize;

use super::{ExportStatus, ObjectKey};

/// A Service that is exported, with what an import needs of it beyond a [`Service`](super::Service).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceExport {
    /// The name of the ServiceExport, and of its Service.
    pub key: ObjectKey,
    /// Whether there is a ServiceExport. Without one a policy may export the Service.
    pub requested: bool,
    /// `metadata.creationTimestamp` of the ServiceExport in seconds since 1970, if known.
    pub created: Option<i64>,
    /// `spec.exportedLabels`.
    pub labels: BTreeMap<String, String>,
    /// `spec.exportedAnnotations`.
    pub annotations: BTreeMap<String, String>,
    /// The weight that the owner gives the cluster (annotation `portolan.dev/cluster-weight`), 0 to 1000.
    pub weight: Option<u16>,
    /// The Service; `None` if there is none.
    pub service: Option<Arc<ServiceFacts>>,
    /// Its status. No import depends on it.
    pub status: ExportStatus,
}

impl ServiceExport {
    /// The largest weight of a cluster.
    pub const MAX_WEIGHT: u16 = 1000;
    /// The most ports of a Service that an export has.
    pub const MAX_PORTS: usize = 256;

    /// An export with a name only, without a ServiceExport.
    #[must_use]
    pub fn new(key: ObjectKey) -> Self {
        Self {
            key,
            requested: false,
            created: None,
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            weight: None,
            service: None,
            status: ExportStatus::default(),
        }
    }
}

/// Facts that an import needs of a Service, which may be of any type.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ServiceFacts {
    /// Its type, as far as exports are concerned.
    pub kind: ServiceType,
    /// Its labels.
    pub labels: BTreeMap<String, String>,
    /// `spec.ports`.
    pub ports: Vec<ExportPort>,
    /// Its families, in its order.
    pub families: Vec<Family>,
    /// The timeout of ClientIP affinity in seconds, or `None` without affinity.
    pub affinity_seconds: Option<u32>,
    /// Whether `spec.internalTrafficPolicy` is `Local`.
    pub internal_local: bool,
    /// `spec.trafficDistribution`.
    pub traffic_distribution: Option<Arc<str>>,
}

/// The type of a Service, as far as exports are concerned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub enum ServiceType {
    /// It has a cluster IP.
    ClusterIp,
    /// It has none.
    Headless,
    /// It is a name alone.
    ExternalName,
}

/// A port of an exported Service.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ExportPort {
    /// Its name; empty if the Service has one port without a name.
    pub name: Arc<str>,
    /// Its protocol.
    pub protocol: Protocol,
    /// Its number.
    pub port: u16,
    /// `appProtocol`.
    pub app_protocol: Option<Arc<str>>,
}
