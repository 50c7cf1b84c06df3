// SPDX-License-Identifier: Apache-2.0

//! The real servers of a virtual server.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::RealServerConfig;

/// Real servers by address and port, in their order.
///
/// A node holds one list for each virtual server, most of them short, so a list is one allocation without
/// spare room. Adding a real server copies the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RealServers(Vec<RealServer>);

/// Smaller than a pair with a [`SocketAddr`], which has room for the scope and flow of IPv6.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct RealServer {
    ip: IpAddr,
    port: u16,
    config: RealServerConfig,
}

impl RealServer {
    fn new(address: SocketAddr, config: RealServerConfig) -> Self {
        let (ip, port) = (address.ip(), address.port());
        Self { ip, port, config }
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.ip, self.port)
    }

    fn place(&self) -> (IpAddr, u16) {
        (self.ip, self.port)
    }
}

impl RealServers {
    /// An empty list.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The settings of the real server at an address.
    #[must_use]
    pub fn get(&self, address: &SocketAddr) -> Option<&RealServerConfig> {
        let index = self.find(address).ok()?;
        Some(&self.0.get(index)?.config)
    }

    /// Returns `true` if there is a real server at an address.
    #[must_use]
    pub fn contains_key(&self, address: &SocketAddr) -> bool {
        self.find(address).is_ok()
    }

    /// Adds a real server, or changes the one at the address. Returns the settings before.
    pub fn insert(
        &mut self,
        address: SocketAddr,
        config: RealServerConfig,
    ) -> Option<RealServerConfig> {
        match self.find(&address) {
            Ok(index) => {
                let there = self.0.get_mut(index)?;
                Some(std::mem::replace(&mut there.config, config))
            }
            Err(index) => {
                self.0.reserve_exact(1);
                self.0.insert(index, RealServer::new(address, config));
                None
            }
        }
    }

    /// Removes the real server at an address. Returns its settings.
    pub fn remove(&mut self, address: &SocketAddr) -> Option<RealServerConfig> {
        let index = self.find(address).ok()?;
        Some(self.0.remove(index).config)
    }

    /// Removes the real servers for which `keeps` is false.
    pub fn retain(&mut self, mut keeps: impl FnMut(SocketAddr, &RealServerConfig) -> bool) {
        self.0.retain(|real| keeps(real.address(), &real.config));
    }

    /// The real servers, in the order of their addresses.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (SocketAddr, &RealServerConfig)> {
        self.0.iter().map(|real| (real.address(), &real.config))
    }

    /// Their addresses, in order.
    pub fn keys(&self) -> impl ExactSizeIterator<Item = SocketAddr> {
        self.0.iter().map(RealServer::address)
    }

    /// Their settings, in the order of their addresses.
    pub fn values(&self) -> impl ExactSizeIterator<Item = &RealServerConfig> {
        self.0.iter().map(|real| &real.config)
    }

    /// The number of real servers.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns `true` if there is no real server.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    fn find(&self, address: &SocketAddr) -> Result<usize, usize> {
        let place = (address.ip(), address.port());
        self.0.binary_search_by_key(&place, RealServer::place)
    }
}

impl FromIterator<(SocketAddr, RealServerConfig)> for RealServers {
    /// Of several at one address the last is kept.
    fn from_iter<I: IntoIterator<Item = (SocketAddr, RealServerConfig)>>(pairs: I) -> Self {
        let pairs = pairs.into_iter();
        let mut all: Vec<_> = pairs
            .map(|(a, config)| RealServer::new(a, config))
            .collect();
        if !all.is_sorted_by(|one, next| one.place() < next.place()) {
            all.sort_by_key(RealServer::place);
            all.dedup_by(|next, one| {
                let is_same = next.place() == one.place();
                if is_same {
                    *one = *next;
                }
                is_same
            });
        }
        all.shrink_to_fit();
        Self(all)
    }
}

impl<const N: usize> From<[(SocketAddr, RealServerConfig); N]> for RealServers {
    fn from(pairs: [(SocketAddr, RealServerConfig); N]) -> Self {
        pairs.into_iter().collect()
    }
}

/// A map from addresses to settings.
impl Serialize for RealServers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for RealServers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let map = BTreeMap::<SocketAddr, RealServerConfig>::deserialize(deserializer)?;
        Ok(map.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn address() -> impl Strategy<Value = SocketAddr> {
        let ip = prop_oneof![
            (0..3u8).prop_map(|n| IpAddr::from([10, 0, 0, n])),
            (0..3u16).prop_map(|n| IpAddr::from([0xfd00, 0, 0, 0, 0, 0, 0, n])),
        ];
        (ip, 80..82u16).prop_map(SocketAddr::from)
    }

    fn pair() -> impl Strategy<Value = (SocketAddr, RealServerConfig)> {
        (address(), (0..3u32).prop_map(RealServerConfig::masquerade))
    }

    fn pairs(list: &RealServers) -> Vec<(SocketAddr, RealServerConfig)> {
        list.iter()
            .map(|(address, config)| (address, *config))
            .collect()
    }

    proptest! {
        #[test]
        fn a_list_is_what_a_sorted_map_is(
            first in vec(pair(), 0..9),
            added in vec(pair(), 0..5),
            removed in vec(address(), 0..5),
        ) {
            let mut list: RealServers = first.iter().copied().collect();
            let mut map: BTreeMap<_, _> = first.into_iter().collect();
            for (address, config) in added {
                prop_assert_eq!(list.insert(address, config), map.insert(address, config));
            }
            for address in removed {
                prop_assert_eq!(list.get(&address), map.get(&address));
                prop_assert_eq!(list.contains_key(&address), map.contains_key(&address));
                prop_assert_eq!(list.remove(&address), map.remove(&address));
            }
            let expected: Vec<_> = map.clone().into_iter().collect();
            prop_assert_eq!(pairs(&list), expected);
            prop_assert_eq!(list.len(), map.len());
            prop_assert_eq!(list.is_empty(), map.is_empty());
            prop_assert!(list.keys().eq(map.keys().copied()));
            prop_assert!(list.values().eq(map.values()));
            let json = serde_json::to_string(&list).unwrap();
            prop_assert_eq!(&json, &serde_json::to_string(&map).unwrap());
            prop_assert_eq!(serde_json::from_str::<RealServers>(&json).unwrap(), list.clone());
            list.retain(|address, config| config.weight > 0 && address.port() == 80);
            map.retain(|address, config| config.weight > 0 && address.port() == 80);
            prop_assert_eq!(pairs(&list), map.into_iter().collect::<Vec<_>>());
        }
    }
}
