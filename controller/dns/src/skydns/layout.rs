//! Which key has which value.
//!
//! The etcd plugin reads everything below the name it is asked for, and keeps the messages of one
//! group: that of the topmost key. So each level has a *marker*, a key `_` that no object can
//! have, of which the group is the level's: `z` the apex, `k` the labels `svc` and `pod`, `n` a
//! Namespace, `s` a Service. It stays out of answers itself: its host is below the name that was
//! asked for, which the plugin takes for a loop, and it has port -1. And each level has a *shadow*,
//! an empty message at its own key, which makes the name exist for types that are read exactly.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use hickory_proto::rr::Name;

use super::message::Message;
use crate::config::PodMode;
use crate::input::{ServiceKey, Subject};
use crate::label;
use crate::name;
use crate::records::{RecordSet, ServiceRecords, join};
use crate::zone::{VERSION_TTL, Zone};

/// Keys and values.
pub type Keys = BTreeMap<String, Message>;

/// Where the keys are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    prefix: String,
}

/// A prefix that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("path {0:?}: must be one label, such as \"skydns\": CoreDNS's etcd plugin takes no other")]
pub struct LayoutError(String);

impl Layout {
    /// Keys below `/<path>/`, the etcd plugin's `path`.
    ///
    /// # Errors
    ///
    /// If it is more or less than one label.
    pub fn new(path: &str) -> Result<Self, LayoutError> {
        let label = path.strip_prefix('/').unwrap_or(path);
        if label.is_empty() || label.contains(['/', '.']) {
            return Err(LayoutError(path.to_owned()));
        }
        Ok(Self {
            prefix: format!("/{label}"),
        })
    }

    /// The key of a name.
    #[must_use]
    pub fn key(&self, name: &Name) -> String {
        let mut key = self.prefix.clone();
        for label in name.iter().rev() {
            key.push('/');
            key.push_str(&String::from_utf8_lossy(label).to_ascii_lowercase());
        }
        key
    }

    /// The keys that belong to us alone: those of the zones, and all below them.
    #[must_use]
    pub fn roots(&self, zone: &Zone) -> BTreeSet<String> {
        let config = zone.config();
        let zones = config.zones.iter().chain(&config.reverse);
        zones.map(|zone| self.key(zone)).collect()
    }

    /// Everything of which there can be keys.
    #[must_use]
    pub fn subjects(zone: &Zone) -> BTreeSet<Subject> {
        let mut subjects = BTreeSet::from([Subject::Apex]);
        let namespaces = zone.namespaces();
        subjects.extend(
            namespaces
                .iter()
                .map(|name| Subject::Namespace((*name).to_owned())),
        );
        subjects.extend(zone.services().into_iter().map(Subject::Service));
        subjects.extend(zone.addresses().map(Subject::Address));
        for namespace in namespaces {
            subjects.extend(zone.pod_addresses(namespace).map(|address| Subject::Pod {
                namespace: namespace.to_owned(),
                address,
            }));
        }
        subjects
    }

    /// The Service that a key is or was one of, by its form.
    #[must_use]
    pub fn service_of(&self, zone: &Zone, key: &str) -> Option<ServiceKey> {
        zone.config().zones.iter().find_map(|origin| {
            let rest = key.strip_prefix(&self.key(origin))?.strip_prefix("/svc/")?;
            let mut labels = rest.split('/');
            let (namespace, name) = (labels.next()?, labels.next()?);
            (name != "_").then(|| ServiceKey::new(namespace, name))
        })
    }

    /// The keys of one subject, as they should be now. No key belongs to two.
    #[must_use]
    pub fn keys(&self, zone: &Zone, subject: &Subject) -> Keys {
        let mut keys = Keys::new();
        if let Subject::Address(address) = subject {
            keys.extend(self.pointer(zone, *address));
            return keys;
        }
        for origin in &zone.config().zones {
            let mut level = Level {
                layout: self,
                zone,
                origin,
                // 0 would be taken for "not set".
                ttl: zone.config().ttl.max(1),
                keys: &mut keys,
            };
            match subject {
                Subject::Apex => level.apex(),
                Subject::Namespace(name) => level.namespace(name),
                Subject::Service(key) => level.service(key),
                Subject::Pod { namespace, address } => level.pod(namespace, *address),
                Subject::Address(_) => {}
            }
        }
        keys
    }

    /// A key is one PTR record: of several names, the first one.
    fn pointer(&self, zone: &Zone, address: IpAddr) -> Option<(String, Message)> {
        let own = name::absolute(&name::reverse(address))?;
        let inside = zone.config().reverse.iter().any(|zone| zone.zone_of(&own));
        let target = zone.pointers(address).next().filter(|_| inside)?;
        let target = name::below(target, zone.config().zones.first()?)?;
        let message = Message {
            host: text(&target),
            ttl: zone.config().ttl.max(1),
            ..Message::default()
        };
        Some((self.key(&own), message))
    }
}

/// A name as the plugin expects it in `host`: without a dot at its end.
fn text(name: &Name) -> String {
    name.to_ascii().trim_end_matches('.').to_owned()
}

/// Writes the keys of one zone.
struct Level<'a> {
    layout: &'a Layout,
    zone: &'a Zone,
    origin: &'a Name,
    ttl: u32,
    keys: &'a mut Keys,
}

