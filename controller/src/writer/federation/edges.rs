// SPDX-License-Identifier: Apache-2.0

//! Plans for the controllers of clusters that serve their imports themselves.

use std::sync::Arc;

use portolan_select::{Pipeline, PlanBook};

use super::Federated;
use crate::edges::EdgePlans;

impl Federated {
    /// Makes plans for the edges that ask for them.
    pub(crate) fn with_plans(self, plans: EdgePlans) -> Self {
        Self {
            plans: Some(plans),
            ..self
        }
    }

    /// Brings the plans of edges up to date. Those of a cluster begin once `is_served` says that its agents would be
    /// served: plans that lack a cluster which may come yet would take its endpoints from the importing one.
    pub(in crate::writer) fn tell_edges(
        &mut self,
        pipeline: &mut Pipeline,
        is_served: impl Fn(&Arc<str>) -> bool,
    ) {
        let Some(plans) = &self.plans else {
            return;
        };
        let clusters = plans.clusters();
        // A cluster that has left and asked again since begins anew.
        self.books.retain(|cluster, _| plans.has_begun(cluster));
        if clusters.is_empty() {
            return;
        }
        pipeline.follow_plans();
        let mut replanned = pipeline.take_replanned();
        for cluster in clusters {
            let is_begun = self.books.contains_key(&cluster);
            let may_differ = match is_begun {
                true => !replanned.is_empty(),
                false => is_served(&cluster),
            };
            if !may_differ {
                continue;
            }
            let book = self.books.entry(Arc::clone(&cluster));
            let book = book.or_insert_with(|| PlanBook::new(Arc::clone(&cluster)));
            let changes = pipeline.plan_changes(book, &mut replanned);
            if !is_begun || !changes.is_empty() {
                plans.apply(&cluster, &changes);
            }
        }
    }

    /// Forgets the plans of a cluster that has left.
    pub(in crate::writer) fn forget_edge(&mut self, cluster: &str) {
        self.books.remove(cluster);
        if let Some(plans) = &self.plans {
            plans.leave(cluster);
        }
    }
}
