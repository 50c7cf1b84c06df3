// SPDX-License-Identifier: Apache-2.0

//! Kubernetes objects as written, and their conversion for the catalog and DNS.
//!
//! Pure: neither kube nor I/O. Unusable parts are left out and named in a [`FieldProblem`]; the rest of
//! the object is used.

mod address;
mod annotations;
mod balancer;
mod export;
mod import;
mod metadata;
mod names;
mod namespace;
mod node;
mod pod;
mod ports;
mod problems;
mod property;
mod schema;
mod scope;
mod service;
mod slice;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use portolan_catalog::{
    FieldProblem, Kind, Object, ObjectChange, ObjectKey, ObjectRef, Reason, ServiceFacts,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

pub(crate) use export::facts;
pub use import::{FIELD_MANAGER, WINNER};
pub use metadata::{Annotation, ManagedFields, Metadata};
pub use names::{Names, removed};
pub(crate) use pod::has_weight;
pub use schema::{
    ClientIpConfig, ClusterProperty, ClusterPropertySpec, ClusterStatus, Condition, Conditions,
    Endpoint, EndpointSlice, HintName, Hints, LoadBalancerIngress, LoadBalancerStatus, McsStatus,
    Namespace, Node, NodeAddress, NodeSpec, NodeStatus, Pod, PodIp, PodStatus, Service,
    ServiceExport, ServiceExportSpec, ServiceImport, ServiceImportSpec, ServicePort, ServiceSpec,
    ServiceStatus, SessionAffinityConfig, SlicePort, Taint, TargetRef,
};
pub use scope::{ProxyName, ProxyNameError, Scope};

/// A converted object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Converted {
    /// An object for the catalog.
    Put {
        /// The object.
        object: Object,
        /// The parts that were left out.
        problems: Vec<FieldProblem>,
    },
    /// An object that the controller does not serve: the catalog deletes it.
    NotOurs(ObjectRef),
    /// Unreadable: the last good version stays.
    Refused {
        /// The object; `None` if even its name is unknown.
        object: Option<ObjectRef>,
        /// Reason.
        problems: Vec<FieldProblem>,
    },
}

impl Converted {
    pub(crate) fn refused(object: Option<ObjectRef>, problem: FieldProblem) -> Self {
        Self::Refused {
            object,
            problems: vec![problem],
        }
    }

    /// The name of the object, if known.
    #[must_use]
    pub fn reference(&self) -> Option<ObjectRef> {
        match self {
            Self::Put { object, .. } => Some(object.reference()),
            Self::NotOurs(object) => Some(object.clone()),
            Self::Refused { object, .. } => object.clone(),
        }
    }

    /// The change for the catalog; `None` for an object without a name.
    #[must_use]
    pub fn into_change(self) -> Option<ObjectChange> {
        match self {
            Self::Put { object, problems } => Some(ObjectChange::Put { object, problems }),
            Self::NotOurs(object) => Some(ObjectChange::Delete(object)),
            Self::Refused { object, problems } => Some(ObjectChange::Refused {
                object: object?,
                problems,
            }),
        }
    }
}

/// A kind that sources read.
pub trait Manifest: DeserializeOwned {
    /// The kind.
    const KIND: Kind;

    /// Converts the object for the catalog.
    fn convert(self, scope: &Scope) -> Converted;

    /// Returns the facts that an export needs of the object, if it is a Service.
    fn facts(&self, _scope: &Scope) -> Option<Arc<ServiceFacts>> {
        None
    }

    /// Converts the object for DNS.
    fn names(&self) -> Names {
        Names::default()
    }
}

/// Reads an object field by field, so that an error names the field.
///
/// # Errors
///
/// A field is not of the type that it must be.
pub fn decode<T: Manifest>(value: &Value) -> Result<T, FieldProblem> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let field = if path == "." { String::new() } else { path };
        FieldProblem::new(field, Reason::Malformed, error.into_inner().to_string())
    })
}

