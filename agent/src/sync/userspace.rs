// SPDX-License-Identifier: Apache-2.0

//! The userspace dataplane as the sync loop runs it: the sockets are the state, so that nobody else changes it.

use std::sync::Arc;
use std::time::Instant;

use portolan_dataplane::DataplaneError;
use portolan_model::NodeTable;
use portolan_plan::NodeFacts;
use portolan_plan::host::{Host, Owned};
use portolan_reconcile::{HostOutcome, refused_host};
use portolan_userspace::Proxy;
use prometheus_client::registry::Registry;

use super::{Counts, Engine, Outcome};

/// Keeps sockets equal to a table.
#[derive(Debug)]
pub struct Userspace {
    proxy: Proxy,
    host: Option<Arc<Host>>,
    /// Whether the next table is applied as a whole although nothing of it was yet.
    is_first: bool,
}

impl Userspace {
    /// Runs a proxy.
    #[must_use]
    pub fn new(proxy: Proxy) -> Self {
        Self {
            proxy,
            host: None,
            is_first: true,
        }
    }
}

impl Engine for Userspace {
    fn register(&self, registry: &mut Registry) {
        self.proxy.metrics().register(registry);
    }

    async fn glance(&mut self) -> Result<Option<String>, DataplaneError> {
        Ok(None)
    }

    async fn refresh_facts(&mut self) -> Result<bool, DataplaneError> {
        Ok(false)
    }

    /// Health-check ports are a node's.
    fn facts(&self) -> Option<&NodeFacts> {
        None
    }

    fn forget(&mut self) {}

    async fn reconcile(
        &mut self,
        table: &Arc<NodeTable>,
        is_from_disk: bool,
    ) -> Result<Outcome, DataplaneError> {
        let start = Instant::now();
        let applied = self.proxy.apply(table, is_from_disk).await;
        Ok(Outcome {
            objects: applied.changed,
            duration: start.elapsed(),
            errors: applied.errors,
            again: applied.again,
            is_full: std::mem::take(&mut self.is_first),
            ..Outcome::default()
        })
    }

    async fn settle(&mut self) -> Result<(), DataplaneError> {
        Ok(())
    }

    async fn forget_stale_flows(&mut self, _: &NodeTable) -> Result<Option<usize>, DataplaneError> {
        Ok(None)
    }

    fn counts(&mut self) -> Option<Counts> {
        let (virtual_servers, real_servers) = self.proxy.counts();
        Some(Counts {
            virtual_servers,
            real_servers,
        })
    }

    fn is_certain(&mut self) -> bool {
        true
    }

    fn set_host(&mut self, host: Option<Arc<Host>>, _: Owned) {
        self.host = host;
    }

    async fn finish_host(&mut self, _: &NodeTable) -> HostOutcome {
        refused_host(self.host.as_deref())
    }
}
