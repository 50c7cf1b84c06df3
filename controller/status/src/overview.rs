// SPDX-License-Identifier: Apache-2.0

//! Overview: whether all nodes have the newest tables, and what keeps them from it.

use std::time::Duration;

use maud::{Markup, html};

use crate::clusters::{ClusterRow, rows as cluster_rows};
use crate::layout::{Frame, Tab, heading, link, page, table};
use crate::problems::{ProblemRow, rows as problem_rows};
use crate::text::{count, duration, maybe};

/// The overview.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Overview {
    /// The clusters.
    pub clusters: Vec<ClusterRow>,
    /// The state of the agents.
    pub shares: Shares,
    /// The last changes, the newest first.
    pub changes: Vec<Change>,
    /// The first problems.
    pub problems: Vec<ProblemRow>,
    /// Number of all problems.
    pub problems_total: usize,
    /// Deletions that controllers hold back.
    pub held: Vec<HeldDeletions>,
}

/// Numbers of agents.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shares {
    /// With a stream.
    pub connected: usize,
    /// Of those, with the newest tables in their kernels.
    pub newest: usize,
    /// Without a stream that had one.
    pub disconnected: usize,
    /// Agents whose kernel refuses something.
    pub with_errors: usize,
    /// Agents that refuse records.
    pub with_refusals: usize,
    /// Agents that hold deletions back.
    pub holding: usize,
}

/// A change of the tables of a cluster, and how fast nodes had it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Change {
    /// The cluster; empty for a single one.
    pub cluster: String,
    /// The revision.
    pub revision: u64,
    /// Time since its publication.
    pub age: Duration,
    /// Time until half, 99 % and all of the nodes that were connected had programmed it.
    pub reached: [Option<Duration>; 3],
}

/// Deletions of one kind that are held back.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HeldDeletions {
    /// The cluster; empty for a single one.
    pub cluster: String,
    /// The kind.
    pub kind: String,
    /// Number of objects.
    pub objects: usize,
    /// Of so many.
    pub of: usize,
    /// Time until they are let through; `None` if only an operator does.
    pub remaining: Option<Duration>,
}

impl Overview {
    /// The page.
    #[must_use]
    pub fn page(&self, frame: &Frame) -> Markup {
        let content = html! {
            (self.convergence())
            (self.agents())
            @if !self.held.is_empty() { (self.deletions()) }
            h2 { "Last changes" }
            (self.changes())
            h2 { "Problems" }
            @if self.problems_total == 0 { p.good { "None." } }
            @else {
                (problem_rows(&self.problems))
                p { a href=(link("problems", &[])) { "Show all (" (self.problems_total) ")" } }
            }
            h2 { "Clusters" }
            (cluster_rows(&self.clusters))
        };
        page(frame, Tab::Overview, "Overview", &content)
    }

    fn convergence(&self) -> Markup {
        let Shares {
            connected, newest, ..
        } = self.shares;
        html! {
            h2 { "Convergence" }
            @if connected == 0 { p.quiet { "No agent is connected." } }
            @else {
                p class=(if newest == connected { "good" } else { "warn" }) {
                    (newest) " of " (count(connected, "connected node")) " have the newest tables."
                }
                progress value=(newest) max=(connected) aria-label="Nodes with the newest tables" {
                    (newest) " of " (connected)
                }
            }
        }
    }

    fn agents(&self) -> Markup {
        let shares = &self.shares;
        let behind = shares.connected.saturating_sub(shares.newest);
        let cards = [
            ("connected", "Connected", shares.connected, ""),
            ("behind", "Behind", behind, "warn"),
            ("disconnected", "Disconnected", shares.disconnected, "warn"),
            ("errors", "With errors", shares.with_errors, "bad"),
            (
                "refused",
                "With refused records",
                shares.with_refusals,
                "bad",
            ),
            ("held", "Holding deletions", shares.holding, "bad"),
        ];
        html! {
            h2 { "Nodes" }
            ul.cards {
                @for (state, title, number, class) in cards {
                    li {
                        b class=[(number > 0 && !class.is_empty()).then_some(class)] { (number) }
                        a href=(link("nodes", &[("state", state)])) { (title) }
                    }
                }
            }
        }
    }

    fn deletions(&self) -> Markup {
        let headings = html! {
            (heading("Cluster")) (heading("Kind")) (heading("Objects")) (heading("Let through in"))
        };
        let rows = html! {
            @for held in &self.held {
                tr {
                    td { (held.cluster) }
                    td { (held.kind) }
                    td.bad { (held.objects) " of " (held.of) }
                    td { @match held.remaining { Some(time) => (duration(time)), None => "never by itself" } }
                }
            }
        };
        html! {
            h2 { "Deletions held back" }
            (table("Deletions held back", &headings, &rows))
            p.quiet { "portolanctl confirm --deletions lets them through." }
        }
    }

    fn changes(&self) -> Markup {
        if self.changes.is_empty() {
            return html! { p.quiet { "None since the start." } };
        }
        let headings = html! {
            (heading("Revision")) (heading("Cluster")) (heading("Age"))
            (heading("50 % of the nodes")) (heading("99 %")) (heading("100 %"))
        };
        let rows = html! {
            @for change in &self.changes {
                tr {
                    td { (change.revision) }
                    td { (change.cluster) }
                    td { (duration(change.age)) }
                    @for time in change.reached { td { (maybe(time)) } }
                }
            }
        };
        table("Last changes", &headings, &rows)
    }
}
