//! Who may have an address and port when several Services want it.
//!
//! An API server hands out node ports and cluster IPs once, but nothing keeps two Services from
//! the same external IP, and files can say anything. The oldest claimant has it, so that a
//! newcomer never takes a working way in from its owner.

use std::collections::{BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_model::{FrontendKind, Protocol};

use crate::{ObjectKey, Service};

/// What only one Service port can have.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Claim {
    /// Where.
    pub cluster: Arc<str>,
    /// A virtual address, or `None` for a node port.
    pub address: Option<IpAddr>,
    /// The port.
    pub port: u16,
    /// The protocol.
    pub protocol: Protocol,
}

/// Who claims. The smallest has it: by age (an unknown age last), then by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    age: (bool, i64),
    /// The Service.
    pub service: ObjectKey,
    /// Which of its ports.
    pub port: usize,
    /// As what.
    pub kind: FrontendKind,
}

impl Claimant {
    /// One port of a Service.
    #[must_use]
    pub fn new(service: &Service, port: usize, kind: FrontendKind) -> Self {
        let age = (
            service.created.is_none(),
            service.created.unwrap_or_default(),
        );
        Self {
            age,
            service: service.key.clone(),
            port,
            kind,
        }
    }
}

/// All claims, each with its claimants.
#[derive(Debug, Default)]
pub(crate) struct Claims(HashMap<Claim, BTreeSet<Claimant>>);

impl Claims {
    pub(crate) fn holder(&self, claim: &Claim) -> Option<&Claimant> {
        self.0.get(claim)?.first()
    }

    /// Takes a Service's claims. `others` are the Services for which that changes who has one.
    pub(crate) fn insert(&mut self, service: &Service, others: impl FnMut(&ObjectKey)) {
        self.change(service, BTreeSet::insert, others);
    }

    /// Gives a Service's claims back. `others` are the Services for which that changes who has one.
    pub(crate) fn remove(&mut self, service: &Service, others: impl FnMut(&ObjectKey)) {
        self.change(
            service,
            |claimants, claimant| claimants.remove(&claimant),
            others,
        );
    }

    fn change(
        &mut self,
        service: &Service,
        change: fn(&mut BTreeSet<Claimant>, Claimant) -> bool,
        mut others: impl FnMut(&ObjectKey),
    ) {
        for (port, kind, claim) in service.claims() {
            let claimants = self.0.entry(claim.clone()).or_default();
            let holder = claimants.first().cloned();
            change(claimants, Claimant::new(service, port, kind));
            if claimants.first() != holder.as_ref() {
                // All of them: those who still do not have it say who does.
                claimants
                    .iter()
                    .map(|c| &c.service)
                    .filter(|s| **s != service.key)
                    .for_each(&mut others);
            }
            if claimants.is_empty() {
                self.0.remove(&claim);
            }
        }
    }
}
