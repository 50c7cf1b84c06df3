// SPDX-License-Identifier: Apache-2.0

//! The dashboards of the chart.

mod clusters;
mod director;
mod node;
mod overview;

use crate::dashboard::{Dashboard, Variable};
use crate::metrics::Metrics;
use crate::panel::{Maker, Panel};

/// Matchers of the instances that the reader has chosen.
const INSTANCE: &str = "instance=~\"$instance\"";

/// All dashboards.
#[must_use]
pub fn all(metrics: &Metrics) -> [Dashboard; 4] {
    [
        overview::board(metrics),
        node::board(metrics),
        director::board(metrics),
        clusters::board(metrics),
    ]
}

/// The choice of agents.
fn agents() -> Variable {
    Variable {
        name: "instance",
        title: "Agent",
        series: "portolan_agent_virtual_servers",
    }
}

/// Panels of the process of a program.
fn process(maker: Maker<'_>) -> Vec<Panel> {
    use crate::panel::Look::Lines;
    vec![
        maker
            .of(Lines, "Memory", "", "process_resident_memory_bytes")
            .unit("bytes")
            .width(8),
        maker
            .of(Lines, "Processor time", "", "process_cpu_seconds_total")
            .unit("percentunit")
            .width(8),
        maker
            .of(Lines, "Open descriptors", "", "process_open_fds")
            .width(8),
    ]
}
