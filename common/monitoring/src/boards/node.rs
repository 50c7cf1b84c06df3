// SPDX-License-Identifier: Apache-2.0

//! Nodes: the stream, the kernel and the process of an agent.

use crate::dashboard::Dashboard;
use crate::metrics::Metrics;
use crate::panel::Look::{Fault, Lines, Number, Table};
use crate::panel::{Maker, Panel};

pub(super) fn board(metrics: &Metrics) -> Dashboard {
    let chosen = Maker::new(metrics, super::INSTANCE);
    Dashboard {
        name: "node",
        title: "Portolan: nodes",
        variables: vec![super::agents()],
        sections: vec![
            ("State", state(chosen)),
            ("Stream", stream(chosen)),
            ("Kernel", kernel(chosen)),
            ("Services", services(chosen)),
            ("Names", names(chosen)),
            ("Process", super::process(chosen)),
        ],
    }
}

fn state(chosen: Maker<'_>) -> Vec<Panel> {
    let fault = |title, metric| chosen.of(Fault, title, "sum", metric).width(3);
    vec![
        chosen
            .of(Number, "Streams open", "sum", "portolan_agent_connected")
            .width(3),
        chosen
            .of(
                Number,
                "Virtual servers",
                "max",
                "portolan_agent_virtual_servers",
            )
            .width(3),
        chosen
            .of(Number, "Real servers", "max", "portolan_agent_real_servers")
            .width(3),
        fault("Errors", "portolan_agent_errors_current"),
        fault("Refused records", "portolan_agent_refused_records_current"),
        fault("Deletions held", "portolan_agent_deletions_held_current"),
        fault("Takeovers pending", "portolan_agent_takeover_pending"),
        fault("Wrong settings", "portolan_agent_setting_wrong"),
        chosen.query(
            Table,
            "Versions",
            "portolan_build",
            "count by (version, revision) (portolan_build_info{instance=~\"$instance\"})",
            "",
        ),
        chosen.of(
            Table,
            "Problems",
            "sum by (kind, reason)",
            "portolan_agent_problems_current",
        ),
    ]
}

fn stream(chosen: Maker<'_>) -> Vec<Panel> {
    vec![
        chosen
            .of(
                Lines,
                "Tables and changes received",
                "",
                "portolan_agent_commits_total",
            )
            .unit("ops")
            .width(8),
        chosen
            .of(
                Lines,
                "Whole tables received",
                "",
                "portolan_agent_snapshots_total",
            )
            .unit("ops")
            .width(8),
        chosen
            .of(
                Lines,
                "Failures to connect",
                "",
                "portolan_agent_connect_failures_total",
            )
            .unit("ops")
            .width(8),
    ]
}

fn kernel(chosen: Maker<'_>) -> Vec<Panel> {
    vec![
        chosen
            .quantiles(
                "Reconciliation",
                "kubeproxy_sync_proxy_rules_duration_seconds",
                None,
            )
            .width(8),
        chosen
            .quantiles(
                "Network programming",
                "kubeproxy_network_programming_duration_seconds",
                None,
            )
            .width(8),
        chosen
            .of(
                Lines,
                "Objects changed",
                "",
                "portolan_agent_objects_changed_total",
            )
            .unit("ops")
            .width(8),
        chosen
            .of(
                Lines,
                "Virtual servers",
                "",
                "portolan_agent_virtual_servers",
            )
            .width(8),
        chosen
            .of(Lines, "Real servers", "", "portolan_agent_real_servers")
            .width(8),
        chosen
            .of(Lines, "Repairs", "", "portolan_agent_drift_repaired_total")
            .unit("ops")
            .width(8),
        chosen
            .of(
                Lines,
                "Changes of endpoints that wait",
                "",
                "kubeproxy_sync_proxy_rules_endpoint_changes_pending",
            )
            .width(8),
        chosen
            .of(
                Lines,
                "iptables rules",
                "sum by (instance, table)",
                "kubeproxy_sync_proxy_rules_iptables_total",
            )
            .width(8),
        chosen
            .of(
                Lines,
                "Stale UDP flows deleted",
                "",
                "kubeproxy_conntrack_reconciler_deleted_entries_total",
            )
            .unit("ops")
            .width(8),
    ]
}

/// Empty without `--service-metrics`.
fn services(chosen: Maker<'_>) -> Vec<Panel> {
    let by_service = "sum by (namespace, service)";
    vec![
        chosen
            .of(
                Lines,
                "Connections to Services",
                by_service,
                "portolan_agent_service_connections_total",
            )
            .unit("ops"),
        chosen
            .of(
                Lines,
                "Bytes of Services",
                by_service,
                "portolan_agent_service_bytes_total",
            )
            .unit("Bps"),
    ]
}

fn names(chosen: Maker<'_>) -> Vec<Panel> {
    vec![
        chosen
            .of(
                Lines,
                "DNS queries",
                "sum by (rcode)",
                "portolan_agent_dns_queries_total",
            )
            .unit("ops"),
        chosen.quantiles(
            "DNS answers",
            "portolan_agent_dns_query_duration_seconds",
            None,
        ),
    ]
}
