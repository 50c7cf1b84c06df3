// SPDX-License-Identifier: Apache-2.0

//! Hand-over to a kube-proxy, which shares nothing with our tables.
//!
//! Beside it, our nat chains come first and translate all new connections. When it has all that our tables
//! have, these are deleted: new connections are the kube-proxy's from then on, and open ones keep their
//! translation by their entries in conntrack.

use std::collections::BTreeSet;

use portolan_dataplane::{DataplaneError, NftablesKernel};
use portolan_model::Family;
use portolan_model::ipvs::VirtualServerKey;
use portolan_nftables::{TABLE, ways_with_endpoints};

use super::NftablesReconciler;

impl NftablesReconciler {
    /// The families that have a table of ours.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn families(kernel: &mut NftablesKernel) -> Result<BTreeSet<Family>, DataplaneError> {
        let (tables, _) = kernel.observe(&Family::ALL, TABLE)?;
        let there = tables.iter().filter(|(_, table)| table.is_some());
        Ok(there.map(|(family, _)| *family).collect())
    }

    /// The addresses and ports in our tables whose connections have a destination, but for node ports.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub async fn served(
        kernel: &mut NftablesKernel,
    ) -> Result<BTreeSet<VirtualServerKey>, DataplaneError> {
        let of_node = kernel.facts().await?.addresses;
        let (tables, _) = kernel.observe(&Family::ALL, TABLE)?;
        let tables = tables
            .iter()
            .filter_map(|(family, table)| Some((*family, table.as_ref()?)));
        let ways = tables.flat_map(|(family, table)| ways_with_endpoints(family, table));
        Ok(ways
            .filter(|way| !of_node.contains(&way.address))
            .map(|way| VirtualServerKey::new(way.protocol, way.address, way.port))
            .collect())
    }
}
