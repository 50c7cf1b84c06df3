// SPDX-License-Identifier: Apache-2.0

//! Content hashes: equal on every replica that saw the same objects, whatever its counters.
//!
//! A record's hash covers its canonical content: lengths before strings, sorted lists, no
//! dictionary numbers. A table's hash is the sum of its records' hashes, so it is kept up to date in
//! O(1) per change and does not depend on order. The agent compares hashes as the controller sent
//! them and never recomputes one, so a newer controller may hash fields an older agent ignores.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use serde::{Serialize, Serializer};

use crate::{
    Destination, Families, Frontend, FrontendAddress, FrontendKind, NodeInfo, NodeOverlay, Record,
    RecordKey,
};

/// Keeps our hashes apart from any other use of BLAKE3.
const KEY: &[u8; 32] = b"portolan.v1 content hash (keyed)";

/// The bytes that most records have room in; above, an allocation is slower.
const FIRST: usize = 1000;

/// 128 bits of keyed BLAKE3 over canonical content.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ContentHash(pub u128);

/// The hash of a set of content hashes: their sum modulo 2^128.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetHash(pub u128);

impl SetHash {
    /// Adds a member.
    pub fn insert(&mut self, member: ContentHash) {
        self.0 = self.0.wrapping_add(member.0);
    }

    /// Removes a member that was added before.
    pub fn remove(&mut self, member: ContentHash) {
        self.0 = self.0.wrapping_sub(member.0);
    }
}

impl FromIterator<ContentHash> for SetHash {
    fn from_iter<I: IntoIterator<Item = ContentHash>>(members: I) -> Self {
        let mut hash = Self::default();
        members.into_iter().for_each(|member| hash.insert(member));
        hash
    }
}

macro_rules! hex_form {
    ($type:ty) => {
        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }

        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl $type {
            /// The 16 bytes that go over the wire, big-endian.
            #[must_use]
            pub fn to_bytes(self) -> [u8; 16] {
                self.0.to_be_bytes()
            }

            /// The hash of 16 wire bytes; `None` if there are more or fewer.
            #[must_use]
            pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
                Some(Self(u128::from_be_bytes(bytes.try_into().ok()?)))
            }
        }
    };
}

hex_form!(ContentHash);
hex_form!(SetHash);

impl Record {
    /// The hash of this record's content, its key included.
    #[must_use]
    pub fn content_hash(&self) -> ContentHash {
        // All fields by name: a new field must be handled here.
        let Self {
            key,
            frontends,
            destinations,
            zone_mask,
            affinity,
            available,
            scheduling,
            drain_seconds,
            health_check_port,
            balancing,
            node_group,
        } = self;
        let mut c = Canonical::new("record");
        c.key(key);
        c.list(frontends, Canonical::frontend);
        c.list(destinations, Canonical::destination);
        match zone_mask {
            None => c.number(0),
            Some(mask) => {
                c.number(1);
                c.list(&mask.zones, |c, zone| c.text(zone));
                c.list(&mask.masks, |c, mask| c.number(*mask));
            }
        }
        c.number(affinity.map_or(0, |affinity| affinity.timeout_seconds.into()));
        c.families("available", *available);
        if let Some(scheduler) = &scheduling.scheduler {
            c.text("scheduler");
            c.text(scheduler);
        }
        c.optional("flags", scheduling.flags.map(|flags| flags.0.into()));
        c.optional("drain", drain_seconds.map(Into::into));
        c.optional("health", health_check_port.map(Into::into));
        if let Some(balancing) = balancing {
            c.text("balancing");
            c.bytes(&balancing.to_json());
        }
        if let Some(group) = node_group {
            c.text("group");
            c.text(group);
        }
        c.finish()
    }
}

impl NodeOverlay {
    /// The hash of a node's overlay of the record with this key.
    #[must_use]
    pub fn content_hash(&self, key: &RecordKey) -> ContentHash {
        let mut c = Canonical::new("lists");
        c.key(key);
        c.list(&self.cluster, Canonical::destination);
        c.list(&self.local, Canonical::destination);
        c.list(&self.own, |c, address| c.socket(*address));
        c.families("terminating", self.terminating);
        c.finish()
    }
}

