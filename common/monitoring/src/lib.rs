// SPDX-License-Identifier: Apache-2.0

//! Grafana dashboards and Prometheus alerts of the Helm chart; in no program.
//!
//! Dashboards are made from the metrics that `docs/reference` lists: a panel names a metric, and the
//! metric's type decides on its query. [`check`] reads every query of dashboards and alerts, however it was
//! made, and holds it to the same list.

#![forbid(unsafe_code)]

pub mod alerts;
pub mod boards;
pub mod check;
pub mod dashboard;
pub mod metrics;
pub mod panel;

use std::path::{Path, PathBuf};

/// A file of the repository, by its path from the top.
#[must_use]
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path)
}

#[cfg(test)]
mod tests;
