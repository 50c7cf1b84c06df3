// SPDX-License-Identifier: Apache-2.0

//! Ownership of addresses and ports that several Services claim.
//!
//! An API server hands out node ports and cluster IPs once, but nothing keeps two Services from the
//! same external IP, or a Service from writing another one's cluster IP among its external IPs, and
//! files are not checked at all. Allocated addresses come first, then balancers', then those that
//! any author of a Service may write; among equals the oldest claimant wins, so that a newcomer
//! never takes a working frontend from its owner.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::ops::RangeInclusive;
use std::sync::Arc;

use portolan_model::{FrontendKind, Protocol};

use crate::quick::QuickSet;
use crate::{ObjectKey, Service};

/// An address and port that only one Service port can have.
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

/// A claimant. The smallest one wins: by right, by age (an unknown age last), then by name.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Claimant {
    right: Right,
    age: (bool, i64),
    /// The Service.
    pub service: ObjectKey,
    /// The index of the Service's port.
    pub port: usize,
    /// The kind of the frontend.
    pub kind: FrontendKind,
}

/// The right of a claim, the strongest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Right {
    /// Allocated by the API server, which allocates an address once.
    Allocated,
    /// A balancer's controller wrote it into the status.
    Status,
    /// Written by an author of the Service.
    Spec,
}

impl From<FrontendKind> for Right {
    fn from(kind: FrontendKind) -> Self {
        match kind {
            FrontendKind::ClusterIp | FrontendKind::NodePort => Self::Allocated,
            FrontendKind::LoadBalancer => Self::Status,
            FrontendKind::ExternalIp | FrontendKind::Balanced | FrontendKind::BalancedRanges => {
                Self::Spec
            }
        }
    }
}

impl Claimant {
    /// One port of a Service.
    #[must_use]
    pub fn new(service: &Service, port: usize, kind: FrontendKind) -> Self {
        Self::aged(service.created, service.key.clone(), port, kind)
    }

    fn aged(created: Option<i64>, service: ObjectKey, port: usize, kind: FrontendKind) -> Self {
        Self {
            right: kind.into(),
            age: (created.is_none(), created.unwrap_or_default()),
            service,
            port,
            kind,
        }
    }
}

/// A claimed address, port and protocol of a cluster.
type Claimed = (Option<IpAddr>, u16, Protocol);

/// One claim of one claimant. Its age is its Service's.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct ClaimEntry {
    claimed: Claimed,
    port: u16,
    kind: FrontendKind,
    namespace: Arc<str>,
    name: Arc<str>,
}

/// All claims of one cluster.
#[derive(Debug, Default)]
pub(crate) struct Claims {
    /// Ordered by address, port and protocol.
    all: BTreeSet<ClaimEntry>,
    /// Addresses and ports with more than one claim; mostly none.
    contested: QuickSet<Claimed>,
}

impl Claims {
    /// The holder of a claimed address and port. `created` returns the age of a Service.
    pub(crate) fn holder(
        &self,
        claim: &Claim,
        created: impl Fn(&str, &str) -> Option<i64>,
    ) -> Option<Claimant> {
        let claimed = (claim.address, claim.port, claim.protocol);
        let claimants = self.range(claimed..=claimed).map(|entry| {
            let service = ObjectKey {
                cluster: Arc::clone(&claim.cluster),
                namespace: Arc::clone(&entry.namespace),
                name: Arc::clone(&entry.name),
            };
            let age = created(&entry.namespace, &entry.name);
            Claimant::aged(age, service, entry.port.into(), entry.kind)
        });
        claimants.min()
    }

    /// Returns true if an address and port are claimed more than once.
    pub(crate) fn is_contested(&self, claim: &Claim) -> bool {
        let claimed = (claim.address, claim.port, claim.protocol);
        self.contested.contains(&claimed)
    }

    /// The Services that claim an address, by namespace and name.
    pub(crate) fn of_address(
        &self,
        address: IpAddr,
    ) -> impl Iterator<Item = (&Arc<str>, &Arc<str>)> {
        let address = Some(address);
        let all = (address, 0, Protocol::Tcp)..=(address, u16::MAX, Protocol::Sctp);
        self.range(all).map(|entry| (&entry.namespace, &entry.name))
    }

    /// The claims of node ports within a range: port, protocol, and namespace and name of the Service.
    pub(crate) fn of_nodes(
        &self,
        range: RangeInclusive<u16>,
    ) -> impl Iterator<Item = (u16, Protocol, [&Arc<str>; 2])> {
        let (first, last) = range.into_inner();
        let all = (None, first, Protocol::Tcp)..=(None, last, Protocol::Sctp);
        self.range(all).map(|entry| {
            let (_, port, protocol) = entry.claimed;
            (port, protocol, [&entry.namespace, &entry.name])
        })
    }

    /// Takes a Service's claims. `others` are the other Services that claim the same.
    pub(crate) fn insert(&mut self, service: &Service, others: impl FnMut(&Arc<str>, &Arc<str>)) {
        self.change(service, BTreeSet::insert, others);
    }

    /// Gives a Service's claims back. `others` are the other Services that claim the same.
    pub(crate) fn remove(&mut self, service: &Service, others: impl FnMut(&Arc<str>, &Arc<str>)) {
        self.change(service, |all, entry| all.remove(&entry), others);
    }

    /// All claimants are affected when the holder changes, since the problems of the others name
    /// it. They are few.
    fn change(
        &mut self,
        service: &Service,
        change: fn(&mut BTreeSet<ClaimEntry>, ClaimEntry) -> bool,
        mut others: impl FnMut(&Arc<str>, &Arc<str>),
    ) {
        for (port, kind, claim) in service.claims() {
            let claimed = (claim.address, claim.port, claim.protocol);
            let entry = ClaimEntry {
                claimed,
                // No Service has as many ports: the API server's limit on objects is far below.
                port: u16::try_from(port).unwrap_or(u16::MAX),
                kind,
                namespace: Arc::clone(&service.key.namespace),
                name: Arc::clone(&service.key.name),
            };
            change(&mut self.all, entry);
            let mut count = 0;
            for other in self.range(claimed..=claimed) {
                count += 1;
                if (&other.namespace, &other.name) != (&service.key.namespace, &service.key.name) {
                    others(&other.namespace, &other.name);
                }
            }
            if count > 1 {
                self.contested.insert(claimed);
            } else {
                self.contested.remove(&claimed);
            }
        }
    }

    fn range(&self, all: RangeInclusive<Claimed>) -> impl Iterator<Item = &ClaimEntry> {
        let (first, last) = all.into_inner();
        let first = ClaimEntry {
            claimed: first,
            port: 0,
            kind: FrontendKind::ClusterIp,
            namespace: Arc::default(),
            name: Arc::default(),
        };
        self.all
            .range(first..)
            .take_while(move |entry| entry.claimed <= last)
    }
}
