// SPDX-License-Identifier: Apache-2.0

//! ServiceExports with what they need of their Services, joined from the two watches of one cluster.
//!
//! The catalog keeps facts of exported Services alone, and a Service may come long before its ServiceExport:
//! so the facts of all Services wait here.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{
    FieldProblem, Kind, Object, ObjectChange, ObjectKey, ObjectRef, ServiceExport, ServiceFacts,
};
use tokio::sync::{Mutex, watch};

use crate::estate::Seat;
use crate::sink::Closed;
use crate::{Event, HeldDeletions, Sink};

/// The exports of one cluster.
#[derive(Debug)]
pub(super) struct Exports {
    state: Mutex<State>,
    sink: Sink,
    holds: Arc<HeldDeletions>,
    seat: Seat,
}

impl Drop for Exports {
    fn drop(&mut self) {
        let state = std::mem::take(self.state.get_mut());
        self.holds.estate().leave(&self.seat, state);
    }
}

/// State that both watches have told so far.
#[derive(Debug, Default)]
struct State {
    /// Whether Services without a ServiceExport may be exported, too.
    automatic: bool,
    requested: BTreeMap<ObjectKey, (ServiceExport, Vec<FieldProblem>)>,
    facts: BTreeMap<ObjectKey, Arc<ServiceFacts>>,
    /// Exports that the catalog must be told.
    dirty: BTreeSet<ObjectKey>,
}

impl Exports {
    /// Begins with what the source before of the cluster knew: its guards may hold the deletion of a Service that an
    /// export needs.
    pub(super) fn new(
        cluster: &Arc<str>,
        sink: Sink,
        automatic: bool,
        holds: &Arc<HeldDeletions>,
    ) -> Self {
        let (seat, left) = holds.estate().take::<State>(cluster, None);
        let mut state = left.unwrap_or_default();
        state.set_automatic(automatic);
        state.tell_again();
        Self {
            state: Mutex::new(state),
            sink,
            holds: Arc::clone(holds),
            seat,
        }
    }

    /// Follows the policy's word on Services without a ServiceExport. Ends only with the sink's reader.
    pub(super) async fn follow(&self, mut automatic: watch::Receiver<bool>) -> Result<(), Closed> {
        loop {
            let now = *automatic.borrow_and_update();
            self.state.lock().await.set_automatic(now);
            self.flush().await?;
            if automatic.changed().await.is_err() {
                // The policy's reader is gone; the source ends with it.
                std::future::pending::<()>().await;
            }
        }
    }

    /// Notes what an export needs of a Service; `None` for one that is gone.
    pub(super) async fn service(&self, key: ObjectKey, facts: Option<Arc<ServiceFacts>>) {
        self.state.lock().await.service(key, facts);
    }

    /// Notes a change of a ServiceExport. Other changes are returned.
    pub(super) async fn export(&self, change: ObjectChange) -> Option<ObjectChange> {
        self.state.lock().await.export(change)
    }

    /// A listing of a kind is complete: other objects of it are gone. Returns what the catalog must keep.
    pub(super) async fn retain(
        &self,
        kind: Kind,
        keep: &BTreeSet<ObjectKey>,
    ) -> BTreeSet<ObjectKey> {
        self.state.lock().await.retain(kind, keep)
    }

    /// Sends the exports that changed. One watch at a time, so that none overtakes a newer one.
    pub(super) async fn flush(&self) -> Result<(), Closed> {
        let mut state = self.state.lock().await;
        let changes = state.changes();
        if changes.is_empty() {
            return Ok(());
        }
        self.sink.send(Event::Changes(changes)).await
    }
}

impl State {
    fn set_automatic(&mut self, automatic: bool) {
        if std::mem::replace(&mut self.automatic, automatic) != automatic {
            self.dirty.extend(self.facts.keys().cloned());
        }
    }

    /// Marks all exports to be told once more: those that a source does not tell after its start are gone.
    fn tell_again(&mut self) {
        let automatic = self.facts.keys().filter(|_| self.automatic);
        let all = self.requested.keys().chain(automatic);
        self.dirty.extend(all.cloned());
    }

    fn service(&mut self, key: ObjectKey, facts: Option<Arc<ServiceFacts>>) {
        let before = match &facts {
            Some(facts) => self.facts.insert(key.clone(), Arc::clone(facts)),
            None => self.facts.remove(&key),
        };
        if before != facts && (self.automatic || self.requested.contains_key(&key)) {
            self.dirty.insert(key);
        }
    }

    fn export(&mut self, change: ObjectChange) -> Option<ObjectChange> {
        match change {
            ObjectChange::Put {
                object: Object::ServiceExport(export),
                problems,
            } => {
                let key = export.key.clone();
                self.dirty.insert(key.clone());
                self.requested.insert(key, (export, problems));
                None
            }
            ObjectChange::Delete(object) if object.kind == Kind::ServiceExport => {
                self.requested.remove(&object.key);
                self.dirty.insert(object.key);
                None
            }
            // An unreadable one is as it was.
            other => Some(other),
        }
    }

