// SPDX-License-Identifier: Apache-2.0

//! Choice of the node's addresses that accept node ports, and notification of address changes.

use std::net::IpAddr;
use std::{fmt, io};

use futures_util::StreamExt as _;
use futures_util::stream::BoxStream;
use ipnet::IpNet;
use portolan_model::Family;
use rtnetlink::{Handle, MulticastGroup};

/// Multicast groups, without routes: the agent writes these itself.
const GROUPS: [MulticastGroup; 3] = [
    MulticastGroup::Link,
    MulticastGroup::Ipv4Ifaddr,
    MulticastGroup::Ipv6Ifaddr,
];

/// Choice of the node's addresses that accept node ports. Loopback and link-local ones never do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodePortAddresses {
    networks: Vec<IpNet>,
    primary: bool,
}

/// Reason a choice of addresses is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NodePortAddressesError {
    /// An item is neither a network nor `primary`.
    #[error("{0:?}: expected a network such as 192.168.0.0/16, or the word `primary` alone")]
    Invalid(String),
    /// `primary` is combined with networks.
    #[error("`primary` cannot be combined with networks")]
    Combined,
}

impl NodePortAddresses {
    /// Parses networks, or `primary` alone. No items mean all addresses.
    ///
    /// # Errors
    /// If an item is neither.
    pub fn parse(items: &[String]) -> Result<Self, NodePortAddressesError> {
        let mut this = Self::default();
        for item in items.iter().map(|item| item.trim()) {
            if item == "primary" {
                this.primary = true;
                continue;
            }
            let network = item.parse();
            let network = network.map_err(|_| NodePortAddressesError::Invalid(item.to_owned()))?;
            this.networks.push(network);
        }
        if this.primary && !this.networks.is_empty() {
            return Err(NodePortAddressesError::Combined);
        }
        Ok(this)
    }

    /// Returns `true` if every address of a family accepts node ports: no network of that family is
    /// configured, as in kube-proxy, or one of them is the whole family (`0.0.0.0/0`, `::/0`).
    #[must_use]
    pub fn accepts_all(&self, family: Family) -> bool {
        let mut networks = self.of_family(family).peekable();
        !self.primary
            && (networks.peek().is_none() || networks.any(|network| network.prefix_len() == 0))
    }

    /// Returns `true` if an address accepts node ports. `primary` is the node's primary address of that
    /// family.
    #[must_use]
    pub fn accepts(&self, address: IpAddr, primary: Option<IpAddr>) -> bool {
        let family = Family::of(address);
        if self.primary {
            return primary == Some(address);
        }
        self.accepts_all(family)
            || self
                .of_family(family)
                .any(|network| network.contains(&address))
    }

    fn of_family(&self, family: Family) -> impl Iterator<Item = &IpNet> {
        let networks = self.networks.iter();
        networks.filter(move |network| Family::of(network.addr()) == family)
    }
}

/// Subscription to changes of addresses and links in the network namespace.
pub struct AddressMonitor {
    messages: BoxStream<'static, ()>,
    /// The connection ends with its last handle.
    _handle: Handle,
}

impl AddressMonitor {
    /// Subscribes to the kernel's messages. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If the socket cannot be opened.
    pub fn open() -> io::Result<Self> {
        let (connection, handle, messages) = rtnetlink::new_multicast_connection(&GROUPS)?;
        tokio::spawn(connection);
        Ok(Self {
            messages: messages.map(drop).boxed(),
            _handle: handle,
        })
    }

    /// Waits for a change; `false` if the subscription has ended and changes may be missed.
    ///
    /// The content of a message does not matter: callers read the addresses again. A queue overrun, which
    /// is a message too, counts as a change.
    pub async fn changed(&mut self) -> bool {
        self.messages.next().await.is_some()
    }
}

impl fmt::Debug for AddressMonitor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AddressMonitor").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<NodePortAddresses, NodePortAddressesError> {
        let items: Vec<_> = text.split_terminator(',').map(str::to_owned).collect();
        NodePortAddresses::parse(&items)
    }

    #[test]
    fn networks_choose_within_their_family() {
        let primary = |address: &str| match address.contains(':') {
            false => "192.168.77.11",
            true => "fd00:77::11",
        };
        for (choice, address, taken) in [
            ("", "10.0.0.1", true),
            ("", "fd00::1", true),
            ("192.168.0.0/16", "192.168.77.11", true),
            ("192.168.0.0/16", "10.0.0.1", false),
            ("192.168.0.0/16", "fd00::1", true),
            ("192.168.0.0/16,fd00:77::/64", "fd00::1", false),
            ("10.0.0.0/8, 192.168.0.0/16", "192.168.77.11", true),
            ("10.0.0.0/8,0.0.0.0/0", "192.168.77.11", true),
            ("primary", "192.168.77.11", true),
            ("primary", "192.168.77.12", false),
            ("primary", "fd00:77::11", true),
            ("primary", "fd00:77::12", false),
        ] {
            let primary = primary(address).parse().ok();
            let got = parse(choice)
                .unwrap()
                .accepts(address.parse().unwrap(), primary);
            assert_eq!(got, taken, "{choice:?}: {address}");
        }
    }

    #[test]
    fn all_addresses_are_chosen_without_a_network_of_the_family() {
        for (choice, v4, v6) in [
            ("", true, true),
            ("0.0.0.0/0", true, true),
            ("10.0.0.0/8", false, true),
            ("10.0.0.0/8,::/0", false, true),
            ("primary", false, false),
        ] {
            let choice_ = parse(choice).unwrap();
            let got = Family::ALL.map(|family| choice_.accepts_all(family));
            assert_eq!(got, [v4, v6], "{choice:?}");
        }
    }

    #[test]
    fn invalid_items_are_refused_by_name() {
        assert_eq!(
            parse("eth0"),
            Err(NodePortAddressesError::Invalid("eth0".to_owned()))
        );
        assert_eq!(
            parse("primary,10.0.0.0/8"),
            Err(NodePortAddressesError::Combined)
        );
    }
}
