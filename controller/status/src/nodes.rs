// SPDX-License-Identifier: Apache-2.0

//! Nodes: their agents, how far they are, and what they refuse.

use std::cmp::Ordering;
use std::time::Duration;

use maud::{Markup, html};

use crate::layout::{Frame, Tab, heading, link, page, table};
use crate::list::{ListQuery, Listed};
use crate::text::{maybe, number};

/// One page of the nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Nodes {
    /// The rows.
    pub list: Listed<NodeRow>,
}

/// The agent of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeRow {
    /// The cluster; empty for a single one.
    pub cluster: String,
    /// The node, or `relay/` and the name of a relay.
    pub node: String,
    /// Whether it has a stream.
    pub connected: bool,
    /// The agent's version.
    pub version: String,
    /// Address of the last stream's peer.
    pub peer: String,
    /// Last revision that it was sent.
    pub sent: Option<u64>,
    /// Last revision that it has staged.
    pub received: Option<u64>,
    /// Last revision that its kernel has.
    pub programmed: Option<u64>,
    /// Time that programming it took.
    pub took: Option<Duration>,
    /// Revisions that it lacks.
    pub lag: u64,
    /// Time for which it has lacked the oldest of them.
    pub behind: Option<Duration>,
    /// Records that it refuses.
    pub refused: u32,
    /// Records that its kernel refuses.
    pub errors: u32,
    /// Deletions that it holds back, and records in force.
    pub held: Option<(u32, u32)>,
    /// Streams so far.
    pub streams: u64,
}

/// A state that nodes can be listed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// With a stream.
    Connected,
    /// With a stream, and without the newest tables.
    Behind,
    /// Without a stream.
    Disconnected,
    /// Nodes whose kernel refuses something.
    Errors,
    /// Nodes that refuse records.
    Refused,
    /// Nodes that hold deletions back.
    Held,
}

impl State {
    const ALL: [Self; 6] = [
        Self::Connected,
        Self::Behind,
        Self::Disconnected,
        Self::Errors,
        Self::Refused,
        Self::Held,
    ];
    /// Names of all states.
    pub const NAMES: [&'static str; 6] = [
        "connected",
        "behind",
        "disconnected",
        "errors",
        "refused",
        "held",
    ];

    fn named(name: &str) -> Option<Self> {
        let names = Self::NAMES.into_iter().zip(Self::ALL);
        names
            .into_iter()
            .find(|(known, _)| *known == name)
            .map(|(_, state)| state)
    }

    /// Returns `true` if a node is in this state.
    #[must_use]
    pub fn holds_for(self, row: &NodeRow) -> bool {
        match self {
            Self::Connected => row.connected,
            Self::Behind => row.connected && row.behind.is_some(),
            Self::Disconnected => !row.connected,
            Self::Errors => row.errors > 0,
            Self::Refused => row.refused > 0,
            Self::Held => row.held.is_some(),
        }
    }
}

impl NodeRow {
    /// The most important thing about the node, and how it is shown.
    fn state(&self) -> (&'static str, &'static str) {
        match self {
            Self {
                connected: false, ..
            } => ("disconnected", "warn"),
            Self { held: Some(_), .. } => ("holds deletions", "bad"),
            Self { errors: 1.., .. } => ("errors", "bad"),
            Self { refused: 1.., .. } => ("refuses records", "bad"),
            Self {
                behind: Some(_), ..
            } => ("behind", "warn"),
            _ => ("up to date", "good"),
        }
    }
}

impl Nodes {
    /// Columns that rows can be sorted by.
    pub const COLUMNS: [&'static str; 9] = [
        "node",
        "cluster",
        "state",
        "version",
        "programmed",
        "lag",
        "behind",
        "refused",
        "errors",
    ];

    /// The page.
    #[must_use]
    pub fn page(&self, frame: &Frame) -> Markup {
        let tab = Tab::Nodes.path();
        let has_clusters = self.list.rows.iter().any(|row| !row.cluster.is_empty());
        let sorted = |column: &str, title: &str| self.list.heading(tab, column, title);
        let headings = html! {
            (sorted("node", "Node"))
            @if has_clusters { (sorted("cluster", "Cluster")) }
            (sorted("state", "State")) (sorted("version", "Version"))
            (heading("Sent")) (heading("Received")) (sorted("programmed", "Programmed")) (heading("In"))
            (sorted("lag", "Lag")) (sorted("behind", "Behind for"))
            (sorted("refused", "Refused")) (sorted("errors", "Errors")) (heading("Held")) (heading("Streams"))
            (heading("Peer"))
        };
        let rows = html! { @for row in &self.list.rows { (line(row, has_clusters)) } };
        let content = html! {
            (self.list.filter(tab, "Node, cluster, version or peer", &State::NAMES))
            (self.list.pager(tab))
            @if self.list.rows.is_empty() { p.quiet { "No node." } }
            @else { (table("Nodes", &headings, &rows)) }
        };
        page(frame, Tab::Nodes, "Nodes", &content)
    }
}

fn line(row: &NodeRow, has_clusters: bool) -> Markup {
    let (state, class) = row.state();
    let marked = |number: u32| (number > 0).then_some("bad");
    html! {
        tr {
            th scope="row" {
                a href=(link("node", &[("name", &row.node), ("cluster", &row.cluster)])) { (row.node) }
            }
            @if has_clusters { td { (row.cluster) } }
            td class=(class) { (state) }
            td { (row.version) }
            td { (number(row.sent)) }
            td { (number(row.received)) }
            td { (number(row.programmed)) }
            td { (maybe(row.took)) }
            td { (row.lag) }
            td { (maybe(row.behind)) }
            td class=[marked(row.refused)] { (row.refused) }
            td class=[marked(row.errors)] { (row.errors) }
            td { @if let Some((deleted, of)) = row.held { (deleted) " of " (of) } }
            td { (row.streams) }
            td { (row.peer) }
        }
    }
}

/// The page of a query.
#[must_use]
pub fn select(all: Vec<NodeRow>, query: ListQuery) -> Nodes {
    let total = all.len();
    let state = State::named(&query.state);
    let mut rows = all;
    rows.retain(|row| {
        let texts = [&*row.node, &row.cluster, &row.version, &row.peer];
        (query.cluster.is_empty() || row.cluster == query.cluster)
            && state.is_none_or(|state| state.holds_for(row))
            && query.admits(texts)
    });
    let column = query.sort.clone();
    rows.sort_by(|a, b| {
        let order = compare(&column, a, b);
        let order = if query.descending {
            order.reverse()
        } else {
            order
        };
        // Equal rows keep one order on all pages.
        order.then_with(|| (&a.cluster, &a.node).cmp(&(&b.cluster, &b.node)))
    });
    Nodes {
        list: Listed::new(query, total, rows.into_iter()),
    }
}

fn compare(column: &str, a: &NodeRow, b: &NodeRow) -> Ordering {
    match column {
        "cluster" => a.cluster.cmp(&b.cluster),
        "state" => a.state().0.cmp(b.state().0),
        "version" => a.version.cmp(&b.version),
        "programmed" => a.programmed.cmp(&b.programmed),
        "lag" => a.lag.cmp(&b.lag),
        "behind" => a.behind.cmp(&b.behind),
        "refused" => a.refused.cmp(&b.refused),
        "errors" => a.errors.cmp(&b.errors),
        _ => a.node.cmp(&b.node),
    }
}
