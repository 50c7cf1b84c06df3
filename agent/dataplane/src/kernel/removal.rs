// SPDX-License-Identifier: Apache-2.0

//! Deletion of our tables of nftables, while others serve the same addresses.

use portolan_model::Family;
use portolan_netlink::nftables::{Nftables, Request};
use portolan_nftables::{TABLE, detach_requests};
use rustix::thread::{MembarrierCommand, membarrier};

use super::blocking::blocking;
use crate::DataplaneError;

/// Deletes our tables of families, each of which must have one. No packet is refused by a table that is half gone: see
/// [`detach_requests`].
///
/// # Errors
/// If the kernel refuses.
pub(super) fn delete_tables(
    nftables: &mut Nftables,
    families: &[Family],
) -> Result<(), DataplaneError> {
    let mut commit = |requests: &[Request]| {
        families.iter().try_for_each(|family| {
            let committed = nftables.commit(*family, TABLE, requests, None);
            committed.map_err(|error| {
                let what = format!("deletion of the {family} table {TABLE}");
                DataplaneError::of_commit(what, error)
            })
        })
    };
    blocking(|| {
        commit(&detach_requests())?;
        wait_for_packets();
        commit(&[Request::DelTable])
    })
}

/// Waits until each packet that was in any rules has left them (kernel: `synchronize_rcu`). Some kernels lack the call:
/// there a packet has the time until the next transaction is made.
fn wait_for_packets() {
    if let Err(error) = membarrier(MembarrierCommand::Global) {
        tracing::debug!(%error, "no barrier before the deletion of tables");
    }
}
