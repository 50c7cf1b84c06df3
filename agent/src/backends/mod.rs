// SPDX-License-Identifier: Apache-2.0

//! Health of load balancers' backends on this host: tables become what is to be checked, and verdicts become
//! a part of the table that is programmed.
//!
//! ```text
//! table from the source ──► Checkups ──► table with health ──► sync loop
//!                              │  ▲
//!                       wanted ▼  │ verdicts
//!                            engine
//! ```
//!
//! A check by way of the service waits until the sync loop has programmed its virtual server.
//!
//! States that operators give backends are inputs of both.

mod groups;
mod health;
pub(crate) mod metrics;
pub(crate) mod overrides;
mod wanted;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use jiff::Timestamp;
use portolan_health::{LoadBalancer, Outcome};
use portolan_model::check::{Check, CheckDefaults, Probe};
use portolan_model::{ByRecord, NodeTable, Record, RecordHealth, RecordKey};
use portolan_plan::Ways;
use portolan_probe::{
    Clock, Context, Engine, Handle, Inputs, Limits, Overrides, Prober, Programs, StateFile, Target,
    Wanted,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use health::health_of_record;
pub(crate) use health::{health_of, quorum};
pub(crate) use metrics::BackendCollector;
pub use overrides::ask as command;
pub(crate) use wanted::is_served;

use crate::args::Source;
use crate::director::HostDirector;
use crate::subscribe::Subscribed;
use groups::OwnGroups;
use health::HealthOfRecords;
use overrides::OverrideStore;
use wanted::Host;

type Tables = watch::Receiver<Option<Arc<Subscribed>>>;

/// The verdicts about the records of load balancers.
pub(crate) type Health = portolan_probe::Health<RecordKey>;

/// Passes tables on with the health of their backends.
#[derive(Debug)]
pub(crate) struct Checkups {
    tables: Tables,
    /// The ways that the kernel has for checks by way of the service.
    ways: watch::Receiver<Arc<Ways>>,
    health: watch::Receiver<Health>,
    wanted: watch::Sender<Wanted<RecordKey>>,
    checked: watch::Sender<Option<Arc<Subscribed>>>,
    /// The records of the last table that was looked at.
    records: ByRecord<Record>,
    /// Those of them with checks by way of the service.
    through: BTreeSet<RecordKey>,
    groups: OwnGroups,
    overrides: OverrideStore,
    commanded: watch::Receiver<Overrides<RecordKey>>,
    /// Values of the fields that checks leave to this host.
    defaults: watch::Receiver<CheckDefaults>,
    /// The health that was computed last.
    judged: HealthOfRecords,
    /// Number of the last health that was passed on.
    number: u64,
    /// The director of this host, which follows tables of controllers, and the host's name.
    director: Option<(HostDirector, Arc<str>)>,
}

/// Outputs of [`start`].
#[derive(Debug)]
pub(crate) struct Started {
    /// The tables with health, for the sync loop.
    pub(crate) tables: Tables,
    /// The engine, to be run.
    pub(crate) engine: Engine<RecordKey>,
    /// Outputs of the engine.
    pub(crate) handle: Handle<RecordKey>,
    /// The stage, to be run.
    pub(crate) checkups: Checkups,
    /// States on disk, to be kept up to date.
    pub(crate) state_file: StateFile,
    /// States that operators give backends.
    pub(crate) overrides: OverrideStore,
    /// Rules for programs that checks start.
    pub(crate) programs: Programs,
    /// Settings of all checks, from the director of this host.
    pub(crate) controls: CheckControls,
}

/// Settings of all checks, from the director of this host.
#[derive(Debug, Clone, Default)]
pub(crate) struct CheckControls {
    /// Whether no check is to run, and every backend keeps its state.
    pub(crate) suspended: watch::Sender<bool>,
    /// Limits of checks that run at one time, and of starts in one second.
    pub(crate) limits: watch::Sender<Limits>,
    /// Values of the fields that checks of a controller leave to this host.
    pub(crate) defaults: watch::Sender<CheckDefaults>,
}

/// Prepares the checks of the tables' backends. States of the last run are in `state_dir`. Only tables from files of
/// this host may start programs.
pub(crate) fn start(
    tables: Tables,
    ways: watch::Receiver<Arc<Ways>>,
    source: Source,
    state_dir: &Path,
) -> Started {
    let (wanted, wanted_receiver) = watch::channel(Wanted::new());
    let (overrides, overrides_receiver) = watch::channel(Overrides::new());
    let (checked, checked_receiver) = watch::channel(None);
    let state_file = StateFile::new(state_dir);
    let saved = state_file.load().unwrap_or_else(|error| {
        tracing::warn!("states of backends cannot be read, they are checked anew: {error}");
        None
    });
    let clock = Clock::new(&boot_id(), since_boot());
    let controls = CheckControls::default();
    let inputs = Inputs {
        wanted: wanted_receiver,
        overrides: overrides_receiver,
        suspended: controls.suspended.subscribe(),
        limits: controls.limits.subscribe(),
    };
    let programs = Programs::waiting();
    let prober = HostProber {
        context: Context::new(programs.clone()),
        source,
    };
    let (engine, handle) = Engine::new(prober, None, clock, inputs, saved);
    let overrides = OverrideStore::open(state_dir, overrides, handle.health.clone());
    let checkups = Checkups {
        tables,
        ways,
        health: handle.health.clone(),
        wanted,
        checked,
        records: ByRecord::new(),
        through: BTreeSet::new(),
        groups: OwnGroups::default(),
        commanded: overrides.in_force(),
        overrides: overrides.clone(),
        defaults: controls.defaults.subscribe(),
        judged: HealthOfRecords::default(),
        number: 0,
        director: None,
    };
    Started {
        tables: checked_receiver,
        engine,
        handle,
        checkups,
        state_file,
        overrides,
        programs,
        controls,
    }
}

/// Reason why a check of a controller is not run.
const LOCAL: &str = "checks with programs or files are only run from files of this host";

/// Runs probes, but no program and no file of a controller's choice.
#[derive(Debug, Clone)]
struct HostProber {
    context: Context,
    source: Source,
}

impl Prober for HostProber {
    fn probe(
        &self,
        check: Arc<Check>,
        target: Target,
        start: tokio::time::Instant,
    ) -> BoxFuture<'static, Outcome> {
        if self.source != Source::File
            && let Some(refused) = refusal(&check.probe)
        {
            return Box::pin(std::future::ready(refused));
        }
        self.context.probe(check, target, start)
    }
}

