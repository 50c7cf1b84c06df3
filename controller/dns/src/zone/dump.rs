// SPDX-License-Identifier: Apache-2.0

//! All records, for exporters.

use std::borrow::Cow;
use std::net::IpAddr;

use hickory_proto::rr::Name;

use super::Zone;
use crate::config::PodMode;
use crate::input::{Service, ServiceKey, Slice, Subject};
use crate::label;
use crate::name;
use crate::records::{RecordSet, ServiceRecords, Srv, join};

/// A name and its records.
#[derive(Debug, Clone)]
pub struct NameEntry<'a> {
    /// The name, relative to the zone; `@` for that of the zone itself.
    pub owner: String,
    /// Its records. Without any, the name still exists.
    pub set: Cow<'a, RecordSet>,
    /// The base of SRV records' targets, relative to the zone.
    base: Cow<'a, str>,
}

impl NameEntry<'_> {
    fn of(owner: impl Into<String>, set: RecordSet) -> Self {
        Self {
            owner: owner.into(),
            set: Cow::Owned(set),
            base: Cow::Borrowed(""),
        }
    }

    /// The name of an SRV record's target, relative to the zone.
    #[must_use]
    pub fn target(&self, srv: &Srv) -> String {
        join(&srv.host, &self.base)
    }

    fn empty(owner: impl Into<String>) -> Self {
        Self::of(owner, RecordSet::default())
    }
}

