// SPDX-License-Identifier: Apache-2.0

//! The way of keys to the sink: past the deletion guard, into events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{Kind, ObjectChange};
use portolan_etcd::{Change, Listing, Name, News, Prefix};
use tracing::info;

use super::decode::reference;
use super::objects::Objects;
use crate::deletions::{Facts, GuardConfig, Verdict};
use crate::file::FileProblem;
use crate::held::KindGuard;
use crate::kubernetes::Stats;
use crate::sink::Closed;
use crate::{Event, Sink};

/// The kinds whose deletions are guarded.
const GUARDED: [Kind; 3] = [Kind::LoadBalancer, Kind::Node, Kind::Director];
/// The kinds whose versions agents compare.
const VERSIONED: [Kind; 3] = [Kind::Service, Kind::EndpointSlice, Kind::Node];

/// Everything between the client and the sink.
#[derive(Debug)]
pub(super) struct Feed {
    prefix: Prefix,
    cluster: Arc<str>,
    objects: Objects,
    guards: BTreeMap<Kind, KindGuard<Name>>,
    /// Keys that are no object's, and what is wrong with them.
    strays: BTreeMap<Vec<u8>, FileProblem>,
    strays_changed: bool,
    sink: Sink,
    stats: Arc<Stats>,
    synced: bool,
}

impl Feed {
    pub(super) fn new(
        prefix: Prefix,
        cluster: Arc<str>,
        config: GuardConfig,
        sink: Sink,
        stats: Arc<Stats>,
    ) -> Self {
        // An empty prefix is more likely another etcd than an empty fleet.
        let config = GuardConfig {
            doubts_emptiness: true,
            ..config
        };
        let guard = |kind| {
            let holds = Arc::clone(stats.holds());
            KindGuard::new(kind, Arc::clone(&cluster), config, holds)
        };
        Self {
            objects: Objects::new(&cluster),
            guards: GUARDED.map(|kind| (kind, guard(kind))).into(),
            strays: BTreeMap::new(),
            strays_changed: false,
            prefix,
            cluster,
            sink,
            stats,
            synced: false,
        }
    }

    /// Takes in all keys as of one revision. A read of etcd is a sure one: no cache answers it.
    pub(super) async fn listed(&mut self, listing: Listing) -> Result<(), Closed> {
        self.guards.values_mut().for_each(KindGuard::begin);
        self.strays_changed |= !std::mem::take(&mut self.strays).is_empty();
        let mut keep = BTreeSet::new();
        for pair in &listing.pairs {
            let Some(name) = self.name(&pair.key) else {
                continue;
            };
            let object = reference(&name, &self.cluster);
            if let Some(guard) = self.guards.get_mut(&object.kind) {
                let facts = Some(Facts::default());
                // Objects without endpoints are never withheld.
                guard.listed(object.key, facts, name.clone());
            }
            self.put(name.clone(), pair.created, &pair.value);
            keep.insert(name);
        }
        let known: Vec<_> = self.objects.names().cloned().collect();
        for (kind, guard) in &mut self.guards {
            let cluster = &self.cluster;
            let of_kind: BTreeMap<_, _> = known
                .iter()
                .map(|name| (reference(name, cluster), name))
                .filter(|(object, _)| object.kind == *kind)
                .map(|(object, name)| (object.key, name))
                .collect();
            let nobody = Name::Node(String::new());
            let gone = |key: &_| of_kind.get(key).map_or(&nobody, |name| *name).clone();
            if let Verdict::Settled { kept, .. } = guard.complete(true, gone) {
                let kept = kept.iter().filter_map(|key| of_kind.get(key));
                keep.extend(kept.map(|name| Name::clone(name)));
            }
        }
        for name in known.iter().filter(|name| !keep.contains(*name)) {
            self.objects.delete(name);
        }
        self.stats.of(Kind::LoadBalancer).count_listing();
        info!(cluster = %self.cluster, revision = listing.revision, objects = keep.len(), "listed");
        let mut changes = self.objects.changes();
        changes.push(ObjectChange::Retain {
            kind: Kind::Node,
            cluster: Arc::clone(&self.cluster),
            keep: self.objects.node_keys(),
        });
        self.send(changes, listing.revision).await?;
        if !std::mem::replace(&mut self.synced, true) {
            self.sink.send(Event::Synced).await?;
        }
        Ok(())
    }

    /// Takes in changes of keys.
    pub(super) async fn changed(&mut self, news: News) -> Result<(), Closed> {
        for change in news.changes {
            let (Change::Put(portolan_etcd::Pair { key, .. }) | Change::Delete(key)) = &change;
            if self.strays.remove(key).is_some() {
                self.strays_changed = true;
            }
            match change {
                Change::Put(pair) => {
                    if let Some(name) = self.name(&pair.key) {
                        let object = reference(&name, &self.cluster);
                        if let Some(guard) = self.guards.get_mut(&object.kind) {
                            guard.put(object.key, Some(Facts::default()), name.clone());
                        }
                        self.put(name, pair.created, &pair.value);
                    }
                }
                Change::Delete(key) => {
                    if let Ok(name) = self.prefix.name(&key) {
                        self.delete(name);
                    }
                }
            }
        }
        let changes = self.objects.changes();
        self.send(changes, news.revision).await
    }

    /// Deletes what was held back and is believed now.
    pub(super) async fn look(&mut self) -> Result<(), Closed> {
        let guards = self.guards.values_mut();
        let gone: Vec<_> = guards.flat_map(KindGuard::look).collect();
        if gone.is_empty() {
            return Ok(());
        }
        gone.iter().for_each(|name| self.objects.delete(name));
        self.sink.send_changes(self.objects.changes()).await
    }

    /// Returns when [`Self::look`] may have something to do.
    pub(super) async fn wait(&self) {
        let waits = self.guards.values().map(|guard| Box::pin(guard.wait()));
        let _ = futures_util::future::select_all(waits).await;
    }

    fn put(&mut self, name: Name, created: i64, value: &[u8]) {
        let kind = reference(&name, &self.cluster).kind;
        if !self.objects.put(name, created, value) {
            self.stats.of(kind).count_malformed();
        }
    }

    fn delete(&mut self, name: Name) {
        let object = reference(&name, &self.cluster);
        let believed = match self.guards.get_mut(&object.kind) {
            Some(guard) => guard.delete(object.key, name),
            None => Some(name),
        };
        if let Some(name) = believed {
            self.objects.delete(&name);
        }
    }

    /// The object of a key; notes one that is no object's.
    fn name(&mut self, key: &[u8]) -> Option<Name> {
        match self.prefix.name(key) {
            Ok(name) => Some(name),
            Err(error) => {
                let place = String::from_utf8_lossy(key).into_owned();
                let problem = FileProblem::new(place, None, String::new(), error.to_string());
                self.strays.insert(key.to_owned(), problem);
                self.strays_changed = true;
                None
            }
        }
    }

    async fn send(&mut self, mut changes: Vec<ObjectChange>, revision: i64) -> Result<(), Closed> {
        let reached = |kind| ObjectChange::Reached {
            kind,
            cluster: Arc::clone(&self.cluster),
            version: u64::try_from(revision).unwrap_or_default(),
        };
        changes.extend(VERSIONED.map(reached));
        self.sink.send_changes(changes).await?;
        if std::mem::take(&mut self.strays_changed) {
            let problems = self.strays.values().cloned().collect();
            self.sink.send(Event::FileProblems(problems)).await?;
        }
        Ok(())
    }
}
