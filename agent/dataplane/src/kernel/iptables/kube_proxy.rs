// SPDX-License-Identifier: Apache-2.0

//! Rules of a kube-proxy in iptables mode, in the variant that we write too.

use std::collections::BTreeSet;

use portolan_model::Family;
use portolan_model::ipvs::VirtualServerKey;
use portolan_plan::Rules;
use portolan_plan::kube_proxy::packet_rules::{
    has_iptables_mode, iptables_frontends, kept_input, removed_input, unhooked_input,
};

use super::Iptables;
use crate::DataplaneError;

impl Iptables {
    /// The Services' addresses and ports; `None` without such rules.
    pub(in crate::kernel) async fn frontends_of_kube_proxy(
        &mut self,
        family: Family,
    ) -> Result<Option<BTreeSet<VirtualServerKey>>, DataplaneError> {
        let saved = self.tools.save(family).await?;
        Ok(has_iptables_mode(&saved).then(|| iptables_frontends(&saved)))
    }

    /// Sends packets through a copy of the chain that leads to the Services.
    pub(in crate::kernel) async fn keep_kube_proxy(
        &mut self,
        family: Family,
    ) -> Result<(), DataplaneError> {
        let saved = self.tools.save(family).await?;
        if !has_iptables_mode(&saved) {
            return Ok(());
        }
        match kept_input(&saved) {
            Some(input) => self.tools.write_at_start(family, &input).await,
            None => Ok(()),
        }
    }

    /// Deletes the jumps to the chains, and then the chains, of which there may be many thousands.
    pub(in crate::kernel) async fn delete_kube_proxy(
        &mut self,
        family: Family,
        ours: &Rules,
    ) -> Result<(), DataplaneError> {
        let saved = self.tools.save(family).await?;
        if !has_iptables_mode(&saved) {
            return Ok(());
        }
        if let Some(input) = unhooked_input(&saved, ours) {
            self.tools.write_at_start(family, &input).await?;
        }
        match removed_input(&saved, ours) {
            Some(input) => self.tools.write_at_start(family, &input).await,
            None => Ok(()),
        }
    }
}
