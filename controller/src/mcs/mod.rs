// SPDX-License-Identifier: Apache-2.0

//! The writer of MCS objects into the clusters that are reached by their API servers.
//!
//! Writes are decided elsewhere, by comparison; here are the clients, the pace, the retries, and the
//! election of the one replica that writes.

mod executor;
mod leader;
mod metrics;
mod request;
mod slices;
mod tried;
mod works;

use portolan_runtime::Vital;
use prometheus_client::registry::Registry;

use crate::args::Args;
use crate::clusters::Members;
use crate::edges::EdgePlans;
use crate::writer::McsPlanner;

pub(crate) use executor::Executor;
pub(crate) use leader::{LeaderArgs, Leading};
pub(crate) use metrics::WriteCounts;
pub(crate) use request::failure;
pub(crate) use works::{Spared, Work, Works};

/// State that planners and writers of MCS objects share.
#[derive(Debug)]
pub(crate) struct Mcs {
    works: Works,
    plans: EdgePlans,
    leading: Leading,
    counts: WriteCounts,
}

impl Mcs {
    /// Takes part in the election of the flags.
    ///
    /// # Errors
    /// If there is no API server for the Lease.
    pub(crate) async fn start(
        args: &Args,
        registry: &mut Registry,
        vital: &Vital,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            works: Works::default(),
            plans: EdgePlans::default(),
            leading: Leading::start(args, vital).await?,
            counts: WriteCounts::register(registry),
        })
    }

    /// The only replica, without metrics.
    pub(crate) fn alone() -> Self {
        Self {
            works: Works::default(),
            plans: EdgePlans::default(),
            leading: Leading::always(),
            counts: WriteCounts::default(),
        }
    }

    /// The half that plans.
    pub(crate) fn planner(&self) -> McsPlanner {
        McsPlanner::new(self.works.clone(), self.leading.clone())
    }

    /// Plans for edge controllers.
    pub(crate) fn plans(&self) -> EdgePlans {
        self.plans.clone()
    }

    /// Parts for writers at the API server of the policy.
    pub(crate) fn at_home(&self) -> (Leading, WriteCounts) {
        (self.leading.clone(), self.counts.clone())
    }

    /// The half that writes, or has edges write.
    pub(crate) fn members(self) -> Members {
        Members::new((self.works, self.plans), self.leading, self.counts)
    }
}
