// SPDX-License-Identifier: Apache-2.0

//! One node: what its agent and its kernel refuse, and what its kernel lacks.

use maud::{Markup, html};

use crate::layout::{Frame, Tab, heading, link, page, table};
use crate::nodes::NodeRow;
use crate::text::{count, maybe, number};

/// One node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeDetails {
    /// Its row.
    pub row: NodeRow,
    /// The first records that the agent refuses.
    pub refused: Vec<RecordFault>,
    /// The first records that the kernel refuses.
    pub errors: Vec<RecordFault>,
    /// Records that have changed since the revision that the kernel has; `None` if that is too long ago.
    pub changed: Option<Vec<String>>,
}

/// A record that is refused.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordFault {
    /// The record; empty if the fault belongs to none.
    pub record: String,
    /// Description of the fault.
    pub message: String,
}

impl NodeDetails {
    /// The page.
    #[must_use]
    pub fn page(&self, frame: &Frame) -> Markup {
        let row = &self.row;
        let content = html! {
            ul.cards {
                li { b { (number(row.programmed)) } "revision in the kernel" }
                li { b { (row.lag) } "revisions behind" }
                li { b { (maybe(row.behind)) } "behind for" }
                li { b { (maybe(row.took)) } "to program the last change" }
            }
            p {
                "Version " (row.version) ", peer " (row.peer) ", " (count(usize::try_from(row.streams).unwrap_or(0), "stream"))
                " so far; " @if row.connected { "connected." } @else { "disconnected." }
            }
            @if let Some((deleted, of)) = row.held {
                p.bad { "The agent holds the deletion of " (deleted) " of " (of) " records back. portolanctl confirm " (row.node) " lets them through." }
            }
            p { a href=(link("ask", &[("node", &row.node), ("cluster", &row.cluster)])) { "Ask who answers on this node" } }
            h2 { "Records that the kernel refuses: " (row.errors) }
            (faults("Records that the kernel refuses", &self.errors))
            h2 { "Records that the agent refuses: " (row.refused) }
            (faults("Records that the agent refuses", &self.refused))
            h2 { "Changes that the kernel lacks" }
            @match &self.changed {
                None => p.quiet { "Unknown: the last report is too old, or there is none." },
                Some(changed) if changed.is_empty() => p.good { "None." },
                Some(changed) => ul { @for record in changed { li { (record) } } },
            }
        };
        page(frame, Tab::Nodes, &format!("Node {}", row.node), &content)
    }
}

fn faults(label: &str, all: &[RecordFault]) -> Markup {
    if all.is_empty() {
        return html! { p.good { "None." } };
    }
    let headings = html! { (heading("Record")) (heading("Message")) };
    let rows = html! { @for fault in all { tr { th scope="row" { (fault.record) } td { (fault.message) } } } };
    table(label, &headings, &rows)
}
