// SPDX-License-Identifier: Apache-2.0

//! All policy objects, and what holds among them.

use std::collections::{BTreeMap, BTreeSet};

use crate::object::{Member, Meta, Tier};
use crate::overlap::between;
use crate::selector::{Patterns, Selector};
use crate::{
    Cluster, ClusterSet, ExportPolicy, Fault, ImportPolicy, Kind, ObjectName, PolicyError,
    TrafficPolicy,
};

/// Policy objects by name. Ids of clusters are all different, and there is one ClusterSet at most.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Objects {
    /// The set.
    pub set: Option<ClusterSet>,
    /// Its members.
    pub clusters: BTreeMap<String, Cluster>,
    /// Policies of exports.
    pub exports: BTreeMap<String, ExportPolicy>,
    /// Policies of imports.
    pub imports: BTreeMap<String, ImportPolicy>,
    /// Policies of traffic.
    pub traffic: BTreeMap<String, TrafficPolicy>,
}

/// An object of any kind.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "the kinds of objects")]
pub enum Object {
    ClusterSet(ClusterSet),
    Cluster(Cluster),
    ExportPolicy(ExportPolicy),
    ImportPolicy(ImportPolicy),
    TrafficPolicy(TrafficPolicy),
}

impl Object {
    /// Its name, age and labels.
    #[must_use]
    pub fn meta(&self) -> &Meta {
        match self {
            Self::ClusterSet(object) => &object.meta,
            Self::Cluster(object) => &object.meta,
            Self::ExportPolicy(object) => &object.meta,
            Self::ImportPolicy(object) => &object.meta,
            Self::TrafficPolicy(object) => &object.meta,
        }
    }

    pub(crate) fn meta_mut(&mut self) -> &mut Meta {
        match self {
            Self::ClusterSet(object) => &mut object.meta,
            Self::Cluster(object) => &mut object.meta,
            Self::ExportPolicy(object) => &mut object.meta,
            Self::ImportPolicy(object) => &mut object.meta,
            Self::TrafficPolicy(object) => &mut object.meta,
        }
    }

    /// Its kind and name.
    #[must_use]
    pub fn name(&self) -> ObjectName {
        let kind = match self {
            Self::ClusterSet(_) => Kind::ClusterSet,
            Self::Cluster(_) => Kind::Cluster,
            Self::ExportPolicy(_) => Kind::ExportPolicy,
            Self::ImportPolicy(_) => Kind::ImportPolicy,
            Self::TrafficPolicy(_) => Kind::TrafficPolicy,
        };
        ObjectName::new(kind, &self.meta().name)
    }
}

/// The most ImportPolicies that name nodes: each is a group that the facts about nodes may name.
const MOST_NODE_SELECTORS: usize = 64;

/// An object that is not in force, or with a warning that is, and why.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectFault {
    /// The object.
    pub object: ObjectName,
    /// Its fault.
    pub fault: Fault,
}

impl Objects {
    /// An object.
    #[must_use]
    pub fn get(&self, name: &ObjectName) -> Option<Object> {
        let key = &name.name;
        match name.kind {
            Kind::ClusterSet => {
                let set = self.set.clone().filter(|set| set.meta.name == *key);
                set.map(Object::ClusterSet)
            }
            Kind::Cluster => self.clusters.get(key).cloned().map(Object::Cluster),
            Kind::ExportPolicy => self.exports.get(key).cloned().map(Object::ExportPolicy),
            Kind::ImportPolicy => self.imports.get(key).cloned().map(Object::ImportPolicy),
            Kind::TrafficPolicy => self.traffic.get(key).cloned().map(Object::TrafficPolicy),
        }
    }

    /// The kinds and names of all objects, sorted.
    #[must_use]
    pub fn names(&self) -> Vec<ObjectName> {
        let of = |kind| move |name: &String| ObjectName::new(kind, name);
        let set = self.set.iter().map(|set| &set.meta.name);
        set.map(of(Kind::ClusterSet))
            .chain(self.clusters.keys().map(of(Kind::Cluster)))
            .chain(self.exports.keys().map(of(Kind::ExportPolicy)))
            .chain(self.imports.keys().map(of(Kind::ImportPolicy)))
            .chain(self.traffic.keys().map(of(Kind::TrafficPolicy)))
            .collect()
    }