impl NodeInfo {
    /// The hash of these facts, one member of the hash of a node's own data.
    #[must_use]
    pub fn content_hash(&self) -> ContentHash {
        let mut c = Canonical::new("node");
        c.text(self.zone.as_deref().unwrap_or_default());
        c.list(&self.pod_cidrs, Canonical::network);
        c.number(self.eligible.into());
        // Newer than the first version.
        for group in &self.groups {
            c.text("group");
            c.text(group);
        }
        if let Some(director) = &self.director {
            c.text("director");
            c.text(director);
        }
        c.finish()
    }
}

/// A node's member of the hash of all nodes, which relays are sent: over its name and the hash of its
/// own data.
#[must_use]
pub fn node_hash(name: &str, own: SetHash) -> ContentHash {
    let mut c = Canonical::new("own");
    c.text(name);
    c.raw(&own.to_bytes());
    c.finish()
}

/// Content, written so that no two different contents write the same bytes. It is hashed at once: each
/// update of a hasher costs as much as a few hundred bytes.
struct Canonical(Vec<u8>);

impl Canonical {
    fn new(domain: &str) -> Self {
        let mut this = Self(Vec::with_capacity(FIRST));
        this.text(domain);
        this
    }

    fn finish(self) -> ContentHash {
        let hash = blake3::keyed_hash(KEY, &self.0);
        let mut first = [0; 16];
        first.copy_from_slice(&hash.as_bytes()[..16]);
        ContentHash(u128::from_be_bytes(first))
    }

    fn number(&mut self, number: u64) {
        self.raw(&number.to_be_bytes());
    }

    fn raw(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// A value newer than the first version: an absent one leaves the hash unchanged.
    fn optional(&mut self, name: &str, number: Option<u64>) {
        if let Some(number) = number {
            self.text(name);
            self.number(number);
        }
    }

    /// As [`Self::optional`].
    fn families(&mut self, name: &str, families: Families) {
        for family in families.iter() {
            self.text(name);
            self.text(family.as_str());
        }
    }

    fn text(&mut self, text: &str) {
        self.bytes(text.as_bytes());
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.number(bytes.len() as u64);
        self.raw(bytes);
    }

    fn list<T>(&mut self, items: &[T], mut write: impl FnMut(&mut Self, &T)) {
        self.number(items.len() as u64);
        items.iter().for_each(|item| write(self, item));
    }

    fn key(&mut self, key: &RecordKey) {
        self.text(&key.cluster);
        self.text(&key.namespace);
        self.text(&key.service);
        self.text(&key.port);
        self.number(key.protocol.number().into());
    }

    fn ip(&mut self, ip: IpAddr) {
        match ip {
            IpAddr::V4(v4) => {
                self.number(4);
                self.raw(&v4.octets());
            }
            IpAddr::V6(v6) => {
                self.number(6);
                self.raw(&v6.octets());
            }
        }
    }

    fn socket(&mut self, address: SocketAddr) {
        self.ip(address.ip());
        self.number(address.port().into());
    }

    fn destination(&mut self, destination: &Destination) {
        self.socket(destination.address);
        self.number(destination.weight.into());
    }

    fn frontend(&mut self, frontend: &Frontend) {
        self.number(frontend.kind as u64);
        match frontend.address {
            FrontendAddress::Vip(ip) => self.ip(ip),
            FrontendAddress::NodeAddresses(family) => self.text(family.as_str()),
            FrontendAddress::Mark { family, mark } => {
                self.text("mark");
                self.text(family.as_str());
                self.number(mark.into());
            }
        }
        self.number(frontend.port.into());
        self.number(frontend.lists as u64);
        self.number(frontend.masquerade.into());
        self.list(&frontend.source_ranges, Canonical::network);
        if !frontend.bind {
            self.text("unbound");
        }
        if frontend.kind == FrontendKind::BalancedRanges {
            self.list(&frontend.ranges, |this, range| {
                this.number(range.first.into());
                this.number(range.last.into());
            });
        }
    }

    fn network(&mut self, network: &IpNet) {
        self.ip(network.network());
        self.number(network.prefix_len().into());
    }
}

#[cfg(test)]
mod tests;
