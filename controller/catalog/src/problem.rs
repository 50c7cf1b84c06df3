// SPDX-License-Identifier: Apache-2.0

//! Problems with objects: the object, the field, the reason.

use std::fmt;

use serde::Serialize;

use crate::ObjectKey;

/// The kinds of objects that sources read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub enum Kind {
    /// `v1` Service.
    Service,
    /// `discovery.k8s.io/v1` EndpointSlice.
    EndpointSlice,
    /// `v1` Node.
    Node,
    /// `v1` Pod.
    Pod,
    /// `v1` Namespace. The catalog has those of several clusters, whose imports need them.
    Namespace,
    /// `multicluster.x-k8s.io` ServiceExport.
    ServiceExport,
    /// `multicluster.x-k8s.io` ServiceImport. The catalog has those that are there, to write them only if they
    /// differ.
    ServiceImport,
    /// `about.k8s.io` ClusterProperty. The catalog has those of several clusters, for selectors.
    ClusterProperty,
    /// `portolan.dev/v1alpha1` LoadBalancer. The catalog has the records of all of them, and their problems.
    LoadBalancer,
    /// `portolan.dev/v1alpha1` Director. The catalog has their problems only.
    Director,
    /// `portolan.dev/v1alpha1` objects of the policy of several clusters. The catalog has none: they are read apart.
    Policy,
}

impl Kind {
    /// The kinds of objects that a cluster has, and that its edge controller sends.
    pub const OF_CLUSTER: [Self; 8] = [
        Self::Service,
        Self::EndpointSlice,
        Self::Node,
        Self::Pod,
        Self::Namespace,
        Self::ServiceExport,
        Self::ServiceImport,
        Self::ClusterProperty,
    ];
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Service => "Service",
            Self::EndpointSlice => "EndpointSlice",
            Self::Node => "Node",
            Self::Pod => "Pod",
            Self::Namespace => "Namespace",
            Self::ServiceExport => "ServiceExport",
            Self::ServiceImport => "ServiceImport",
            Self::ClusterProperty => "ClusterProperty",
            Self::LoadBalancer => "LoadBalancer",
            Self::Director => "Director",
            Self::Policy => "Policy",
        })
    }
}

/// Names one object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct ObjectRef {
    /// Its kind.
    pub kind: Kind,
    /// Its name.
    pub key: ObjectKey,
}

impl fmt::Display for ObjectRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.key)
    }
}

/// The class of a problem, and a label of the problem metrics.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// The object could not be read at all; the last good version of it stays in force.
    Malformed,
    /// A field has a value that cannot be used; the rest of the object is.
    InvalidValue,
    /// An address is of another family than the field asks for.
    WrongFamily,
    /// Another Service or load balancer has this address and port.
    Conflict,
    /// More than the tables can hold.
    TooMany,
    /// An address that clients are to reach is a Node's own.
    NodeAddress,
    /// An exported endpoint lies outside the networks of its cluster; it is not used.
    AddressOutsideNetwork,
    /// An unsupported setting; the rest of the object is used.
    Unsupported,
}

impl Reason {
    /// The metric's label value.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::InvalidValue => "invalid_value",
            Self::WrongFamily => "wrong_family",
            Self::Conflict => "conflict",
            Self::TooMany => "too_many",
            Self::NodeAddress => "node_address",
            Self::AddressOutsideNetwork => "address_outside_network",
            Self::Unsupported => "unsupported",
        }
    }
}

/// One problem with one object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct FieldProblem {
    /// The path of the field, as in `spec.ports[0].nodePort`; empty if no single field is to blame.
    pub field: String,
    /// The class of the problem.
    pub reason: Reason,
    /// A description with the value.
    pub message: String,
}

impl FieldProblem {
    /// A problem with one field.
    pub fn new(field: impl Into<String>, reason: Reason, message: impl Into<String>) -> Self {
        Self {
            field: field.into(),
            reason,
            message: message.into(),
        }
    }
}

impl fmt::Display for FieldProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.field.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.field, self.message)
        }
    }
}
