// SPDX-License-Identifier: Apache-2.0

//! Programs on this node that use bits of packet marks, found in the rules of all iptables.

use std::collections::BTreeSet;

use portolan_model::{Family, NodeInfo};
use portolan_plan::{Config, MarkMask, MarkUsers, MaskError, rules};

use super::Kernel;

impl Kernel {
    /// Chooses the marks of short circuits and ranges of ports, so that they collide with no other program's in the
    /// rules of the families of a configuration.
    pub(super) async fn free_marks(&mut self, config: &Config) -> Result<MarkMask, MaskError> {
        let mut users = MarkUsers::default();
        for family in &config.families {
            let ours = our_chains(*family, config);
            for saved in self.iptables.save_all_variants(*family).await {
                users.scan(&saved, &ours);
            }
        }
        let mask = users.choose(config.asked_marks, config.masquerade_mark)?;
        if mask != config.short_circuit_mask {
            let bits = users
                .iter()
                .map(|(user, bits)| format!("{user}: {bits:#x}"));
            let others = bits.collect::<Vec<_>>().join(", ");
            let mask = format!("{:#x}", mask.bits());
            tracing::info!(
                mask,
                others,
                "other programs use packet marks: short circuits get free bits"
            );
        }
        Ok(mask)
    }
}

fn our_chains(family: Family, config: &Config) -> BTreeSet<String> {
    let ours = rules(family, config, &NodeInfo::default());
    let chains = ours.tables.into_iter().flat_map(|table| table.chains);
    chains.map(|(chain, _)| chain).collect()
}
