// SPDX-License-Identifier: Apache-2.0

//! Desired table of a family.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use portolan_model::{Destination, Family, FrontendKind, NodeInfo};
use portolan_netlink::nftables::{Elements, Key, Set, TableContent, Value, Verdict};
use portolan_plan::Config;

use crate::layout::{
    ALLOWED, ALLOWED_MANY, CLUSTER_IPS, ENDPOINTS, HAIRPIN, LOCAL_ENDPOINTS, MANY, MASQUERADED,
    MASQUERADED_OWN, OUTSIDE, RANGED, REMOTE, SERVICES, STICKY, address_key, destination,
    hairpin_key, outside_map, read_destination, remote_set, sets, slot_key, source_key,
    source_of_many_key, sticky_sets, way_key,
};
use crate::needs::{Needs, list_chain, remember_chain};
use crate::room;
use crate::rules::{AWAY, REFUSAL, SEGMENTS, chains};
use crate::slots::{assign, class};
use crate::sources::keep_names;
use crate::{List, Masquerade, Way, WayKey, Ways};

/// Desired table of one family.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Desired {
    /// All that is in it, but for elements of the map that rules write.
    pub content: TableContent,
}

/// Computes the desired table of a family. It depends on the observed one: slots that destinations have are
/// kept, and so are chains of lists longer than any now, and sizes and names of sets.
#[must_use]
pub fn desire(
    family: Family,
    ways: &Ways,
    config: &Config,
    node: &NodeInfo,
    observed: Option<&TableContent>,
) -> Desired {
    let mut builder = Builder::new(family, observed);
    if let Some(observed) = observed {
        builder.needs.add_observed(observed);
    }
    let of_family = |address: IpAddr| Family::of(address) == family;
    let of_family_ways = ways.ways.iter().filter(|(key, _)| of_family(key.address));
    for (key, way) in of_family_ways {
        builder.way(key, way);
    }
    for hairpin in ways.hairpins.keys().filter(|h| of_family(h.0.address)) {
        builder.add(HAIRPIN, hairpin_key(&hairpin.0), Value::Present);
    }
    for endpoint in ways.remote.keys().filter(|key| of_family(key.address)) {
        builder.needs.clamps = true;
        builder.add(REMOTE, way_key(endpoint), Value::Present);
    }
    let Builder {
        mut needs,
        sets: mut elements,
        ..
    } = builder;
    needs.clamps &= config.clamp_remote_mss;
    let mut content = TableContent {
        chains: chains(family, config, node, &needs),
        ..TableContent::default()
    };
    let mut all = sets(family);
    if needs.from_outside {
        all.push(outside_map(family));
    }
    if !needs.timeouts.is_empty() {
        all.extend(sticky_sets(family));
    }
    if needs.clamps {
        all.push(remote_set(family));
    }
    for mut set in all {
        let elements = elements.remove(&*set.name).unwrap_or_default();
        set.size = room::size(&set, &elements, config, observed);
        content.sets.insert(Arc::clone(&set.name), (set, elements));
    }
    if let Some(observed) = observed {
        keep_names(&mut content, observed);
    }
    Desired { content }
}

/// A table with a rule of every kind, for a check of what the kernel can do.
#[must_use]
pub fn everything(family: Family, config: &Config, node: &NodeInfo) -> TableContent {
    let mut needs = Needs {
        from_outside: true,
        ..Needs::default()
    };
    for chain in ["pick-1", "local-pick-1", "remember-1", SEGMENTS] {
        needs.add_chain(chain);
    }
    let all = sets(family).into_iter().chain(sticky_sets(family));
    let all = all.chain([remote_set(family), outside_map(family)]);
    let sized = |mut set: Set| {
        set.size = room::size(&set, &Elements::new(), config, None);
        (Arc::clone(&set.name), (set, Elements::new()))
    };
    TableContent {
        sets: all.map(sized).collect(),
        chains: chains(family, config, node, &needs),
        ..TableContent::default()
    }
}

/// Collects the elements of ways.
pub(crate) struct Builder<'a> {
    family: Family,
    /// Observed slots of lists, and of lists for connections from outside.
    slots: [Option<&'a Elements>; 2],
    needs: Needs,
    /// The elements of each set.
    pub(crate) sets: BTreeMap<&'static str, Elements>,
}

