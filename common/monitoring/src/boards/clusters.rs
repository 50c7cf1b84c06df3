// SPDX-License-Identifier: Apache-2.0

//! Clusters and relays: the sources of controllers, and what guards hold back.

use crate::dashboard::Dashboard;
use crate::metrics::Metrics;
use crate::panel::Look::{Fault, Lines, Number};
use crate::panel::{Maker, Panel};

pub(super) fn board(metrics: &Metrics) -> Dashboard {
    let all = Maker::new(metrics, "");
    Dashboard {
        name: "clusters",
        title: "Portolan: clusters and relays",
        variables: Vec::new(),
        sections: vec![
            ("Clusters", clusters(all)),
            ("Sources", sources(all)),
            ("Guards", guards(all)),
            ("Relays", relays(all)),
        ],
    }
}

fn clusters(all: Maker<'_>) -> Vec<Panel> {
    vec![
        all.of(
            Lines,
            "Silence of clusters",
            "max by (cluster)",
            "portolan_controller_cluster_last_contact_seconds",
        )
        .unit("s"),
        all.of(
            Lines,
            "Agents connected",
            "",
            "portolan_controller_agents_connected",
        ),
        all.of(
            Number,
            "Identities known",
            "sum",
            "portolan_controller_cluster_identity_known",
        )
        .width(6),
        all.of(
            Fault,
            "Identities that differ",
            "sum",
            "portolan_controller_cluster_identity_differs",
        )
        .width(6),
        all.of(
            Fault,
            "Problems of files",
            "max",
            "portolan_controller_file_problems_current",
        )
        .width(6),
        all.of(
            Fault,
            "Unusable credentials",
            "sum",
            "portolan_controller_credentials_broken",
        )
        .width(6),
    ]
}

fn sources(all: Maker<'_>) -> Vec<Panel> {
    vec![
        all.of(
            Lines,
            "Listings",
            "sum by (kind)",
            "portolan_controller_source_listings_total",
        )
        .unit("ops")
        .width(8),
        all.of(
            Lines,
            "Errors of watches",
            "sum by (kind)",
            "portolan_controller_source_watch_errors_total",
        )
        .unit("ops")
        .width(8),
        all.of(
            Lines,
            "Malformed objects",
            "sum by (kind)",
            "portolan_controller_source_malformed_total",
        )
        .unit("ops")
        .width(8),
    ]
}

fn guards(all: Maker<'_>) -> Vec<Panel> {
    vec![
        all.of(
            Lines,
            "Deletions held",
            "max by (kind)",
            "portolan_controller_source_deletions_held",
        )
        .width(8),
        all.of(
            Lines,
            "Ready endpoints held",
            "max",
            "portolan_controller_source_ready_endpoints_held",
        )
        .width(8),
        all.of(
            Lines,
            "Agents that hold deletions",
            "",
            "portolan_controller_agents_holding",
        )
        .width(8),
    ]
}

fn relays(all: Maker<'_>) -> Vec<Panel> {
    vec![
        all.of(
            Lines,
            "Stream open",
            "",
            "portolan_controller_upstream_connected",
        )
        .width(8),
        all.of(
            Lines,
            "Tables and changes received",
            "",
            "portolan_controller_upstream_commits_total",
        )
        .unit("ops")
        .width(8),
        all.of(
            Lines,
            "Records left out",
            "",
            "portolan_controller_upstream_left_out",
        )
        .width(8),
        all.of(
            Lines,
            "Deletions held",
            "",
            "portolan_controller_upstream_deletions_held",
        )
        .width(8),
        all.of(
            Lines,
            "Failures to connect",
            "",
            "portolan_controller_upstream_connect_failures_total",
        )
        .unit("ops")
        .width(8),
        all.of(
            Lines,
            "Tables that did not fit their hashes",
            "",
            "portolan_controller_upstream_hash_mismatches_total",
        )
        .unit("ops")
        .width(8),
    ]
}
