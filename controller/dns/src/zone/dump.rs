// SPDX-License-Identifier: Apache-2.0

//! All records, for exporters.

use std::borrow::Cow;
use std::net::IpAddr;

use hickory_proto::rr::Name;

use super::Zone;
use crate::config::PodMode;
use crate::input::{Service, ServiceKey, Slice};
use crate::label;
use crate::name;
use crate::records::{RecordSet, ServiceRecords, Srv, join};

/// A name and its records.
#[derive(Debug, Clone)]
pub struct NameEntry<'a> {
    /// The name, relative to the zone.
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

    /// All Services with their slices, by namespace and name, unordered.
    pub(crate) fn service_objects(
        &self,
    ) -> impl Iterator<Item = (&str, &str, Option<&Service>, impl Iterator<Item = &Slice>)> {
        self.namespaces.iter().flat_map(|(namespace, entry)| {
            let services = entry.services.iter();
            services.map(move |(name, of)| {
                let slices = of.slices.values();
                (
                    namespace.as_str(),
                    name.as_str(),
                    of.service.as_ref(),
                    slices,
                )
            })
        })
    }

    /// Whether a Namespace exists.
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
        let verified = self.config.pods == PodMode::Verified;
        let entry = self.namespaces.get(namespace).filter(|_| verified);
        entry
            .into_iter()
            .flat_map(|entry| entry.pods.keys().copied())
    }

    /// How many Pods of a Namespace have an address.
    pub(crate) fn pods_with(&self, namespace: &str, address: IpAddr) -> usize {
        let entry = self.namespaces.get(namespace);
        let count = entry.and_then(|entry| entry.pods.get(&address));
        count.copied().unwrap_or_default()
    }

    /// The names of a cluster zone, sorted by Namespace and Service, without the apex. The names
    /// of [`PodMode::Insecure`] and those of topology zones cannot be listed.
    pub fn forward_entries(&self) -> impl Iterator<Item = NameEntry<'_>> {
        let version = RecordSet {
            text: Some(self.config.kind.schema_version().to_owned()),
            ..RecordSet::default()
        };
        let servers = self
            .config
            .zones
            .first()
            .map(|zone| self.name_servers(zone));
        let servers = servers.into_iter().flatten();
        let servers = RecordSet {
            addresses: servers.flat_map(|(_, addresses)| addresses).collect(),
            ..RecordSet::default()
        };
        let fixed = [
            NameEntry::of("dns-version", version),
            NameEntry::of("ns.dns", servers),
            NameEntry::empty("svc"),
            NameEntry::empty("pod"),
        ];
        let names = self.namespaces().into_iter();
        fixed
            .into_iter()
            .chain(names.flat_map(|name| self.namespace_entries(name)))
    }

    fn namespace_entries<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = NameEntry<'a>> {
        let entry = self.namespaces.get(namespace);
        let mut services: Vec<_> = entry.iter().flat_map(|entry| &entry.services).collect();
        services.sort_by_key(|(name, _)| *name);
        let services = services
            .into_iter()
            .flat_map(|(_, entry)| service_entries(&entry.records));
        let own = std::iter::once(NameEntry::empty(format!("{namespace}.svc")));
        own.chain(services).chain(self.pod_entries(namespace))
    }

    /// The names of a Namespace's Pods.
    fn pod_entries<'a>(&'a self, namespace: &'a str) -> impl Iterator<Item = NameEntry<'a>> {
        let base = format!("{namespace}.pod");
        let own = (self.config.pods != PodMode::Disabled).then(|| NameEntry::empty(base.clone()));
        let pods = self.pod_addresses(namespace).map(move |address| {
            let owner = format!("{}.{base}", label::of_pod(address));
            let count = self.pods_with(namespace, address);
            NameEntry {
                base: Cow::Owned(owner.clone()),
                ..NameEntry::of(owner, RecordSet::of_pod(address, count))
            }
        });
        own.into_iter().chain(pods)
    }

    /// The names of a zone of the reverse tree, in order of addresses, without the apex.
    pub fn reverse_entries<'a>(&'a self, zone: &Name) -> impl Iterator<Item = NameEntry<'a>> + 'a {
        let range = name::reverse_range(zone);
        let suffix = format!(".{}", zone.to_ascii().trim_end_matches('.'));
        self.reverse.iter().filter_map(move |(address, names)| {
            let owner = name::reverse(address);
            let owner = owner.strip_suffix(&suffix)?;
            range.as_ref()?.contains(&address).then(|| {
                let set = RecordSet {
                    pointers: names.visible().iter().cloned().collect(),
                    ..RecordSet::default()
                };
                NameEntry::of(owner, set)
            })
        })
    }
}

fn service_entries(records: &ServiceRecords) -> impl Iterator<Item = NameEntry<'_>> {
    records.names.iter().map(move |(name, set)| NameEntry {
        owner: join(name, &records.base),
        set: Cow::Borrowed(set),
        base: Cow::Borrowed(&records.base),
    })
}
