// SPDX-License-Identifier: Apache-2.0

//! The reconciler as the sync loop uses it, for all dataplanes.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_dataplane::{Dataplane, DataplaneError, HostPlane, KubeProxyObjects, OtherPlane};
use portolan_model::NodeTable;
use portolan_nftables::Surplus;
use portolan_plan::host::{Host, Owned};
use portolan_plan::{Config, NodeFacts, Ways};
use portolan_reconcile::{HostOutcome, NftablesReconciler, Retirement, SharedDesired};
use prometheus_client::registry::Registry;

use super::{Counts, Draining, Outcome, Reconciler};
use crate::kube_proxy::{Takeover, TakeoverError};

/// A reconciler that the sync loop runs. What a kind of dataplane does not have, such as drains, is left at
/// its default.
pub trait Engine: Send {
    /// Adds metrics of its own to those that are named after the agent.
    fn register(&self, _registry: &mut Registry) {}

    /// Compares the kernel cheaply; returns the first difference.
    fn glance(&mut self) -> impl Future<Output = Result<Option<String>, DataplaneError>> + Send;

    /// Reads the facts alone; returns whether they differ.
    fn refresh_facts(&mut self) -> impl Future<Output = Result<bool, DataplaneError>> + Send;

    /// Waits until another program has changed what is ours, or may have; for ever where nobody tells.
    fn disturbed(&mut self) -> impl Future<Output = ()> + Send {
        std::future::pending()
    }

    /// Facts about the node, if they have been read.
    fn facts(&self) -> Option<&NodeFacts>;

    /// Forgets what was read, so that the next reconciliation reads it.
    fn forget(&mut self);

    /// Forgets what was read for a periodic comparison, unless the kernel proves that it is still so.
    fn forget_unproven(&mut self) -> impl Future<Output = ()> + Send {
        self.forget();
        std::future::ready(())
    }

    /// Makes the kernel equal to a table. One from disk deletes nothing that it lacks.
    fn reconcile(
        &mut self,
        table: &Arc<NodeTable>,
        is_from_disk: bool,
    ) -> impl Future<Output = Result<Outcome, DataplaneError>> + Send;

    /// Completes a reconciliation with deferred work.
    fn settle(&mut self) -> impl Future<Output = Result<(), DataplaneError>> + Send;

    /// Time at which [`Self::settle`] has more to do, and stale flows are to be deleted after it.
    fn settles_at(&self) -> Option<Instant> {
        None
    }

    /// Deletes stale UDP flows, if there may be any; returns how many.
    fn forget_stale_flows(
        &mut self,
        table: &NodeTable,
    ) -> impl Future<Output = Result<Option<usize>, DataplaneError>> + Send;

    /// Numbers of objects in the kernel.
    fn counts(&mut self) -> Option<Counts>;

    /// The ways of health checks in the kernel; `None` while that is uncertain, and on a dataplane without them.
    fn ways(&mut self) -> Option<Ways> {
        None
    }

    /// Returns `true` if the state of the kernel is certain.
    fn is_certain(&mut self) -> bool;

    /// Numbers of desired iptables rules, by iptables table.
    fn rule_counts(&self) -> BTreeMap<String, usize> {
        BTreeMap::new()
    }

    /// Desired state for debug dumps.
    fn desired(&self) -> Option<SharedDesired> {
        None
    }

    /// Configuration of the kernel's programming now; `None` where it is that of the start.
    fn config(&self) -> Option<&Config> {
        None
    }

    /// Lets the next reconciliation retry refused records that are due.
    fn try_again(&mut self, _now: Instant) {}

    /// Time of the next retry of a refused record.
    fn next_attempt(
        &mut self,
        _now: Instant,
        _first: Duration,
        _longest: Duration,
    ) -> Option<Instant> {
        None
    }

    /// Destinations that drain, with the seconds that each may at most.
    fn draining(&mut self, _table: &NodeTable) -> Option<BTreeMap<Draining, Option<u32>>> {
        None
    }

