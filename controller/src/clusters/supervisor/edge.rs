// SPDX-License-Identifier: Apache-2.0

//! Clusters that edge controllers send.

use std::sync::Arc;

use portolan_source::{Sink, edge};
use tokio::task::Id;
use tokio_util::sync::CancellationToken;

use super::{SourceContact, Supervisor, Way, WriterGone};

impl Supervisor {
    /// Takes a cluster from its edge controller.
    pub(super) async fn expect_edge(&mut self, cluster: &str) -> Result<(), WriterGone> {
        let running = self.running.get(cluster);
        if running.is_some_and(|running| matches!(running.way, Way::Edge)) {
            return Ok(());
        }
        self.join(cluster.into(), Way::Edge).await
    }

    pub(super) fn start_edge(
        &mut self,
        cluster: &Arc<str>,
        sink: Sink,
        token: CancellationToken,
    ) -> (Id, CancellationToken) {
        let (guard, holds) = &self.guard;
        let stats = Arc::new(edge::Stats::default());
        let options = edge::Options {
            guard: *guard,
            holds: Arc::clone(holds),
            stats: Arc::clone(&stats),
            send_work: self.members.send_work(cluster),
            send_plans: self.members.send_plans(cluster),
        };
        self.lock()
            .insert(Arc::clone(cluster), SourceContact::Edge(stats));
        let streams = self.seats.open(cluster);
        let receive = edge::receive(Arc::clone(cluster), streams, sink, options, token);
        self.spawn(receive)
    }

    /// Returns the problem with a cluster's edge controller, in words.
    pub(super) fn edge_problem(&self, cluster: &str) -> Option<String> {
        let sources = self.lock();
        let Some(SourceContact::Edge(stats)) = sources.get(cluster) else {
            return None;
        };
        let problem = if stats.edge().is_none() {
            "no edge controller is connected"
        } else if !self.keeps_states {
            "without --state-dir a restart of this controller takes the cluster's endpoints from the others until its \
             edge has dialled again"
        } else {
            return None;
        };
        Some(format!("Cluster {cluster}: spec.access.edge: {problem}"))
    }
}
