// SPDX-License-Identifier: Apache-2.0

//! Services: their frontends, and where they lead.

use maud::{Markup, html};

use crate::layout::{Frame, Tab, heading, link, page, table};
use crate::list::Listed;

/// One page of the Services.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Services {
    /// The rows.
    pub list: Listed<ServiceRow>,
}

/// A Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceRow {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The ports, as `name/PROTOCOL`.
    pub ports: Vec<String>,
    /// The first frontends.
    pub frontends: Vec<String>,
    /// Number of all frontends.
    pub frontends_total: usize,
    /// Destinations of all nodes together.
    pub destinations: usize,
    /// Traffic policies of the frontends, in words.
    pub policy: String,
    /// Effect of hints, in words.
    pub hints: String,
    /// Affinity, in words.
    pub affinity: String,
    /// The scheduler that the Service asks for.
    pub scheduler: String,
}

impl Services {
    /// Columns that rows can be sorted by.
    pub const COLUMNS: [&'static str; 2] = ["service", "destinations"];

    /// The page.
    #[must_use]
    pub fn page(&self, frame: &Frame) -> Markup {
        let tab = Tab::Services.path();
        let headings = html! {
            (self.list.heading(tab, "service", "Service")) (heading("Ports")) (heading("Frontends"))
            (self.list.heading(tab, "destinations", "Destinations"))
            (heading("Policy")) (heading("Hints")) (heading("Affinity")) (heading("Scheduler"))
        };
        let rows = html! { @for row in &self.list.rows { (line(&self.list.query.cluster, row)) } };
        let content = html! {
            (self.list.filter(tab, "Namespace, name or address", &[]))
            (self.list.pager(tab))
            @if self.list.rows.is_empty() { p.quiet { "No Service." } }
            @else { (table("Services", &headings, &rows)) }
        };
        page(frame, Tab::Services, "Services", &content)
    }
}

fn line(cluster: &str, row: &ServiceRow) -> Markup {
    let (namespace, name) = (&*row.namespace, &*row.name);
    let details = [
        ("namespace", namespace),
        ("name", name),
        ("cluster", cluster),
    ];
    html! {
        tr {
            th scope="row" { a href=(link("service", &details)) { (namespace) "/" (name) } }
            td { (row.ports.join(", ")) }
            td {
                (row.frontends.join(", "))
                @if row.frontends_total > row.frontends.len() {
                    " and " (row.frontends_total - row.frontends.len()) " more"
                }
            }
            td class=[(row.destinations == 0).then_some("warn")] { (row.destinations) }
            td { (row.policy) }
            td { (row.hints) }
            td { (row.affinity) }
            td { (row.scheduler) }
        }
    }
}
