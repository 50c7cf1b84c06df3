// SPDX-License-Identifier: Apache-2.0

//! An overview from a table, the verdicts about it and the kernel's counters. Pure.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use portolan_health::{BackendStatus, State, Verdicts};
use portolan_model::ipvs::{ForwardingMethod, Tunnel, VirtualServerKey};
use portolan_model::{
    Balancing, Frontend, FrontendAddress, FrontendKind, NodeTable, Record, RecordHealth,
};
use portolan_plan::is_behind;

use super::meter::Readings;
use super::{Backend, Balancer, Command, MAX_ENTRIES, Overview, Usage, VirtualServer};
use crate::args::BackendName;
use crate::backends::overrides::{Override, OverrideMap, addresses, balancer_name};
use crate::backends::{Health, is_served, quorum, second};
use crate::subscribe::Report;

/// The scheduler of a load balancer that names none.
const DEFAULT_SCHEDULER: &str = "wlc";
/// Characters of a reason that are shown.
const MAX_REASON: usize = 256;
/// Errors that are shown of a load balancer, or of the whole host.
const MAX_ERRORS: usize = 16;

/// Sources of an overview.
#[derive(Debug, Clone, Copy)]
pub(super) struct Sources<'a> {
    /// The verdicts about the table's records.
    pub(super) health: &'a Health,
    /// Commands of operators about backends.
    pub(super) overrides: &'a OverrideMap,
    /// The last outcome of programming.
    pub(super) report: Option<&'a Report>,
    /// Counters of the kernel, if they were read.
    pub(super) readings: Option<&'a Readings>,
    /// Whether no checks run.
    pub(super) checks_suspended: bool,
    /// The time.
    pub(super) now: Now,
}

/// One time by two clocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct Now {
    /// Wall clock.
    pub(super) wall: Timestamp,
    /// Time since boot.
    pub(super) boot: Duration,
}

/// The load balancers that one answer has room for.
#[derive(Debug)]
pub(super) struct Chosen<'a> {
    table: &'a NodeTable,
    name: Option<&'a str>,
    records: Vec<(&'a Record, &'a Balancing)>,
    omitted: usize,
}

impl<'a> Chosen<'a> {
    /// Chooses those with a name, or all, as far as there is room.
    pub(super) fn new(table: &'a NodeTable, name: Option<&'a str>) -> Self {
        let balanced = table
            .records
            .values()
            .filter_map(|record| Some((&**record, &**record.balancing.as_ref()?)));
        let named = balanced.filter(|(record, _)| name.is_none_or(|name| name_of(record) == name));
        let mut chosen = Self {
            table,
            name,
            records: Vec::new(),
            omitted: 0,
        };
        let mut room = MAX_ENTRIES;
        for (record, balancing) in named {
            let size = 1 + record.frontends.len() + record.destinations.len();
            match room.checked_sub(size) {
                Some(left) => {
                    room = left;
                    chosen.records.push((record, balancing));
                }
                None => chosen.omitted += 1,
            }
        }
        chosen
    }

    /// Their virtual servers.
    pub(super) fn virtual_servers(&self) -> Vec<VirtualServerKey> {
        let of_record = |(record, _): &(&'a Record, _)| {
            let keys = record.frontends.iter();
            keys.filter_map(|frontend| virtual_server_of(record, frontend))
                .collect::<Vec<_>>()
        };
        self.records.iter().flat_map(of_record).collect()
    }

    /// The overview of them.
    pub(super) fn overview(&self, sources: Sources<'_>) -> Overview {
        let errors = sources.report.map(|report| &*report.errors);
        let errors = errors.unwrap_or_default().iter();
        let general = errors.filter(|(key, _)| key.is_none());
        let balancers = self.records.iter();
        Overview {
            at: second(sources.now.wall),
            revision: sources.report.map(|report| report.revision),
            errors: general
                .map(|(_, error)| error.clone())
                .take(MAX_ERRORS)
                .collect(),
            unread: None,
            awaits_checks: !sources.checks_suspended && !self.has_result(sources.health),
            balancers: balancers
                .map(|(record, balancing)| {
                    let health = self.table.health.get(&record.key);
                    let health = health.map(|health| &**health);
                    balancer(record, balancing, health, sources)
                })
                .collect(),
            commands: self.commands(sources),
            omitted: self.omitted,
        }
    }