    fn retain(&mut self, kind: Kind, keep: &BTreeSet<ObjectKey>) -> BTreeSet<ObjectKey> {
        let gone: Vec<ObjectKey> = match kind {
            Kind::Service => self.facts.keys().cloned().collect(),
            _ => self.requested.keys().cloned().collect(),
        };
        for key in gone.into_iter().filter(|key| !keep.contains(key)) {
            match kind {
                Kind::Service => self.service(key, None),
                _ => {
                    self.requested.remove(&key);
                    self.dirty.insert(key);
                }
            }
        }
        let automatic = self.facts.keys().filter(|_| self.automatic);
        keep.iter().chain(automatic).cloned().collect()
    }

    /// The changes of dirty exports, in any order of what was told.
    fn changes(&mut self) -> Vec<ObjectChange> {
        let dirty = std::mem::take(&mut self.dirty);
        dirty.into_iter().map(|key| self.change(key)).collect()
    }

    fn change(&self, key: ObjectKey) -> ObjectChange {
        let facts = self.facts.get(&key).cloned();
        let requested = self.requested.get(&key).cloned();
        let is_automatic = self.automatic && facts.is_some();
        let (export, problems) = match requested {
            Some(requested) => requested,
            None if is_automatic => (ServiceExport::new(key), Vec::new()),
            None => {
                let kind = Kind::ServiceExport;
                return ObjectChange::Delete(ObjectRef { kind, key });
            }
        };
        let export = ServiceExport {
            service: facts,
            ..export
        };
        ObjectChange::Put {
            object: Object::ServiceExport(export),
            problems,
        }
    }
}

#[cfg(test)]
mod tests {
    use portolan_catalog::ServiceType;
    use proptest::prelude::*;

    use super::*;

    fn key(name: u8) -> ObjectKey {
        ObjectKey {
            cluster: "eu-1".into(),
            namespace: "shop".into(),
            name: format!("s{name}").into(),
        }
    }

    fn facts(port: u8) -> Arc<ServiceFacts> {
        Arc::new(ServiceFacts {
            kind: ServiceType::ClusterIp,
            labels: BTreeMap::new(),
            ports: Vec::new(),
            families: Vec::new(),
            affinity_seconds: Some(u32::from(port)),
            internal_local: false,
            traffic_distribution: None,
        })
    }

    #[derive(Debug, Clone)]
    enum Told {
        Service(u8, Option<u8>),
        Export(u8, bool),
        Listed(bool, BTreeSet<u8>),
        Automatic(bool),
        Flush,
    }

    fn told() -> impl Strategy<Value = Told> {
        prop_oneof![
            (0..4u8, proptest::option::of(0..3u8))
                .prop_map(|(name, facts)| Told::Service(name, facts)),
            (0..4u8, any::<bool>()).prop_map(|(name, is)| Told::Export(name, is)),
            (any::<bool>(), proptest::collection::btree_set(0..4u8, 0..4))
                .prop_map(|(services, keep)| Told::Listed(services, keep)),
            any::<bool>().prop_map(Told::Automatic),
            Just(Told::Flush),
        ]
    }

    proptest! {
        /// Whatever comes in whatever order, the catalog ends with the join of both kinds.
        #[test]
        fn the_catalog_has_the_join_of_both_kinds(all in proptest::collection::vec(told(), 0..40)) {
            let (mut state, mut catalog) = (State::default(), BTreeMap::new());
            let (mut services, mut exports) = (BTreeMap::new(), BTreeSet::new());
            let mut automatic = false;
            for one in all.into_iter().chain([Told::Flush]) {
                match one {
                    Told::Service(name, of) => {
                        let of = of.map(facts);
                        state.service(key(name), of.clone());
                        match of {
                            Some(of) => _ = services.insert(name, of),
                            None => _ = services.remove(&name),
                        }
                    }
                    Told::Export(name, true) => {
                        let object = Object::ServiceExport(ServiceExport {
                            requested: true,
                            ..ServiceExport::new(key(name))
                        });
                        let problems = Vec::new();
                        let told = state.export(ObjectChange::Put { object, problems });
                        prop_assert!(told.is_none());
                        exports.insert(name);
                    }
                    Told::Export(name, false) => {
                        let (kind, key) = (Kind::ServiceExport, key(name));
                        state.export(ObjectChange::Delete(ObjectRef { kind, key }));
                        exports.remove(&name);
                    }
                    Told::Listed(of_services, keep) => {
                        let kind = if of_services { Kind::Service } else { Kind::ServiceExport };
                        state.retain(kind, &keep.iter().map(|name| key(*name)).collect());
                        if of_services {
                            services.retain(|name, _| keep.contains(name));
                        } else {
                            exports.retain(|name| keep.contains(name));
                        }
                    }
                    Told::Automatic(is) => {
                        state.set_automatic(is);
                        automatic = is;
                    }
                    Told::Flush => {
                        for change in state.changes() {
                            match change {
                                ObjectChange::Put { object: Object::ServiceExport(export), .. } => {
                                    catalog.insert(export.key.clone(), (export.requested, export.service));
                                }
                                ObjectChange::Delete(object) => _ = catalog.remove(&object.key),
                                other => prop_assert!(false, "{other:?}"),
                            }
                        }
                    }
                }
            }
            let names = exports.iter().copied().chain(services.keys().copied().filter(|_| automatic));
            let expected: BTreeMap<_, _> = names
                .map(|name| (key(name), (exports.contains(&name), services.get(&name).cloned())))
                .collect();
            prop_assert_eq!(catalog, expected);
        }
    }
}
