// SPDX-License-Identifier: Apache-2.0

//! Takeover from a kube-proxy, around the first reconciliation.
//!
//! Before it, [`Reconciler::begin_takeover`] claims the virtual servers of a kube-proxy in IPVS mode, which
//! the reconciliation treats like any others of ours, and keeps the rules of one in iptables mode in force.
//! After it, [`Reconciler::continue_takeover`] removes the
//! leftovers piece by piece: the addresses of the device when our routes are in place, then the device, the
//! rules that rewrite packets when a virtual server is behind each of them, and last the chains and sets that
//! only a kube-proxy has. Each piece is idempotent, and the marker of
//! the takeover is removed last, so a crash at any point loses nothing.

use portolan_dataplane::{Dataplane, DataplaneError, KubeProxyObjects};
use portolan_model::ipvs::VirtualServerKey;
use portolan_model::{Family, NodeTable};
use portolan_plan::kube_proxy::packet_rules::shares_names;
use portolan_plan::kube_proxy::{
    Claim, PacketRules, VIP_DEVICE, has_kube_proxy, leftover_rules, leftover_sets, releasable,
    takeover_marker,
};
use portolan_plan::{Desired, KernelState, Step};

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
    /// Some addresses and ports of the kube-proxy's rules have no virtual server or route yet. As
    /// [`Self::Waiting`].
    Unserved {
        /// Their number.
        frontends: usize,
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
        let rules = self.packet_rules(asked, &observed).await?;
        let names = &self.config.names;
        if !has_kube_proxy(&observed, device.is_some(), !rules.is_empty(), asked, names) {
            self.facts = Some(facts);
            self.set_observed(observed);
            return Ok(TakeoverStart::Nothing);
        }
        let bound = device.unwrap_or_default();
        let claim = Claim::new(table, &facts, &self.config, &observed, &bound, &rules);
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
        if !rules.is_empty() {
            let families = &self.config.families;
            self.dataplane.keep_packet_rules(families).await?;
        }
        self.facts = Some(facts);
        self.set_observed(observed);
        Ok(TakeoverStart::Begun(claim))
    }

    /// The rules of a kube-proxy that rewrite packets, if a takeover was asked for or has begun.
    async fn packet_rules(
        &mut self,
        asked: bool,
        observed: &KernelState,
    ) -> Result<PacketRules, DataplaneError> {
        let names = &self.config.names;
        let has_begun = observed.sets.contains_key(&takeover_marker(names));
        if !shares_names(names) || !(asked || has_begun) {
            return Ok(PacketRules::default());
        }
        self.dataplane.packet_rules(&self.config.families).await
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
        let own = self.facts.as_ref().map(|facts| facts.addresses.clone());
        let own = own.unwrap_or_default();
        let (mut free, in_place) = self.desired.read(|desired| {
            let rules = desired.state.rules.iter();
            let in_place = rules
                .into_iter()
                .all(|(family, rules)| observed.rules.get(family) == Some(rules));
            let free = releasable(&bound, observed, &desired.state, &own);
            (free, in_place)
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
        if let Some(progress) = self.delete_packet_rules().await? {
            return Ok(progress);
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

    /// Deletes the rules that rewrite packets, unless something must be in place first. A Service that the
    /// kernel refuses for good holds up nothing.
    async fn delete_packet_rules(&mut self) -> Result<Option<TakeoverProgress>, DataplaneError> {
        if !shares_names(&self.config.names) {
            return Ok(None);
        }
        let rules = self.dataplane.packet_rules(&self.config.families).await?;
        if rules.is_empty() {
            return Ok(None);
        }
        let Some(observed) = &self.observed else {
            let frontends = rules.frontends.len();
            return Ok(Some(TakeoverProgress::Unserved { frontends }));
        };
        let (frontends, ours) = self.desired.read(|desired| {
            let is_unserved = |key: &&VirtualServerKey| self.lacks(observed, desired, key);
            let unserved = rules.frontends.iter().filter(is_unserved).count();
            (unserved, desired.state.rules.clone())
        });
        if frontends > 0 {
            return Ok(Some(TakeoverProgress::Unserved { frontends }));
        }
        self.dataplane.delete_packet_rules(&ours).await?;
        Ok(None)
    }
}

impl<D> Reconciler<D> {
    /// Returns `true` if a desired virtual server would not get its packets yet. One that the
    /// kernel refuses for good is not waited for.
    pub(crate) fn lacks(
        &self,
        observed: &KernelState,
        desired: &Desired,
        key: &VirtualServerKey,
    ) -> bool {
        let record = desired.records.get(key);
        let is_wanted = record.is_some_and(|record| !self.failed.contains(&record.key));
        is_wanted && !is_served(observed, &desired.state, key)
    }
}

/// Returns `true` if packets to a virtual server would arrive there.
fn is_served(observed: &KernelState, desired: &KernelState, key: &VirtualServerKey) -> bool {
    let has_route = key.socket().is_none_or(|socket| {
        let vip = socket.ip();
        !desired.routes.contains_key(&vip) || observed.routes.contains_key(&vip)
    });
    has_route && observed.virtual_servers.contains_key(key)
}

#[cfg(test)]
mod tests;