/// Reads and converts an object of a known kind.
#[must_use]
pub fn convert(kind: Kind, value: &Value, scope: &Scope) -> Converted {
    match kind {
        Kind::Service => convert_as::<Service>(value, scope),
        Kind::EndpointSlice => convert_as::<EndpointSlice>(value, scope),
        Kind::Node => convert_as::<Node>(value, scope),
        Kind::Pod => convert_as::<Pod>(value, scope),
        Kind::Namespace => convert_as::<Namespace>(value, scope),
        Kind::ServiceExport => convert_as::<ServiceExport>(value, scope),
        Kind::ServiceImport => convert_as::<ServiceImport>(value, scope),
        Kind::ClusterProperty => convert_as::<ClusterProperty>(value, scope),
        Kind::LoadBalancer | Kind::Director | Kind::Policy => {
            let message = "is read with all others of its kind";
            let problem = FieldProblem::new("kind", Reason::Unsupported, message);
            Converted::refused(reference(kind, value, &scope.cluster), problem)
        }
    }
}

/// Reads an object of a known kind, and converts it for DNS.
#[must_use]
pub fn names(kind: Kind, value: &Value) -> Names {
    match kind {
        Kind::Service => names_as::<Service>(value),
        Kind::EndpointSlice => names_as::<EndpointSlice>(value),
        Kind::Pod => names_as::<Pod>(value),
        Kind::Namespace => names_as::<Namespace>(value),
        Kind::Node
        | Kind::ServiceExport
        | Kind::ServiceImport
        | Kind::ClusterProperty
        | Kind::LoadBalancer
        | Kind::Director
        | Kind::Policy => Names::default(),
    }
}

fn names_as<T: Manifest>(value: &Value) -> Names {
    decode::<T>(value).map_or(Names::Refused, |manifest| manifest.names())
}

fn convert_as<T: Manifest>(value: &Value, scope: &Scope) -> Converted {
    match decode::<T>(value) {
        Ok(manifest) => manifest.convert(scope),
        Err(problem) => Converted::refused(reference(T::KIND, value, &scope.cluster), problem),
    }
}

/// Returns `true` if objects of this kind live in a namespace.
#[must_use]
pub fn is_namespaced(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::Node | Kind::Namespace | Kind::ClusterProperty | Kind::Director | Kind::Policy
    )
}

/// Returns `true` if objects of this kind are read in this `apiVersion`.
#[must_use]
pub fn is_version(kind: Kind, version: &str) -> bool {
    // The older version has the same fields.
    let is_older = kind == Kind::ServiceExport && version == "multicluster.x-k8s.io/v1alpha1";
    is_older || version == api_version(kind)
}

/// `apiVersion` of this kind.
#[must_use]
pub fn api_version(kind: Kind) -> &'static str {
    match kind {
        Kind::ServiceExport | Kind::ServiceImport => "multicluster.x-k8s.io/v1beta1",
        Kind::ClusterProperty => "about.k8s.io/v1beta1",
        Kind::Service | Kind::Node | Kind::Pod | Kind::Namespace => "v1",
        Kind::EndpointSlice => "discovery.k8s.io/v1",
        Kind::LoadBalancer | Kind::Director | Kind::Policy => {
            portolan_director::document::API_VERSION
        }
    }
}

/// The name of an object, which may be malformed otherwise.
#[must_use]
pub fn reference(kind: Kind, value: &Value, cluster: &Arc<str>) -> Option<ObjectRef> {
    let text = |field| value.pointer(field).and_then(Value::as_str);
    named(
        kind,
        text("/metadata/name"),
        text("/metadata/namespace"),
        cluster,
    )
}

/// The reference of these names, if they are all that this kind needs.
pub(crate) fn named(
    kind: Kind,
    name: Option<&str>,
    namespace: Option<&str>,
    cluster: &Arc<str>,
) -> Option<ObjectRef> {
    let given = |text: Option<&str>| text.filter(|text| !text.is_empty()).map(Arc::from);
    let namespace = if is_namespaced(kind) {
        given(namespace)?
    } else {
        Arc::from("")
    };
    let key = ObjectKey {
        cluster: Arc::clone(cluster),
        namespace,
        name: given(name)?,
    };
    Some(ObjectRef { kind, key })
}