    /// Returns `true` if deletions wait for room in the kernel.
    fn has_put_off(&self) -> bool {
        false
    }

    /// Deletes destinations that have drained, or whose deadline has passed.
    fn finish_drains(
        &mut self,
        _has_passed: impl Fn(&Draining) -> bool + Send + Sync,
    ) -> impl Future<Output = Result<(), DataplaneError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Sets what the host's `Director` asks for, and what is ours already.
    fn set_host(&mut self, host: Option<Arc<Host>>, owned: Owned);

    /// Returns the state of the host that is ours: now, and after the next [`Self::finish_host`].
    fn owned(&self, _table: &NodeTable) -> (Owned, Owned) {
        Default::default()
    }

    /// Ends what the host no longer does, before a reconciliation.
    fn begin_host(&mut self) -> impl Future<Output = HostOutcome> + Send {
        std::future::ready(HostOutcome::default())
    }

    /// Makes the settings of the host what is asked for, after a reconciliation.
    fn finish_host(&mut self, table: &NodeTable) -> impl Future<Output = HostOutcome> + Send;

    /// Retires a piece of what another dataplane of ours has left, once a table is programmed.
    fn retire(&mut self) -> impl Future<Output = Result<Retirement, DataplaneError>> + Send {
        std::future::ready(Ok(Retirement::Done))
    }

    /// Begins a takeover from a kube-proxy, if one is due.
    fn begin_takeover(
        &mut self,
        _takeover: &mut Takeover,
        _table: &NodeTable,
    ) -> impl Future<Output = Result<(), TakeoverError>> + Send {
        std::future::ready(Ok(()))
    }

    /// Removes a piece of a kube-proxy's leftovers; returns whether there are more.
    fn continue_takeover(&mut self, _takeover: &mut Takeover) -> impl Future<Output = bool> + Send {
        std::future::ready(false)
    }

    /// Returns `true` if another engine is to take this one's place when the takeover is over.
    fn has_successor(&self) -> bool {
        false
    }

    /// Lets that engine take its place. Its first reconciliation is due then. After an error all goes on as before.
    fn succeed(&mut self) -> impl Future<Output = anyhow::Result<()>> + Send {
        std::future::ready(Ok(()))
    }
}

impl<D: Dataplane + HostPlane + KubeProxyObjects + OtherPlane> Engine for Reconciler<D> {
    fn set_host(&mut self, host: Option<Arc<Host>>, owned: Owned) {
        self.set_host(host, owned);
    }

    fn owned(&self, table: &NodeTable) -> (Owned, Owned) {
        (self.owned().clone(), self.owned_then(table))
    }

    async fn begin_host(&mut self) -> HostOutcome {
        self.begin_host().await
    }

    async fn finish_host(&mut self, table: &NodeTable) -> HostOutcome {
        self.finish_host(table).await
    }

    async fn glance(&mut self) -> Result<Option<String>, DataplaneError> {
        self.glance().await
    }

    async fn refresh_facts(&mut self) -> Result<bool, DataplaneError> {
        self.refresh_facts().await
    }

    fn facts(&self) -> Option<&NodeFacts> {
        self.facts()
    }

    fn forget(&mut self) {
        self.forget();
    }

    async fn reconcile(
        &mut self,
        table: &Arc<NodeTable>,
        is_from_disk: bool,
    ) -> Result<Outcome, DataplaneError> {
        match is_from_disk {
            true => self.reconcile_additions(table).await,
            false => self.reconcile(table).await,
        }
    }

    async fn settle(&mut self) -> Result<(), DataplaneError> {
        self.settle().await
    }

    async fn forget_stale_flows(
        &mut self,
        table: &NodeTable,
    ) -> Result<Option<usize>, DataplaneError> {
        self.forget_stale_flows(table).await
    }

    fn counts(&mut self) -> Option<Counts> {
        self.counts()
    }

    fn ways(&mut self) -> Option<Ways> {
        self.ways()
    }

