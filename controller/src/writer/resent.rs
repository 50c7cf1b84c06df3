// SPDX-License-Identifier: Apache-2.0

//! Objects that a source has sent since it was started again: the rest of its cluster's objects in the catalog is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use portolan_catalog::{Kind, ObjectChange, ObjectKey};
use portolan_model::ByRecord;

/// The objects that a source has sent.
#[derive(Debug, Default)]
pub(super) struct Resent {
    objects: BTreeMap<Kind, BTreeSet<ObjectKey>>,
    /// `true` if it has sent load balancers, which come all at once.
    balancers: bool,
}

impl Resent {
    pub(super) fn note(&mut self, changes: &[ObjectChange]) {
        for change in changes {
            let object = match change {
                ObjectChange::Put { object, .. } => object.reference(),
                ObjectChange::Refused { object, .. } => object.clone(),
                // With those that it does not send again, as their deletions or losses of endpoints are held.
                ObjectChange::Retain { kind, keep, .. } => {
                    let of_kind = self.objects.entry(*kind).or_default();
                    of_kind.extend(keep.iter().cloned());
                    continue;
                }
                ObjectChange::LoadBalancers { .. } => {
                    self.balancers = true;
                    continue;
                }
                _ => continue,
            };
            let of_kind = self.objects.entry(object.kind).or_default();
            of_kind.insert(object.key);
        }
    }

    /// The changes that leave these objects of a cluster, and no others.
    pub(super) fn retained(self, cluster: &Arc<str>) -> impl Iterator<Item = ObjectChange> + use<> {
        // A source of another kind than the one before may have none.
        let balancers = (!self.balancers).then(|| ObjectChange::LoadBalancers {
            cluster: Arc::clone(cluster),
            records: ByRecord::new(),
        });
        let (cluster, mut keep) = (Arc::clone(cluster), self.objects);
        let kinds = Kind::OF_CLUSTER.into_iter();
        let objects = kinds.map(move |kind| ObjectChange::Retain {
            kind,
            cluster: Arc::clone(&cluster),
            keep: keep.remove(&kind).unwrap_or_default(),
        });
        objects.chain(balancers)
    }
}

#[cfg(test)]
mod tests {
    use portolan_catalog::{Catalog, DirtySet, Object, Service, ServiceExport};
    use portolan_model::{Protocol, Record, RecordKey};

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
    fn load_balancers_that_a_source_does_not_send_again_are_gone() {
        let key = RecordKey {
            cluster: "eu-1".into(),
            namespace: "shop".into(),
            service: "web".into(),
            port: "tcp-80".into(),
            protocol: Protocol::Tcp,
        };
        let record = Arc::new(Record::new(key.clone()));
        let balancers = ObjectChange::LoadBalancers {
            cluster: "eu-1".into(),
            records: [(key, record)].into_iter().collect(),
        };
        let service = ObjectChange::Put {
            object: Object::Service(Service::new(ObjectKey {
                cluster: "eu-1".into(),
                namespace: "shop".into(),
                name: "a".into(),
            })),
            problems: Vec::new(),
        };
        for is_sent in [false, true] {
            let (mut catalog, mut dirty) = (Catalog::default(), DirtySet::default());
            catalog.apply(balancers.clone(), &mut dirty);
            let mut resent = Resent::default();
            resent.note(std::slice::from_ref(&service));
            if is_sent {
                resent.note(std::slice::from_ref(&balancers));
            }
            let retained = resent.retained(&"eu-1".into());
            retained.for_each(|change| catalog.apply(change, &mut dirty));
            assert_eq!(!catalog.load_balancers().is_empty(), is_sent);
        }
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
