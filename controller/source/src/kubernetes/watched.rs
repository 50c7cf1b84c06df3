// SPDX-License-Identifier: Apache-2.0

//! The guard that keeps one malformed object from ending a listing or a watch.

use std::borrow::Cow;
use std::sync::Arc;

use k8s_openapi::ClusterResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use portolan_catalog::{FieldProblem, ObjectRef, ServiceFacts};
use serde::de::DeserializeSeed;
use serde::{Deserialize, Deserializer};

use super::kinds::Watchable;
use super::prune::Pruned;
use crate::objects::{self, Converted, Names, Scope};

/// An object or its problem: any JSON value becomes one.
#[derive(Debug, Clone)]
pub(super) struct Watched<T> {
    /// Name, namespace and version; nothing else is kept of it.
    metadata: ObjectMeta,
    manifest: Result<T, FieldProblem>,
}

impl<T: Watchable> Watched<T> {
    pub(super) fn reference(&self, cluster: &Arc<str>) -> Option<ObjectRef> {
        let ObjectMeta {
            name, namespace, ..
        } = &self.metadata;
        objects::named(T::KIND, name.as_deref(), namespace.as_deref(), cluster)
    }

    /// Its `resourceVersion`.
    pub(super) fn version(&self) -> Option<&str> {
        self.metadata.resource_version.as_deref()
    }

    /// Returns the facts that an export needs of the object, if it is a Service that could be read.
    pub(super) fn facts(&self, scope: &Scope) -> Option<Arc<ServiceFacts>> {
        self.manifest.as_ref().ok()?.facts(scope)
    }

    /// Returns `true` if the object could be read.
    pub(super) fn is_readable(&self) -> bool {
        self.manifest.is_ok()
    }

    /// The object's input to DNS.
    pub(super) fn names(&self) -> Names {
        match &self.manifest {
            Ok(manifest) => manifest.names(),
            Err(_) => Names::Refused,
        }
    }

    pub(super) fn convert(self, scope: &Scope) -> Converted {
        let object = self.reference(&scope.cluster);
        match self.manifest {
            Ok(manifest) => manifest.convert(scope),
            Err(problem) => Converted::refused(object, problem),
        }
    }
}

impl<'de, T: Watchable> Deserialize<'de> for Watched<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Pruned(T::KEEP).deserialize(deserializer)?;
        let text = |pointer| Some(value.pointer(pointer)?.as_str()?.to_owned());
        Ok(Self {
            metadata: ObjectMeta {
                name: text("/metadata/name"),
                namespace: text("/metadata/namespace"),
                resource_version: text("/metadata/resourceVersion"),
                ..ObjectMeta::default()
            },
            manifest: objects::decode(&value),
        })
    }
}

impl<T: Watchable> kube::Resource for Watched<T> {
    type DynamicType = ();
    /// All namespaces are watched at once, so namespaced kinds are requested without one.
    type Scope = ClusterResourceScope;

    fn kind((): &()) -> Cow<'_, str> {
        T::KIND.to_string().into()
    }

    fn group((): &()) -> Cow<'_, str> {
        T::GROUP.into()
    }

    fn version((): &()) -> Cow<'_, str> {
        T::VERSION.into()
    }

    fn plural((): &()) -> Cow<'_, str> {
        T::PLURAL.into()
    }

    fn metadata_api() -> bool {
        T::METADATA_ONLY
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}
