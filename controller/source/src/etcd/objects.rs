// SPDX-License-Identifier: Apache-2.0

//! The objects of a fleet as their keys have them, and what is in force of them: pure.
//!
//! An address, protocol and port is of one load balancer. Of several that claim it, the one whose key was
//! created first has it, on every replica of the controller; the others keep their last version that was in
//! force, if that does not claim it too.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{FieldProblem, ObjectChange, ObjectKey, ObjectRef, Reason};
use portolan_director::{Claims, LoadBalancer, taken};
use portolan_etcd::Name;
use portolan_model::{ByRecord, Record};

use super::decode::{Decoded, decode, reference};
use crate::groups::GroupedNodes;
use crate::objects::Scope;

/// All objects of a fleet.
#[derive(Debug, Default)]
pub(super) struct Objects {
    scope: Scope,
    balancers: BTreeMap<Name, Balancer>,
    /// Nodes and directors that have a key.
    others: BTreeSet<Name>,
    /// Problems of load balancers and directors.
    problems: BTreeMap<ObjectRef, Vec<FieldProblem>>,
    /// The problems that the catalog has.
    told_problems: BTreeMap<ObjectRef, Vec<FieldProblem>>,
    /// The records that the catalog has; `None` before the first ones.
    told: Option<ByRecord<Record>>,
    nodes: GroupedNodes,
}

/// The key of one load balancer.
#[derive(Debug)]
struct Balancer {
    /// The revision of the key's creation.
    created: i64,
    /// The key's value.
    newest: Result<Arc<LoadBalancer>, Vec<FieldProblem>>,
    in_force: Option<InForce>,
}

#[derive(Debug, Clone)]
struct InForce {
    balancer: Arc<LoadBalancer>,
    records: ByRecord<Record>,
}

impl Objects {
    pub(super) fn new(cluster: &Arc<str>) -> Self {
        Self {
            scope: Scope::new(cluster),
            ..Self::default()
        }
    }

    /// Takes in the value of a key. Returns whether it can be used by itself.
    pub(super) fn put(&mut self, name: Name, created: i64, value: &[u8]) -> bool {
        let decoded = decode(&name, value, &self.scope);
        let is_good = decoded.is_ok();
        match name {
            Name::LoadBalancer { .. } => {
                let newest = match decoded {
                    Ok(Decoded::LoadBalancer(balancer)) => Ok(balancer),
                    Ok(_) => Err(Vec::new()),
                    Err(problems) => Err(problems),
                };
                let in_force = self.balancers.remove(&name).and_then(|it| it.in_force);
                let balancer = Balancer {
                    created,
                    newest,
                    in_force,
                };
                self.balancers.insert(name, balancer);
            }
            Name::Director(_) => {
                let problems = match decoded {
                    Ok(Decoded::Director(director)) => {
                        let node = self.node_of(&director.name);
                        self.nodes.direct(&node, Some(director.to_sent().into()));
                        Vec::new()
                    }
                    Ok(_) => Vec::new(),
                    // The last good one stays.
                    Err(problems) => problems,
                };
                self.note(&name, problems);
                self.others.insert(name);
            }
            Name::Node(_) => {
                let object = reference(&name, &self.scope.cluster);
                match decoded {
                    Ok(Decoded::Node(node)) => self.nodes.put(object, *node),
                    Ok(_) => return is_good,
                    Err(problems) => self.nodes.refuse(object, problems),
                }
                self.others.insert(name);
            }
        }
        is_good
    }

    /// Takes in that a key is gone.
    pub(super) fn delete(&mut self, name: &Name) {
        if self.balancers.remove(name).is_some() || self.others.remove(name) {
            self.note(name, Vec::new());
            match name {
                Name::Node(_) => self.nodes.delete(&reference(name, &self.scope.cluster)),
                Name::Director(name) => self.nodes.direct(&self.node_of(name), None),
                Name::LoadBalancer { .. } => {}
            }
        }
    }

    /// The Node of a host.
    fn node_of(&self, host: &str) -> ObjectRef {
        reference(&Name::Node(host.to_owned()), &self.scope.cluster)
    }

    /// All objects that have a key.
    pub(super) fn names(&self) -> impl Iterator<Item = &Name> {
        self.balancers.keys().chain(&self.others)
    }

