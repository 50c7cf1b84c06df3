// SPDX-License-Identifier: Apache-2.0

//! Takeover from a kube-proxy in iptables or nftables mode.
//!
//! The table of one in nftables mode goes in the transaction that brings ours, so that each packet meets one of
//! both. Those of iptables come after ours in the packet path: they are deleted when ours are in force. Open
//! connections keep their translation.

use portolan_dataplane::DataplaneError;
use portolan_model::Family;
use portolan_model::NodeTable;
use portolan_model::ipvs::VirtualServerKey;
use portolan_netlink::nftables::Request;
use portolan_nftables::{Surplus, WayKey, Ways};
use portolan_plan::kube_proxy::Claim;
use portolan_plan::kube_proxy::packet_rules::NFTABLES_TABLE;

use super::NftablesReconciler;
use crate::kube_proxy::{TakeoverProgress, TakeoverStart};

impl NftablesReconciler {
    /// Prepares the takeover from a kube-proxy if it was `asked` for and there is one. Nothing is taken over for
    /// a doubtful table.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub async fn begin_takeover(
        &mut self,
        table: &NodeTable,
        asked: bool,
        is_doubtful: impl Fn(&Claim) -> bool,
    ) -> Result<TakeoverStart, DataplaneError> {
        if !asked {
            return Ok(TakeoverStart::Nothing);
        }
        if self.kernel.has_kube_proxy_device().await? {
            tracing::warn!(
                "takeover: the objects of a kube-proxy in IPVS mode stay: take over with --dataplane ipvs \
                 first, and then change over"
            );
        }
        let families = self.served();
        let rules = self.kernel.packet_rules(&families).await?;
        if rules.is_empty() {
            return Ok(TakeoverStart::Nothing);
        }
        let facts = self.kernel.facts().await?;
        let ways = Ways::new(table, &facts).ways;
        let is_wanted =
            |key: &VirtualServerKey| way(key).is_some_and(|key| ways.contains_key(&key));
        let (wanted_rules, unwanted_rules) = rules.frontends.iter().copied().partition(is_wanted);
        let claim = Claim {
            wanted_rules,
            unwanted_rules,
            ..Claim::default()
        };
        self.facts = Some(facts);
        if is_doubtful(&claim) {
            return Ok(TakeoverStart::Doubtful(claim));
        }
        self.displaces = true;
        Ok(TakeoverStart::Begun(claim))
    }

    /// Adds the deletion of a kube-proxy's table to a transaction, if its time has come.
    pub(super) fn displace(
        &mut self,
        family: Family,
        surplus: Surplus,
        requests: &mut Vec<Request>,
    ) -> Result<(), DataplaneError> {
        let is_due = self.displaces && surplus == Surplus::Delete;
        if is_due && self.kernel.has_kube_proxy_table(family)? {
            requests.push(Request::DelOtherTable(NFTABLES_TABLE));
        }
        Ok(())
    }

    /// Removes what is left of the kube-proxy, once our tables are in the kernel.
    ///
    /// # Errors
    /// If the kernel cannot be read or written.
    pub async fn continue_takeover(&mut self) -> Result<TakeoverProgress, DataplaneError> {
        let families = self.served();
        let observed = self.observed.as_ref();
        let is_in = |family: &Family| {
            observed.is_some_and(|observed| matches!(observed.tables.get(family), Some(Some(_))))
        };
        let mut left = false;
        for family in &families {
            left |= self.kernel.has_kube_proxy_table(*family)?;
        }
        let lacking = families.iter().filter(|family| !is_in(family)).count();
        if left || lacking > 0 {
            return Ok(TakeoverProgress::Unserved { frontends: lacking });
        }
        self.kernel.delete_iptables_mode(&families).await?;
        self.displaces = false;
        Ok(TakeoverProgress::Done)
    }

    fn served(&self) -> Vec<Family> {
        self.config.families.iter().copied().collect()
    }
}

fn way(key: &VirtualServerKey) -> Option<WayKey> {
    let (socket, protocol) = (key.socket()?, key.protocol()?);
    Some(WayKey {
        address: socket.ip(),
        protocol,
        port: socket.port(),
    })
}
