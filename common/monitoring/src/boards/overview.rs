// SPDX-License-Identifier: Apache-2.0

//! The overview: whether all nodes have the newest tables, and what keeps them from it.

use crate::dashboard::{Dashboard, Variable};
use crate::metrics::Metrics;
use crate::panel::Look::{Fault, Lines, Number};
use crate::panel::{Maker, Panel};

pub(super) fn board(metrics: &Metrics) -> Dashboard {
    let all = Maker::new(metrics, "");
    let controllers = Maker::new(metrics, super::INSTANCE);
    Dashboard {
        name: "overview",
        title: "Portolan: overview",
        variables: vec![Variable {
            name: "instance",
            title: "Controller",
            series: "portolan_controller_revision",
        }],
        sections: vec![
            ("Nodes", nodes(all)),
            ("Convergence", convergence(all)),
            ("Sources", sources(all)),
            ("Streams", streams(all)),
            ("Agents", agents(all)),
            ("Controllers", super::process(controllers)),
        ],
    }
}

fn nodes(all: Maker<'_>) -> Vec<Panel> {
    let fault = |title, metric| all.of(Fault, title, "sum", metric).width(3);
    vec![
        all.of(
            Number,
            "Agents connected",
            "sum",
            "portolan_controller_agents_connected",
        )
        .width(3),
        all.of(Number, "Behind", "sum", "portolan_controller_agents_behind")
            .width(3),
        fault("Behind for long", "portolan_controller_agents_behind_long"),
        fault("With errors", "portolan_controller_agents_with_errors"),
        fault("With refusals", "portolan_controller_agents_with_refusals"),
        fault("Holding deletions", "portolan_controller_agents_holding"),
        fault(
            "Deletions held",
            "portolan_controller_source_deletions_held",
        ),
        all.increase(
            Fault,
            "Repairs of tables, a day",
            "portolan_controller_catalog_divergence_total",
            "24h",
        )
        .width(3),
    ]
}

fn convergence(all: Maker<'_>) -> Vec<Panel> {
    vec![
        all.quantiles(
            "Time until a share of the nodes has a change",
            "portolan_controller_convergence_seconds",
            Some("share"),
        ),
        all.quantiles(
            "Time until a change is published",
            "portolan_controller_publish_duration_seconds",
            None,
        ),
        all.of(Lines, "Revision", "max", "portolan_controller_revision"),
        all.of(
            Lines,
            "Nodes behind",
            "",
            "portolan_controller_agents_behind",
        ),
    ]
}

fn sources(all: Maker<'_>) -> Vec<Panel> {
    vec![
        all.of(
            Lines,
            "Objects",
            "max by (kind)",
            "portolan_controller_objects",
        )
        .width(8),
        all.age(
            "Silence of the source",
            "portolan_controller_source_last_contact_seconds",
        )
        .width(8),
        all.of(
            Lines,
            "Problems",
            "max by (kind, reason)",
            "portolan_controller_problems_current",
        )
        .width(8),
    ]
}

fn streams(all: Maker<'_>) -> Vec<Panel> {
    vec![
        all.of(
            Lines,
            "Streams opened",
            "",
            "portolan_controller_sessions_total",
        )
        .unit("ops")
        .width(8),
        all.of(
            Lines,
            "Refusals",
            "sum by (reason)",
            "portolan_controller_sessions_refused_total",
        )
        .unit("ops")
        .width(8),
        all.of(
            Lines,
            "Frames sent",
            "",
            "portolan_controller_frames_sent_total",
        )
        .unit("ops")
        .width(8),
        all.of(
            Lines,
            "Whole tables sent",
            "",
            "portolan_controller_snapshots_sent_total",
        )
        .unit("ops")
        .width(8),
        all.of(
            Lines,
            "Stalled streams",
            "",
            "portolan_controller_sessions_stalled_total",
        )
        .unit("ops")
        .width(8),
        all.of(
            Lines,
            "Refused records",
            "sum by (reason)",
            "portolan_controller_records_refused",
        )
        .width(8),
    ]
}

fn agents(all: Maker<'_>) -> Vec<Panel> {
    vec![
        all.quantiles(
            "Reconciliation",
            "kubeproxy_sync_proxy_rules_duration_seconds",
            None,
        )
        .width(8),
        all.quantiles(
            "Network programming",
            "kubeproxy_network_programming_duration_seconds",
            None,
        )
        .width(8),
        all.of(
            Lines,
            "Repairs of kernels",
            "sum by (instance)",
            "portolan_agent_drift_repaired_total",
        )
        .unit("ops")
        .width(8),
        all.query(
            Lines,
            "Agents without a stream",
            "portolan_agent_connected",
            "count(portolan_agent_connected == 0) or vector(0)",
            "agents",
        )
        .width(8),
        all.of(Lines, "Errors", "sum", "portolan_agent_errors_current")
            .width(8),
        all.of(
            Lines,
            "Takeovers pending",
            "sum",
            "portolan_agent_takeover_pending",
        )
        .width(8),
    ]
}
