// SPDX-License-Identifier: Apache-2.0

//! The cluster's names, updated one change at a time.
//!
//! Invariant: answers depend on the existing objects, not on the order of their changes; and the
//! cost of a change is that of its own Service's records.

mod answer;
mod apply;
mod dump;
mod lookup;
mod reverse;
mod service;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;

use crate::config::{ConfigError, ZoneConfig};
use crate::input::{PodKey, SliceKey, Subject};
use crate::problem::RecordProblem;

pub use answer::Answer;
pub(crate) use answer::VERSION_TTL;
pub use dump::NameEntry;
#[cfg(test)]
pub(crate) use dump::listings;
use reverse::Reverse;
use service::ServiceEntry;

/// The names of the cluster and their records.
#[derive(Debug, Clone)]
pub struct Zone {
    config: ZoneConfig,
    namespaces: HashMap<String, Namespace>,
    /// The Service that each slice belongs to.
    slices: HashMap<SliceKey, String>,
    pods: HashMap<PodKey, BTreeSet<IpAddr>>,
    reverse: Reverse,
    synced: bool,
    serial: u32,
}

#[derive(Debug, Clone, Default)]
struct Namespace {
    /// By the settings nothing of it has a name. The name servers' Service may be in it.
    hidden: bool,
    /// Whether the Namespace object exists.
    declared: bool,
    /// With Services that are known by their slices only.
    services: HashMap<String, ServiceEntry>,
    /// Number of the Services that exist.
    existing: usize,
    /// Number of Pods by their address.
    pods: BTreeMap<IpAddr, usize>,
}

impl Namespace {
    /// The Namespace of a Service or Pod exists even without its object: files may leave it out,
    /// and it may be reported later than its contents.
    fn exists(&self) -> bool {
        !self.hidden && (self.declared || self.existing > 0 || !self.pods.is_empty())
    }
}

/// The effect of a change.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// The subjects whose records changed.
    pub subjects: BTreeSet<Subject>,
    /// New problems.
    pub problems: Vec<RecordProblem>,
}

impl Applied {
    /// Adds the effect of a later change.
    pub fn extend(&mut self, later: Self) {
        self.subjects.extend(later.subjects);
        self.problems.extend(later.problems);
    }
}

impl Zone {
    /// A zone without objects: until [`NamesChange::Synced`](crate::NamesChange::Synced) every answer is
    /// SERVFAIL.
    ///
    /// `serial` is the first serial of the zones' SOA records; each visible change adds one. It
    /// should be the time, in seconds since 1970, to grow over restarts.
    ///
    /// # Errors
    ///
    /// The first invalid setting.
    pub fn new(config: ZoneConfig, serial: u32) -> Result<Self, ConfigError> {
        config.validate()?;
        Ok(Self {
            config,
            namespaces: HashMap::new(),
            slices: HashMap::new(),
            pods: HashMap::new(),
            reverse: Reverse::default(),
            synced: false,
            serial,
        })
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &ZoneConfig {
        &self.config
    }

    /// Returns `true` if a name that is not known does not exist.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// The serial of the SOA records.
    #[must_use]
    pub fn serial(&self) -> u32 {
        self.serial
    }

    /// Gives the SOA records the serial of the zone that this is a copy of.
    pub(crate) fn set_serial(&mut self, serial: u32) {
        self.serial = serial;
    }

    /// Lets the serial go on from another zone's, whose place this one takes.
    pub(crate) fn succeed(&mut self, old: &Self) {
        self.serial = self.serial.max(old.serial.wrapping_add(1));
    }

    /// The problems with Services and slices.
    pub fn problems(&self) -> impl Iterator<Item = &RecordProblem> {
        let services = self.namespaces.values().flat_map(|ns| ns.services.values());
        services.flat_map(|entry| &entry.problems)
    }
}
