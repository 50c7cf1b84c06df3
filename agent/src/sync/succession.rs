// SPDX-License-Identifier: Apache-2.0

//! Two engines in a row, for a takeover to nftables from a kube-proxy in IPVS mode: IPVS takes over, and when that
//! is complete, nftables change over from it. Both are as at two starts of an agent, one after the other.
//!
//! The kernel alone has the state between them. An agent that starts after a crash goes on with the takeover while
//! the kernel has something of a kube-proxy, and else begins with the second engine.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};

use portolan_dataplane::DataplaneError;
use portolan_model::NodeTable;
use portolan_plan::host::{Host, Owned};
use portolan_plan::{NodeFacts, Ways};
use portolan_reconcile::{HostOutcome, Retirement, SharedDesired, refused_host};

use super::{Counts, Draining, Engine, Outcome};
use crate::kube_proxy::{Takeover, TakeoverError};

/// Opens the second engine, which finds in the kernel what the first one has made.
pub(crate) trait Opens: Send {
    /// The second engine.
    type Engine: Engine;

    /// Opens it. Nothing is changed.
    fn open(&mut self) -> impl Future<Output = anyhow::Result<Self::Engine>> + Send;
}

/// An engine that takes over from a kube-proxy, and the one that takes its place afterwards.
#[derive(Debug)]
pub(crate) struct Succession<A, O: Opens> {
    stage: Stage<A, O::Engine>,
    opens: O,
    /// Settings of the host, which the second engine refuses. The first one gets none.
    host: Option<Arc<Host>>,
}

#[derive(Debug)]
enum Stage<A, B> {
    First(Box<A>),
    Second(Box<B>),
}

/// The same expression with whichever engine programs the node.
macro_rules! with {
    ($this:ident, $engine:ident => $value:expr) => {
        match &mut $this.stage {
            Stage::First($engine) => $value,
            Stage::Second($engine) => $value,
        }
    };
}

impl<A: Engine, O: Opens> Succession<A, O> {
    /// Begins with the first engine.
    pub(crate) fn new(first: A, opens: O) -> Self {
        Self {
            stage: Stage::First(Box::new(first)),
            opens,
            host: None,
        }
    }
}

impl<A: Engine, O: Opens> Engine for Succession<A, O> {
    async fn glance(&mut self) -> Result<Option<String>, DataplaneError> {
        with!(self, engine => engine.glance().await)
    }

    async fn refresh_facts(&mut self) -> Result<bool, DataplaneError> {
        with!(self, engine => engine.refresh_facts().await)
    }

    async fn disturbed(&mut self) {
        with!(self, engine => engine.disturbed().await);
    }

    fn facts(&self) -> Option<&NodeFacts> {
        match &self.stage {
            Stage::First(engine) => engine.facts(),
            Stage::Second(engine) => engine.facts(),
        }
    }

    fn forget(&mut self) {
        with!(self, engine => engine.forget());
    }

    async fn forget_unproven(&mut self) {
        with!(self, engine => engine.forget_unproven().await);
    }

    async fn reconcile(
        &mut self,
        table: &Arc<NodeTable>,
        is_from_disk: bool,
    ) -> Result<Outcome, DataplaneError> {
        with!(self, engine => engine.reconcile(table, is_from_disk).await)
    }

    async fn settle(&mut self) -> Result<(), DataplaneError> {
        with!(self, engine => engine.settle().await)
    }

    fn settles_at(&self) -> Option<Instant> {
        match &self.stage {
            Stage::First(engine) => engine.settles_at(),
            Stage::Second(engine) => engine.settles_at(),
        }
    }

    async fn forget_stale_flows(
        &mut self,
        table: &NodeTable,
    ) -> Result<Option<usize>, DataplaneError> {
        with!(self, engine => engine.forget_stale_flows(table).await)
    }

    fn counts(&mut self) -> Option<Counts> {
        with!(self, engine => engine.counts())
    }

    /// A probe by a way of the first engine must not be sent once its rules are gone.
    fn ways(&mut self) -> Option<Ways> {
        match &mut self.stage {
            Stage::First(engine) => engine.ways(),
            Stage::Second(engine) => Some(engine.ways().unwrap_or_default()),
        }
    }

    fn is_certain(&mut self) -> bool {
        with!(self, engine => engine.is_certain())
    }

    fn rule_counts(&self) -> BTreeMap<String, usize> {
        match &self.stage {
            Stage::First(engine) => engine.rule_counts(),
            Stage::Second(engine) => engine.rule_counts(),
        }
    }

    fn desired(&self) -> Option<SharedDesired> {
        match &self.stage {
            Stage::First(engine) => engine.desired(),
            Stage::Second(engine) => engine.desired(),
        }
    }

    fn try_again(&mut self, now: Instant) {
        with!(self, engine => engine.try_again(now));
    }

    fn next_attempt(
        &mut self,
        now: Instant,
        first: Duration,
        longest: Duration,
    ) -> Option<Instant> {
        with!(self, engine => engine.next_attempt(now, first, longest))
    }

    fn draining(&mut self, table: &NodeTable) -> Option<BTreeMap<Draining, Option<u32>>> {
        with!(self, engine => engine.draining(table))
    }

    fn has_put_off(&self) -> bool {
        match &self.stage {
            Stage::First(engine) => engine.has_put_off(),
            Stage::Second(engine) => engine.has_put_off(),
        }
    }

    async fn finish_drains(
        &mut self,
        has_passed: impl Fn(&Draining) -> bool + Send + Sync,
    ) -> Result<(), DataplaneError> {
        with!(self, engine => engine.finish_drains(has_passed).await)
    }

    fn set_host(&mut self, host: Option<Arc<Host>>, _: Owned) {
        self.host = host;
    }

    async fn finish_host(&mut self, _: &NodeTable) -> HostOutcome {
        refused_host(self.host.as_deref())
    }

    async fn retire(&mut self) -> Result<Retirement, DataplaneError> {
        with!(self, engine => engine.retire().await)
    }

    async fn begin_takeover(
        &mut self,
        takeover: &mut Takeover,
        table: &NodeTable,
    ) -> Result<(), TakeoverError> {
        with!(self, engine => engine.begin_takeover(takeover, table).await)
    }

    async fn continue_takeover(&mut self, takeover: &mut Takeover) -> bool {
        with!(self, engine => engine.continue_takeover(takeover).await)
    }

    fn has_successor(&self) -> bool {
        matches!(self.stage, Stage::First(_))
    }

    async fn succeed(&mut self) -> anyhow::Result<()> {
        if self.has_successor() {
            self.stage = Stage::Second(Box::new(self.opens.open().await?));
        }
        Ok(())
    }
}