/// The outcome of a controller's probe that is not run.
fn refusal(probe: &Probe) -> Option<Outcome> {
    match probe {
        Probe::Exec(_) | Probe::File(_) => Some(Outcome::fail(LOCAL)),
        // Agents of earlier versions ran these: their upgrade must not take out backends that are up.
        _ if !probe.tls_files().is_empty() => Some(Outcome::no_verdict(LOCAL)),
        _ => None,
    }
}

impl Checkups {
    /// Has the director of this host follow the tables, before they are passed on.
    pub(crate) fn direct(mut self, director: HostDirector, host: Arc<str>) -> Self {
        self.director = Some((director, host));
        self
    }

    /// Runs until the source of tables ends or the token is cancelled.
    pub(crate) async fn run(mut self, token: CancellationToken) {
        let (mut has_engine, mut has_ways) = (true, true);
        loop {
            let is_table = tokio::select! {
                () = token.cancelled() => return,
                changed = self.tables.changed() => match changed {
                    Ok(()) => true,
                    Err(_) => return,
                },
                changed = self.health.changed(), if has_engine => {
                    has_engine = changed.is_ok();
                    false
                }
                changed = self.ways.changed(), if has_ways => {
                    has_ways = changed.is_ok();
                    self.ways.mark_changed();
                    false
                }
                // The sender is a part of this stage.
                Ok(()) = self.commanded.changed() => false,
            };
            self.pass_on(is_table);
        }
    }

