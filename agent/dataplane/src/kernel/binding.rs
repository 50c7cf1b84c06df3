// SPDX-License-Identifier: Apache-2.0

//! VIPs as addresses of a dummy device (`--vip-binding address`).
//!
//! The plan treats both bindings alike: the route of a VIP is then its address on the device, without a
//! source. VIPs bound the other way by an earlier run are observed with an impossible source, so that the
//! plan sets them again: they get the right binding before they lose the other one.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use netlink_packet_route::address::AddressHeaderFlags;
use portolan_model::Family;
use portolan_plan::{Step, VipBinding};
use rtnetlink::{Handle, LinkDummy};
use tokio::time::Instant;

use super::Kernel;
use super::blocking::blocking;
use super::kube_proxy::{index_of, is_error};
use super::routes::ObservedRoutes;
use crate::runs::StepFailure;
use crate::{DataplaneError, Doubt, KubeProxyObjects as _};

/// Name of our device. It stays down, like a kube-proxy's: its addresses are local nevertheless.
pub const DEVICE: &str = "portolan-vips";

/// Longest time that the kernel may take to add the routes of IPv6 addresses, and the pause between looks.
const ROUTE_PATIENCE: Duration = Duration::from_secs(2);
const ROUTE_PAUSE: Duration = Duration::from_millis(2);

/// `EEXIST`, as netlink says it.
const EXISTS: i32 = -17;

/// Observed state of the device.
#[derive(Debug, Default)]
pub(super) enum VipDevice {
    #[default]
    Unknown,
    Missing,
    Present(BTreeSet<IpAddr>),
}

impl VipDevice {
    /// Notes that the device is there; its addresses are read with the next observation. Otherwise a change to
    /// routes before that would leave it alone, with its addresses.
    fn note_presence(&mut self) {
        if !self.is_present() {
            *self = Self::Present(BTreeSet::new());
        }
    }

    fn is_present(&self) -> bool {
        matches!(self, Self::Present(_))
    }

    /// Returns `true` if an observation has to look for the device. Only the agent creates it: without the binding
    /// one look at start is enough.
    fn is_looked_for(&self, by_address: bool) -> bool {
        by_address || !matches!(self, Self::Missing)
    }
}

impl Kernel {
    /// Reads the bound VIPs, with their sources.
    pub(super) async fn observe_vips(&mut self) -> Result<ObservedRoutes, DataplaneError> {
        let mut seen = blocking(|| self.routes.observe())?;
        let by_address = self.config.vip_binding == VipBinding::Address;
        if self.device.is_looked_for(by_address) {
            self.device = match self.vip_device(DEVICE).await? {
                Some(addresses) => VipDevice::Present(addresses),
                None => VipDevice::Missing,
            };
        }
        seen.ours = mark_if(by_address, seen.ours);
        if let VipDevice::Present(addresses) = &self.device {
            for ip in addresses {
                // A VIP bound in both ways is set again too.
                let wrong = !by_address || seen.ours.contains_key(ip);
                seen.ours.insert(*ip, wrong.then_some(NOBODY));
            }
        }
        Ok(seen)
    }

    /// Binds and unbinds VIPs; one result for each step.
    pub(super) async fn bind_vips(&mut self, steps: &[&Step]) -> Vec<Result<(), StepFailure>> {
        let by_address = self.config.vip_binding == VipBinding::Address;
        if by_address || self.device.is_present() {
            let results = self.bind_with_device(steps, by_address).await;
            results.unwrap_or_else(|error| {
                let lost = |_: &&Step| Err(StepFailure::lost(error.to_string()));
                steps.iter().map(lost).collect()
            })
        } else {
            blocking(|| self.routes.apply(steps))
        }
    }

    async fn bind_with_device(
        &mut self,
        steps: &[&Step],
        by_address: bool,
    ) -> Result<Vec<Result<(), StepFailure>>, DataplaneError> {
        let handle = self.routes.handle()?.clone();
        if !by_address {
            let results = blocking(|| self.routes.apply(steps));
            let done = steps.iter().zip(&results).filter(|(_, r)| r.is_ok());
            let unbound: Vec<IpAddr> = done.filter_map(|(step, _)| vip(step)).collect();
            self.delete_vips(DEVICE, &unbound).await?;
            if self.vip_device(DEVICE).await?.is_some_and(|a| a.is_empty()) {
                self.delete_vip_device(DEVICE).await?;
                self.device = VipDevice::Missing;
            }
            return Ok(results);
        }
        let index = ensure_device(&handle).await?;
        self.device.note_presence();
        let mut results = Vec::with_capacity(steps.len());
        for step in steps {
            results.push(match step {
                Step::AddRoute { vip, .. } | Step::SetRoute { vip, .. } => {
                    add(&handle, index, *vip).await
                }
                _ => Ok(()),
            });
        }
        let deleted = steps.iter().filter(|s| matches!(s, Step::DelRoute { .. }));
        let deleted: Vec<IpAddr> = deleted.filter_map(|step| vip(step)).collect();
        if !deleted.is_empty() {
            self.delete_vips(DEVICE, &deleted).await?;
        }
        self.await_routes(steps, &mut results).await?;
        // VIPs that could not be bound keep their routes.
        let bound = steps.iter().zip(&mut results).filter(|(_, r)| r.is_ok());
        let (gone, results_of): (Vec<Step>, Vec<_>) = bound
            .filter_map(|(step, result)| Some((Step::DelRoute { vip: vip(step)? }, result)))
            .unzip();
        let gone: Vec<&Step> = gone.iter().collect();
        let unrouted = blocking(|| self.routes.apply(&gone));
        for (result, unrouted) in results_of.into_iter().zip(unrouted) {
            // The VIP is bound in both ways then.
            *result = unrouted.map_err(|failure| StepFailure {
                doubt: Doubt::Lost,
                ..failure
            });
        }
        Ok(results)
    }
}

