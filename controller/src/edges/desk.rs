// SPDX-License-Identifier: Apache-2.0

//! The edge's side of work: what the replicas of the centre ask to be written, and which of it is done.
//!
//! The work of one replica is done at a time: of those that lead, the one that said so last. Without one nothing is
//! written, so that the objects of a cluster without its centre stay as they are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_catalog::{Kind, Object, ObjectChange, ObjectKey, ServiceImport};
use portolan_edge::work::{EdgeWork, RefusedItem, WantedSlices};
use portolan_federate::imports::ImportName;
use portolan_mcs::{Action, Write, WriteKind};
use serde_json::Value;
use tokio::sync::watch;

use super::UplinkStats;
use super::refusals::Refusals;
use crate::mcs::Work;

/// Writes that replicas ask for, and the ServiceImports that the cluster has.
#[derive(Debug)]
pub(super) struct Desk {
    state: Mutex<State>,
    work: watch::Sender<Work>,
    refusals: Refusals,
}

#[derive(Debug, Default)]
struct State {
    /// By stream.
    asked: BTreeMap<u64, Asked>,
    /// The number of the last stream, or of the last beginning of a lead.
    last: u64,
    /// The ServiceImports of this cluster.
    imports: BTreeMap<ImportName, Import>,
}

/// Writes that one replica asks for.
#[derive(Debug, Default)]
struct Asked {
    /// Present while the replica leads: the larger, the later it began.
    leads: Option<u64>,
    writes: Arc<Vec<Write>>,
    slices: Option<Arc<WantedSlices>>,
}

/// A ServiceImport of this cluster.
#[derive(Debug, PartialEq, Eq)]
struct Import {
    uid: Arc<str>,
    /// Whether it has a centre's mark.
    is_ours: bool,
}

