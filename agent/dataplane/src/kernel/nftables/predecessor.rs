// SPDX-License-Identifier: Apache-2.0

//! Objects of a kube-proxy, as our nftables dataplane finds them.

use std::collections::BTreeSet;

use portolan_model::Family;
use portolan_plan::Rules;
use portolan_plan::kube_proxy::{PacketRules, RuleMode, VIP_DEVICE};

use super::NftablesKernel;
use crate::DataplaneError;
use crate::kernel::blocking::blocking;
use crate::kernel::iptables::Iptables;
use crate::kernel::kube_proxy::{has_nftables, index_of, nftables_frontends};

impl NftablesKernel {
    /// The rules of a kube-proxy in iptables or nftables mode in some families. Where the tools of iptables
    /// do not work there are none of iptables.
    ///
    /// # Errors
    /// If they cannot be read.
    pub async fn packet_rules(
        &mut self,
        families: &[Family],
    ) -> Result<PacketRules, DataplaneError> {
        let mut rules = PacketRules::default();
        for family in families {
            if let Some(frontends) = blocking(|| nftables_frontends(*family))? {
                rules.modes.insert(RuleMode::Nftables);
                rules.frontends.extend(frontends);
            }
        }
        let Some(mut iptables) = self.iptables().await else {
            return Ok(rules);
        };
        for family in families {
            match iptables.frontends_of_kube_proxy(*family).await {
                Ok(None) => {}
                Ok(Some(frontends)) => {
                    rules.modes.insert(RuleMode::Iptables);
                    rules.frontends.extend(frontends);
                }
                Err(error) => tracing::warn!(%family, %error, "rules of iptables cannot be read"),
            }
        }
        Ok(rules)
    }

    /// Whether a kube-proxy in nftables mode has a table of a family.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub fn has_kube_proxy_table(&mut self, family: Family) -> Result<bool, DataplaneError> {
        blocking(|| has_nftables(family))
    }

    /// Whether there is the device of a kube-proxy in IPVS mode.
    ///
    /// # Errors
    /// If the kernel cannot be read.
    pub async fn has_kube_proxy_device(&mut self) -> Result<bool, DataplaneError> {
        let handle = self.routes.handle()?;
        Ok(index_of(handle, VIP_DEVICE).await?.is_some())
    }

    /// Deletes the rules of a kube-proxy in iptables mode: the jumps to its chains first, each table at once.
    ///
    /// # Errors
    /// If they cannot be read or written. Some may be gone.
    pub async fn delete_iptables_mode(
        &mut self,
        families: &[Family],
    ) -> Result<(), DataplaneError> {
        let Some(mut iptables) = self.iptables().await else {
            return Ok(());
        };
        let nothing_of_ours = Rules {
            tables: Vec::new(),
            jumps: Vec::new(),
            obsolete: Vec::new(),
            sets: BTreeSet::new(),
        };
        for family in families {
            iptables
                .delete_kube_proxy(*family, &nothing_of_ours)
                .await?;
        }
        Ok(())
    }

    async fn iptables(&self) -> Option<Iptables> {
        let opened = Iptables::open(self.config.iptables, None).await;
        opened
            .inspect_err(|error| tracing::debug!(%error, "no tools of iptables"))
            .ok()
    }
}
