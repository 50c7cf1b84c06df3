// SPDX-License-Identifier: Apache-2.0

//! Ask: who answers at an address on a node, and why.

use maud::{Markup, html};

use crate::layout::{Frame, Tab, heading, page, path, table};

/// A question, and its answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Ask {
    /// The question, as it was typed.
    pub asked: Asked,
    /// The answer, or why there is none; `None` before a question.
    pub answer: Option<Result<Answer, String>>,
}

/// The values of the form.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Asked {
    /// The cluster; empty for a single one.
    pub cluster: String,
    /// Address and port.
    pub address: String,
    /// The protocol.
    pub protocol: String,
    /// The node.
    pub node: String,
}

/// An answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Answer {
    /// The record.
    pub record: String,
    /// The kind of the frontend.
    pub kind: String,
    /// The traffic policy.
    pub policy: String,
    /// The node's zone; empty for none.
    pub zone: String,
    /// All endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Further notes.
    pub notes: Vec<String>,
}

/// An endpoint.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Endpoint {
    /// Whether the node uses it.
    pub used: bool,
    /// Address and port.
    pub address: String,
    /// Share of new connections.
    pub weight: u32,
    /// Its node; empty if unknown.
    pub node: String,
    /// That node's zone; empty if unknown.
    pub zone: String,
    /// Reason why it is used or not.
    pub reason: String,
}

impl Ask {
    /// The page.
    #[must_use]
    pub fn page(&self, frame: &Frame) -> Markup {
        let content = html! {
            (self.asked.form())
            @match &self.answer {
                None => p.quiet { "Any virtual address, or an address of a node with a node port. IPv6 addresses stand in brackets." },
                Some(Err(message)) => p.bad role="alert" { (message) },
                Some(Ok(answer)) => (answer.show(&self.asked)),
            }
        };
        page(frame, Tab::Ask, "Who answers, and why", &content)
    }
}

impl Asked {
    fn form(&self) -> Markup {
        html! {
            form method="get" action=(path("ask")) {
                label { "Address and port"
                    input name="address" value=(self.address) placeholder="10.96.0.1:443" required maxlength="64"; }
                label { "Protocol"
                    select name="protocol" {
                        @for protocol in ["TCP", "UDP", "SCTP"] {
                            option selected[self.protocol.eq_ignore_ascii_case(protocol)] { (protocol) }
                        }
                    }
                }
                label { "Node" input name="node" value=(self.node) required maxlength="253"; }
                @if !self.cluster.is_empty() {
                    label { "Cluster" input name="cluster" value=(self.cluster) maxlength="253"; }
                }
                button type="submit" { "Ask" }
            }
        }
    }
}

impl Answer {
    fn show(&self, asked: &Asked) -> Markup {
        let used = self.endpoints.iter().filter(|it| it.used).count();
        let headings = html! {
            (heading("Endpoint")) (heading("Used")) (heading("Why")) (heading("Weight")) (heading("Node")) (heading("Zone"))
        };
        let rows = html! {
            @for one in &self.endpoints {
                tr {
                    th scope="row" { (one.address) }
                    td class=(if one.used { "good" } else { "quiet" }) { @if one.used { "yes" } @else { "no" } }
                    td { (one.reason) }
                    td { (one.weight) }
                    td { (one.node) }
                    td { (one.zone) }
                }
            }
        };
        html! {
            h2 { (self.record) }
            p {
                "A frontend of the kind " (self.kind) " with the policy " (self.policy) ". The node " (asked.node)
                @if self.zone.is_empty() { " is in no zone." } @else { " is in the zone " (self.zone) "." }
            }
            p class=(if used == 0 { "bad" } else { "good" }) { (used) " of " (self.endpoints.len()) " endpoints answer." }
            @for note in &self.notes { p { "Note: " (note) } }
            @if !self.endpoints.is_empty() { (table("Endpoints", &headings, &rows)) }
        }
    }
}
