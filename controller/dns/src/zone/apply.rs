// SPDX-License-Identifier: Apache-2.0

//! Application of changes to a zone.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::reverse::Reverse;
use super::service::ServiceEntry;
use super::{Applied, Namespace, Zone};
use crate::config::ZoneConfig;
use crate::input::{
    Listing, NamesChange, Pod, PodKey, Service, ServiceKey, Slice, SliceKey, Subject,
};
use crate::label;
use crate::problem::{Object, RecordProblem};

impl Zone {
    /// Takes one change.
    pub fn apply(&mut self, change: NamesChange) -> Applied {
        let mut applied = Applied::default();
        self.apply_into(change, &mut applied);
        if !applied.subjects.is_empty() {
            self.serial = self.serial.wrapping_add(1);
        }
        applied
    }

    fn apply_into(&mut self, change: NamesChange, out: &mut Applied) {
        let Some(change) = self.admit(change) else {
            return;
        };
        match change {
            NamesChange::Namespace(name) => self.declare(name, true, out),
            NamesChange::NamespaceRemoved(name) => self.declare(name, false, out),
            NamesChange::Service(service) => self.set_service(service, out),
            NamesChange::ServiceRemoved(key) => self.remove_service(&key, out),
            NamesChange::Slice(slice) => self.set_slice(slice, out),
            NamesChange::SliceRemoved(key) => self.remove_slice(&lower_slice(key), None, out),
            NamesChange::Whole {
                key,
                service,
                slices,
            } => self.set_whole(key, service, slices, out),
            NamesChange::Pod(pod) => self.set_pod(pod, out),
            NamesChange::PodRemoved(key) => {
                self.set_addresses(lower_pod(key), BTreeSet::new(), out)
            }
            NamesChange::PodAddress {
                namespace,
                address,
                count,
            } => self.set_count(&namespace.to_ascii_lowercase(), address, count, out),
            NamesChange::Listed(listing) => self.retain(listing, out),
            NamesChange::Synced => self.sync(out),
        }
    }

    /// The part of a change that is kept: objects without names by the settings are dropped, except
    /// the name servers' Service.
    fn admit(&self, change: NamesChange) -> Option<NamesChange> {
        let config = &self.config;
        let needs = |namespace: &str, name: &str| {
            let server = config.name_server.as_ref();
            config.exposes(namespace)
                || server.is_some_and(|key| key.namespace == namespace && key.name == name)
        };
        match change {
            NamesChange::Namespace(name) if !config.exposes(&name) => None,
            NamesChange::Service(of) if !needs(&of.key.namespace, &of.key.name) => None,
            NamesChange::Pod(pod) if !config.exposes(&pod.key.namespace) => None,
            // It may have been another Service's before.
            NamesChange::Slice(slice)
                if !config.endpoints || !needs(&slice.key.namespace, &slice.service) =>
            {
                Some(NamesChange::SliceRemoved(slice.key))
            }
            other => Some(other),
        }
    }

    fn sync(&mut self, out: &mut Applied) {
        if !std::mem::replace(&mut self.synced, true) {
            out.subjects.insert(Subject::Apex);
        }
    }

    /// Removes everything of a kind that a listing did not have.
    fn retain(&mut self, listing: Listing, out: &mut Applied) {
        let gone = match listing {
            Listing::Namespaces(keep) => {
                let keep = lower_all(keep, |name| name.to_ascii_lowercase());
                let declared = self.namespaces.iter().filter(|(_, entry)| entry.declared);
                let gone = declared.filter(|(name, _)| !keep.contains(*name));
                gone.map(|(name, _)| NamesChange::NamespaceRemoved(name.clone()))
                    .collect()
            }
            Listing::Services(keep) => self.services_but(&lower_all(keep, lower_service)),
            Listing::Slices(keep) => {
                let keep = lower_all(keep, lower_slice);
                let gone = self.slices.keys().filter(|key| !keep.contains(*key));
                gone.cloned().map(NamesChange::SliceRemoved).collect()
            }
            Listing::Pods(keep) => {
                let keep = lower_all(keep, lower_pod);
                let gone = self.pods.keys().filter(|key| !keep.contains(*key));
                gone.cloned()
                    .map(NamesChange::PodRemoved)
                    .collect::<Vec<_>>()
            }
        };
        for change in gone {
            self.apply_into(change, out);
        }
    }

