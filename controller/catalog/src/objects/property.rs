// SPDX-License-Identifier: Apache-2.0

//! Properties that a cluster states about itself.

use std::sync::Arc;

use serde::Serialize;

use super::ObjectKey;

/// A property of a cluster (ClusterProperty of the About API, KEP-2149).
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ClusterProperty {
    /// Its name, which is the property's.
    pub key: ObjectKey,
    /// `spec.value`.
    pub value: Arc<str>,
}

impl ClusterProperty {
    /// The property with the cluster's id.
    pub const ID: &'static str = "cluster.clusterset.k8s.io";
    /// The property with the name of the ClusterSet that the cluster is a member of.
    pub const SET: &'static str = "clusterset.k8s.io";
    /// The longest value that is kept, in bytes.
    pub const MAX_VALUE: usize = 1024;
}