    /// The objects that these make together. An object that cannot be in force with the others is
    /// left out, and its fault is returned: of two ClusterSets, or Clusters with the same id, the
    /// younger; of two objects of the same name the
    /// second; of more than 64 ImportPolicies that name nodes the youngest.
    ///
    /// ClusterSets and Clusters of `last` come before others, and so do ImportPolicies that name nodes
    /// already there: no new one takes the place of one in force. A Cluster whose id has changed stays
    /// as it was.
    pub(crate) fn together(objects: Vec<Object>, last: &Self) -> (Self, Vec<ObjectFault>) {
        let mut all = Self::default();
        let mut by_age = objects;
        // First of all: an id that nobody can take must cost no other Cluster its own.
        let mut faults = last.keep_ids(&mut by_age);
        let is_new = |object: &Object| match object {
            Object::ClusterSet(set) => {
                let before = last.set.as_ref();
                before.is_none_or(|before| before.meta.name != set.meta.name)
            }
            Object::Cluster(cluster) => !last.clusters.contains_key(&cluster.meta.name),
            Object::ImportPolicy(policy) => {
                let before = last.imports.get(&policy.meta.name);
                policy.narrows() && !before.is_some_and(ImportPolicy::narrows)
            }
            Object::ExportPolicy(_) | Object::TrafficPolicy(_) => false,
        };
        by_age.sort_by(|one, other| {
            let order = is_new(one).cmp(&is_new(other));
            order.then_with(|| one.meta().by_age().cmp(&other.meta().by_age()))
        });
        for object in by_age {
            let name = object.name();
            if let Err(fault) = all.insert(object) {
                faults.push(ObjectFault {
                    object: name,
                    fault,
                });
            }
        }
        (all, faults)
    }

    /// Puts the version of `self` in place of each Cluster whose id has changed since. Returns the faults.
    fn keep_ids(&self, objects: &mut [Object]) -> Vec<ObjectFault> {
        let mut faults = Vec::new();
        for object in objects {
            if let Object::Cluster(cluster) = object
                && let Some(earlier) = self.clusters.get(&cluster.meta.name)
                && let Err(fault) = cluster.may_replace(earlier)
            {
                faults.push(ObjectFault {
                    object: ObjectName::new(Kind::Cluster, &cluster.meta.name),
                    fault,
                });
                *cluster = earlier.clone();
            }
        }
        faults
    }

    /// These objects, and of those that were refused the last version that was in force. A Cluster
    /// whose id has changed stays as it was. A new one that would take something from one in force is
    /// left out.
    #[must_use]
    pub fn or_last_good(self, refused: &[ObjectName], last: &Self) -> (Self, Vec<ObjectFault>) {
        let mut objects: Vec<Object> = self.into_objects();
        let refused: BTreeSet<&ObjectName> = refused.iter().collect();
        let kept = refused.into_iter().filter_map(|name| last.get(name));
        let present: Vec<ObjectName> = objects.iter().map(Object::name).collect();
        objects.extend(kept.filter(|object| !present.contains(&object.name())));
        let (mut all, mut faults) = Self::together(objects, last);
        faults.extend(all.leave_out(last));
        (all, faults)
    }

    /// Removes new Clusters that would cost one of `last` its exports or its membership: those whose networks overlap
    /// its own, and those beyond the set's bound. Returns their faults. Without Clusters in `last`, as at a start, none
    /// has anything to lose.
    fn leave_out(&mut self, last: &Self) -> Vec<ObjectFault> {
        if last.clusters.is_empty() {
            return Vec::new();
        }
        let is_known = |cluster: &&Cluster| last.clusters.contains_key(&cluster.meta.name);
        let (known, mut new): (Vec<&Cluster>, Vec<&Cluster>) =
            self.clusters.values().partition(is_known);
        new.sort_by_key(|cluster| cluster.meta.by_age());
        let (most, mut count) = (self.most_clusters(), known.len());
        let mut faults = Vec::new();
        for cluster in new {
            let overlap = known.iter().find_map(|other| between(cluster, other));
            let fault = match overlap {
                Some(overlap) => Fault {
                    field: overlap.field().to_owned(),
                    error: PolicyError::Overlap(overlap),
                },
                None if count >= most => Fault {
                    field: String::from("metadata.name"),
                    error: PolicyError::TooManyClusters(count),
                },
                None => {
                    count += 1;
                    continue;
                }
            };
            faults.push(ObjectFault {
                object: ObjectName::new(Kind::Cluster, &cluster.meta.name),
                fault,
            });
        }
        for fault in &faults {
            self.clusters.remove(&fault.object.name);
        }
        faults
    }

    fn into_objects(self) -> Vec<Object> {
        let set = self.set.into_iter().map(Object::ClusterSet);
        let clusters = self.clusters.into_values().map(Object::Cluster);
        let exports = self.exports.into_values().map(Object::ExportPolicy);
        let imports = self.imports.into_values().map(Object::ImportPolicy);
        let traffic = self.traffic.into_values().map(Object::TrafficPolicy);
        set.chain(clusters)
            .chain(exports)
            .chain(imports)
            .chain(traffic)
            .collect()
    }