    fn services_but(&self, keep: &BTreeSet<ServiceKey>) -> Vec<NamesChange> {
        let mut gone = Vec::new();
        for (namespace, entry) in &self.namespaces {
            let existing = entry.services.iter().filter(|(_, of)| of.service.is_some());
            let keys = existing.map(|(name, _)| ServiceKey::new(namespace, name));
            let keys = keys.filter(|key| !keep.contains(key));
            gone.extend(keys.map(NamesChange::ServiceRemoved));
        }
        gone
    }

    fn declare(&mut self, name: String, declared: bool, out: &mut Applied) {
        if let (true, Err(why)) = (declared, label::host(&name)) {
            let reason = format!("{name:?} {why}; the Namespace has no names");
            let object = Object::Namespace(name);
            out.problems
                .push(RecordProblem::new(object, "metadata.name", reason));
            return;
        }
        let name = name.to_ascii_lowercase();
        self.in_namespace(&name, out, |namespace, _, _| namespace.declared = declared);
    }

    fn set_service(&mut self, mut service: Service, out: &mut Applied) {
        service.key = lower_service(service.key);
        let key = service.key.clone();
        self.update(&key, out, |entry| entry.service = Some(service));
    }

    fn remove_service(&mut self, key: &ServiceKey, out: &mut Applied) {
        let key = lower_service(key.clone());
        self.update(&key, out, |entry| entry.service = None);
    }

    fn set_slice(&mut self, mut slice: Slice, out: &mut Applied) {
        slice.key = lower_slice(slice.key);
        slice.service.make_ascii_lowercase();
        // A slice may change hands: its label can be edited.
        self.remove_slice(&slice.key, Some(&slice.service), out);
        let service = ServiceKey::new(&slice.key.namespace, &slice.service);
        self.slices.insert(slice.key.clone(), slice.service.clone());
        self.update(&service, out, |entry| {
            entry.slices.insert(slice.key.name.clone(), slice);
        });
    }

    fn set_whole(
        &mut self,
        key: ServiceKey,
        service: Option<Service>,
        slices: Vec<Slice>,
        out: &mut Applied,
    ) {
        let key = lower_service(key);
        // The slices' former Services are left alone: an item of theirs follows if their records
        // change.
        let slices = slices.into_iter().map(|slice| {
            let slice = Slice {
                key: lower_slice(slice.key),
                service: key.name.clone(),
                ..slice
            };
            (slice.key.name.clone(), slice)
        });
        let whole: BTreeMap<_, _> = slices.collect();
        let service = service.map(|service| Service {
            key: key.clone(),
            ..service
        });
        self.update(&key, out, |entry| {
            entry.service = service;
            entry.slices = whole;
        });
    }

    /// Takes the slice from its Service, unless that is `keep`.
    fn remove_slice(&mut self, key: &SliceKey, keep: Option<&str>, out: &mut Applied) {
        match self.slices.get(key) {
            Some(service) if Some(service.as_str()) != keep => {
                let service = ServiceKey::new(&key.namespace, service);
                self.slices.remove(key);
                self.update(&service, out, |entry| {
                    entry.slices.remove(&key.name);
                });
            }
            _ => {}
        }
    }

    /// Changes the input of a Service, and all records that follow from it.
    fn update(
        &mut self,
        key: &ServiceKey,
        out: &mut Applied,
        change: impl FnOnce(&mut ServiceEntry),
    ) {
        self.in_namespace(&key.namespace, out, |namespace, zone, out| {
            let entry = namespace.services.entry(key.name.clone()).or_default();
            let existed = entry.service.is_some();
            change(entry);
            namespace.existing += usize::from(entry.service.is_some());
            namespace.existing -= usize::from(existed);
            entry.recompile(key, zone.config, zone.reverse, out);
            // A Service without records counts too: its Namespace exists because of it.
            if existed != entry.service.is_some() {
                out.subjects.insert(Subject::Service(key.clone()));
            }
            if entry.is_unused() {
                namespace.services.remove(&key.name);
            }
        });
    }