    /// Returns `true` if checks have decided about the quorum of a load balancer.
    fn has_result(&self, health: &Health) -> bool {
        let has_checks = |balancing: &Balancing| {
            let mut profiles = balancing.profiles.iter();
            profiles.any(|profile| !profile.checks.is_empty())
        };
        let is_known = |record: &Record| {
            let verdicts = health.get(&record.key);
            verdicts.and_then(|verdicts| quorum(verdicts)).is_some()
        };
        let mut records = self.records.iter();
        records.any(|(record, balancing)| has_checks(balancing) && is_known(record))
    }

    /// Returns the commands about the load balancers with the name, or about all.
    fn commands(&self, sources: Sources<'_>) -> Vec<Command> {
        let named = sources.overrides.iter();
        let named =
            named.filter(|(name, _)| self.name.is_none_or(|wanted| name.balancer == wanted));
        let command = |(name, each): (&BackendName, &Override)| {
            let left = each
                .until
                .map(|until| until.saturating_sub(sources.now.boot));
            let left = left.and_then(|left| SignedDuration::try_from(left).ok());
            let until = left.and_then(|left| sources.now.wall.checked_add(left).ok());
            let mut balanced = self.table.records.values();
            let is_used = balanced.any(|record| {
                name_of(record) == name.balancer
                    && addresses(record).any(|(address, _)| name.covers(address))
            });
            Command {
                backend: name.to_string(),
                state: each.state.to_string(),
                until: until.map(second),
                is_used,
            }
        };
        named.map(command).collect()
    }
}

/// Verdicts, health and use of a load balancer's backends.
struct Judged<'a> {
    verdicts: Option<&'a Verdicts>,
    health: Option<&'a RecordHealth>,
    used: Used,
}

impl Judged<'_> {
    fn status(&self, address: &SocketAddr) -> Option<&BackendStatus> {
        self.verdicts?.states.get(address)
    }

    fn weight(&self, address: &SocketAddr) -> Option<u32> {
        self.health?.backends.get(address)?.weight()
    }
}

/// Use of real servers, by virtual server.
type Used = BTreeMap<VirtualServerKey, BTreeMap<SocketAddr, Usage>>;

fn balancer(
    record: &Record,
    balancing: &Balancing,
    health: Option<&RecordHealth>,
    sources: Sources<'_>,
) -> Balancer {
    let verdicts = sources.health.get(&record.key).map(|verdicts| &**verdicts);
    let keys = record.frontends.iter();
    let keys = keys.filter_map(|frontend| virtual_server_of(record, frontend));
    let used: Used = match sources.readings {
        Some(readings) => keys.map(|key| (key, readings.of(&key))).collect(),
        None => Used::new(),
    };
    let judged = Judged {
        verdicts,
        health,
        used,
    };
    let errors = sources.report.map(|report| &*report.errors);
    let own = errors.unwrap_or_default().iter();
    let own = own.filter(|(key, _)| key.as_ref() == Some(&record.key));
    let scheduler = record.scheduling.scheduler.as_deref();
    Balancer {
        name: name_of(record),
        frontend: record.key.port.to_string(),
        protocol: record.key.protocol.to_string(),
        scheduler: scheduler.unwrap_or(DEFAULT_SCHEDULER).to_owned(),
        quorum: verdicts.and_then(quorum),
        sorry_server_active: balancing
            .sorry_server
            .is_some()
            .then(|| verdicts.is_some_and(|verdicts| verdicts.sorry)),
        errors: own
            .map(|(_, error)| error.clone())
            .take(MAX_ERRORS)
            .collect(),
        virtual_servers: record
            .frontends
            .iter()
            .filter_map(|frontend| virtual_server(record, balancing, frontend, &judged))
            .collect(),
        backends: backends(record, balancing, &judged, sources),
    }
}

