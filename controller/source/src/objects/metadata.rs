// SPDX-License-Identifier: Apache-2.0

//! `metadata`, of all kinds.

use std::collections::BTreeMap;
use std::sync::Arc;

use portolan_catalog::{FieldProblem, Kind, ObjectRef, Reason};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use serde_json::Value;

use super::problems::Problems;

/// In the names of imports.
pub(super) const IMPORT: char = '@';

/// `metadata`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct Metadata {
    pub name: Option<String>,
    pub namespace: Option<String>,
    pub creation_timestamp: Option<String>,
    pub deletion_timestamp: Option<String>,
    /// A null value is an empty one, as in Go.
    pub labels: Option<BTreeMap<String, Option<String>>>,
    pub annotations: Option<BTreeMap<String, Annotation>>,
    pub uid: Option<String>,
    pub generation: Option<i64>,
    pub managed_fields: Option<Vec<ManagedFields>>,
}

/// `metadata.managedFields[]`: the fields that one program wrote.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
#[allow(missing_docs, reason = "the names are those of the Kubernetes API")]
pub struct ManagedFields {
    pub manager: Option<String>,
    pub operation: Option<String>,
    pub subresource: Option<String>,
    pub fields_v1: Option<Value>,
}

/// The value of an annotation. In files, numbers and truth values often lack their quotes; an API
/// server would refuse them, but their meaning is clear. A null value is an empty one, as in Go.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Annotation(String);

impl<'de> Deserialize<'de> for Annotation {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        match Value::deserialize(deserializer)? {
            Value::Null => Ok(Self::default()),
            Value::String(text) => Ok(Self(text)),
            Value::Number(number) => Ok(Self(number.to_string())),
            Value::Bool(truth) => Ok(Self(truth.to_string())),
            Value::Array(_) | Value::Object(_) => Err(D::Error::custom("expected a string")),
        }
    }
}

impl Metadata {
    pub(super) fn reference(
        &self,
        kind: Kind,
        cluster: &Arc<str>,
    ) -> Result<ObjectRef, FieldProblem> {
        let (name, namespace) = (self.name.as_deref(), self.namespace.as_deref());
        super::named(kind, name, namespace, cluster).ok_or_else(|| {
            let missing = if name.unwrap_or_default().is_empty() {
                "name"
            } else {
                "namespace"
            };
            FieldProblem::new(
                format!("metadata.{missing}"),
                Reason::Malformed,
                format!("missing: a {kind} needs a {missing}"),
            )
        })
    }

    /// The reference of a Service, or of an object with the name of one; with the problem, what is known of it.
    pub(super) fn reference_of_service(
        &self,
        kind: Kind,
        cluster: &Arc<str>,
    ) -> Result<ObjectRef, (Option<ObjectRef>, FieldProblem)> {
        let object = self.reference(kind, cluster);
        let object = object.map_err(|problem| (None, problem))?;
        if object.key.name.contains(IMPORT) {
            let message = format!(
                "{:?}: no {kind} has {IMPORT:?} in its name",
                object.key.name
            );
            let problem = FieldProblem::new("metadata.name", Reason::Malformed, message);
            return Err((Some(object), problem));
        }
        Ok(object)
    }

    /// A label's value, if it has one that is not empty.
    pub(super) fn label(&self, key: &str) -> Option<&str> {
        let value = self.labels.as_ref()?.get(key)?.as_deref();
        value.filter(|value| !value.is_empty())
    }

    /// All labels. A null value is an empty one.
    pub(super) fn all_labels(&self) -> BTreeMap<String, String> {
        let all = self.labels.iter().flatten();
        all.map(|(name, value)| (name.clone(), value.clone().unwrap_or_default()))
            .collect()
    }

    /// The value of the annotation with this name.
    pub(super) fn annotation(&self, name: &str) -> Option<&str> {
        Some(&self.annotations.as_ref()?.get(name)?.0)
    }

    /// The names of all annotations, sorted.
    pub(super) fn annotation_names(&self) -> impl Iterator<Item = &str> {
        let all = self.annotations.iter().flatten();
        all.map(|(name, _)| name.as_str())
    }

    /// `creationTimestamp` in seconds since 1970.
    pub(super) fn created(&self, problems: &mut Problems) -> Option<i64> {
        let text = self.creation_timestamp.as_deref()?;
        let time = text.parse::<jiff::Timestamp>();
        if time.is_err() {
            problems.invalid(
                "metadata.creationTimestamp",
                format!("{text:?} is not a time: expected one like 2026-01-31T12:00:00Z"),
            );
        }
        time.ok().map(jiff::Timestamp::as_second)
    }
}