    fn set_pod(&mut self, pod: Pod, out: &mut Applied) {
        let addresses = pod.addresses.iter().map(IpAddr::to_canonical).collect();
        self.set_addresses(lower_pod(pod.key), addresses, out);
    }

    /// Counts how many Pods of a Namespace have each address: while one is replaced by another
    /// with its address, both are there.
    fn set_addresses(&mut self, key: PodKey, new: BTreeSet<IpAddr>, out: &mut Applied) {
        let namespace = key.namespace.clone();
        let old = match new.is_empty() {
            true => self.pods.remove(&key).unwrap_or_default(),
            false => self.pods.insert(key, new.clone()).unwrap_or_default(),
        };
        self.in_namespace(&namespace, out, |entry, _, out| {
            for address in new.difference(&old) {
                *entry.pods.entry(*address).or_default() += 1;
            }
            for address in old.difference(&new) {
                let Some(count) = entry.pods.get_mut(address) else {
                    continue;
                };
                *count -= 1;
                if *count == 0 {
                    entry.pods.remove(address);
                }
            }
            let touched = new.symmetric_difference(&old);
            out.subjects
                .extend(touched.map(|address| pod_subject(&namespace, *address)));
        });
    }

    fn set_count(&mut self, namespace: &str, address: IpAddr, count: usize, out: &mut Applied) {
        self.in_namespace(namespace, out, |entry, _, out| {
            let before = match count {
                0 => entry.pods.remove(&address),
                _ => entry.pods.insert(address, count),
            };
            if before.unwrap_or_default() != count {
                out.subjects.insert(pod_subject(namespace, address));
            }
        });
    }

    /// Changes a Namespace, and reports it if it thereby begins or ceases to exist.
    fn in_namespace(
        &mut self,
        name: &str,
        out: &mut Applied,
        change: impl FnOnce(&mut Namespace, Rest<'_>, &mut Applied),
    ) {
        let hidden = !self.config.exposes(name);
        let namespace = self.namespaces.entry(name.to_owned());
        let namespace = namespace.or_insert_with(|| Namespace {
            hidden,
            ..Namespace::default()
        });
        let existed = namespace.exists();
        let rest = Rest {
            config: &self.config,
            reverse: &mut self.reverse,
        };
        change(namespace, rest, out);
        let exists = namespace.exists();
        if existed != exists {
            out.subjects.insert(Subject::Namespace(name.to_owned()));
        }
        if !exists && namespace.services.is_empty() {
            self.namespaces.remove(name);
        }
    }
}

/// The parts of a zone that a change of one of its Namespaces needs.
struct Rest<'a> {
    config: &'a ZoneConfig,
    reverse: &'a mut Reverse,
}

fn pod_subject(namespace: &str, address: IpAddr) -> Subject {
    Subject::Pod {
        namespace: namespace.to_owned(),
        address,
    }
}

fn lower_all<K: Ord>(keys: BTreeSet<K>, lower: impl Fn(K) -> K) -> BTreeSet<K> {
    keys.into_iter().map(lower).collect()
}

fn lower_service(key: ServiceKey) -> ServiceKey {
    ServiceKey {
        namespace: key.namespace.to_ascii_lowercase(),
        name: key.name.to_ascii_lowercase(),
    }
}

fn lower_slice(key: SliceKey) -> SliceKey {
    SliceKey {
        namespace: key.namespace.to_ascii_lowercase(),
        name: key.name,
    }
}

fn lower_pod(key: PodKey) -> PodKey {
    PodKey {
        namespace: key.namespace.to_ascii_lowercase(),
        name: key.name,
    }
}
