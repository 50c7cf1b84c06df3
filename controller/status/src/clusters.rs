// SPDX-License-Identifier: Apache-2.0

//! Clusters: whether they are served, and by what revision.

use std::time::Duration;

use maud::{Markup, html};

use crate::layout::{Frame, Tab, heading, link, page, table};
use crate::text::maybe;

/// The clusters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Clusters {
    /// One row for each.
    pub rows: Vec<ClusterRow>,
}

/// A cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ClusterRow {
    /// Its name; empty for a single one.
    pub name: String,
    /// Its state and its step of 20, if it is one of several.
    pub state: Option<(&'static str, u8)>,
    /// Whether its source has sent all objects, so that its agents are served.
    pub served: bool,
    /// Newest revision of its tables.
    pub revision: u64,
    /// Time since the last contact with its source, if known.
    pub silence: Option<Duration>,
    /// Nodes whose agent is connected.
    pub connected: usize,
    /// Of those, with the newest revision in their kernels.
    pub programmed: usize,
}

impl Clusters {
    /// The page.
    #[must_use]
    pub fn page(&self, frame: &Frame) -> Markup {
        page(frame, Tab::Clusters, "Clusters", &rows(&self.rows))
    }
}

/// The step of a cluster that has its whole share in imports.
const FULL: u8 = 20;

pub(crate) fn rows(all: &[ClusterRow]) -> Markup {
    let headings = html! {
        (heading("Cluster")) (heading("State")) (heading("Served")) (heading("Revision")) (heading("Last contact"))
        (heading("Nodes connected")) (heading("With the newest revision")) (heading("Services"))
    };
    let rows = html! {
        @for cluster in all {
            tr {
                th scope="row" {
                    a href=(link("nodes", &[("cluster", &cluster.name)])) {
                        @if cluster.name.is_empty() { "the only one" } @else { (cluster.name) }
                    }
                }
                td {
                    @if let Some((state, step)) = cluster.state {
                        (state) @if step < FULL { ", " (step) " of " (FULL) }
                    } @else { "-" }
                }
                td class=(if cluster.served { "good" } else { "bad" }) { @if cluster.served { "yes" } @else { "no" } }
                td { (cluster.revision) }
                td { (maybe(cluster.silence)) }
                td { (cluster.connected) }
                td class=(if cluster.programmed == cluster.connected { "good" } else { "warn" }) {
                    (cluster.programmed) " of " (cluster.connected)
                }
                td { a href=(link("services", &[("cluster", &cluster.name)])) { "Services" } }
            }
        }
    };
    table("Clusters", &headings, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn state_has_a_step_while_the_share_is_not_whole() {
        let row = |state| ClusterRow {
            name: "eu-1".to_owned(),
            state,
            ..ClusterRow::default()
        };
        let text = |state| rows(&[row(state)]).into_string();
        assert!(text(Some(("Ready", 20))).contains("<td>Ready</td>"));
        assert!(text(Some(("Returning", 7))).contains("<td>Returning, 7 of 20</td>"));
        assert!(text(None).contains("<td>-</td>"));
    }
}
