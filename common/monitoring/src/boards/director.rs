// SPDX-License-Identifier: Apache-2.0

//! Directors: load balancers of files, their backends and checks.

use crate::dashboard::{Dashboard, Variable};
use crate::metrics::Metrics;
use crate::panel::Look::{Fault, Lines, Number, Table};
use crate::panel::{Maker, Panel};

/// Matchers of the chosen directors and load balancers.
const CHOSEN: &str = "instance=~\"$instance\", name=~\"$name\"";

pub(super) fn board(metrics: &Metrics) -> Dashboard {
    let director = Maker::new(metrics, super::INSTANCE);
    let balancer = Maker::new(metrics, CHOSEN);
    let name = Variable {
        name: "name",
        title: "Load balancer",
        series: "portolan_agent_backend_up",
    };
    Dashboard {
        name: "director",
        title: "Portolan: directors",
        variables: vec![super::agents(), name],
        sections: vec![
            ("State", state(director, balancer)),
            ("Backends", backends(director, balancer)),
            ("Kernel", kernel(director)),
            ("Process", super::process(director)),
        ],
    }
}

fn state(director: Maker<'_>, balancer: Maker<'_>) -> Vec<Panel> {
    vec![
        balancer.of(Number, "Backends up", "sum", "portolan_agent_backend_up"),
        balancer.query(
            Fault,
            "Backends down",
            "portolan_agent_backend_up",
            "count(portolan_agent_backend_up{instance=~\"$instance\", name=~\"$name\"} == 0) or vector(0)",
            "",
        ),
        balancer.query(
            Fault,
            "Frontends without quorum",
            "portolan_agent_quorum",
            "count(portolan_agent_quorum{instance=~\"$instance\", name=~\"$name\"} == 0) or vector(0)",
            "",
        ),
        balancer.of(Fault, "Sorry servers active", "sum", "portolan_agent_sorry_server_active"),
        director.of(Fault, "Problems of files", "sum", "portolan_agent_file_problems_current"),
        director.of(Fault, "Errors", "sum", "portolan_agent_errors_current"),
    ]
}

fn backends(director: Maker<'_>, balancer: Maker<'_>) -> Vec<Panel> {
    vec![
        balancer.query(
            Table,
            "Backends that are down",
            "portolan_agent_backend_up",
            "portolan_agent_backend_up{instance=~\"$instance\", name=~\"$name\"} == 0",
            "",
        ),
        balancer.of(
            Lines,
            "Backends up",
            "sum by (name, frontend)",
            "portolan_agent_backend_up",
        ),
        director
            .of(
                Lines,
                "Backends that went down",
                "",
                "portolan_agent_backend_falls_total",
            )
            .unit("ops")
            .width(8),
        director
            .of(
                Lines,
                "Backends that came up",
                "",
                "portolan_agent_backend_rises_total",
            )
            .unit("ops")
            .width(8),
        director
            .of(
                Lines,
                "Checks",
                "sum by (kind, result)",
                "portolan_agent_checks_total",
            )
            .unit("ops")
            .width(8),
    ]
}

fn kernel(director: Maker<'_>) -> Vec<Panel> {
    vec![
        director
            .of(
                Lines,
                "Virtual servers",
                "",
                "portolan_agent_virtual_servers",
            )
            .width(8),
        director
            .of(Lines, "Real servers", "", "portolan_agent_real_servers")
            .width(8),
        director
            .quantiles(
                "Reconciliation",
                "kubeproxy_sync_proxy_rules_duration_seconds",
                None,
            )
            .width(8),
    ]
}
