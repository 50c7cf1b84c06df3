// SPDX-License-Identifier: Apache-2.0

//! Steps as lines: what each adds, changes, drains and deletes.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;

use portolan_model::Family;
use portolan_model::ipvs::{RealServerConfig, VirtualServerKey};
use serde::Serialize;

use super::commands::{add_entry, create_set, restore_program, route};
use super::ipvsadm;
use crate::{Desired, KernelState, Rules, Step};

/// Effect of a step on one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// The object is new.
    Add,
    /// The object stays, with other settings.
    Change,
    /// A real server gets no new connections, and is deleted when its connections have ended.
    Drain,
    /// The object is deleted.
    Delete,
}

impl Action {
    /// The mark in front of a line.
    #[must_use]
    pub fn sign(self) -> char {
        match self {
            Self::Add => '+',
            Self::Change | Self::Drain => '~',
            Self::Delete => '-',
        }
    }
}

/// Kind of an object of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ObjectKind {
    VirtualServer,
    RealServer,
    Set,
    SetEntry,
    Rules,
    Route,
    Setting,
    SyncDaemon,
    Neighbour,
}

impl ObjectKind {
    fn count(self, count: usize) -> String {
        let (one, many) = match self {
            Self::VirtualServer => ("virtual server", "virtual servers"),
            Self::RealServer => ("real server", "real servers"),
            Self::Set => ("set", "sets"),
            Self::SetEntry => ("set entry", "set entries"),
            Self::Rules => ("family's rules", "families' rules"),
            Self::Route => ("route", "routes"),
            Self::Setting => ("setting", "settings"),
            Self::SyncDaemon => ("sync daemon", "sync daemons"),
            Self::Neighbour => ("proxy neighbour", "proxy neighbours"),
        };
        format!("{count} {}", if count == 1 { one } else { many })
    }
}

/// One changed object of a step.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StepLine {
    /// The effect.
    pub action: Action,
    kind: ObjectKind,
    /// Record of the object's virtual server, as `namespace/service:port`; `None` for objects that
    /// records share.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<String>,
    /// Arguments of `ipvsadm`, or a command of `ipset`, `ip`, `ipvsadm` or `sysctl`.
    pub command: String,
    /// Settings before a change.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub was: Option<String>,
}

impl StepLine {
    pub(crate) fn new(action: Action, kind: ObjectKind, command: String) -> Self {
        Self {
            action,
            kind,
            record: None,
            command,
            was: None,
        }
    }

    /// With the settings before the change.
    pub(crate) fn after(self, was: String) -> Self {
        Self {
            was: Some(was),
            ..self
        }
    }
}

impl fmt::Display for StepLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.action.sign(), self.command)?;
        let drained = match self.action {
            Action::Drain => "  # drained",
            _ => "",
        };
        f.write_str(drained)?;
        match &self.was {
            Some(was) if drained.is_empty() => write!(f, "  # was {was}"),
            Some(was) => write!(f, "; was {was}"),
            None => Ok(()),
        }
    }
}

/// The lines of a step from an observed to a desired state.
#[must_use]
pub fn step_lines(step: &Step, observed: &KernelState, desired: &Desired) -> Vec<StepLine> {
    let mut lines = match step {
        Step::CreateSet { name, header } => vec![StepLine::new(
            Action::Add,
            ObjectKind::Set,
            create_set(name, header),
        )],
        Step::ReplaceSet { name, set } => {
            let mut line = StepLine::new(
                Action::Change,
                ObjectKind::Set,
                create_set(name, &set.header),
            );
            let before = observed.sets.get(name);
            line.was = before.map(|before| create_set(name, &before.header));
            vec![line]
        }
        Step::AddEntries { name, entries } => {
            let command = |entry| add_entry(name, entry);
            let line = |entry| StepLine::new(Action::Add, ObjectKind::SetEntry, command(entry));
            entries.iter().map(line).collect()
        }
        Step::DelEntries { name, entries } => {
            let command = |entry| format!("ipset del {name} {entry}");
            let line = |entry| StepLine::new(Action::Delete, ObjectKind::SetEntry, command(entry));
            entries.iter().map(line).collect()
        }
        Step::WriteRules { family, rules } => vec![write_rules(*family, rules, observed)],
        Step::AddRoute { vip, source } => vec![StepLine::new(
            Action::Add,
            ObjectKind::Route,
            route("add", *vip, *source),
        )],
        Step::SetRoute { vip, source } => {
            let command = route("replace", *vip, *source);
            let mut line = StepLine::new(Action::Change, ObjectKind::Route, command);
            let before = observed.routes.get(vip).copied().flatten();
            line.was = before.map(|source| format!("src {source}"));
            vec![line]
        }
        Step::DelRoute { vip } => vec![StepLine::new(
            Action::Delete,
            ObjectKind::Route,
            route("del", *vip, None),
        )],
        _ => server_lines(step, observed, desired),
    };
    let record = step
        .virtual_server()
        .and_then(|key| desired.records.get(key));
    let record = record.map(|record| record.key.to_string());
    for line in &mut lines {
        line.record.clone_from(&record);
    }
    lines
}

