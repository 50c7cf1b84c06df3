// SPDX-License-Identifier: Apache-2.0

//! Objects that a source has sent since it was started again: the rest of its cluster's objects in the catalog is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{Kind, ObjectChange, ObjectKey};

/// The kinds of objects that the catalog has of a cluster.
const KINDS: [Kind; 8] = [
    Kind::Service,
    Kind::EndpointSlice,
    Kind::Node,
    Kind::Pod,
    Kind::Namespace,
    Kind::ServiceExport,
    Kind::ServiceImport,
    Kind::ClusterProperty,
];

/// The objects that a source has sent.
#[derive(Debug, Default)]
pub(super) struct Resent(BTreeMap<Kind, BTreeSet<ObjectKey>>);

impl Resent {
    pub(super) fn note(&mut self, changes: &[ObjectChange]) {
        for change in changes {
            let object = match change {
                ObjectChange::Put { object, .. } => object.reference(),
                ObjectChange::Refused { object, .. } => object.clone(),
                // With those that it does not send again, as their deletions or losses of endpoints are held.
                ObjectChange::Retain { kind, keep, .. } => {
                    let of_kind = self.0.entry(*kind).or_default();
                    of_kind.extend(keep.iter().cloned());
                    continue;
                }
                _ => continue,
            };
            self.0.entry(object.kind).or_default().insert(object.key);
        }
    }

    /// The changes that leave these objects of a cluster, and no others.
    pub(super) fn retained(self, cluster: &Arc<str>) -> impl Iterator<Item = ObjectChange> + use<> {
        let (cluster, mut keep) = (Arc::clone(cluster), self.0);
        KINDS.into_iter().map(move |kind| ObjectChange::Retain {
            kind,
            cluster: Arc::clone(&cluster),
            keep: keep.remove(&kind).unwrap_or_default(),
        })
    }
}

#[cfg(test)]
mod tests {
    use portolan_catalog::{Catalog, DirtySet, Object, Service, ServiceExport};

    use super::*;

    #[test]
    fn what_a_source_does_not_send_again_is_gone() {
        let key = |name: &str| ObjectKey {
            cluster: "eu-1".into(),
            namespace: "shop".into(),
            name: name.into(),
        };
        let put = |object| ObjectChange::Put {
            object,
            problems: Vec::new(),
        };
        let service = |name| put(Object::Service(Service::new(key(name))));
        let export = |name| put(Object::ServiceExport(ServiceExport::new(key(name))));
        let (mut catalog, mut dirty) = (Catalog::default(), DirtySet::default());
        let all = ["a", "b"]
            .into_iter()
            .flat_map(|name| [service(name), export(name)]);
        all.for_each(|change| catalog.apply(change, &mut dirty));
        let mut resent = Resent::default();
        let refused = ObjectChange::Refused {
            object: portolan_catalog::ObjectRef {
                kind: Kind::ServiceExport,
                key: key("b"),
            },
            problems: Vec::new(),
        };
        resent.note(&[service("a"), refused]);
        let retained = resent.retained(&"eu-1".into());
        retained.for_each(|change| catalog.apply(change, &mut dirty));
        assert!(catalog.service(&key("a")).is_some() && catalog.service(&key("b")).is_none());
        assert!(catalog.export(&key("a")).is_none() && catalog.export(&key("b")).is_some());
    }

    #[test]
    fn what_a_source_holds_stays_though_it_is_not_sent_again() {
        let key = ObjectKey {
            cluster: "eu-1".into(),
            namespace: "shop".into(),
            name: "a".into(),
        };
        let mut resent = Resent::default();
        resent.note(&[ObjectChange::Retain {
            kind: Kind::Service,
            cluster: "eu-1".into(),
            keep: BTreeSet::from([key.clone()]),
        }]);
        let retained = resent.retained(&"eu-1".into());
        let mut kept = retained.filter_map(|change| match change {
            ObjectChange::Retain { keep, .. } => keep.into_iter().next(),
            _ => None,
        });
        assert_eq!((kept.next(), kept.next()), (Some(key), None));
    }
}
