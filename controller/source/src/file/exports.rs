// SPDX-License-Identifier: Apache-2.0

//! Services that other clusters may import, made of the objects of all files: ServiceExports with the facts
//! of their Services, and namespaces.
//!
//! A namespace exists if a Namespace names it, or a Service or ServiceExport is in it: files often lack
//! Namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{
    FieldProblem, Kind, Object, ObjectKey, ObjectRef, ServiceExport, ServiceFacts,
};

use super::merge::Told;
use super::parse::FileEntry;
use crate::objects::Converted;

/// The exports of the last reading. What cannot be read any more stays as it was.
#[derive(Debug, Default)]
pub(super) struct Exports {
    automatic: bool,
    is_changed: bool,
    requested: BTreeMap<ObjectKey, ServiceExport>,
    facts: BTreeMap<ObjectKey, Arc<ServiceFacts>>,
}

impl Exports {
    /// Whether Services without a ServiceExport may be exported, too.
    pub(super) fn set_automatic(&mut self, automatic: bool) {
        self.is_changed |= self.automatic != automatic;
        self.automatic = automatic;
    }

    /// Returns `true` if that changed since the last call.
    pub(super) fn take_changed(&mut self) -> bool {
        std::mem::take(&mut self.is_changed)
    }

    /// The exports and namespaces of these objects, for the catalog.
    pub(super) fn of<'e>(
        &mut self,
        entries: impl Iterator<Item = (&'e ObjectRef, &'e FileEntry)>,
    ) -> Told {
        let mut namespaces = BTreeSet::new();
        let mut services = BTreeMap::new();
        let mut exports = BTreeMap::new();
        for (object, entry) in entries {
            let of_kind = match object.kind {
                Kind::Service => &mut services,
                Kind::ServiceExport => &mut exports,
                _ => continue,
            };
            of_kind.insert(&object.key, entry);
            let namespace = Arc::clone(&object.key.namespace);
            namespaces.insert((Arc::clone(&object.key.cluster), namespace));
        }
        self.learn(&services, &exports);
        let namespaces = namespaces.into_iter().map(namespace);
        let keys: BTreeSet<&ObjectKey> = self.requested.keys().chain(self.facts.keys()).collect();
        let exports = keys.into_iter().map(|key| {
            let problems = exports.get(key).map(|entry| problems(&entry.converted));
            self.export(key, problems.unwrap_or_default())
        });
        namespaces.chain(exports).collect()
    }

    /// Notes the exports, and the facts of their Services. An unreadable object is as it was.
    fn learn(
        &mut self,
        services: &BTreeMap<&ObjectKey, &FileEntry>,
        exports: &BTreeMap<&ObjectKey, &FileEntry>,
    ) {
        let mut last = std::mem::take(&mut self.requested);
        for (key, entry) in exports {
            let export = match &*entry.converted {
                Converted::Put {
                    object: Object::ServiceExport(export),
                    ..
                } => Some(export.clone()),
                Converted::Refused { .. } => last.remove(*key),
                _ => None,
            };
            let export = export.map(|export| (ObjectKey::clone(key), export));
            self.requested.extend(export);
        }
        let mut last = std::mem::take(&mut self.facts);
        for (key, entry) in services {
            if !self.automatic && !self.requested.contains_key(*key) {
                continue;
            }
            let facts = match &*entry.converted {
                Converted::Refused { .. } => last.remove(*key),
                _ => entry.more.facts.clone(),
            };
            let facts = facts.map(|facts| (ObjectKey::clone(key), facts));
            self.facts.extend(facts);
        }
    }

    fn export(&self, key: &ObjectKey, problems: Vec<FieldProblem>) -> (ObjectRef, Arc<Converted>) {
        let requested = self.requested.get(key).cloned();
        let export = ServiceExport {
            service: self.facts.get(key).cloned(),
            ..requested.unwrap_or_else(|| ServiceExport::new(key.clone()))
        };
        let object = Object::ServiceExport(export);
        let reference = object.reference();
        (reference, Arc::new(Converted::Put { object, problems }))
    }
}

fn problems(converted: &Converted) -> Vec<FieldProblem> {
    match converted {
        Converted::Put { problems, .. } | Converted::Refused { problems, .. } => problems.clone(),
        Converted::NotOurs(_) => Vec::new(),
    }
}

fn namespace((cluster, name): (Arc<str>, Arc<str>)) -> (ObjectRef, Arc<Converted>) {
    let object = Object::Namespace(ObjectKey {
        cluster,
        namespace: Arc::default(),
        name,
    });
    let problems = Vec::new();
    let reference = object.reference();
    (reference, Arc::new(Converted::Put { object, problems }))
}