    /// Passes on the newest table with the newest health.
    fn pass_on(&mut self, is_table: bool) {
        // Both may have changed.
        let is_table = is_table || self.tables.has_changed().unwrap_or(false);
        let Some(sent) = self.tables.borrow_and_update().clone() else {
            return;
        };
        let table = self.of_own_groups(sent);
        if let Some((director, host)) = self.director.as_ref().filter(|_| is_table) {
            let sent = table.table.node.director.as_ref();
            director.follow_sent(sent, table.is_from_disk, host);
        }
        if is_table || self.ways.has_changed().unwrap_or(false) {
            self.want(&table.table);
        }
        let commanded = self.commanded.borrow_and_update().clone();
        let verdicts = self.health.borrow_and_update().clone();
        let health = self
            .judged
            .update(&table.table.records, verdicts, commanded);
        let before = self.checked.borrow().clone();
        if !is_table && before.is_some_and(|before| before.table.health == health) {
            return;
        }
        let with_health = match health.is_empty() {
            true => table,
            false => {
                self.number += 1;
                let with_health = with_health(&table, health, is_table);
                Arc::new(Subscribed {
                    checked: self.number,
                    ..with_health
                })
            }
        };
        self.checked.send_replace(Some(with_health));
    }

    /// A table with the records that are for this node.
    fn of_own_groups(&mut self, sent: Arc<Subscribed>) -> Arc<Subscribed> {
        let table = self.groups.choose(&sent.table);
        match Arc::ptr_eq(&table, &sent.table) {
            true => sent,
            false => Arc::new(Subscribed {
                table,
                ..Subscribed::clone(&sent)
            }),
        }
    }

    /// Tells the engine what is to be checked.
    fn want(&mut self, table: &NodeTable) {
        let are_other = self.ways.has_changed().unwrap_or(false);
        let ways = Arc::clone(&self.ways.borrow_and_update());
        if self.defaults.has_changed().unwrap_or(false) {
            // Any check may depend on them.
            self.records = ByRecord::new();
            self.through.clear();
        } else if table.records == self.records && !are_other {
            return;
        }
        let host = Host {
            ways: &ways,
            defaults: &self.defaults.borrow_and_update().clone(),
        };
        // Before the engine learns of new backends: one that is drained never gets a weight.
        self.overrides.follow(&table.records);
        self.wanted.send_if_modified(|wanted| {
            let through = &mut self.through;
            let known = match self.records.is_empty() {
                true => Wanted::new(),
                false => wanted.clone(),
            };
            let new = wanted::changed(&self.records, &table.records, known, through, &host);
            let is_other = new != *wanted;
            *wanted = new;
            is_other
        });
        self.records = table.records.clone();
    }
}

/// Returns the load balancers to be checked, in the order of the records, without ways of checks by way of the service.
pub(crate) fn load_balancers(records: &ByRecord<Record>) -> Vec<LoadBalancer> {
    let balanced = records.values().filter_map(|record| {
        let balancing = record.balancing.as_ref()?;
        Some(wanted::load_balancer(
            records,
            record,
            balancing,
            &Host {
                ways: &Ways::default(),
                defaults: &CheckDefaults::default(),
            },
        ))
    });
    balanced.collect()
}

/// A table with health. One that differs from the last in its health alone arrives now.
fn with_health(table: &Subscribed, health: ByRecord<RecordHealth>, is_table: bool) -> Subscribed {
    let mut with = table.clone();
    Arc::make_mut(&mut with.table).health = health;
    if !is_table {
        with.received_at = Instant::now();
        with.trigger_times_ms.clear();
    }
    with
}

/// The name of a record's frontend: `TCP/192.0.2.10:80`.
pub(crate) fn frontend(record: &Record) -> String {
    wanted::frontend(record)
}

/// A time without its fraction.
pub(crate) fn second(time: Timestamp) -> String {
    let whole = Timestamp::from_second(time.as_second());
    whole.unwrap_or(time).to_string()
}

/// Identifier of this boot; empty if it cannot be read, and then no saved state is believed.
pub(crate) fn boot_id() -> String {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    text.unwrap_or_default().trim().to_owned()
}

/// Time since boot, suspended time included.
pub(crate) fn since_boot() -> std::time::Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    std::time::Duration::new(seconds, nanos)
}

#[cfg(test)]
mod tests;
