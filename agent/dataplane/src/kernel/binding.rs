//! VIPs as addresses of a dummy device, for those who rely on that (`--vip-binding address`).
//!
//! To the plan it is all the same: what it calls the route of a VIP is then its address on the
//! device, without a source. The other way of binding may be in place from an earlier run: such a
//! VIP is shown with a source that nobody wants, so that the plan sets it anew, and it gets the
//! right binding before it loses the other one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};

use netlink_packet_route::address::AddressHeaderFlags;
use portolan_netlink::route::Request;
use portolan_plan::VipBinding;
use rtnetlink::{Handle, LinkDummy};

use super::predecessor::{index_of, is_error};
use super::routes::Seen;
use super::{Failure, Kernel};
use crate::{DataplaneError, Predecessor as _};

/// Our device. It stays down, as a kube-proxy's does: its addresses are local all the same.
pub const DEVICE: &str = "portolan-vips";

/// `EEXIST`, as netlink says it.
const EXISTS: i32 = -17;

/// What is known of the device: nothing at first; whether there is one; what it has.
#[derive(Debug, Default)]
pub(super) enum Device {
    #[default]
    Unknown,
    Missing,
    Present(BTreeSet<IpAddr>),
}

impl Kernel {
    /// The VIPs that are bound, with their sources.
    pub(super) async fn observe_vips(&mut self) -> Result<Seen, DataplaneError> {
        let mut seen = self.routes.observe()?;
        let by_address = self.config.vip_binding == VipBinding::Address;
        // Nobody but we make the device, so it is looked for once if we do not.
        if by_address || !matches!(self.device, Device::Missing) {
            self.device = match self.vip_device(DEVICE).await? {
                Some(addresses) => Device::Present(addresses),
                None => Device::Missing,
            };
        }
        seen.ours = mark_if(by_address, seen.ours);
        if let Device::Present(addresses) = &self.device {
            for ip in addresses {
                // One that is bound in both ways is set anew too.
                let wrong = !by_address || seen.ours.contains_key(ip);
                seen.ours.insert(*ip, wrong.then_some(NOBODY));
            }
        }
        Ok(seen)
    }

    /// Binds and unbinds VIPs, and says which of the changes failed.
    pub(super) async fn bind_vips(&mut self, changes: &[Request]) -> Vec<(usize, Failure)> {
        let by_address = self.config.vip_binding == VipBinding::Address;
        let results = if by_address || matches!(self.device, Device::Present(_)) {
            let results = self.bind_with_device(changes, by_address).await;
            results.unwrap_or_else(|error| vec![Err(error.to_string()); changes.len()])
        } else {
            self.routes.apply(changes)
        };
        let results = results.into_iter().enumerate();
        results
            .filter_map(|(index, result)| Some((index, Failure::whole(result.err()?))))
            .collect()
    }

    async fn bind_with_device(
        &mut self,
        changes: &[Request],
        by_address: bool,
    ) -> Result<Vec<Result<(), String>>, DataplaneError> {
        let handle = self.routes.handle()?.clone();
        let gone = |change: &Request| match *change {
            Request::Add(ip, _) | Request::Set(ip, _) | Request::Del(ip) => Request::Del(ip),
        };
        if !by_address {
            let results = self.routes.apply(changes);
            let done = changes.iter().zip(&results).filter(|(_, r)| r.is_ok());
            let unbound: Vec<IpAddr> = done.map(|(change, _)| address(change)).collect();
            self.delete_vips(DEVICE, &unbound).await?;
            if self.vip_device(DEVICE).await?.is_some_and(|a| a.is_empty()) {
                self.delete_vip_device(DEVICE).await?;
                self.device = Device::Missing;
            }
            return Ok(results);
        }
        let index = ensure_device(&handle).await?;
        let mut results = Vec::with_capacity(changes.len());
        for change in changes {
            results.push(match change {
                Request::Add(ip, _) | Request::Set(ip, _) => add(&handle, index, *ip).await,
                Request::Del(_) => Ok(()),
            });
        }
        let deleted = changes.iter().filter(|c| matches!(c, Request::Del(_)));
        let deleted: Vec<IpAddr> = deleted.map(address).collect();
        if !deleted.is_empty() {
            self.delete_vips(DEVICE, &deleted).await?;
        }
        // Of those that could not be bound the route stays, if there was one.
        let bound = changes.iter().zip(&mut results).filter(|(_, r)| r.is_ok());
        let (routes, results_of): (Vec<Request>, Vec<_>) =
            bound.map(|(change, result)| (gone(change), result)).unzip();
        for (result, unrouted) in results_of.into_iter().zip(self.routes.apply(&routes)) {
            *result = unrouted;
        }
        Ok(results)
    }
}

/// A source that no plan wants.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// The routes that are there although VIPs are bound by addresses.
fn mark_if(
    by_address: bool,
    vips: BTreeMap<IpAddr, Option<IpAddr>>,
) -> BTreeMap<IpAddr, Option<IpAddr>> {
    if !by_address {
        return vips;
    }
    vips.into_keys().map(|ip| (ip, Some(NOBODY))).collect()
}

fn address(change: &Request) -> IpAddr {
    match *change {
        Request::Add(ip, _) | Request::Set(ip, _) | Request::Del(ip) => ip,
    }
}

async fn ensure_device(handle: &Handle) -> Result<u32, DataplaneError> {
    if let Some(index) = index_of(handle, DEVICE).await? {
        return Ok(index);
    }
    let message = LinkDummy::new(DEVICE).build();
    handle.link().add(message).execute().await?;
    let index = index_of(handle, DEVICE).await?;
    index.ok_or_else(|| std::io::Error::other(format!("{DEVICE} has gone")).into())
}

async fn add(handle: &Handle, index: u32, ip: IpAddr) -> Result<(), String> {
    let length = if ip.is_ipv4() { 32 } else { 128 };
    let mut request = handle.address().add(index, ip, length);
    request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
    match request.execute().await {
        Err(error) if is_error(&error, &[EXISTS]) => Ok(()),
        other => other.map_err(|error| error.to_string()),
    }
}
