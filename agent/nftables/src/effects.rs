// SPDX-License-Identifier: Apache-2.0

//! Effects of requests besides their transaction, and contents of a table.

use std::collections::BTreeSet;

use portolan_model::{Family, Protocol};
use portolan_netlink::nftables::{Request, TableContent};

use crate::WayKey;
use crate::layout::{
    ENDPOINTS, LOCAL_ENDPOINTS, OUTSIDE, SERVICES, address_len, read_way, way_key,
};

/// Returns `true` if requests change where UDP connections of any way go: flows in conntrack may be
/// stale then.
#[must_use]
pub fn changes_udp(family: Family, requests: &[Request]) -> bool {
    let udp = Protocol::Udp.number();
    requests.iter().any(|request| match request {
        Request::AddElements(set, elements) | Request::DelElements(set, elements) => {
            let is_of_ways = [ENDPOINTS, LOCAL_ENDPOINTS, SERVICES].contains(&&**set);
            let protocol = |key: &[u8]| key.get(address_len(family)).copied();
            is_of_ways && elements.iter().any(|(key, _)| protocol(key) == Some(udp))
        }
        _ => false,
    })
}

/// Returns `true` if requests take a destination out of a list, or give clients from outside their own: clients may be
/// remembered with a destination that is not theirs any more.
#[must_use]
pub fn strands_clients(requests: &[Request]) -> bool {
    requests.iter().any(|request| match request {
        Request::DelElements(set, _) => [ENDPOINTS, LOCAL_ENDPOINTS].contains(&&**set),
        Request::AddElements(set, _) => **set == *OUTSIDE,
        _ => false,
    })
}

/// Numbers of ways, and of slots of their lists, in a table.
#[must_use]
pub fn numbers(content: &TableContent) -> (usize, usize) {
    let len = |set: &str| content.sets.get(set).map_or(0, |(_, there)| there.len());
    (len(SERVICES), len(ENDPOINTS) + len(LOCAL_ENDPOINTS))
}

/// Returns `true` if a table answers for an address, protocol and port.
#[must_use]
pub fn has_way(content: &TableContent, way: &WayKey) -> bool {
    let services = content.sets.get(SERVICES);
    services.is_some_and(|(_, elements)| elements.contains_key(&way_key(way)))
}

/// The ways in a table whose connections have a destination.
#[must_use]
pub fn ways_with_endpoints(family: Family, content: &TableContent) -> BTreeSet<WayKey> {
    let lists = [ENDPOINTS, LOCAL_ENDPOINTS].map(|list| content.sets.get(list));
    let slots = lists.into_iter().flatten().flat_map(|(_, slots)| slots);
    slots
        .filter_map(|(slot, _)| read_way(family, slot))
        .collect()
}