impl<'a> Builder<'a> {
    pub(crate) fn new(family: Family, observed: Option<&'a TableContent>) -> Self {
        let slots = |map: &str| {
            let found = observed.and_then(|content| content.sets.get(map));
            found.map(|(_, elements)| elements)
        };
        Self {
            family,
            slots: [slots(ENDPOINTS), slots(LOCAL_ENDPOINTS)],
            needs: Needs::default(),
            sets: BTreeMap::new(),
        }
    }

    pub(crate) fn add(&mut self, set: &'static str, key: Key, value: Value) {
        self.sets.entry(set).or_default().insert(key, value);
    }

    pub(crate) fn way(&mut self, key: &WayKey, way: &Way) {
        let inside = self.list(key, way, &way.inside, false);
        self.add(SERVICES, way_key(key), Value::Verdict(inside));
        if let Some(list) = &way.outside {
            self.needs.from_outside = true;
            let outside = self.list(key, way, list, true);
            self.add(OUTSIDE, way_key(key), Value::Verdict(outside));
        }
        if way.kind == FrontendKind::ClusterIp {
            self.add(CLUSTER_IPS, address_key(key.address), Value::Present);
        }
        match way.masquerade {
            Masquerade::None => {}
            Masquerade::Own => self.add(MASQUERADED_OWN, way_key(key), Value::Present),
            Masquerade::All => self.add(MASQUERADED, way_key(key), Value::Present),
        }
        // A range of all addresses opens all.
        if way.ranges.iter().all(|range| range.prefix_len() > 0) {
            let has_many = way.ranges.len() > MANY;
            for range in &way.ranges {
                let [first, last] =
                    [range.network(), range.broadcast()].map(|source| match has_many {
                        true => source_of_many_key(key, source),
                        false => source_key(key, source),
                    });
                let set = if has_many { ALLOWED_MANY } else { ALLOWED };
                self.add(set, first, Value::UpTo(last));
                self.add(RANGED, way_key(key), Value::Present);
            }
        }
        if let Some(seconds) = way.affinity {
            self.needs.timeouts.insert(seconds);
            let remember = Verdict::Goto(remember_chain(seconds));
            self.add(STICKY, way_key(key), Value::Verdict(remember));
        }
    }

    /// Adds the slots of a list; the verdict that leads there.
    fn list(&mut self, key: &WayKey, way: &Way, list: &List, is_outside: bool) -> Verdict {
        let destinations = match list {
            List::To(destinations) => destinations,
            List::Drop if is_outside => return Verdict::Goto(AWAY.into()),
            List::Drop => return Verdict::Drop,
            List::Refuse => return Verdict::Goto(REFUSAL.into()),
        };
        let slots = self.assign(key, destinations, is_outside);
        let class = class(slots.len());
        let highest = match is_outside {
            false => &mut self.needs.inside,
            true => &mut self.needs.outside,
        };
        *highest = (*highest).max(Some(class));
        let map = match is_outside {
            false => ENDPOINTS,
            true => LOCAL_ENDPOINTS,
        };
        for (slot, socket) in (0..).zip(slots) {
            self.add(map, slot_key(key, slot), Value::Data(destination(socket)));
        }
        Verdict::Goto(list_chain(is_outside, way.affinity.is_some(), class))
    }

    fn assign(
        &self,
        key: &WayKey,
        destinations: &[Destination],
        is_outside: bool,
    ) -> Vec<SocketAddr> {
        let way = way_key(key);
        let observed = self.slots[usize::from(is_outside)].into_iter();
        let from = observed.flat_map(|elements| {
            elements
                .range::<[u8], _>((std::ops::Bound::Included(&*way), std::ops::Bound::Unbounded))
        });
        let of_way = from.take_while(|(slot, _)| slot.starts_with(&way));
        let before = of_way.filter_map(|(slot, value)| {
            let number = slot.get(way.len()..)?.first_chunk().copied()?;
            let Value::Data(data) = value else {
                return None;
            };
            let socket = read_destination(self.family, data)?;
            Some((u32::from_ne_bytes(number), socket))
        });
        assign(&before.collect(), destinations)
    }
}
