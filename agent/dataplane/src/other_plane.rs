// SPDX-License-Identifier: Apache-2.0

//! Interface to what changing over between our own dataplanes needs besides [`Dataplane`](crate::Dataplane).

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;

use portolan_model::Family;
use portolan_model::ipvs::VirtualServerKey;

use crate::{DataplaneError, Flow};

/// A kernel in which our nftables dataplane may have left tables, and our IPVS dataplane UDP flows. All
/// operations are idempotent.
pub trait OtherPlane: Send {
    /// The addresses and ports in the tables of our nftables dataplane, by the families that have one.
    ///
    /// # Errors
    /// If they cannot be read.
    fn tables(
        &mut self,
    ) -> impl Future<Output = Result<BTreeMap<Family, BTreeSet<VirtualServerKey>>, DataplaneError>> + Send;

    /// Takes bits of the packet mark from new connections before the tables of our nftables dataplane see
    /// them, so that IPVS does not select a virtual server by it afterwards.
    ///
    /// # Errors
    /// If a table cannot be changed.
    fn unmark(&mut self, bits: u32) -> impl Future<Output = Result<(), DataplaneError>> + Send;

    /// Deletes the table of a family.
    ///
    /// # Errors
    /// If the kernel refuses.
    fn delete_table(
        &mut self,
        family: Family,
    ) -> impl Future<Output = Result<(), DataplaneError>> + Send;

    /// Deletes the UDP flows that `is_stale` selects from conntrack, but for those whose destination a rule
    /// has translated: what IPVS has forwarded stays.
    ///
    /// # Errors
    /// If they cannot be read or deleted.
    fn delete_untranslated_flows(
        &mut self,
        family: Family,
        is_stale: &(dyn Fn(&Flow) -> bool + Sync),
    ) -> impl Future<Output = Result<usize, DataplaneError>> + Send;
}
