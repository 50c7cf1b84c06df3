// SPDX-License-Identifier: Apache-2.0

//! The layout of keys and values.
//!
//! The etcd plugin reads everything below the name it is asked for, and keeps the messages of one
//! group: that of the topmost key. So each level has a *marker*, a key `_` that no object can
//! have, of which the group is the level's: `z` the apex, `k` the labels `svc` and `pod`, `n` a
//! Namespace, `s` a Service. It stays out of answers itself: its host is below the name that was
//! asked for, which the plugin takes for a loop, and it has port -1. And each level has a *shadow*,
//! an empty message at its own key, which makes the name exist for types that are read exactly.
//!
//! Records of a name are below its key: `_x0`, `_x1` and so on those with addresses, `_s0` and so on those with names.
//! No hostname begins with an underscore, so that no endpoint's own key takes the place of a record. Nor is any of
//! these a protocol's label, such as `_tcp`. The plugin strips them off the targets of SRV records.
//!
//! Messages that must show at their own name only have other groups: `e` the endpoints of a Service
//! with addresses, `p` the ports of a headless one, whose endpoints show at the Service's name
//! already.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use hickory_proto::rr::Name;

use super::level::{Level, text};
use super::message::Message;
use crate::input::{ServiceKey, Subject};
use crate::name;
use crate::walk::{self, ReadZone};
use crate::zone::Zone;

/// Keys and values.
pub type Keys = BTreeMap<String, Message>;

/// The place of the keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    prefix: String,
}

/// An invalid prefix.
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

    /// The keys that belong to the exporter: those of the zones, and all below them.
    #[must_use]
    pub fn roots(&self, zone: &Zone) -> BTreeSet<String> {
        let config = zone.config();
        let zones = config.zones.iter().chain(&config.reverse);
        zones.map(|zone| self.key(zone)).collect()
    }

    /// All subjects that may have keys.
    #[must_use]
    pub fn subjects(zone: &impl ReadZone) -> BTreeSet<Subject> {
        let addresses: Vec<_> = zone.guard().addresses().collect();
        let addresses = addresses.into_iter().map(Subject::Address);
        let all = addresses.chain([Subject::Apex]);
        all.chain(walk::objects(zone)).collect()
    }

    /// The Service of a key, by its form.
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
        let target = zone.pointers_of(address).next().filter(|_| inside)?;
        let target = name::below(target, zone.config().zones.first()?)?;
        let message = Message {
            host: text(&target),
            ttl: zone.config().ttl.max(1),
            ..Message::default()
        };
        Some((self.key(&own), message))
    }
}
