// SPDX-License-Identifier: Apache-2.0

//! Objects of a kube-proxy: its device through rtnetlink, its jumps through the tools.

use std::collections::BTreeSet;
use std::net::IpAddr;

use futures_util::TryStreamExt as _;
use netlink_packet_route::address::{AddressMessage, AddressScope};
use netlink_packet_route::link::LinkAttribute;
use portolan_model::Family;
use portolan_plan::Rules;
use rtnetlink::Handle;

use super::Kernel;
use super::routes::own_address;
use crate::{DataplaneError, KubeProxyObjects};

/// `ENODEV` and `EADDRNOTAVAIL`, as returned by netlink.
const GONE: [i32; 2] = [-19, -99];

impl KubeProxyObjects for Kernel {
    async fn vip_device(&mut self, name: &str) -> Result<Option<BTreeSet<IpAddr>>, DataplaneError> {
        let handle = self.routes.handle()?;
        let Some(index) = index_of(handle, name).await? else {
            return Ok(None);
        };
        let messages = addresses(handle, index).await?;
        let of_message = |message: &AddressMessage| own_address(&message.attributes);
        Ok(Some(messages.iter().filter_map(of_message).collect()))
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
}

pub(super) async fn index_of(handle: &Handle, name: &str) -> Result<Option<u32>, DataplaneError> {
    let is_name = |attribute: &LinkAttribute| matches!(attribute, LinkAttribute::IfName(found) if found == name);
    let mut found = None;
    let mut links = handle.link().get().execute();
    while let Some(link) = links.try_next().await? {
        if link.attributes.iter().any(is_name) {
            found = Some(link.header.index);
        }
    }
    Ok(found)
}

/// The device's addresses, without those that the kernel adds and deletes with the device.
async fn addresses(handle: &Handle, index: u32) -> Result<Vec<AddressMessage>, DataplaneError> {
    let all = handle
        .address()
        .get()
        .set_link_index_filter(index)
        .execute();
    let all: Vec<AddressMessage> = all.try_collect().await?;
    let chosen = |message: &AddressMessage| message.header.scope != AddressScope::Link;
    Ok(all.into_iter().filter(chosen).collect())
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
