// SPDX-License-Identifier: Apache-2.0

//! Objects of a kube-proxy: its device through rtnetlink, its jumps and rules through the tools, its tables of
//! nftables through netlink.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use netlink_packet_route::address::{AddressMessage, AddressScope};
use netlink_packet_route::link::LinkAttribute;
use portolan_model::Family;
use portolan_model::ipvs::VirtualServerKey;
use portolan_netlink::nftables::{Nftables, Request};
use portolan_netlink::{Errno, SocketError};
use portolan_plan::Rules;
use portolan_plan::kube_proxy::packet_rules::{
    NFTABLES_SERVICES, NFTABLES_TABLE, nftables_frontend,
};
use portolan_plan::kube_proxy::{PacketRules, RuleMode, ServedByKubeProxy, VIP_DEVICE};
use rtnetlink::Handle;

use super::blocking::blocking;
use super::iptables::Iptables;
use super::routes::{Routes, own_address};
use super::{Kernel, KernelConfig, dumps};
use crate::{DataplaneError, KubeProxyObjects};

/// `ENODEV` and `EADDRNOTAVAIL`, as returned by netlink.
const GONE: [i32; 2] = [-19, -99];

impl KubeProxyObjects for Kernel {
    async fn vip_device(&mut self, name: &str) -> Result<Option<BTreeSet<IpAddr>>, DataplaneError> {
        vips_on(self.routes.handle()?, name).await
    }

    async fn delete_vips(&mut self, name: &str, wanted: &[IpAddr]) -> Result<(), DataplaneError> {
        let handle = self.routes.handle()?;
        let Some(index) = index_of(handle, name).await? else {
            return Ok(());
        };
        let wanted: BTreeSet<_> = wanted.iter().collect();
        for message in addresses(handle, index).await? {
            if own_address(&message.attributes).is_some_and(|ip| wanted.contains(&ip)) {
                unless_gone(handle.address().del(message).execute().await)?;
            }
        }
        Ok(())
    }

    async fn delete_vip_device(&mut self, name: &str) -> Result<(), DataplaneError> {
        let handle = self.routes.handle()?;
        match index_of(handle, name).await? {
            Some(index) => unless_gone(handle.link().del(index).execute().await),
            None => Ok(()),
        }
    }

    async fn remove_second_jumps(
        &mut self,
        rules: &Rules,
        family: Family,
    ) -> Result<(), DataplaneError> {
        self.iptables.remove_second_jumps(family, rules).await
    }

    async fn packet_rules(
        &mut self,
        families: &BTreeSet<Family>,
    ) -> Result<PacketRules, DataplaneError> {
        read_packet_rules(&mut self.iptables, families).await
    }

    async fn keep_packet_rules(
        &mut self,
        families: &BTreeSet<Family>,
    ) -> Result<(), DataplaneError> {
        for family in families {
            self.iptables.keep_kube_proxy(*family).await?;
        }
        Ok(())
    }

    async fn delete_packet_rules(
        &mut self,
        ours: &BTreeMap<Family, Rules>,
    ) -> Result<(), DataplaneError> {
        delete_packet_rules(&mut self.iptables, ours).await
    }
}

/// Rules of a kube-proxy on a node that needs no IPVS.
#[derive(Debug)]
pub struct KubeProxyRules {
    iptables: Iptables,
    routes: Routes,
}

impl KubeProxyRules {
    /// Nothing is read yet. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// If a socket cannot be made.
    pub fn open(config: &KernelConfig) -> Result<Self, DataplaneError> {
        Ok(Self {
            iptables: Iptables::new(config.iptables, None),
            routes: Routes::open()?,
        })
    }

    /// All that a kube-proxy in any mode has programmed: its rules in these families, and the addresses on
    /// the device that one in IPVS mode has.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn served(
        &mut self,
        families: &BTreeSet<Family>,
    ) -> Result<ServedByKubeProxy, DataplaneError> {
        Ok(ServedByKubeProxy {
            rules: self.read(families).await?,
            device: vips_on(self.routes.handle()?, VIP_DEVICE).await?,
        })
    }

    /// Returns `true` if there is a device of this name, as a kube-proxy in IPVS mode has one.
    ///
    /// # Errors
    /// If links cannot be read.
    pub async fn has_device(&mut self, name: &str) -> Result<bool, DataplaneError> {
        Ok(index_of(self.routes.handle()?, name).await?.is_some())
    }

    /// The rules of a kube-proxy in iptables or nftables mode in these families.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn read(
        &mut self,
        families: &BTreeSet<Family>,
    ) -> Result<PacketRules, DataplaneError> {
        read_packet_rules(&mut self.iptables, families).await
    }

    /// Deletes them: the ways to its chains end first, in each table at once.
    ///
    /// # Errors
    /// If they cannot be read or written. Some may be gone.
    pub async fn delete(&mut self, families: &BTreeSet<Family>) -> Result<(), DataplaneError> {
        let none = Rules {
            tables: Vec::new(),
            jumps: Vec::new(),
            obsolete: Vec::new(),
            sets: BTreeSet::new(),
        };
        let ours = families.iter().map(|family| (*family, none.clone()));
        delete_packet_rules(&mut self.iptables, &ours.collect()).await
    }
}