fn virtual_server(
    record: &Record,
    balancing: &Balancing,
    frontend: &Frontend,
    judged: &Judged<'_>,
) -> Option<VirtualServer> {
    if matches!(frontend.address, FrontendAddress::NodeAddresses(_)) {
        return None;
    }
    let destinations = record.destinations.iter().enumerate();
    let behind: Vec<_> = destinations
        .filter_map(|(index, destination)| {
            let forwarding = balancing.profile(index)?.forwarding;
            is_behind(record, frontend, destination.address, forwarding)
                .then_some((destination.address, forwarding))
        })
        .collect();
    let is_up = |address: &SocketAddr| {
        let status = judged.status(address);
        status.is_some_and(|status| status.state.is_up())
    };
    let weights = behind
        .iter()
        .filter_map(|(address, _)| judged.weight(address));
    let mut methods: Vec<_> = behind
        .iter()
        .map(|(_, method)| method_name(*method))
        .collect();
    methods.dedup();
    let used = virtual_server_of(record, frontend).and_then(|key| judged.used.get(&key));
    let usage = used.filter(|servers| !servers.is_empty());
    Some(VirtualServer {
        address: frontend.place(),
        method: match *methods {
            [] => "-",
            [method] => method,
            _ => "mixed",
        }
        .to_owned(),
        up: behind.iter().filter(|(address, _)| is_up(address)).count(),
        backends: behind.len(),
        weight: weights.map(u64::from).reduce(|sum, weight| sum + weight),
        usage: usage.map(|servers| sum(servers.values())),
    })
}

/// The backends that some frontend is in front of. Another one is not checked: it would be shown as probing for ever.
fn backends(
    record: &Record,
    balancing: &Balancing,
    judged: &Judged<'_>,
    sources: Sources<'_>,
) -> Vec<Backend> {
    let name = name_of(record);
    let destinations = record.destinations.iter().enumerate();
    let backend = |(index, destination): (usize, &portolan_model::Destination)| {
        let profile = balancing.profile(index)?;
        if !is_served(record, destination.address, profile.forwarding) {
            return None;
        }
        let of_backend = judged.used.values();
        let of_backend = of_backend.filter_map(|servers| servers.get(&destination.address));
        let mut of_backend = of_backend.peekable();
        let is_used = of_backend.peek().is_some();
        let mut backend = Backend {
            address: destination.address.to_string(),
            method: method_name(profile.forwarding).to_owned(),
            state: "probing".to_owned(),
            administrative: "enabled".to_owned(),
            configured_weight: destination.weight,
            weight: judged.weight(&destination.address),
            usage: is_used.then(|| sum(of_backend)),
            ..Backend::default()
        };
        let status = judged.status(&destination.address);
        if let Some(status) = status {
            tell(&mut backend, status, sources.now);
            // What the checks were told may also come from its maintenance.
            let commanded = sources.overrides.of(&name, destination.address);
            backend.by_command = commanded.is_some();
        }
        Some(backend)
    };
    destinations.filter_map(backend).collect()
}

/// Adds what the checks say.
fn tell(backend: &mut Backend, status: &BackendStatus, now: Now) {
    let age = now.boot.saturating_sub(status.since);
    let since = SignedDuration::try_from(age).ok();
    let since = since.and_then(|age| now.wall.checked_sub(age).ok());
    backend.state = match status.state {
        State::Probing => "probing",
        State::Up => "up",
        State::Ramping => "ramping",
        State::Down => "down",
    }
    .to_owned();
    backend.since = since.map(second);
    backend.since_seconds = Some(age.as_secs());
    let reason = status.reason.as_ref();
    backend.reason = reason.map(|reason| reason.chars().take(MAX_REASON).collect());
    backend.administrative = status.administrative.to_string();
    backend.kept = status.is_kept;
}

fn sum<'a>(all: impl Iterator<Item = &'a Usage>) -> Usage {
    let mut sum = Usage::default();
    all.for_each(|each| sum.add(each));
    sum
}

/// None for ranges of ports, whose mark the table does not have.
fn virtual_server_of(record: &Record, frontend: &Frontend) -> Option<VirtualServerKey> {
    match frontend.address {
        _ if frontend.kind == FrontendKind::BalancedRanges => None,
        FrontendAddress::Mark { family, mark } => Some(VirtualServerKey::Mark { family, mark }),
        FrontendAddress::Vip(ip) => Some(VirtualServerKey::new(
            record.key.protocol,
            ip,
            frontend.port,
        )),
        FrontendAddress::NodeAddresses(_) => None,
    }
}

fn name_of(record: &Record) -> String {
    balancer_name(&record.key)
}

fn method_name(method: ForwardingMethod) -> &'static str {
    match method {
        ForwardingMethod::Masquerade | ForwardingMethod::Local => "NAT",
        ForwardingMethod::Direct => "DR",
        ForwardingMethod::Tunnel(Tunnel::Ipip) => "IPIP",
        ForwardingMethod::Tunnel(Tunnel::Gue { .. }) => "GUE",
        ForwardingMethod::Tunnel(Tunnel::Gre { .. }) => "GRE",
    }
}
