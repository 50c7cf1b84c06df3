// SPDX-License-Identifier: Apache-2.0

//! Tables of our nftables dataplane, as the IPVS dataplane finds them.

use std::collections::{BTreeMap, BTreeSet};

use portolan_model::Family;
use portolan_model::ipvs::VirtualServerKey;
use portolan_netlink::SocketError;
use portolan_netlink::nftables::{Nftables, Request, tables};
use portolan_nftables::{SERVICES, TABLE, unmark_requests};
use portolan_plan::kube_proxy::packet_rules::nftables_frontend;

use super::Kernel;
use super::blocking::blocking;
use super::removal::delete_tables;
use crate::{DataplaneError, Errno, Flow, OtherPlane};

impl OtherPlane for Kernel {
    async fn tables(
        &mut self,
    ) -> Result<BTreeMap<Family, BTreeSet<VirtualServerKey>>, DataplaneError> {
        let read = || {
            let mut found = BTreeMap::new();
            for family in families()? {
                let mut nftables = Nftables::open()?;
                let elements = match nftables.elements(family, TABLE, SERVICES) {
                    // The agent that began the table ended before its sets were made.
                    Err(SocketError::Refused(Errno::ENOENT)) => Vec::new(),
                    read => read?,
                };
                let keys = elements.iter().map(|(key, _)| key);
                let frontends = keys.filter_map(|key| nftables_frontend(family, key));
                found.insert(family, frontends.collect());
            }
            Ok(found)
        };
        blocking(read).map_err(DataplaneError::Nftables)
    }

    async fn unmark(&mut self, bits: u32) -> Result<(), DataplaneError> {
        let requests = unmark_requests(bits);
        for family in blocking(families).map_err(DataplaneError::Nftables)? {
            commit(family, &requests)?;
        }
        Ok(())
    }

    async fn delete_table(&mut self, family: Family) -> Result<(), DataplaneError> {
        let mut nftables = Nftables::open().map_err(DataplaneError::Nftables)?;
        delete_tables(&mut nftables, &[family])
    }

    async fn delete_untranslated_flows(
        &mut self,
        family: Family,
        is_stale: &(dyn Fn(&Flow) -> bool + Sync),
    ) -> Result<usize, DataplaneError> {
        let conntrack = self.conntrack.get()?;
        let delete = || {
            let flows = conntrack.untranslated_udp_flows(family, &|flow| is_stale(flow))?;
            conntrack.delete(&flows)
        };
        blocking(delete).map_err(DataplaneError::Conntrack)
    }
}

/// The families in which our table is.
fn families() -> Result<Vec<Family>, SocketError> {
    let mut found = Vec::new();
    for family in Family::ALL {
        if tables(family)?.iter().any(|name| name == TABLE) {
            found.push(family);
        }
    }
    Ok(found)
}

fn commit(family: Family, requests: &[Request]) -> Result<(), DataplaneError> {
    let commit = || {
        let mut nftables = Nftables::open()?;
        nftables.commit(family, TABLE, requests, None)
    };
    blocking(commit).map_err(|error| {
        let what = format!("change of the {family} table {TABLE}");
        DataplaneError::of_commit(what, error)
    })
}
