//! The cluster's names as they are now, kept up to date one change at a time.
//!
//! Invariant: what is served depends on what exists, not on the order in which it was told; and a
//! change costs as much as its own Service has records.

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
use crate::problem::Problem;

pub use answer::Answer;
pub(crate) use answer::VERSION_TTL;
pub use dump::Entry;
pub(crate) use lookup::SCHEMA_VERSION;
use reverse::Reverse;
use service::ServiceEntry;

/// The names, and what they stand for.
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
    /// There is a Namespace object.
    declared: bool,
    /// With Services that are known by their slices only.
    services: HashMap<String, ServiceEntry>,
    /// How many of the Services exist.
    existing: usize,
    /// How many Pods have the address.
    pods: BTreeMap<IpAddr, usize>,
}

impl Namespace {
    /// Services and Pods need a Namespace, so theirs exists even if nobody said so: files may
    /// leave it out, and it may be told later than what is in it.
    fn exists(&self) -> bool {
        !self.hidden && (self.declared || self.existing > 0 || !self.pods.is_empty())
    }
}

/// What a change did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// What has other records than before.
    pub subjects: BTreeSet<Subject>,
    /// What is wrong now and was not before.
    pub problems: Vec<Problem>,
}

impl Applied {
    /// Adds what another change did after this one.
    pub fn extend(&mut self, later: Self) {
        self.subjects.extend(later.subjects);
        self.problems.extend(later.problems);
    }
}

impl Zone {
    /// Names of which none is known yet: until [`Change::Synced`](crate::Change::Synced) every answer is SERVFAIL.
    ///
    /// `serial` is that of the zones' SOA records; each change that shows adds one to it. To be
    /// larger than before a restart it should be the time, in seconds since 1970.
    ///
    /// # Errors
    ///
    /// The first setting that cannot be.
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

    /// Whether a name that is not known does not exist.
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

    /// What is wrong with the Services and slices as they are now.
    pub fn problems(&self) -> impl Iterator<Item = &Problem> {
        let services = self.namespaces.values().flat_map(|ns| ns.services.values());
        services.flat_map(|entry| &entry.problems)
    }
}
