// SPDX-License-Identifier: Apache-2.0

//! The route of overviews in the running agent.

use std::sync::Arc;

use axum::extract::{RawQuery, State};
use axum::routing::get;
use axum::{Json, Router};
use jiff::Timestamp;
use portolan_dataplane::read_usage;
use tokio::sync::watch;

use super::Overview;
use super::build::{Chosen, Now, Sources};
use super::meter::Meter;
use crate::backends::overrides::OverrideStore;
use crate::backends::{Health, since_boot};
use crate::subscribe::{Report, Subscribed};

/// Where overviews come from.
#[derive(Debug, Clone)]
pub(crate) struct Inputs {
    /// The newest table.
    pub(crate) tables: watch::Receiver<Option<Arc<Subscribed>>>,
    /// Verdicts about its load balancers.
    pub(crate) health: watch::Receiver<Health>,
    /// Commands of operators about backends.
    pub(crate) overrides: OverrideStore,
    /// Outcomes of programming.
    pub(crate) reports: watch::Receiver<Option<Report>>,
    /// Whether no checks run.
    pub(crate) suspended: watch::Receiver<bool>,
}

/// Answers requests for overviews.
#[derive(Debug, Clone)]
pub(crate) struct Overviews {
    inputs: Inputs,
    meter: Meter,
}

impl Overviews {
    /// Overviews of the kernel of this process.
    pub(crate) fn new(inputs: Inputs) -> Self {
        Self {
            inputs,
            meter: Meter::new(read_usage),
        }
    }

    /// `GET /debug/balancers`, with `name=NAMESPACE/NAME` for one load balancer, and `usage=false` without
    /// the kernel's counters.
    pub(crate) fn dumps(&self) -> Router {
        Router::new()
            .route("/balancers", get(balancers))
            .with_state(self.clone())
    }

    async fn overview(&self, name: Option<&str>, with_usage: bool) -> Overview {
        let table = self.inputs.tables.borrow().clone();
        let table = table
            .map(|table| Arc::clone(&table.table))
            .unwrap_or_default();
        let chosen = Chosen::new(&table, name);
        let (readings, unread) = match with_usage {
            false => (None, Some("not asked for".to_owned())),
            true => match self.meter.readings(chosen.virtual_servers()).await {
                Ok(readings) => (Some(readings), None),
                Err(error) => (None, Some(error.to_string())),
            },
        };
        let health = self.inputs.health.borrow().clone();
        let report = self.inputs.reports.borrow().clone();
        let overrides = self.inputs.overrides.all();
        let sources = Sources {
            overrides: &overrides,
            health: &health,
            report: report.as_ref(),
            readings: readings.as_ref(),
            checks_suspended: *self.inputs.suspended.borrow(),
            now: Now {
                wall: Timestamp::now(),
                boot: since_boot(),
            },
        };
        Overview {
            unread,
            ..chosen.overview(sources)
        }
    }
}

async fn balancers(
    State(overviews): State<Overviews>,
    RawQuery(query): RawQuery,
) -> Json<Overview> {
    let query = query.unwrap_or_default();
    let find = |field: &str| {
        let mut pairs = query.split('&').filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(name, _)| *name == field)
            .map(|(_, value)| value)
    };
    let with_usage = find("usage") != Some("false");
    Json(overviews.overview(find("name"), with_usage).await)
}
