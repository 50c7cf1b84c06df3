// SPDX-License-Identifier: Apache-2.0

//! Problems with objects, with field and reason.

use crate::input::{ServiceKey, SliceKey};

/// The object that a [`RecordProblem`] is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Object {
    /// A Namespace.
    #[error("Namespace {0}")]
    Namespace(String),
    /// A Service.
    #[error("Service {0}")]
    Service(ServiceKey),
    /// An EndpointSlice.
    #[error("EndpointSlice {}/{}", .0.namespace, .0.name)]
    Slice(SliceKey),
    /// A Pod.
    #[error("Pod {namespace}/{name}")]
    Pod {
        /// The Pod's namespace.
        namespace: String,
        /// The Pod's name.
        name: String,
    },
}

/// A field that cannot become a record. The rest of the object is served.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
#[error("{object}: {field}: {reason}")]
pub struct RecordProblem {
    /// The object.
    pub object: Object,
    /// The field, as a path in the object.
    pub field: String,
    /// The reason, and the replacement.
    pub reason: String,
}

impl RecordProblem {
    pub(crate) fn new(object: Object, field: impl Into<String>, reason: impl Into<String>) -> Self {
        Self {
            object,
            field: field.into(),
            reason: reason.into(),
        }
    }
}