/// The addresses on a device, link-local ones left out; `None` if there is no such device.
async fn vips_on(handle: &Handle, name: &str) -> Result<Option<BTreeSet<IpAddr>>, DataplaneError> {
    let Some(index) = index_of(handle, name).await? else {
        return Ok(None);
    };
    let messages = addresses(handle, index).await?;
    let of_message = |message: &AddressMessage| own_address(&message.attributes);
    Ok(Some(messages.iter().filter_map(of_message).collect()))
}

async fn read_packet_rules(
    iptables: &mut Iptables,
    families: &BTreeSet<Family>,
) -> Result<PacketRules, DataplaneError> {
    let mut rules = PacketRules::default();
    for family in families {
        if let Some(frontends) = iptables.frontends_of_kube_proxy(*family).await? {
            rules.modes.insert(RuleMode::Iptables);
            rules.frontends.extend(frontends);
        }
    }
    for family in families {
        if let Some(frontends) = blocking(|| nftables_frontends(*family))? {
            rules.modes.insert(RuleMode::Nftables);
            rules.frontends.extend(frontends);
        }
    }
    Ok(rules)
}

async fn delete_packet_rules(
    iptables: &mut Iptables,
    ours: &BTreeMap<Family, Rules>,
) -> Result<(), DataplaneError> {
    for (family, rules) in ours {
        iptables.delete_kube_proxy(*family, rules).await?;
    }
    for family in ours.keys() {
        blocking(|| delete_nftables(*family))?;
    }
    Ok(())
}

/// The Services' addresses and ports in the table of a kube-proxy in nftables mode; `None` without one.
fn nftables_frontends(
    family: Family,
) -> Result<Option<BTreeSet<VirtualServerKey>>, DataplaneError> {
    if !has_nftables(family)? {
        return Ok(None);
    }
    let read =
        |nftables: &mut Nftables| nftables.elements(family, NFTABLES_TABLE, NFTABLES_SERVICES);
    let elements = match Nftables::open().and_then(|mut nftables| read(&mut nftables)) {
        // A kube-proxy that was stopped before its first synchronization has no such map.
        Err(SocketError::Refused(Errno::ENOENT)) => Vec::new(),
        read => read.map_err(DataplaneError::Nftables)?,
    };
    let keys = elements.iter().map(|(key, _)| key);
    Ok(Some(
        keys.filter_map(|key| nftables_frontend(family, key))
            .collect(),
    ))
}

fn has_nftables(family: Family) -> Result<bool, DataplaneError> {
    let tables = portolan_netlink::nftables::tables(family).map_err(DataplaneError::Nftables)?;
    Ok(tables.iter().any(|name| name == NFTABLES_TABLE))
}

fn delete_nftables(family: Family) -> Result<(), DataplaneError> {
    if !has_nftables(family)? {
        return Ok(());
    }
    let mut nftables = Nftables::open().map_err(DataplaneError::Nftables)?;
    let deleted = nftables.commit(family, NFTABLES_TABLE, &[Request::DelTable], None);
    deleted.map_err(|error| {
        let what = format!("deletion of table {family} {NFTABLES_TABLE}");
        DataplaneError::of_commit(what, error)
    })
}

pub(super) async fn index_of(handle: &Handle, name: &str) -> Result<Option<u32>, DataplaneError> {
    let is_name = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::IfName(found) if found == name);
    let links = dumps::links(handle).await?;
    let link = links.iter().find(|l| l.attributes.iter().any(is_name));
    Ok(link.map(|link| link.header.index))
}

/// The device's addresses, without those that the kernel adds and deletes with the device.
async fn addresses(handle: &Handle, index: u32) -> Result<Vec<AddressMessage>, DataplaneError> {
    let mut addresses = dumps::addresses(handle).await?;
    addresses.retain(|a| a.header.index == index && a.header.scope != AddressScope::Link);
    Ok(addresses)
}

fn unless_gone(result: Result<(), rtnetlink::Error>) -> Result<(), DataplaneError> {
    match result {
        Err(error) if is_error(&error, &GONE) => Ok(()),
        other => Ok(other?),
    }
}

/// Returns `true` for an error of the kernel with one of these numbers.
pub(super) fn is_error(error: &rtnetlink::Error, codes: &[i32]) -> bool {
    match error {
        rtnetlink::Error::NetlinkError(message) => codes.contains(&message.raw_code()),
        _ => false,
    }
}