#[cfg(test)]
thread_local! {
    static LISTINGS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
fn listed() {
    LISTINGS.set(LISTINGS.get() + 1);
}

/// The number of times that this thread has listed Namespaces or the Pods of one.
#[cfg(test)]
pub(crate) fn listings() -> usize {
    LISTINGS.get()
}

impl Zone {
    /// The records of a Service, if it exists.
    #[must_use]
    pub fn service(&self, key: &ServiceKey) -> Option<&ServiceRecords> {
        let namespace = self.namespaces.get(&key.namespace);
        let namespace = namespace.filter(|namespace| !namespace.hidden)?;
        let entry = namespace.services.get(&key.name)?;
        entry.records.exist().then_some(&entry.records)
    }

    /// The objects that a Service's records are made of: itself, and its slices by name.
    pub(crate) fn service_object(
        &self,
        key: &ServiceKey,
    ) -> Option<(Option<&Service>, impl Iterator<Item = &Slice>)> {
        let namespace = self.namespaces.get(&key.namespace)?;
        let entry = namespace.services.get(&key.name)?;
        Some((entry.service.as_ref(), entry.slices.values()))
    }

    /// The Namespaces that anything is known of, whether they exist or not. Unordered.
    pub(crate) fn known_namespaces(&self) -> Vec<String> {
        self.namespaces.keys().cloned().collect()
    }

    /// A Namespace, its Services and the addresses of its Pods. Unordered.
    pub(crate) fn objects_in(&self, namespace: &str) -> Vec<Subject> {
        let Some(entry) = self.namespaces.get(namespace) else {
            return Vec::new();
        };
        let own = || Subject::Namespace(namespace.to_owned());
        let own = entry.exists().then(own).into_iter();
        let names = entry.services.keys();
        let services = names.map(|name| Subject::Service(ServiceKey::new(namespace, name)));
        let addresses = self.pod_addresses(namespace);
        let pods = addresses.map(|address| Subject::Pod {
            namespace: namespace.to_owned(),
            address,
        });
        own.chain(services).chain(pods).collect()
    }

    /// Returns `true` if a Namespace exists.
    pub(crate) fn has_namespace(&self, name: &str) -> bool {
        self.namespaces
            .get(name)
            .is_some_and(|entry| entry.exists())
    }

    /// All Services that have records, sorted.
    #[must_use]
    pub fn services(&self) -> Vec<ServiceKey> {
        let shown = self.namespaces.iter().filter(|(_, entry)| !entry.hidden);
        let mut keys: Vec<_> = shown
            .flat_map(|(namespace, entry)| {
                let services = entry.services.iter();
                let with_records = services.filter(|(_, entry)| entry.records.exist());
                with_records.map(move |(name, _)| ServiceKey::new(namespace, name))
            })
            .collect();
        keys.sort();
        keys
    }

    /// The Namespaces that exist, sorted.
    #[must_use]
    pub fn namespaces(&self) -> Vec<&str> {
        #[cfg(test)]
        listed();
        let existing = self.namespaces.iter().filter(|(_, entry)| entry.exists());
        let mut names: Vec<_> = existing.map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names
    }

    /// The addresses that have names, sorted.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.reverse.iter().map(|(address, _)| address)
    }

    /// The names of an address, relative to the first zone.
    pub fn pointers_of(&self, address: IpAddr) -> impl Iterator<Item = &str> {
        let names = self.reverse.get(address.to_canonical()).into_iter();
        names.flat_map(|names| names.visible()).map(String::as_str)
    }

    /// The addresses of a Namespace's Pods that have names, sorted.
    pub fn pod_addresses(&self, namespace: &str) -> impl Iterator<Item = IpAddr> {
        #[cfg(test)]
        listed();
        let verified = self.config.pods == PodMode::Verified;
        let entry = self.namespaces.get(namespace).filter(|_| verified);
        entry
            .into_iter()
            .flat_map(|entry| entry.pods.keys().copied())
    }

    /// Returns `true` if an address is among the [`pod_addresses`](Self::pod_addresses) of a Namespace.
    pub(crate) fn has_pod_address(&self, namespace: &str, address: IpAddr) -> bool {
        self.config.pods == PodMode::Verified && self.pods_with(namespace, address) > 0
    }

    /// Returns the number of Pods of a Namespace that have an address.
    pub(crate) fn pods_with(&self, namespace: &str, address: IpAddr) -> usize {
        let entry = self.namespaces.get(namespace);
        let count = entry.and_then(|entry| entry.pods.get(&address));
        count.copied().unwrap_or_default()
    }

    /// The names of a subject. Those of an address are relative to `origin`, a zone of the reverse tree; all others are
    /// in each cluster zone. The names of [`PodMode::Insecure`] and those of topology zones cannot be listed.
    pub fn entries_of(&self, origin: &Name, subject: &Subject) -> Vec<NameEntry<'_>> {
        match subject {
            Subject::Apex => self.own_entries(),
            Subject::Namespace(name) => self.namespace_entries(name),
            Subject::Service(key) => {
                let records = self.service(key).into_iter();
                records.flat_map(service_entries).collect()
            }
            Subject::Pod { namespace, address } => {
                let entry = self.pod_entry(namespace, *address);
                entry.into_iter().collect()
            }
            Subject::Address(address) => {
                let entry = self.reverse_entry(origin, *address);
                entry.into_iter().collect()
            }
        }
    }

    /// The names of a cluster zone that are no object's, without the apex.
    fn own_entries(&self) -> Vec<NameEntry<'_>> {
        let version = RecordSet {
            text: Some(self.config.kind.schema_version().to_owned()),
            ..RecordSet::default()
        };
        let zone = self.config.zones.first();
        let servers = zone.map(|zone| self.name_servers(zone));
        let servers = servers.into_iter().flatten();
        let servers = RecordSet {
            addresses: servers.flat_map(|(_, addresses)| addresses).collect(),
            ..RecordSet::default()
        };
        vec![
            NameEntry::of("dns-version", version),
            NameEntry::of("ns.dns", servers),
            NameEntry::empty("svc"),
            NameEntry::empty("pod"),
        ]
    }

    fn namespace_entries(&self, namespace: &str) -> Vec<NameEntry<'_>> {
        if !self.has_namespace(namespace) {
            return Vec::new();
        }
        let has_pods = self.config.pods != PodMode::Disabled;
        let pods = has_pods.then(|| NameEntry::empty(format!("{namespace}.pod")));
        let services = NameEntry::empty(format!("{namespace}.svc"));
        std::iter::once(services).chain(pods).collect()
    }

    fn pod_entry(&self, namespace: &str, address: IpAddr) -> Option<NameEntry<'_>> {
        if !self.has_pod_address(namespace, address) {
            return None;
        }
        let owner = format!("{}.{namespace}.pod", label::of_pod(address));
        let count = self.pods_with(namespace, address);
        Some(NameEntry {
            base: Cow::Owned(owner.clone()),
            ..NameEntry::of(owner, RecordSet::of_pod(address, count))
        })
    }

    /// The addresses that have names in a zone of the reverse tree, sorted.
    pub(crate) fn addresses_in(&self, origin: &Name) -> Vec<IpAddr> {
        let range = name::reverse_range(origin).into_iter();
        range.flat_map(|range| self.reverse.range(range)).collect()
    }

    fn reverse_entry(&self, origin: &Name, address: IpAddr) -> Option<NameEntry<'_>> {
        let (name, zone) = (name::reverse(address), origin.to_ascii());
        let owner = match name.strip_suffix(zone.trim_end_matches('.'))? {
            // The zone is of this address alone.
            "" => "@",
            below => below.strip_suffix('.')?,
        };
        let names = self.reverse.get(address)?;
        let set = RecordSet {
            pointers: names.visible().iter().cloned().collect(),
            ..RecordSet::default()
        };
        Some(NameEntry::of(owner, set))
    }
}

fn service_entries(records: &ServiceRecords) -> impl Iterator<Item = NameEntry<'_>> {
    records.names.iter().map(move |(name, set)| NameEntry {
        owner: join(name, &records.base),
        set: Cow::Borrowed(set),
        base: Cow::Borrowed(&records.base),
    })
}
