// SPDX-License-Identifier: Apache-2.0

//! State taken over from the ServiceImports of a cluster: they are the record of virtual addresses, of ports at
//! gateways and of winners, which this replica, another one or an earlier process wrote.
//!
//! Tenants may write ServiceImports too. What one of them says of an import is of no other import: what two objects
//! record belongs to the one that has it already, otherwise to the older one.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use portolan_catalog::{Catalog, ObjectKey, OwnImport, ServiceImport};
use portolan_federate::gateway::PortName;
use portolan_federate::imports::ImportName;
use portolan_model::{Family, Protocol};

use super::{Federation, Kept, import_key, noted};

/// A ServiceImport of ours, with its content.
type Own<'c> = (&'c ServiceImport, &'c OwnImport);

/// Claim of a ServiceImport on a value that it records. Of all claims on one value the first in order has it.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Claim<T, N> {
    value: T,
    /// Whether the claimant has something else here, or nothing.
    is_new: bool,
    /// An unknown time is later than all others.
    created: (bool, Option<i64>),
    claimant: N,
}

impl<T, N> Claim<T, N> {
    fn new(value: T, is_new: bool, import: &ServiceImport, claimant: N) -> Self {
        Self {
            value,
            is_new,
            created: (import.created.is_none(), import.created),
            claimant,
        }
    }
}

/// Returns the claimant that has each value.
fn holders<T: Ord, N: Ord>(claims: impl Iterator<Item = Claim<T, N>>) -> BTreeMap<T, N> {
    let mut claims: Vec<_> = claims.collect();
    claims.sort_unstable();
    let mut holders = BTreeMap::new();
    for claim in claims {
        holders.entry(claim.value).or_insert(claim.claimant);
    }
    holders
}

impl Federation {
    /// Takes over what a cluster's ServiceImports record: virtual addresses, ports at gateways, winners, exporting
    /// clusters. Only with `follows` a recorded winner comes before another one that this replica has noted: the
    /// replica that leads records its own ones.
    pub(crate) fn adopt(&mut self, catalog: &Catalog, cluster: &Arc<str>, follows: bool) {
        if self.given.is_some() {
            return;
        }
        let observed = catalog.observed_imports(cluster);
        let own = observed.filter_map(|import| Some((import, import.own.as_deref()?)));
        let own: Vec<Own<'_>> = own.collect();
        self.adopt_addresses(cluster, &own);
        self.adopt_ports(cluster, &own);
        for (import, own) in own {
            self.adopt_winner(&key_of(import), own, follows);
        }
    }