    /// The keys of all Nodes, with those that stand in for hosts that have a Director alone.
    pub(super) fn node_keys(&self) -> BTreeSet<ObjectKey> {
        self.nodes.names().map(|name| name.key.clone()).collect()
    }

    /// Returns the changes since the last call.
    pub(super) fn changes(&mut self) -> Vec<ObjectChange> {
        let records = self.admit();
        let in_force = self.balancers.values();
        let in_force = in_force.filter_map(|it| it.in_force.as_ref());
        let selectors = in_force.map(|it| &it.balancer.node_selector);
        let mut changes = self.nodes.changes(selectors);
        for (object, problems) in &self.problems {
            if self.told_problems.get(object) != Some(problems) {
                changes.push(ObjectChange::Problems {
                    object: object.clone(),
                    problems: problems.clone(),
                });
            }
        }
        let solved = self.told_problems.keys();
        let solved = solved.filter(|object| !self.problems.contains_key(*object));
        changes.extend(solved.map(|object| ObjectChange::Problems {
            object: object.clone(),
            problems: Vec::new(),
        }));
        self.told_problems.clone_from(&self.problems);
        if self.told.as_ref() != Some(&records) {
            self.told = Some(records.clone());
            let cluster = Arc::clone(&self.scope.cluster);
            changes.push(ObjectChange::LoadBalancers { cluster, records });
        }
        changes
    }

    /// Puts in force what can be, in the order of creation; all records.
    fn admit(&mut self) -> ByRecord<Record> {
        let mut order: Vec<_> = self.balancers.iter_mut().collect();
        order.sort_by(|(name, a), (other, b)| (a.created, *name).cmp(&(b.created, *other)));
        let (mut claims, mut records) = (Claims::default(), ByRecord::new());
        let mut found = Vec::new();
        for (name, balancer) in order {
            let problems = balancer.admit(&mut claims, &self.scope.cluster);
            if let Some(in_force) = &balancer.in_force {
                records = in_force.records.clone().union(records);
            }
            found.push((name.clone(), problems));
        }
        for (name, problems) in found {
            self.note(&name, problems);
        }
        records
    }

    fn note(&mut self, name: &Name, problems: Vec<FieldProblem>) {
        let object = reference(name, &self.scope.cluster);
        if problems.is_empty() {
            self.problems.remove(&object);
        } else {
            self.problems.insert(object, problems);
        }
    }
}

impl Balancer {
    /// Puts the newest version in force, else that which was; returns what is wrong with the newest one.
    fn admit(&mut self, claims: &mut Claims, cluster: &Arc<str>) -> Vec<FieldProblem> {
        let problems = match &self.newest {
            Ok(newest) => {
                let conflicts = conflicts(newest, claims);
                if conflicts.is_empty() {
                    take(newest, claims);
                    if self.in_force.as_ref().map(|it| &it.balancer) != Some(newest) {
                        self.in_force = Some(InForce {
                            balancer: Arc::clone(newest),
                            records: records(newest, cluster),
                        });
                    }
                    return Vec::new();
                }
                conflicts
            }
            Err(problems) => problems.clone(),
        };
        self.in_force = self
            .in_force
            .take()
            .filter(|it| conflicts(&it.balancer, claims).is_empty());
        if let Some(in_force) = &self.in_force {
            take(&in_force.balancer, claims);
        }
        problems
    }
}

fn records(balancer: &LoadBalancer, cluster: &Arc<str>) -> ByRecord<Record> {
    // Each host's Director has the defaults of checks.
    portolan_director::records([balancer], None, cluster)
}

/// The frontends that others have.
fn conflicts(balancer: &LoadBalancer, claims: &Claims) -> Vec<FieldProblem> {
    let mut found = Vec::new();
    for (index, frontend) in balancer.frontends.iter().enumerate() {
        for claim in frontend.claims() {
            if let Some(owner) = claims.owner(&claim) {
                let field = format!("spec.frontends[{index}]");
                found.push(FieldProblem::new(
                    field,
                    Reason::Conflict,
                    taken(&claim, owner),
                ));
            }
        }
    }
    found
}

fn take(balancer: &LoadBalancer, claims: &mut Claims) {
    for claim in balancer.frontends.iter().flat_map(|it| it.claims()) {
        claims.take(claim, format!("LoadBalancer {}", balancer.name));
    }
}
