// SPDX-License-Identifier: Apache-2.0

//! Takeover from a kube-proxy in IPVS mode, around the first reconciliation.
//!
//! Before it, [`Reconciler::begin_takeover`] claims the kube-proxy's virtual servers, which the
//! reconciliation treats like any others of ours. After it, [`Reconciler::continue_takeover`] removes the
//! leftovers piece by piece: the addresses of the device when our routes are in place, then the device,
//! and last the chains and sets that only a kube-proxy has. Each piece is idempotent, and the marker of
//! the takeover is removed last, so a crash at any point loses nothing.

use portolan_dataplane::{Dataplane, DataplaneError, KubeProxyObjects};
use portolan_model::{Family, NodeTable};
use portolan_plan::Step;
use portolan_plan::kube_proxy::{
    Claim, VIP_DEVICE, has_kube_proxy, leftover_rules, leftover_sets, releasable,
};

use crate::Reconciler;

/// Number of addresses deleted from the device at a time. Each takes the kernel up to some
/// milliseconds, and a new table should not wait for all.
const SLICE: usize = 128;

/// Result of the start of a takeover.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakeoverStart {
    /// There is nothing to take over.
    Nothing,
    /// The table lacks too many of the kube-proxy's virtual servers: nothing was changed, and the table
    /// must not be programmed.
    Doubtful(Claim),
    /// The kube-proxy's virtual servers are ours; the claim has those that were not before.
    Begun(Claim),
}

/// Progress of a takeover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeoverProgress {
    /// There is more to remove, at once.
    More,
    /// Some addresses have no route of ours yet, or the rules are not in place. The next attempt makes
    /// sense after another reconciliation.
    Waiting {
        /// The addresses of the device that are left.
        addresses: usize,
    },
    /// No object of the kube-proxy is left.
    Done,
}

impl<D: Dataplane + KubeProxyObjects> Reconciler<D> {
    /// Claims a kube-proxy's virtual servers if the takeover was `asked` for or has begun before. Nothing is
    /// claimed for a doubtful table.
    ///
    /// # Errors
    /// If the kernel cannot be read, or the claim cannot be recorded. Nothing may be programmed then: the
    /// virtual servers would be foreign.
    pub async fn begin_takeover(
        &mut self,
        table: &NodeTable,
        asked: bool,
        is_doubtful: impl Fn(&Claim) -> bool,
    ) -> Result<TakeoverStart, DataplaneError> {
        let facts = self.dataplane.facts().await?;
        let mut observed = self.observe().await?;
        let device = self.dataplane.vip_device(VIP_DEVICE).await?;
        let names = &self.config.names;
        if !has_kube_proxy(&observed, device.is_some(), asked, names) {
            self.facts = Some(facts);
            self.set_observed(observed);
            return Ok(TakeoverStart::Nothing);
        }
        let bound = device.unwrap_or_default();
        let claim = Claim::new(table, &facts, &self.config, &observed, &bound);
        if is_doubtful(&claim) {
            return Ok(TakeoverStart::Doubtful(claim));
        }
        let steps = claim.steps(&observed, &self.config);
        if let Some(error) = self.dataplane.apply(&steps).await.into_iter().next() {
            let command = steps.get(error.index).map(Step::to_string);
            return Err(DataplaneError::Command {
                command: command.unwrap_or_default(),
                message: error.message,
            });
        }
        steps.iter().for_each(|step| observed.advance(step));
        self.facts = Some(facts);
        self.set_observed(observed);
        Ok(TakeoverStart::Begun(claim))
    }

    /// Removes a piece of the leftovers, once a table is programmed.
    ///
    /// # Errors
    /// If the kernel cannot be read, or refuses a removal. Earlier removals stay done.
    pub async fn continue_takeover(&mut self) -> Result<TakeoverProgress, DataplaneError> {
        self.merge_pending();
        let read;
        let observed = match &self.observed {
            Some(observed) => observed,
            // Unknown after an unrelated error.
            None => {
                read = self.observe().await?;
                &read
            }
        };
        let device = self.dataplane.vip_device(VIP_DEVICE).await?;
        let bound = device.clone().unwrap_or_default();
        let (mut free, in_place) = self.desired.read(|desired| {
            let rules = desired.state.rules.iter();
            let in_place = rules
                .into_iter()
                .all(|(family, rules)| observed.rules.get(family) == Some(rules));
            (releasable(&bound, observed, &desired.state), in_place)
        });
        if !free.is_empty() {
            free.truncate(SLICE);
            self.dataplane.delete_vips(VIP_DEVICE, &free).await?;
            return Ok(TakeoverProgress::More);
        }
        if !bound.is_empty() || !in_place {
            let addresses = bound.len();
            return Ok(TakeoverProgress::Waiting { addresses });
        }
        if device.is_some() {
            self.dataplane.delete_vip_device(VIP_DEVICE).await?;
        }
        let rules = leftover_rules(&self.config);
        for family in Family::ALL {
            if self.config.families.contains(&family) {
                self.dataplane.remove_rules(&rules, family).await?;
            }
        }
        let sets = leftover_sets(&self.config.names);
        self.dataplane.destroy_sets(&sets).await?;
        if let Some(observed) = &mut self.observed {
            sets.iter()
                .for_each(|name| drop(observed.sets.remove(name)));
        }
        Ok(TakeoverProgress::Done)
    }
}

#[cfg(test)]
mod tests;