impl Kernel {
    /// Waits until packets to each newly bound address are delivered without our route. The kernel adds the route
    /// of an IPv6 address after it has acknowledged the address.
    async fn await_routes(
        &mut self,
        steps: &[&Step],
        results: &mut [Result<(), StepFailure>],
    ) -> Result<(), DataplaneError> {
        let deadline = Instant::now() + ROUTE_PATIENCE;
        loop {
            let missing = self.without_route(steps, results)?;
            if missing.is_empty() {
                return Ok(());
            }
            if Instant::now() >= deadline {
                for index in missing {
                    let text = "the kernel has not added the route of the address".to_owned();
                    results[index] = Err(StepFailure::new(Doubt::Lost, text));
                }
                return Ok(());
            }
            tokio::time::sleep(ROUTE_PAUSE).await;
        }
    }

    /// Indices of steps whose IPv6 address has no route of the kernel yet.
    fn without_route(
        &mut self,
        steps: &[&Step],
        results: &[Result<(), StepFailure>],
    ) -> Result<Vec<usize>, DataplaneError> {
        let added = steps.iter().zip(results).enumerate();
        let added = added.filter(|(_, (step, result))| {
            matches!(step, Step::AddRoute { vip, .. } | Step::SetRoute { vip, .. } if vip.is_ipv6())
                && result.is_ok()
        });
        let added: Vec<(usize, IpAddr)> = added
            .filter_map(|(index, (step, _))| Some((index, vip(step)?)))
            .collect();
        if added.is_empty() {
            return Ok(Vec::new());
        }
        let routes = blocking(|| self.routes.of_addresses(Family::V6))?;
        let missing = added.into_iter().filter(|(_, ip)| !routes.contains(ip));
        Ok(missing.map(|(index, _)| index).collect())
    }
}

/// A source that no plan has.
const NOBODY: IpAddr = IpAddr::V4(Ipv4Addr::UNSPECIFIED);

/// Marks the routes of VIPs that should be bound by addresses.
fn mark_if(
    by_address: bool,
    vips: BTreeMap<IpAddr, Option<IpAddr>>,
) -> BTreeMap<IpAddr, Option<IpAddr>> {
    if !by_address {
        return vips;
    }
    vips.into_keys().map(|ip| (ip, Some(NOBODY))).collect()
}

fn vip(step: &Step) -> Option<IpAddr> {
    match step {
        Step::AddRoute { vip, .. } | Step::SetRoute { vip, .. } | Step::DelRoute { vip } => {
            Some(*vip)
        }
        _ => None,
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

/// Adds an address. A refusal, as of IPv6 addresses with IPv6 disabled, leaves the state certain.
async fn add(handle: &Handle, index: u32, ip: IpAddr) -> Result<(), StepFailure> {
    let length = if ip.is_ipv4() { 32 } else { 128 };
    let mut request = handle.address().add(index, ip, length);
    request.message_mut().header.flags |= AddressHeaderFlags::Nodad;
    match request.execute().await {
        Err(error) if is_error(&error, &[EXISTS]) => Ok(()),
        Err(error @ rtnetlink::Error::NetlinkError(_)) => {
            Err(StepFailure::new(Doubt::None, error.to_string()))
        }
        other => other.map_err(|error| StepFailure::lost(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_made_since_the_last_look_is_looked_for_when_routes_bind() {
        let mut device = VipDevice::Missing;
        assert!(!device.is_looked_for(false));
        device.note_presence();
        assert!(device.is_present() && device.is_looked_for(false));
        // What is known of its addresses stays.
        let addresses = BTreeSet::from([IpAddr::from([192, 0, 2, 10])]);
        let mut device = VipDevice::Present(addresses.clone());
        device.note_presence();
        assert!(matches!(device, VipDevice::Present(known) if known == addresses));
    }
}