impl Desk {
    pub(super) fn new(stats: Arc<UplinkStats>) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            work: watch::Sender::default(),
            refusals: Refusals::new(
                stats,
                "not written for the centre: not what an edge writes (logged once)",
            ),
        })
    }

    /// The work to be done now.
    pub(super) fn work(&self) -> watch::Receiver<Work> {
        self.work.subscribe()
    }

    /// Notes what the source says of ServiceImports.
    pub(super) fn see(&self, changes: &[ObjectChange]) {
        let mut state = self.lock();
        let mut has_changed = false;
        for change in changes {
            has_changed |= state.see(change);
        }
        if has_changed {
            self.decide(&state);
        }
    }

    /// A place for what one replica asks for, over one stream.
    pub(super) fn open(self: &Arc<Self>) -> Place {
        let mut state = self.lock();
        state.last += 1;
        let stream = state.last;
        state.asked.insert(stream, Asked::default());
        drop(state);
        let desk = Arc::clone(self);
        Place { stream, desk }
    }

    /// Names items that are left out.
    pub(super) fn refuse(&self, items: &[RefusedItem]) {
        for item in items {
            self.refusals.note(item);
        }
    }

    /// Sets the work to that of the replica that leads.
    fn decide(&self, state: &State) {
        let asked = state.asked.values();
        let leaders = asked.filter(|asked| asked.leads.is_some());
        let leader = leaders.max_by_key(|asked| asked.leads);
        let work = leader.map(|asked| state.permitted(asked));
        self.work.send_replace(work.unwrap_or_default());
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// The part of the work that may be done with the objects that there are.
    fn permitted(&self, asked: &Asked) -> Work {
        let writes = asked.writes.iter().filter(|write| self.may(write));
        let owners = asked.slices.is_some().then(|| self.owners());
        Work {
            writes: Arc::new(writes.cloned().collect()),
            slices: asked.slices.clone(),
            owners: Arc::new(owners.unwrap_or_default()),
            // The centre sends no slices while there are some that stay.
            ..Work::default()
        }
    }

    /// Returns `true` if a write may be done. The centre is late at times: what is gone meanwhile,
    /// or is there already, waits for the centre to hear of it.
    fn may(&self, write: &Write) -> bool {
        if write.target.kind != WriteKind::ServiceImport {
            return true;
        }
        let import = self.imports.get(&write.target.name);
        let uid = match &write.action {
            Action::Create(_) => return import.is_none(),
            Action::Delete { uid } => Some(&**uid),
            Action::Apply(object) | Action::ApplyStatus(object) => {
                object.pointer("/metadata/uid").and_then(Value::as_str)
            }
        };
        import.is_some_and(|import| import.is_ours && uid == Some(&*import.uid))
    }

    /// Returns `true` if a write changes a ServiceImport of somebody else.
    fn is_foreign(&self, write: &Write) -> bool {
        let is_import = write.target.kind == WriteKind::ServiceImport;
        let changes = is_import && !matches!(write.action, Action::Create(_));
        let import = self.imports.get(&write.target.name);
        changes && import.is_some_and(|import| !import.is_ours)
    }

    /// Notes a change of a ServiceImport. Returns whether it changed anything.
    fn see(&mut self, change: &ObjectChange) -> bool {
        match change {
            ObjectChange::Put {
                object: Object::ServiceImport(import),
                ..
            } => self.put(import),
            ObjectChange::Delete(object) if object.kind == Kind::ServiceImport => {
                self.imports.remove(&name(&object.key)).is_some()
            }
            ObjectChange::Retain {
                kind: Kind::ServiceImport,
                keep,
                ..
            } => {
                let before = self.imports.len();
                let keep: BTreeSet<_> = keep.iter().map(name).collect();
                self.imports.retain(|name, _| keep.contains(name));
                self.imports.len() != before
            }
            _ => false,
        }
    }

    fn put(&mut self, import: &ServiceImport) -> bool {
        let seen = Import {
            uid: Arc::clone(&import.uid),
            is_ours: import.own.is_some(),
        };
        let name = name(&import.key);
        let is_same = self.imports.get(&name) == Some(&seen);
        if !is_same {
            self.imports.insert(name, seen);
        }
        !is_same
    }

    /// The UIDs of the ServiceImports that may own EndpointSlices.
    fn owners(&self) -> BTreeMap<ImportName, Arc<str>> {
        let imports = self.imports.iter();
        let ours = imports.filter(|(_, import)| import.is_ours && !import.uid.is_empty());
        ours.map(|(name, import)| (name.clone(), Arc::clone(&import.uid)))
            .collect()
    }
}

fn name(key: &ObjectKey) -> ImportName {
    ImportName {
        namespace: Arc::clone(&key.namespace),
        name: Arc::clone(&key.name),
    }
}

/// The place of one stream. What its replica asked for is not done any more once this is dropped.
#[derive(Debug)]
pub(super) struct Place {
    stream: u64,
    desk: Arc<Desk>,
}

impl Place {
    /// Names items that are left out.
    pub(super) fn refuse(&self, items: &[RefusedItem]) {
        self.desk.refuse(items);
    }

    /// Sets what the replica asks for.
    pub(super) fn set(&self, work: EdgeWork) {
        let mut state = self.desk.lock();
        state.last += 1;
        let now = state.last;
        for write in work.writes.iter().filter(|write| state.is_foreign(write)) {
            let target = &write.target;
            let why = "an object of somebody else, without the annotation portolan.dev/winner";
            self.desk.refusals.note(&format!("{target}: {why}"));
        }
        let asked = state.asked.entry(self.stream).or_default();
        let leads = asked.leads.or(Some(now)).filter(|_| work.leading);
        *asked = Asked {
            leads,
            writes: work.writes,
            slices: work.slices,
        };
        self.desk.decide(&state);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.desk.lock();
        let asked = state.asked.remove(&self.stream);
        if asked.is_some_and(|asked| asked.leads.is_some()) {
            self.desk.decide(&state);
        }
    }
}
