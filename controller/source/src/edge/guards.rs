// SPDX-License-Identifier: Apache-2.0

//! The deletion guards of a cluster that an edge controller sends.
//!
//! The edge has a guard of its own, which forgets at a restart, and which a broken edge has not.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use futures_util::future::select_all;
use portolan_catalog::{FieldProblem, Kind, Object, ObjectChange, ObjectKey, ObjectRef, Reason};
use portolan_edge::wire::WireError;

use crate::HeldDeletions;
use crate::deletions::{Facts, GuardConfig, Verdict};
use crate::held::{KindGuard, facts_of};

/// A guard for each kind whose deletions are guarded.
#[derive(Debug)]
pub(super) struct Guards {
    cluster: Arc<str>,
    guards: BTreeMap<Kind, KindGuard<ObjectChange>>,
}

/// An object that was sent: readable, or with the error of one that is not.
pub(super) type Sent = Result<Object, (ObjectRef, WireError)>;

impl Guards {
    /// Pods come and go, no table depends on ServiceImports, and properties are few.
    pub(super) fn new(cluster: &Arc<str>, config: GuardConfig, holds: &Arc<HeldDeletions>) -> Self {
        let guarded = Kind::OF_CLUSTER.into_iter();
        let guarded = guarded.filter(|kind| {
            !matches!(
                kind,
                Kind::Pod | Kind::ServiceImport | Kind::ClusterProperty
            )
        });
        let guard = |kind| KindGuard::new(kind, Arc::clone(cluster), config, Arc::clone(holds));
        Self {
            cluster: Arc::clone(cluster),
            guards: guarded.map(|kind| (kind, guard(kind))).collect(),
        }
    }

    /// The changes of an object to pass on now.
    pub(super) fn put(&mut self, sent: Sent) -> Option<ObjectChange> {
        let (name, facts, change) = parts(sent);
        match self.guards.get_mut(&name.kind) {
            Some(guard) => guard.put(name.key, facts, change),
            None => Some(change),
        }
    }

    /// The changes of a deletion to pass on now.
    pub(super) fn delete(&mut self, name: ObjectRef) -> Option<ObjectChange> {
        let change = ObjectChange::Delete(name.clone());
        match self.guards.get_mut(&name.kind) {
            Some(guard) => guard.delete(name.key, change),
            None => Some(change),
        }
    }

    /// The changes of a listing to pass on now. The edge has read its cluster whole, so that no listing is doubted.
    pub(super) fn list(&mut self, objects: impl Iterator<Item = Sent>) -> Vec<ObjectChange> {
        let mut changes = Vec::new();
        let mut keep: BTreeMap<Kind, BTreeSet<ObjectKey>> = BTreeMap::new();
        self.guards.values_mut().for_each(KindGuard::begin);
        for sent in objects {
            let (name, facts, change) = parts(sent);
            let kept = keep.entry(name.kind).or_default();
            kept.insert(name.key.clone());
            changes.extend(match self.guards.get_mut(&name.kind) {
                Some(guard) => guard.listed(name.key, facts, change),
                None => Some(change),
            });
        }
        for kind in Kind::OF_CLUSTER {
            let mut keep = keep.remove(&kind).unwrap_or_default();
            if let Some(guard) = self.guards.get_mut(&kind) {
                let gone = |key: &ObjectKey| {
                    let key = key.clone();
                    ObjectChange::Delete(ObjectRef { kind, key })
                };
                if let Verdict::Settled { told, kept } = guard.complete(true, gone) {
                    changes.extend(told);
                    keep.extend(kept);
                }
            }
            changes.push(ObjectChange::Retain {
                kind,
                cluster: Arc::clone(&self.cluster),
                keep,
            });
        }
        changes
    }

    /// The changes whose time has come, or that an operator has confirmed.
    pub(super) fn look(&mut self) -> Vec<ObjectChange> {
        self.guards.values_mut().flat_map(KindGuard::look).collect()
    }

    /// Returns when [`Self::look`] may have something to do.
    pub(super) async fn wait(&self) {
        let waits = self.guards.values().map(|guard| Box::pin(guard.wait()));
        select_all(waits).await;
    }
}

/// Name, facts and change of an object; no facts of one that cannot be read.
fn parts(sent: Sent) -> (ObjectRef, Option<Facts>, ObjectChange) {
    match sent {
        Ok(object) => {
            let problems = Vec::new();
            let (name, facts) = (object.reference(), facts_of(&object));
            let change = ObjectChange::Put { object, problems };
            (name, Some(facts), change)
        }
        Err((name, WireError { field, why })) => {
            let change = ObjectChange::Refused {
                object: name.clone(),
                problems: vec![FieldProblem::new(field, Reason::Malformed, why)],
            };
            (name, None, change)
        }
    }
}
