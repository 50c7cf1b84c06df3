//! Takes over from a kube-proxy in IPVS mode, around the first reconciliation.
//!
//! Before it, [`Reconciler::begin_takeover`] claims the kube-proxy's virtual servers; it does the
//! rest as with any others of ours. After it, [`Reconciler::continue_takeover`] takes away what
//! is left, piece by piece: the addresses of the device when our routes are in place, then the
//! device, and last what only a kube-proxy has of chains and sets. Each piece is idempotent, and
//! what says that there is more to do goes last, so a crash anywhere loses nothing.

use portolan_dataplane::{Dataplane, DataplaneError, KubeProxyObjects};
use portolan_model::{Family, NodeTable};
use portolan_plan::Step;
use portolan_plan::kube_proxy::{
    Claim, VIP_DEVICE, has_kube_proxy, leftover_rules, leftover_sets, releasable,
};

use crate::Reconciler;

/// Of how many addresses the device is relieved at a time: each takes the kernel up to some
/// milliseconds, and a new table should not wait for all.
const SLICE: usize = 128;

/// How a takeover begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TakeoverStart {
    /// There is nothing to take over.
    Nothing,
    /// The table lacks too many of the kube-proxy's virtual servers: nothing was done, and the
    /// table must not be programmed.
    Doubtful(Claim),
    /// The kube-proxy's virtual servers are ours. Those of the claim are those that were not yet.
    Begun(Claim),
}

/// How far a takeover is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TakeoverProgress {
    /// There is more to do, at once.
    More,
    /// Something is needed still: so many addresses cannot be replaced, or the rules are not in
    /// place. Another attempt makes sense after another reconciliation.
    Waiting {
        /// The addresses of the device that are left.
        addresses: usize,
    },
    /// Nothing of the kube-proxy's is left.
    Done,
}

impl<D: Dataplane + KubeProxyObjects> Reconciler<D> {
    /// Claims what a kube-proxy left, if it was asked for or has begun before. A table of which
    /// `is_doubtful` says so claims nothing.
    ///
    /// # Errors
    /// If the kernel cannot be read, or what is claimed not be recorded: then nothing of it may be
    /// programmed, for it would be somebody else's.
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

    /// Takes away a piece of what is left, once a table is programmed.
    ///
    /// # Errors
    /// If the kernel cannot be read, or refuses. What was done stays done.
    pub async fn continue_takeover(&mut self) -> Result<TakeoverProgress, DataplaneError> {
        self.merge_pending();
        let read;
        let observed = match &self.observed {
            Some(observed) => observed,
            // After an error that has nothing to do with this.
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
