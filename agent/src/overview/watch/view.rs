// SPDX-License-Identifier: Apache-2.0

//! Rows of the live view: their order, those that a filter leaves, and where they begin. Pure.

use std::cmp::Reverse;

use portolan_terminal::{Browse, Condition, Flow, Live, Pressed};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};

use super::super::{Backend, Balancer, Overview, VirtualServer};
use super::render::draw;

/// The order of the rows. Equal ones are in the order of their names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// Virtual servers that do not serve first, then those that lack backends.
    #[default]
    Health,
    /// By name.
    Name,
    /// Most active connections first.
    Active,
    /// Most new connections first.
    Rate,
}

impl Sort {
    /// Its name.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Health => "health",
            Self::Name => "name",
            Self::Active => "active",
            Self::Rate => "conn/s",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Health => Self::Name,
            Self::Name => Self::Active,
            Self::Active => Self::Rate,
            Self::Rate => Self::Health,
        }
    }
}

/// The live view.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The last answer of the agent.
    pub(super) overview: Overview,
    /// Reason why there is no newer one.
    pub(super) error: Option<String>,
    /// The order of the rows.
    pub(super) sort: Sort,
    /// The rows that are shown.
    pub(super) browse: Browse,
    /// Whether backends are shown too.
    pub(super) with_backends: bool,
}

impl View {
    /// A view without an answer.
    pub(super) fn new(with_backends: bool) -> Self {
        Self {
            with_backends,
            ..Self::default()
        }
    }

    /// The virtual servers that the filter leaves, in their order.
    pub(super) fn rows(&self) -> Vec<(&Balancer, &VirtualServer)> {
        let balancers = self.overview.balancers.iter();
        let all = balancers.flat_map(|balancer| {
            let servers = balancer.virtual_servers.iter();
            servers.map(move |server| (balancer, server))
        });
        let is_shown = |(balancer, server): &(&Balancer, &VirtualServer)| {
            balancer.name.contains(&self.browse.filter)
                || server.address.contains(&self.browse.filter)
        };
        let mut rows: Vec<_> = all.filter(is_shown).collect();
        // Sorting is stable, and the answer is in the order of names.
        match self.sort {
            Sort::Name => {}
            Sort::Health => rows.sort_by_key(|(balancer, server)| condition(balancer, server)),
            Sort::Active => {
                rows.sort_by_key(|(_, server)| Reverse(server.usage.map(|usage| usage.active)));
            }
            Sort::Rate => rows.sort_by(|(_, a), (_, b)| rate(b).total_cmp(&rate(a))),
        }
        rows
    }

    /// The backends that the filter leaves: those of all frontends, the worst first.
    pub(super) fn backends(&self) -> Vec<(&Balancer, &Backend)> {
        let balancers = self.overview.balancers.iter();
        let all = balancers.flat_map(|balancer| {
            let backends = balancer.backends.iter();
            backends.map(move |backend| (balancer, backend))
        });
        let is_shown = |(balancer, backend): &(&Balancer, &Backend)| {
            balancer.name.contains(&self.browse.filter)
                || backend.address.contains(&self.browse.filter)
        };
        let mut rows: Vec<_> = all.filter(is_shown).collect();
        if self.sort != Sort::Name {
            rows.sort_by_key(|(_, backend)| backend_condition(backend));
        }
        rows
    }

    /// Number of rows.
    fn len(&self) -> usize {
        match self.with_backends {
            true => self.backends().len(),
            false => self.rows().len(),
        }
    }
}

impl Live for View {
    type Answer = Overview;

    fn take(&mut self, answer: anyhow::Result<Overview>) {
        match answer {
            Ok(overview) => {
                self.overview = overview;
                self.error = None;
            }
            Err(error) => self.error = Some(format!("{error:#}")),
        }
        self.browse.limit(self.len());
    }

    fn press(&mut self, key: KeyEvent) -> Flow {
        match self.browse.press(key) {
            Pressed::Quit => return Flow::Quit,
            Pressed::Other(KeyCode::Char('s')) => self.sort = self.sort.next(),
            Pressed::Other(_) | Pressed::Done => {}
        }
        self.browse.limit(self.len());
        Flow::Continue
    }

    fn draw(&self, frame: &mut Frame<'_>) {
        draw(self, frame);
    }
}

fn rate(server: &VirtualServer) -> f64 {
    let rates = server.usage.and_then(|usage| usage.rates);
    rates.map_or(-1.0, |rates| rates.connections)
}

/// Returns the condition of a virtual server.
pub(super) fn condition(balancer: &Balancer, server: &VirtualServer) -> Condition {
    let serves = balancer.quorum == Some(true) || balancer.sorry_server_active == Some(true);
    if !serves || !balancer.errors.is_empty() {
        return Condition::Bad;
    }
    let is_whole = server.up == server.backends && balancer.sorry_server_active != Some(true);
    match is_whole {
        true => Condition::Good,
        false => Condition::Reduced,
    }
}

/// Returns the condition of a backend, by its weight.
pub(super) fn backend_condition(backend: &Backend) -> Condition {
    match backend.weight.unwrap_or(0) {
        0 => Condition::Bad,
        weight if weight < backend.configured_weight || backend.kept => Condition::Reduced,
        _ => Condition::Good,
    }
}
