// SPDX-License-Identifier: Apache-2.0

//! Policy objects of an API server.

use portolan_policy::{Kind, ObjectName, Served};
use portolan_source::kubernetes::{ResourceKind, Resources};

/// The objects of an API server.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ServedPolicy {
    pub(super) objects: Vec<Served>,
    /// `true` once every kind was listed.
    pub(super) is_listed: bool,
    /// `true` once there was a Cluster.
    pub(super) had_clusters: bool,
    pub(super) problems: Vec<String>,
}

impl ServedPolicy {
    /// The objects that are there now, after others.
    pub(super) fn new(resources: &Resources, before: &Self) -> Self {
        let objects = resources.objects.iter();
        let objects = objects.filter_map(|((kind, name), object)| {
            let labels = serde_json::to_value(&object.labels).unwrap_or_default();
            Some(Served {
                name: ObjectName::new(Kind::named(kind)?, name),
                created: object.created,
                labels,
                spec: object.spec.clone(),
            })
        });
        let objects: Vec<_> = objects.collect();
        let problems = resources.problems.values();
        let problems = problems.map(|problem| {
            format!("--policy-kubernetes: {problem}; its objects stay as they were")
        });
        let has_clusters = objects
            .iter()
            .any(|object| object.name.kind == Kind::Cluster);
        Self {
            objects,
            is_listed: Kind::ALL
                .iter()
                .all(|kind| resources.listed.contains(kind.as_str())),
            had_clusters: before.had_clusters || has_clusters,
            problems: problems.collect(),
        }
    }
}

/// The resources of the policy.
pub(crate) fn resources() -> Vec<ResourceKind> {
    let resource = |kind: Kind| ResourceKind {
        group: "portolan.dev",
        version: "v1alpha1",
        kind: kind.as_str(),
        plural: kind.plural(),
    };
    Kind::ALL.map(resource).into()
}
