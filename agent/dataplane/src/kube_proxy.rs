// SPDX-License-Identifier: Apache-2.0

//! Interface to the kernel objects of a kube-proxy in IPVS mode, for takeover and hand-over.

use std::collections::BTreeSet;
use std::future::Future;
use std::net::IpAddr;

use portolan_model::Family;
use portolan_plan::Rules;

use crate::DataplaneError;

/// A kernel that may have a dummy device with virtual addresses, and jumps of two programs. All
/// operations are idempotent: deleted objects may be missing.
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
}