/// The lines of a step about a virtual server or its real servers.
fn server_lines(step: &Step, observed: &KernelState, desired: &Desired) -> Vec<StepLine> {
    use ObjectKind::{RealServer, VirtualServer};
    let line = match step {
        Step::AddVirtualServer { key, config } => {
            let command = ipvsadm::add_service(key, config);
            StepLine::new(Action::Add, VirtualServer, command)
        }
        Step::SetVirtualServer { key, config } => {
            let command = ipvsadm::edit_service(key, config);
            let mut line = StepLine::new(Action::Change, VirtualServer, command);
            let before = observed.virtual_servers.get(key);
            line.was = before.map(|before| ipvsadm::add_service(key, &before.config));
            line
        }
        Step::DelVirtualServer { key } => {
            StepLine::new(Action::Delete, VirtualServer, ipvsadm::delete_service(key))
        }
        Step::FillVirtualServer { key, real_servers } => {
            let add = |(address, config): (SocketAddr, &RealServerConfig)| {
                let command = ipvsadm::add_real_server(key, address, *config);
                StepLine::new(Action::Add, RealServer, command)
            };
            return real_servers.iter().map(add).collect();
        }
        Step::AddRealServer {
            key,
            address,
            config,
        } => {
            let command = ipvsadm::add_real_server(key, *address, *config);
            StepLine::new(Action::Add, RealServer, command)
        }
        Step::SetRealServer {
            key,
            address,
            config,
        } => set_real_server((key, *address, *config), observed, desired),
        Step::DelRealServer { key, address } => StepLine::new(
            Action::Delete,
            RealServer,
            ipvsadm::delete_real_server(key, *address),
        ),
        _ => return Vec::new(),
    };
    vec![line]
}

fn set_real_server(
    (key, address, config): (&VirtualServerKey, SocketAddr, RealServerConfig),
    observed: &KernelState,
    desired: &Desired,
) -> StepLine {
    let of = |state: &KernelState| {
        let server = state.virtual_servers.get(key)?;
        server.real_servers.get(&address).copied()
    };
    let action = match of(&desired.state) {
        Some(_) => Action::Change,
        None => Action::Drain,
    };
    let command = ipvsadm::edit_real_server(key, address, config);
    let mut line = StepLine::new(action, ObjectKind::RealServer, command);
    line.was = of(observed).map(|before| {
        let weight = before.weight;
        match before == (RealServerConfig { weight, ..config }) {
            true => weight.to_string(),
            false => ipvsadm::add_real_server(key, address, before),
        }
    });
    line
}

fn write_rules(family: Family, rules: &Rules, observed: &KernelState) -> StepLine {
    let action = match observed.rules.contains_key(&family) {
        true => Action::Change,
        false => Action::Add,
    };
    let counts = rules.count_by_table();
    let counts = counts
        .iter()
        .map(|(table, count)| format!("{table} {count}"));
    let program = restore_program(family);
    let counts: Vec<_> = counts.collect();
    let command = format!("{program} --noflush (rules: {})", counts.join(", "));
    StepLine::new(action, ObjectKind::Rules, command)
}

/// Numbers of objects that a plan adds, changes, drains and deletes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Totals(BTreeMap<Action, BTreeMap<ObjectKind, usize>>);

impl Totals {
    /// The totals of some lines.
    #[must_use]
    pub fn of(lines: &[StepLine]) -> Self {
        let mut totals = Self::default();
        for line in lines {
            let kinds = totals.0.entry(line.action).or_default();
            *kinds.entry(line.kind).or_default() += 1;
        }
        totals
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("Plan: nothing to do.");
        }
        let part = |(action, kinds): (&Action, &BTreeMap<ObjectKind, usize>)| {
            let verb = match action {
                Action::Add => "add",
                Action::Change => "change",
                Action::Drain => "drain",
                Action::Delete => "delete",
            };
            let counts: Vec<_> = kinds
                .iter()
                .map(|(kind, count)| kind.count(*count))
                .collect();
            format!("{verb} {}", counts.join(", "))
        };
        let parts: Vec<_> = self.0.iter().map(part).collect();
        write!(f, "Plan: {}.", parts.join("; "))
    }
}

#[cfg(test)]
mod tests;