    fn is_certain(&mut self) -> bool {
        self.observed().is_some()
    }

    fn rule_counts(&self) -> BTreeMap<String, usize> {
        self.rule_counts()
    }

    fn desired(&self) -> Option<SharedDesired> {
        Some(self.desired().clone())
    }

    fn config(&self) -> Option<&Config> {
        Some(self.config())
    }

    fn try_again(&mut self, now: Instant) {
        self.try_again(now);
    }

    fn next_attempt(
        &mut self,
        now: Instant,
        first: Duration,
        longest: Duration,
    ) -> Option<Instant> {
        self.next_attempt(now, first, longest)
    }

    fn draining(&mut self, table: &NodeTable) -> Option<BTreeMap<Draining, Option<u32>>> {
        self.draining(table)
    }

    fn has_put_off(&self) -> bool {
        self.has_put_off()
    }

    async fn finish_drains(
        &mut self,
        has_passed: impl Fn(&Draining) -> bool + Send + Sync,
    ) -> Result<(), DataplaneError> {
        self.finish_drains(has_passed).await.map(drop)
    }

    async fn retire(&mut self) -> Result<Retirement, DataplaneError> {
        self.retire_tables().await
    }

    async fn begin_takeover(
        &mut self,
        takeover: &mut Takeover,
        table: &NodeTable,
    ) -> Result<(), TakeoverError> {
        takeover.begin(self, table).await
    }

    async fn continue_takeover(&mut self, takeover: &mut Takeover) -> bool {
        takeover.proceed(self).await
    }
}

impl Engine for NftablesReconciler {
    fn set_host(&mut self, host: Option<Arc<Host>>, _: Owned) {
        Self::set_host(self, host);
    }

    async fn finish_host(&mut self, _: &NodeTable) -> HostOutcome {
        Self::host_outcome(self)
    }

    async fn glance(&mut self) -> Result<Option<String>, DataplaneError> {
        self.glance()
    }

    async fn disturbed(&mut self) {
        self.disturbed().await;
    }

    async fn refresh_facts(&mut self) -> Result<bool, DataplaneError> {
        self.refresh_facts().await
    }

    fn facts(&self) -> Option<&NodeFacts> {
        self.facts()
    }

    fn forget(&mut self) {
        self.forget();
    }

    async fn forget_unproven(&mut self) {
        self.forget_unproven().await;
    }

    async fn reconcile(
        &mut self,
        table: &Arc<NodeTable>,
        is_from_disk: bool,
    ) -> Result<Outcome, DataplaneError> {
        let surplus = if is_from_disk {
            Surplus::Keep
        } else {
            Surplus::Delete
        };
        self.reconcile(table, surplus).await
    }

    async fn settle(&mut self) -> Result<(), DataplaneError> {
        self.settle()
    }

    fn settles_at(&self) -> Option<Instant> {
        self.settles_at()
    }

    async fn begin_takeover(
        &mut self,
        takeover: &mut Takeover,
        table: &NodeTable,
    ) -> Result<(), TakeoverError> {
        takeover.begin(self, table).await
    }

    async fn continue_takeover(&mut self, takeover: &mut Takeover) -> bool {
        takeover.proceed(self).await
    }

    async fn retire(&mut self) -> Result<Retirement, DataplaneError> {
        self.retire().await
    }

    async fn forget_stale_flows(
        &mut self,
        table: &NodeTable,
    ) -> Result<Option<usize>, DataplaneError> {
        self.forget_stale_flows(table)
    }

    fn try_again(&mut self, now: Instant) {
        self.try_again(now);
    }

    fn next_attempt(
        &mut self,
        now: Instant,
        first: Duration,
        longest: Duration,
    ) -> Option<Instant> {
        self.next_attempt(now, first, longest)
    }

    fn counts(&mut self) -> Option<Counts> {
        Self::counts(self)
    }

    fn is_certain(&mut self) -> bool {
        Self::counts(self).is_some()
    }
}
