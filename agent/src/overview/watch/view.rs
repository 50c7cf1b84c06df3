// SPDX-License-Identifier: Apache-2.0

//! What the live view shows: rows in an order, those that a filter leaves, and where they begin. Pure.

use std::cmp::Reverse;

use ratatui::crossterm::event::{KeyCode, KeyEvent, KeyEventKind, KeyModifiers};

use super::super::{Backend, Balancer, Overview, VirtualServer};

/// Rows of a page, for the keys that turn pages.
const PAGE: usize = 10;

/// Characters of a filter, at most.
const MAX_FILTER: usize = 64;

/// The order of the rows. Equal ones are in the order of their names.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Sort {
    /// What does not serve first, then what lacks backends.
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

/// How well a virtual server or a backend serves; the worst first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Condition {
    /// It does not serve, or something could not be programmed.
    Bad,
    /// It serves with less than all.
    Reduced,
    /// All is well.
    Good,
}

/// Whether the view goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flow {
    /// It does.
    Continue,
    /// The user ends it.
    Quit,
}

/// The live view.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The last answer of the agent.
    pub(super) overview: Overview,
    /// Why there is no newer one.
    pub(super) error: Option<String>,
    /// The order of the rows.
    pub(super) sort: Sort,
    /// Rows have this in their name or address; all do if it is empty.
    pub(super) filter: String,
    /// Whether keys are letters of the filter.
    pub(super) is_typing: bool,
    /// Rows that are left out above.
    pub(super) offset: usize,
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

    /// Takes an answer of the agent. After an error the last one stays.
    pub(super) fn take(&mut self, answer: anyhow::Result<Overview>) {
        match answer {
            Ok(overview) => {
                self.overview = overview;
                self.error = None;
            }
            Err(error) => self.error = Some(format!("{error:#}")),
        }
        self.offset = self.offset.min(self.last_row());
    }

    /// Takes a key.
    pub(super) fn press(&mut self, key: KeyEvent) -> Flow {
        if key.kind == KeyEventKind::Release {
            return Flow::Continue;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        match key.code {
            KeyCode::Char('c') if is_control => return Flow::Quit,
            _ if self.is_typing => self.type_key(key.code),
            KeyCode::Char('q') => return Flow::Quit,
            KeyCode::Char('s') => self.sort = self.sort.next(),
            KeyCode::Char('/') => self.is_typing = true,
            KeyCode::Esc => self.filter.clear(),
            KeyCode::Down | KeyCode::Char('j') => self.offset += 1,
            KeyCode::Up | KeyCode::Char('k') => self.offset = self.offset.saturating_sub(1),
            KeyCode::PageDown => self.offset += PAGE,
            KeyCode::PageUp => self.offset = self.offset.saturating_sub(PAGE),
            KeyCode::Home => self.offset = 0,
            KeyCode::End => self.offset = usize::MAX,
            _ => {}
        }
        self.offset = self.offset.min(self.last_row());
        Flow::Continue
    }

    fn type_key(&mut self, code: KeyCode) {
        match code {
            KeyCode::Enter => self.is_typing = false,
            KeyCode::Esc => {
                self.is_typing = false;
                self.filter.clear();
            }
            KeyCode::Backspace => {
                self.filter.pop();
            }
            KeyCode::Char(letter) if self.filter.chars().count() < MAX_FILTER => {
                self.filter.push(letter);
            }
            _ => {}
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
            balancer.name.contains(&self.filter) || server.address.contains(&self.filter)
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
            balancer.name.contains(&self.filter) || backend.address.contains(&self.filter)
        };
        let mut rows: Vec<_> = all.filter(is_shown).collect();
        if self.sort != Sort::Name {
            rows.sort_by_key(|(_, backend)| backend_condition(backend));
        }
        rows
    }

    fn last_row(&self) -> usize {
        let rows = match self.with_backends {
            true => self.backends().len(),
            false => self.rows().len(),
        };
        rows.saturating_sub(1)
    }
}

fn rate(server: &VirtualServer) -> f64 {
    let rates = server.usage.and_then(|usage| usage.rates);
    rates.map_or(-1.0, |rates| rates.connections)
}

/// How well a virtual server serves.
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

/// How well a backend serves, as its weight tells.
pub(super) fn backend_condition(backend: &Backend) -> Condition {
    match backend.weight.unwrap_or(0) {
        0 => Condition::Bad,
        weight if weight < backend.configured_weight || backend.kept => Condition::Reduced,
        _ => Condition::Good,
    }
}
