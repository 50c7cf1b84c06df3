// SPDX-License-Identifier: Apache-2.0

//! One Service: its frontends, and the destinations of all nodes or of one.

use maud::{Markup, html};

use crate::layout::{Frame, Tab, heading, link, page, path, table};
use crate::text::count;

/// One Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ServiceDetails {
    /// The cluster; empty for a single one.
    pub cluster: String,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The node whose destinations are shown; empty for those of all together.
    pub node: String,
    /// The ports.
    pub ports: Vec<Port>,
}

/// A port of a Service.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Port {
    /// Its name and protocol.
    pub name: String,
    /// Policies, hints, affinity and scheduler, in words.
    pub notes: Vec<String>,
    /// Its frontends.
    pub frontends: Vec<Frontend>,
    /// The first destinations.
    pub destinations: Vec<Destination>,
    /// Number of all destinations.
    pub destinations_total: usize,
}

/// An address that clients connect to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Frontend {
    /// Its kind.
    pub kind: String,
    /// Address and port, or the family of node ports and the port.
    pub address: String,
    /// Address for a question; empty if it depends on the node.
    pub question: String,
    /// The protocol.
    pub protocol: String,
    /// Whether only destinations of the node itself are used.
    pub is_local: bool,
    /// Permitted sources; empty for all.
    pub sources: String,
    /// Destinations on the chosen node, if one is chosen.
    pub on_node: Option<usize>,
}

/// A destination.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Destination {
    /// Address and port.
    pub address: String,
    /// Share of new connections.
    pub weight: u32,
    /// Zones that use it, in words.
    pub zones: String,
}

impl ServiceDetails {
    /// The page.
    #[must_use]
    pub fn page(&self, frame: &Frame) -> Markup {
        let content = html! {
            (self.choice())
            @for port in &self.ports {
                h2 { "Port " (port.name) }
                ul { @for note in &port.notes { li { (note) } } }
                (self.frontends(port))
                (destinations(port, &self.node))
            }
        };
        let title = format!("Service {}/{}", self.namespace, self.name);
        page(frame, Tab::Services, &title, &content)
    }

    /// The form that chooses a node.
    fn choice(&self) -> Markup {
        html! {
            form method="get" action=(path("service")) {
                input type="hidden" name="namespace" value=(self.namespace);
                input type="hidden" name="name" value=(self.name);
                @if !self.cluster.is_empty() { input type="hidden" name="cluster" value=(self.cluster); }
                label { "Destinations on the node" input name="node" value=(self.node) maxlength="253"; }
                button type="submit" { "Show" }
            }
        }
    }

    fn frontends(&self, port: &Port) -> Markup {
        let headings = html! {
            (heading("Frontend")) (heading("Kind")) (heading("Destinations")) (heading("Sources"))
            @if !self.node.is_empty() { (heading("On the node")) }
            (heading("Why"))
        };
        let rows = html! {
            @for frontend in &port.frontends {
                tr {
                    th scope="row" { (frontend.address) }
                    td { (frontend.kind) }
                    td { @if frontend.is_local { "of the node" } @else { "of the cluster" } }
                    td { @if frontend.sources.is_empty() { "all" } @else { (frontend.sources) } }
                    @if let Some(on_node) = frontend.on_node { td { (on_node) } }
                    td { (self.why(frontend)) }
                }
            }
        };
        table(
            &format!("Frontends of port {}", port.name),
            &headings,
            &rows,
        )
    }

    /// The link to the explanation of a frontend.
    fn why(&self, frontend: &Frontend) -> Markup {
        if frontend.question.is_empty() {
            return html! { "–" };
        }
        let parameters = [
            ("address", &*frontend.question),
            ("protocol", &*frontend.protocol),
            ("node", &*self.node),
            ("cluster", &*self.cluster),
        ];
        html! { a href=(link("ask", &parameters)) aria-label=(format!("Ask about {}", frontend.question)) { "Ask" } }
    }
}

fn destinations(port: &Port, node: &str) -> Markup {
    let place = match node {
        "" => "of all nodes together".to_owned(),
        node => format!("on {node}"),
    };
    let title = format!("{} {place}", count(port.destinations_total, "destination"));
    let headings = html! { (heading("Destination")) (heading("Weight")) (heading("Zones")) };
    let rows = html! {
        @for one in &port.destinations {
            tr { th scope="row" { (one.address) } td { (one.weight) } td { (one.zones) } }
        }
    };
    html! {
        h3 { (title) }
        @if !port.destinations.is_empty() {
            (table(&format!("Destinations of port {}", port.name), &headings, &rows))
        }
        @if port.destinations_total > port.destinations.len() {
            p.quiet { "The first " (port.destinations.len()) " are shown." }
        }
    }
}
