// SPDX-License-Identifier: Apache-2.0

//! Policy objects of an API server.

use std::collections::BTreeMap;

use portolan_policy::spec::{API_GROUP, GROUP_VERSION};
use portolan_policy::{Kind, ObjectName, Served};
use portolan_source::kubernetes::{ResourceKind, Resources};

/// The UIDs and ids of Clusters, by name.
type Identities = BTreeMap<String, (String, String)>;

/// The objects of an API server.
#[derive(Debug, Default, PartialEq)]
pub(super) struct ServedPolicy {
    pub(super) objects: Vec<Served>,
    identities: Identities,
    /// `true` once every kind was listed.
    pub(super) is_listed: bool,
    pub(super) problems: Vec<String>,
}

impl ServedPolicy {
    /// The objects that are there now.
    pub(super) fn new(resources: &Resources) -> Self {
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
        let problems = resources.problems.values();
        let problems = problems.map(|problem| {
            format!("--policy-kubernetes: {problem}; its objects stay as they were")
        });
        Self {
            objects: objects.collect(),
            identities: identities(resources),
            is_listed: Kind::ALL
                .iter()
                .all(|kind| resources.listed.contains(kind.as_str())),
            problems: problems.collect(),
        }
    }

    /// The names of the Clusters that were deleted and created again with other ids.
    pub(super) fn recreated(&self, resources: &Resources) -> Vec<String> {
        let is_other = |(name, (uid, id)): &(String, (String, String))| {
            let before = self.identities.get(name);
            before.is_some_and(|(old_uid, old_id)| uid != old_uid && id != old_id)
        };
        let others = identities(resources).into_iter().filter(is_other);
        others.map(|(name, _)| name).collect()
    }
}

fn identities(resources: &Resources) -> Identities {
    let clusters = resources.objects.iter();
    let clusters = clusters.filter(|((kind, _), _)| *kind == Kind::Cluster.as_str());
    let identities = clusters.filter_map(|((_, name), object)| {
        let id = object.spec["id"].as_str().unwrap_or(name);
        Some((name.clone(), (object.uid.clone()?, id.to_owned())))
    });
    identities.collect()
}

/// The resources of the policy.
pub(crate) fn resources() -> Vec<ResourceKind> {
    let resource = |kind: Kind| ResourceKind {
        group: API_GROUP,
        version: GROUP_VERSION,
        kind: kind.as_str(),
        plural: kind.plural(),
    };
    Kind::ALL.map(resource).into()
}
