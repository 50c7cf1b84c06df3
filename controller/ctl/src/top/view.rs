// SPDX-License-Identifier: Apache-2.0

//! The live view of both tables, and their rows. Pure.

use std::cell::Cell;
use std::rc::Rc;

use portolan_terminal::ratatui::Frame;
use portolan_terminal::ratatui::crossterm::event::{KeyCode, KeyEvent};
use portolan_terminal::ratatui::layout::{Constraint, Layout};
use portolan_terminal::ratatui::text::Line;
use portolan_terminal::ratatui::widgets::Paragraph;
use portolan_terminal::{Browse, Cells, Condition, Flow, Live, Pressed, draw_table};

use super::By;
use super::answer::{Node, Service, Top};

/// Headings of Services. Rates are those of a second.
pub(super) const SERVICES: [&str; 6] = [
    "SERVICE", "ACTIVE", "INACTIVE", "CONN/S", "IN B/S", "OUT B/S",
];

/// Headings of nodes.
pub(super) const NODES: [&str; 6] = ["NODE", "CONNECTED", "LAG", "BEHIND", "PROGRAMMED", "ERRORS"];

/// Columns that a narrow terminal lacks, the first one first.
const DISPENSABLE: [usize; 4] = [2, 5, 4, 1];

/// Lines of notes, at most.
const MAX_NOTES: u16 = 3;

/// The view.
#[derive(Debug)]
pub(super) struct View {
    top: Top,
    /// Reason why there is no newer answer.
    pub(super) error: Option<String>,
    by: Rc<Cell<By>>,
    browse: Browse,
    /// Whether the list of nodes is the one that scrolls.
    is_on_nodes: bool,
}

impl View {
    /// A view without an answer.
    pub(super) fn new(by: By) -> Self {
        Self {
            top: Top::default(),
            error: None,
            by: Rc::new(Cell::new(by)),
            browse: Browse::default(),
            is_on_nodes: false,
        }
    }

    /// The order of Services that the next question asks for.
    pub(super) fn order(&self) -> Rc<Cell<By>> {
        Rc::clone(&self.by)
    }

    fn services(&self) -> Vec<Cells> {
        let services = self.top.services.iter();
        let shown = services.filter(|service| service.service.contains(&self.browse.filter));
        shown
            .map(|service| (service_row(service), Condition::Good))
            .collect()
    }

    fn nodes(&self) -> Vec<Cells> {
        let nodes = self.top.nodes.iter();
        let shown = nodes.filter(|node| node.node.contains(&self.browse.filter));
        shown
            .map(|node| (node_row(node), condition(node)))
            .collect()
    }

    fn limit(&mut self) {
        let rows = match self.is_on_nodes {
            true => self.nodes().len(),
            false => self.services().len(),
        };
        self.browse.limit(rows);
    }

    fn footer(&self) -> String {
        if self.browse.is_typing {
            return format!("filter: {}_  Enter keep  Esc clear", self.browse.filter);
        }
        let filter = match self.browse.filter.as_str() {
            "" => String::new(),
            filter => format!("  filter: {filter}"),
        };
        let list = if self.is_on_nodes {
            "nodes"
        } else {
            "Services"
        };
        let by = self.by.get().name();
        format!("q quit  s sort: {by}  Tab list: {list}  / filter{filter}  ↑↓ scroll")
    }
}

impl Live for View {
    type Answer = Top;

    fn take(&mut self, answer: anyhow::Result<Top>) {
        match answer {
            Ok(top) => {
                self.top = top;
                self.error = None;
            }
            Err(error) => self.error = Some(format!("{error:#}")),
        }
        self.limit();
    }

    fn press(&mut self, key: KeyEvent) -> Flow {
        match self.browse.press(key) {
            Pressed::Quit => return Flow::Quit,
            Pressed::Other(KeyCode::Char('s')) => self.by.set(self.by.get().next()),
            Pressed::Other(KeyCode::Tab) => {
                self.is_on_nodes = !self.is_on_nodes;
                self.browse.offset = 0;
            }
            Pressed::Other(_) | Pressed::Done => {}
        }
        self.limit();
        Flow::Continue
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        let (services, nodes) = (self.services(), self.nodes());
        let notes: Vec<_> = self.error.iter().chain(&self.top.notes).collect();
        let of_notes = u16::try_from(notes.len())
            .unwrap_or(MAX_NOTES)
            .min(MAX_NOTES);
        let areas = Layout::vertical([
            Constraint::Fill(1),
            Constraint::Fill(1),
            Constraint::Length(of_notes),
            Constraint::Length(1),
        ]);
        let [top, bottom, below, foot] = areas.areas(frame.area());
        let (of_services, of_nodes) = match self.is_on_nodes {
            true => (0, self.browse.offset),
            false => (self.browse.offset, 0),
        };
        let from = |rows: &[Cells], offset: usize| rows[offset.min(rows.len())..].to_vec();
        draw_table(
            frame,
            top,
            &SERVICES,
            &DISPENSABLE,
            &from(&services, of_services),
        );
        draw_table(frame, bottom, &NODES, &DISPENSABLE, &from(&nodes, of_nodes));
        let notes = notes.into_iter().map(|note| Line::raw(plain(note)));
        frame.render_widget(Paragraph::new(notes.collect::<Vec<_>>()), below);
        frame.render_widget(Paragraph::new(self.footer()), foot);
    }
}

/// A text without control characters, which come from another program.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { ' ' } else { c })
        .collect()
}

fn condition(node: &Node) -> Condition {
    match (node.connected, node.lag.unwrap_or(0), node.errors_total) {
        (false, ..) => Condition::Bad,
        (true, 0, 0) => Condition::Good,
        (true, ..) => Condition::Reduced,
    }
}

/// The cells of a Service.
pub(super) fn service_row(service: &Service) -> Vec<String> {
    let rate = |rate: fn(&super::answer::Rates) -> f64| match &service.rates {
        Some(rates) => short(rate(rates)),
        None => "-".to_owned(),
    };
    vec![
        plain(&service.service),
        service.active.to_string(),
        service.inactive.to_string(),
        rate(|rates| rates.connections),
        rate(|rates| rates.bytes_in),
        rate(|rates| rates.bytes_out),
    ]
}

/// The cells of a node.
pub(super) fn node_row(node: &Node) -> Vec<String> {
    let number = |number: Option<u64>| number.map_or_else(|| "-".to_owned(), |n| n.to_string());
    let behind = node.behind_ms.map(|ms| format!("{ms}ms"));
    vec![
        plain(&node.node),
        if node.connected { "yes" } else { "no" }.to_owned(),
        number(node.lag),
        behind.unwrap_or_else(|| "-".to_owned()),
        number(node.programmed),
        node.errors_total.to_string(),
    ]
}

/// A rate with three digits or so: `0.4`, `17`, `2.1k`, `35M`.
fn short(rate: f64) -> String {
    let mut rate = rate;
    for unit in ["", "k", "M", "G"] {
        if rate < 1000.0 || unit == "G" {
            let digits = usize::from(rate < 10.0);
            return format!("{rate:.digits$}{unit}");
        }
        rate /= 1000.0;
    }
    String::new()
}
