// SPDX-License-Identifier: Apache-2.0

//! Names of objects.

use std::collections::BTreeMap;
use std::fmt;

/// Namespace and name of a `LoadBalancer`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectName {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl fmt::Display for ObjectName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Labels and annotations of an object, which mean nothing to the director itself.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tags {
    /// Labels, for selection by tools.
    pub labels: BTreeMap<String, String>,
    /// Notes of tools and people.
    pub annotations: BTreeMap<String, String>,
    /// The revision of etcd of the stored object that this one is a change of.
    pub resource_version: Option<i64>,
}
