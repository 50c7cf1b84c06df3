// SPDX-License-Identifier: Apache-2.0

//! Programs on this node that use bits of packet marks, found in the rules of all iptables.

use std::collections::BTreeSet;

use portolan_model::{Family, NodeInfo};
use portolan_plan::{Config, MarkUsers, rules};

use super::Kernel;

impl Kernel {
    /// Finds other users of packet marks in the rules of the families of a configuration.
    pub async fn mark_users(&self, config: &Config) -> MarkUsers {
        let mut users = MarkUsers::default();
        for family in &config.families {
            let ours = our_chains(*family, config);
            for saved in self.iptables.save_all_variants(*family).await {
                users.scan(&saved, &ours);
            }
        }
        users
    }
}

fn our_chains(family: Family, config: &Config) -> BTreeSet<String> {
    let ours = rules(family, config, &NodeInfo::default());
    let chains = ours.tables.into_iter().flat_map(|table| table.chains);
    chains.map(|(chain, _)| chain).collect()
}
