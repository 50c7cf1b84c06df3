// SPDX-License-Identifier: Apache-2.0

//! The objects, reduced to the fields that endpoint selection uses.

mod export;
mod import;
mod node;
mod property;
mod service;
mod slice;

use std::fmt;
use std::sync::Arc;

use serde::Serialize;

use crate::{Kind, ObjectRef};

pub use export::{ExportPort, ServiceExport, ServiceFacts, ServiceType};
pub use import::{
    AFFINITY_PARTIAL, CONDITIONS, Condition, ExportStatus, ImportSpec, OwnImport, ServiceImport,
};
pub use node::{HostFacts, MAX_WEIGHT, Node, Pod};
pub use property::ClusterProperty;
pub use service::{Service, ServicePort};
pub use slice::{Endpoint, EndpointRef, EndpointSlice, SlicePort};

/// The name of an object of a known kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ObjectKey {
    /// The cluster's name; empty for a single cluster.
    pub cluster: Arc<str>,
    /// The namespace; empty for a Node, a Namespace and a ClusterProperty.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for part in [&self.cluster, &self.namespace] {
            if !part.is_empty() {
                write!(f, "{part}/")?;
            }
        }
        f.write_str(&self.name)
    }
}

/// Any object that the catalog holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Object {
    /// A Service that the controller serves.
    Service(Service),
    /// An EndpointSlice that belongs to a Service.
    EndpointSlice(EndpointSlice),
    /// A Node.
    Node(Node),
    /// A Pod that has a weight of its own.
    Pod(Pod),
    /// A namespace that exists, for the imports of several clusters.
    Namespace(ObjectKey),
    /// A Service that is exported to other clusters, or may be.
    ServiceExport(ServiceExport),
    /// A ServiceImport as its cluster has it.
    ServiceImport(ServiceImport),
    /// A property of a cluster.
    ClusterProperty(ClusterProperty),
}

impl Object {
    /// Its kind and name.
    #[must_use]
    pub fn reference(&self) -> ObjectRef {
        let (kind, key) = match self {
            Self::Service(service) => (Kind::Service, &service.key),
            Self::EndpointSlice(slice) => (Kind::EndpointSlice, &slice.key),
            Self::Node(node) => (Kind::Node, &node.key),
            Self::Pod(pod) => (Kind::Pod, &pod.key),
            Self::Namespace(key) => (Kind::Namespace, key),
            Self::ServiceExport(export) => (Kind::ServiceExport, &export.key),
            Self::ServiceImport(import) => (Kind::ServiceImport, &import.key),
            Self::ClusterProperty(property) => (Kind::ClusterProperty, &property.key),
        };
        ObjectRef {
            kind,
            key: key.clone(),
        }
    }
}

/// The endpoints that a frontend may use.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub enum TrafficPolicy {
    /// All of the cluster's.
    #[default]
    Cluster,
    /// Endpoints on the node where the connection arrives.
    Local,
}