impl Level<'_> {
    fn put(&mut self, name: &str, below: &str, message: Message) {
        if let Some(name) = name::below(name, self.origin) {
            let key = self.layout.key(&name) + below;
            self.keys.insert(key, message);
        }
    }

    /// A shadow and a marker.
    fn mark(&mut self, name: &str, group: &str) {
        self.put(name, "", Message::default());
        let host = name::below(&join("_", name), self.origin);
        let marker = Message {
            host: host.map(|host| text(&host)).unwrap_or_default(),
            port: -1,
            priority: u16::MAX,
            group: group.to_owned(),
            ..Message::default()
        };
        self.put(name, "/_", marker);
    }

    fn apex(&mut self) {
        self.mark("", "z");
        self.mark("svc", "k");
        self.mark("pod", "k");
        self.put("apex.dns", "", Message::default());
        let version = Message {
            text: crate::zone::SCHEMA_VERSION.to_owned(),
            ttl: VERSION_TTL,
            ..Message::default()
        };
        self.put("dns-version", "", version);
        let servers = self.zone.name_server_host(self.origin);
        let addresses = servers.map(|(_, addresses)| addresses).unwrap_or_default();
        for (index, address) in addresses.into_iter().enumerate() {
            self.put(
                "ns.dns",
                &format!("/x{index}"),
                self.address(address, 1, "d"),
            );
        }
    }

    fn namespace(&mut self, name: &str) {
        if !self.zone.namespaces().contains(&name) {
            return;
        }
        self.mark(&format!("{name}.svc"), "n");
        if self.zone.config().pods != PodMode::Disabled {
            self.mark(&format!("{name}.pod"), "n");
        }
    }

    fn pod(&mut self, namespace: &str, address: IpAddr) {
        if self
            .zone
            .pod_addresses(namespace)
            .any(|existing| existing == address)
        {
            let name = format!("{}.{namespace}.pod", label::dashed(address));
            let message = self.address(address, 1, "p");
            self.put(&name, "/x", message);
        }
    }

    /// A message with an address and no SRV record.
    fn address(&self, address: IpAddr, target_strip: u8, group: &str) -> Message {
        Message {
            host: address.to_string(),
            port: -1,
            ttl: self.ttl,
            target_strip,
            group: group.to_owned(),
            ..Message::default()
        }
    }

    fn service(&mut self, key: &ServiceKey) {
        let zone = self.zone;
        let Some(records) = zone.service(key) else {
            return;
        };
        let Some(own) = records.names.get("") else {
            return;
        };
        if let Some(target) = &own.alias {
            // In its Namespace's group: another one there would disagree with the marker, which is
            // as far up, and none would show at `svc.<zone>`.
            let message = Message {
                host: text(target),
                port: -1,
                ttl: self.ttl,
                group: "n".to_owned(),
                ..Message::default()
            };
            self.put(&records.base, "", message);
            return;
        }
        self.mark(&records.base, "s");
        for (name, set) in &records.names {
            match name.as_str() {
                "" => self.own(records, own),
                name if name.starts_with('_') => self.port(records, name, set, own),
                name => self.host(records, name, set),
            }
        }
    }

    /// What is at the Service's own name and at no port's: the ports without a name, and the
    /// addresses if there is no port at all.
    fn own(&mut self, records: &ServiceRecords, own: &RecordSet) {
        let ports = records
            .names
            .iter()
            .filter(|(name, _)| name.starts_with('_'));
        let named: BTreeSet<_> = ports
            .flat_map(|(_, set)| &set.srv)
            .map(|srv| (srv.port, &srv.host))
            .collect();
        let unnamed = own
            .srv
            .iter()
            .filter(|srv| !named.contains(&(srv.port, &srv.host)));
        let unnamed = RecordSet {
            srv: unnamed.cloned().collect(),
            ..RecordSet::default()
        };
        self.port(records, "", &unnamed, own);
        if own.srv.is_empty() && !records.headless {
            for (index, address) in own.addresses.iter().enumerate() {
                let message = self.address(*address, 1, "s");
                self.put(&records.base, &format!("/x{index}"), message);
            }
        }
    }

    /// The SRV records of a port: with addresses for a Service that has its own, with names of
    /// endpoints for a headless one.
    fn port(&mut self, records: &ServiceRecords, name: &str, set: &RecordSet, own: &RecordSet) {
        let at = join(name, &records.base);
        let strip = if name.is_empty() { 1 } else { 3 };
        let mut count = 0;
        for srv in &set.srv {
            let mut messages = Vec::new();
            if records.headless {
                let target = name::below(&records.target(srv), self.origin);
                messages.extend(target.map(|target| ("s", text(&target), 0)));
            } else {
                let addresses = own.addresses.iter();
                messages.extend(addresses.map(|address| ("x", address.to_string(), strip)));
            }
            for (letter, host, target_strip) in messages {
                let message = Message {
                    host,
                    port: srv.port.into(),
                    ttl: self.ttl,
                    target_strip,
                    group: "s".to_owned(),
                    ..Message::default()
                };
                self.put(&at, &format!("/{letter}{count}"), message);
                count += 1;
            }
        }
    }

    /// The addresses of an endpoint's name. Those of a Service with addresses of its own must not
    /// show at the Service's name, so their group is another.
    fn host(&mut self, records: &ServiceRecords, name: &str, set: &RecordSet) {
        let group = if records.headless { "s" } else { "e" };
        for (index, address) in set.addresses.iter().enumerate() {
            let message = self.address(*address, 1, group);
            self.put(&join(name, &records.base), &format!("/x{index}"), message);
        }
    }
}
