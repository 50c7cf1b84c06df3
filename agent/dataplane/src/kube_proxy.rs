// SPDX-License-Identifier: Apache-2.0

//! Interface to the kernel objects of a kube-proxy, for takeover and hand-over.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::net::IpAddr;

use portolan_model::Family;
use portolan_plan::Rules;
use portolan_plan::kube_proxy::PacketRules;

use crate::DataplaneError;

/// A kernel that may have a dummy device with virtual addresses, jumps of two programs, and rules that
/// rewrite packets. All operations are idempotent: deleted objects may be missing.
pub trait KubeProxyObjects: Send {
    /// The addresses on a device, link-local ones left out; `None` if there is no such device.
    ///
    /// # Errors
    /// If they cannot be read.
    fn vip_device(
        &mut self,
        name: &str,
    ) -> impl Future<Output = Result<Option<BTreeSet<IpAddr>>, DataplaneError>> + Send;

    /// Deletes addresses of a device one by one.
    ///
    /// # Errors
    /// At the first one that cannot be deleted.
    fn delete_vips(
        &mut self,
        name: &str,
        addresses: &[IpAddr],
    ) -> impl Future<Output = Result<(), DataplaneError>> + Send;

    /// Deletes a device.
    ///
    /// # Errors
    /// If it cannot be deleted.
    fn delete_vip_device(
        &mut self,
        name: &str,
    ) -> impl Future<Output = Result<(), DataplaneError>> + Send;

    /// Deletes our jumps next to a kube-proxy's jumps to the same chain, which are recognised by their
    /// comments.
    ///
    /// # Errors
    /// If the rules cannot be read or written.
    fn remove_second_jumps(
        &mut self,
        rules: &Rules,
        family: Family,
    ) -> impl Future<Output = Result<(), DataplaneError>> + Send;

    /// The rules of a kube-proxy in iptables or nftables mode in these families.
    ///
    /// # Errors
    /// If they cannot be read.
    fn packet_rules(
        &mut self,
        families: &BTreeSet<Family>,
    ) -> impl Future<Output = Result<PacketRules, DataplaneError>> + Send;

    /// Keeps the rules of a kube-proxy in iptables mode in force although rules of ours get the same names.
    ///
    /// # Errors
    /// If the rules cannot be read or written. Ours must not be written then.
    fn keep_packet_rules(
        &mut self,
        families: &BTreeSet<Family>,
    ) -> impl Future<Output = Result<(), DataplaneError>> + Send;

    /// Deletes the rules of a kube-proxy in iptables or nftables mode in the families of `ours`, which stay. The ways
    /// to its chains end first, in each table at once.
    ///
    /// # Errors
    /// If the rules cannot be read or written. Some may be gone.
    fn delete_packet_rules(
        &mut self,
        ours: &BTreeMap<Family, Rules>,
    ) -> impl Future<Output = Result<(), DataplaneError>> + Send;
}