    /// Addresses outside of the cluster's ranges are no record of ours.
    fn adopt_addresses(&mut self, cluster: &Arc<str>, own: &[Own<'_>]) {
        let Some(importing) = self.objects.clusters.get(&**cluster) else {
            return;
        };
        let ranges = &importing.network.cluster_set_ips;
        let claims = own.iter().flat_map(|(import, own)| {
            let key = key_of(import);
            let kept = self.kept.get(&key);
            let ips = own.spec.iter().flat_map(|spec| &spec.ips);
            let ips = ips.filter(|ip| ranges.iter().any(|range| range.contains(*ip)));
            ips.map(move |ip| {
                let is_new = kept.is_none_or(|kept| !kept.ips.contains(ip));
                Claim::new(*ip, is_new, import, key.clone())
            })
        });
        let holders = holders(claims);
        // What this replica has chosen and nobody has recorded gives way.
        let first = ObjectKey {
            cluster: Arc::clone(cluster),
            namespace: "".into(),
            name: "".into(),
        };
        let of_cluster = self.kept.range(first..);
        let of_cluster = of_cluster.take_while(|(key, _)| key.cluster == *cluster);
        let keys = of_cluster.filter(|(key, kept)| {
            let is_another = |ip: &IpAddr| holders.get(ip).is_some_and(|holder| holder != *key);
            kept.ips.iter().any(is_another)
        });
        for key in keys.map(|(key, _)| key.clone()).collect::<Vec<_>>() {
            self.change_kept(&key, |kept| {
                let is_another = |ip: &IpAddr| holders.get(ip).is_some_and(|holder| *holder != key);
                kept.ips.retain(|ip| !is_another(ip));
            });
        }
        for (ip, key) in holders {
            self.change_kept(&key, |kept| set_ip(&mut kept.ips, ip));
        }
    }

    fn adopt_ports(&mut self, cluster: &Arc<str>, own: &[Own<'_>]) {
        let before = self.gateway_ports().get(cluster);
        let noted = own.iter().flat_map(|(import, own)| {
            let text = own.annotations.get(noted::GATEWAY_PORTS)?;
            let (namespace, name) = (&import.key.namespace, &import.key.name);
            Some((import, noted::read(namespace, name, text)))
        });
        let claims = noted.flat_map(|(import, ports)| {
            ports.into_iter().map(move |(name, number)| {
                let is_new = before.and_then(|before| before.get(&name)) != Some(&number);
                Claim::new((name.protocol, number), is_new, import, name)
            })
        });
        let holders: BTreeMap<(Protocol, u16), PortName> = holders(claims);
        if holders.is_empty() && before.is_none() {
            return;
        }
        let mut ports = before.cloned().unwrap_or_default();
        ports.retain(|name, number| {
            let holder = holders.get(&(name.protocol, *number));
            holder.is_none_or(|holder| holder == name)
        });
        ports.extend(
            holders
                .into_iter()
                .map(|((_, number), name)| (name, number)),
        );
        self.set_gateway_ports(cluster, ports);
        // They may be outside of the range, or not wanted any more.
        self.ports_wanted = true;
    }

    fn adopt_winner(&mut self, key: &ObjectKey, own: &OwnImport, follows: bool) {
        let winner = self.kept.get(key).and_then(|kept| kept.winner.as_ref());
        let is_taken = match winner {
            _ if own.winner.is_empty() => false,
            None => true,
            // An id without an export would only have the oldest export win.
            Some(winner) => follows && *winner != own.winner && self.may_win(key, &own.winner),
        };
        self.is_stale |= is_taken;
        self.change_kept(key, |kept| {
            if is_taken {
                kept.winner = Some(Arc::clone(&own.winner));
            }
            if !own.clusters.is_subset(&kept.clusters) {
                Arc::make_mut(&mut kept.clusters).extend(own.clusters.iter().cloned());
            }
        });
    }

    /// Returns `true` if a cluster exports what an import is made of, or is waited for and may export it.
    fn may_win(&self, key: &ObjectKey, id: &Arc<str>) -> bool {
        let here = self.here(key);
        here.is_some_and(|here| here.import.clusters.contains(id)) || self.is_awaited(id)
    }

    /// Changes what is kept of an import.
    fn change_kept(&mut self, key: &ObjectKey, change: impl FnOnce(&mut Kept)) {
        let before = self.kept.get(key).cloned().unwrap_or_default();
        let mut kept = before.clone();
        change(&mut kept);
        if kept != before {
            self.kept.insert(key.clone(), kept);
            self.kept_changed = true;
            self.objects_changed = true;
            // Its addresses must be claimed, and may not be given to another.
            self.wanted_changed = true;
            self.dirty.insert(key.clone());
        }
    }
}

/// The key of the import that a ServiceImport is the record of.
fn key_of(import: &ServiceImport) -> ObjectKey {
    let name = ImportName {
        namespace: Arc::clone(&import.key.namespace),
        name: Arc::clone(&import.key.name),
    };
    import_key(&import.key.cluster, &name)
}

/// Puts an address in the place of that of its family.
fn set_ip(ips: &mut Vec<IpAddr>, ip: IpAddr) {
    let mut present = ips.iter_mut();
    match present.find(|one| Family::of(**one) == Family::of(ip)) {
        Some(one) => *one = ip,
        None => ips.push(ip),
    }
}
