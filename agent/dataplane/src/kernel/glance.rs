// SPDX-License-Identifier: Apache-2.0

//! Cheap comparison of the kernel with the observed state.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{BuildHasher as _, Hash};

use foldhash::fast::FixedState;
use portolan_model::Family;
use portolan_model::ipset::{SetHeader, SetKind};
use portolan_model::ipvs::VirtualServerKey;
use portolan_netlink::ipvs::Ipvs;
use portolan_plan::{KernelState, Names, SetName};

use crate::DataplaneError;

/// A sum of hashes, independent of the order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub(crate) struct Sum(u64);

impl Sum {
    pub(crate) fn add(&mut self, item: &impl Hash) {
        self.0 = self.0.wrapping_add(FixedState::default().hash_one(item));
    }
}

/// Sum of all IPv4 virtual servers, foreign ones included: cheaper than looking each of them up.
pub(super) fn sum_of_servers(ipvs: &Ipvs) -> Result<Sum, DataplaneError> {
    let mut sum = Sum::default();
    ipvs.glance(|key, glimpse| sum.add(&(key, glimpse)))?;
    Ok(sum)
}

/// First difference in our IPv4 virtual servers.
pub(super) fn servers(
    ipvs: &Ipvs,
    observed: &KernelState,
    names: &Names,
) -> Result<Option<String>, DataplaneError> {
    let servers = &observed.virtual_servers;
    let (mut same, mut others) = (0, Vec::new());
    ipvs.glance(|key, glimpse| match servers.get(&key) {
        Some(server)
            if glimpse.real_servers as usize == server.real_servers.len()
                && glimpse.is(&server.config) =>
        {
            same += 1;
        }
        Some(_) => others.push(key),
        // A new foreign one.
        None => {}
    })?;
    let of_v4 = || servers.keys().filter(|key| key.family() == Family::V4);
    if of_v4().count() == same {
        return Ok(None);
    }
    let is_ours = |key: &VirtualServerKey| observed.owns(names, key);
    if let Some(key) = others.iter().find(|key| is_ours(key)) {
        return Ok(Some(format!("virtual server {key} has changed")));
    }
    let mut there = BTreeSet::new();
    ipvs.glance(|key, _| {
        there.insert(key);
    })?;
    let missing = of_v4().find(|key| !there.contains(key) && is_ours(key));
    Ok(missing.map(|key| format!("virtual server {key} is missing")))
}

/// First difference in our sets.
pub(crate) fn sets(
    found: &BTreeMap<String, (SetHeader, u32)>,
    observed: &KernelState,
    names: &Names,
) -> Option<String> {
    let all = Family::ALL.into_iter();
    let mut all = all.flat_map(|family| SetName::ALL.map(|set| names.set(set, family)));
    all.find_map(|name| {
        let observed = observed.sets.get(&name)?;
        let Some((header, count)) = found.get(&name) else {
            return Some(format!("set {name} is missing"));
        };
        // A bitmap of ports has no family.
        let family = |header: &SetHeader| {
            (header.kind != SetKind::BitmapPort).then_some((header.family, header.max_entries))
        };
        let same = header.kind == observed.header.kind
            && family(header) == family(&observed.header)
            && *count as usize == observed.entries.len();
        (!same).then(|| format!("set {name} has changed"))
    })
}

#[cfg(test)]
mod tests {
    use portolan_model::Protocol;
    use portolan_model::ipset::{Set, SetEntry};

    use super::*;

    #[test]
    fn sum_depends_on_the_items_and_not_on_their_order() {
        let sum = |items: &[u32]| {
            let mut sum = Sum::default();
            items.iter().for_each(|item| sum.add(item));
            sum
        };
        assert_eq!(sum(&[1, 2, 3]), sum(&[3, 1, 2]));
        for other in [&[1, 2][..], &[1, 2, 4], &[1, 2, 3, 3]] {
            assert_ne!(sum(&[1, 2, 3]), sum(other), "{other:?}");
        }
    }

    fn header(kind: SetKind, max_entries: u32) -> SetHeader {
        SetHeader {
            kind,
            family: Family::V4,
            max_entries,
        }
    }

    #[test]
    fn changed_and_missing_sets_of_ours_are_found() {
        let entry = SetEntry::IpPort([10, 96, 0, 1].into(), Protocol::Tcp, 80);
        let set = Set {
            header: header(SetKind::HashIpPort, 65_536),
            entries: [entry].into(),
        };
        let of = |name: &str| KernelState {
            sets: [(name.to_owned(), set.clone())].into(),
            ..KernelState::default()
        };
        let look = |observed: &KernelState, found: &[(&str, SetHeader, u32)]| {
            let found = found.iter();
            let found = found.map(|(name, header, n)| ((*name).to_owned(), (header.clone(), *n)));
            sets(&found.collect(), observed, &Names::default())
        };
        let (ours, name) = (of("KUBE-CLUSTER-IP"), "KUBE-CLUSTER-IP");
        let same = || header(SetKind::HashIpPort, 65_536);
        assert_eq!(look(&ours, &[(name, same(), 1), ("else", same(), 9)]), None);
        let missing = "set KUBE-CLUSTER-IP is missing".to_owned();
        assert_eq!(look(&ours, &[]), Some(missing));
        let changed = Some("set KUBE-CLUSTER-IP has changed".to_owned());
        assert_eq!(look(&ours, &[(name, same(), 0)]), changed);
        let other = header(SetKind::HashIpPort, 4);
        assert_eq!(look(&ours, &[(name, other, 1)]), changed);
        let other = header(SetKind::HashIpPortMark, 65_536);
        assert_eq!(look(&ours, &[(name, other, 1)]), changed);
        assert_eq!(look(&of("else"), &[]), None);
    }
}