    fn insert(&mut self, object: Object) -> Result<(), Fault> {
        let fault = |field: &str, error| {
            Err(Fault {
                field: field.to_owned(),
                error,
            })
        };
        let name = object.name();
        if self.get(&name).is_some() {
            return fault("metadata.name", PolicyError::DefinedTwice(name));
        }
        match object {
            Object::ClusterSet(set) => {
                if let Some(first) = &self.set {
                    let first = ObjectName::new(Kind::ClusterSet, &first.meta.name);
                    return fault("metadata.name", PolicyError::SecondClusterSet(first));
                }
                self.set = Some(set);
            }
            Object::Cluster(cluster) => {
                let mut others = self.clusters.values();
                if let Some(other) = others.find(|other| other.id == cluster.id) {
                    let error = PolicyError::DuplicateId {
                        id: cluster.id,
                        other: other.meta.name.clone(),
                    };
                    return fault("spec.id", error);
                }
                self.clusters.insert(name.name, cluster);
            }
            Object::ExportPolicy(policy) => {
                self.exports.insert(name.name, policy);
            }
            Object::ImportPolicy(policy) => {
                let others = self.imports.values().filter(|other| other.narrows());
                if policy.narrows() && others.count() >= MOST_NODE_SELECTORS {
                    let error = PolicyError::TooManyNodeSelectors(MOST_NODE_SELECTORS);
                    return fault("spec.nodes", error);
                }
                self.imports.insert(name.name, policy);
            }
            Object::TrafficPolicy(policy) => {
                self.traffic.insert(name.name, policy);
            }
        }
        Ok(())
    }

    /// The Clusters that are members: those beyond the set's bound, the youngest, are not. Without a
    /// ClusterSet its defaults hold.
    #[must_use]
    pub fn members(&self) -> BTreeMap<&str, &Cluster> {
        let mut by_age: Vec<&Cluster> = self.clusters.values().collect();
        by_age.sort_by_key(|cluster| cluster.meta.by_age());
        by_age.truncate(self.most_clusters());
        let members = by_age.into_iter();
        members
            .map(|cluster| (cluster.meta.name.as_str(), cluster))
            .collect()
    }

    /// The most members.
    fn most_clusters(&self) -> usize {
        let quota = self.set.as_ref().map(|set| set.quota);
        let most = quota.unwrap_or_default().clusters;
        usize::try_from(most).unwrap_or(usize::MAX)
    }

    /// Returns `true` if some Service is exported without a ServiceExport.
    #[must_use]
    pub fn exports_automatically(&self) -> bool {
        let by_policy = self.exports.values().any(|policy| policy.automatic);
        by_policy || self.set.as_ref().is_some_and(|set| set.automatic)
    }

    /// Names of clusters that no Cluster has, in policies. The rest of these policies holds.
    #[must_use]
    pub fn unknown_clusters(&self) -> Vec<ObjectFault> {
        let mut found = Vec::new();
        let mut look = |kind, name: &str, field: &str, names: &Patterns| {
            for (index, cluster) in names.exact() {
                if !self.clusters.contains_key(cluster) {
                    found.push(ObjectFault {
                        object: ObjectName::new(kind, name),
                        fault: Fault {
                            field: format!("spec.{field}.names[{index}]"),
                            error: PolicyError::UnknownCluster(cluster.to_owned()),
                        },
                    });
                }
            }
        };
        for (name, policy) in &self.exports {
            look(
                Kind::ExportPolicy,
                name,
                "clusters",
                policy.clusters.names(),
            );
            look(Kind::ExportPolicy, name, "to", policy.to.names());
        }
        for (name, policy) in &self.imports {
            look(
                Kind::ImportPolicy,
                name,
                "clusters",
                policy.clusters.names(),
            );
            look(Kind::ImportPolicy, name, "from", policy.from.names());
        }
        for (name, policy) in &self.traffic {
            look(
                Kind::TrafficPolicy,
                name,
                "clusters",
                policy.clusters.names(),
            );
            for (field, selector) in members(policy) {
                look(Kind::TrafficPolicy, name, &field, selector.names());
            }
        }
        found
    }
}

/// The selectors of a policy's tiers, with the paths of their fields.
fn members(policy: &TrafficPolicy) -> Vec<(String, &Selector)> {
    let mut found = Vec::new();
    for (tier_index, tier) in policy.tiers.iter().enumerate() {
        let members: Vec<&Member> = match tier {
            Tier::Clusters(members) => members.iter().collect(),
            Tier::Weighted(members) => members.iter().map(|(member, _)| member).collect(),
            Tier::SameAs(_) | Tier::Rest => Vec::new(),
        };
        for (index, member) in members.into_iter().enumerate() {
            if let Member::Selected(selector) = member {
                found.push((format!("tiers[{tier_index}].clusters[{index}]"), selector));
            }
        }
    }
    found
}
