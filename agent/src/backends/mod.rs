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

pub(crate) mod metrics;
mod wanted;

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use futures_util::future::BoxFuture;
use portolan_health::{Outcome, State, Verdicts};
use portolan_model::check::{Check, Probe};
use portolan_model::{ByRecord, NodeTable, RecordHealth, RecordKey};
use portolan_probe::{
    Clock, Context, Engine, Handle, Inputs, Overrides, Prober, Settings, StateFile, Target, Wanted,
};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

pub(crate) use metrics::BackendCollector;

use crate::args::Source;
use crate::subscribe::Subscribed;

type Tables = watch::Receiver<Option<Arc<Subscribed>>>;

/// The verdicts about the records of load balancers.
pub(crate) type Health = portolan_probe::Health<RecordKey>;

/// Passes tables on with the health of their backends.
#[derive(Debug)]
pub(crate) struct Checkups {
    tables: Tables,
    health: watch::Receiver<Health>,
    wanted: watch::Sender<Wanted<RecordKey>>,
    checked: watch::Sender<Option<Arc<Subscribed>>>,
    /// The records of the last table that was looked at.
    records: ByRecord<portolan_model::Record>,
}

/// Outputs of [`start`].
#[derive(Debug)]
pub(crate) struct Started {
    /// The tables with health, for the sync loop.
    pub(crate) tables: Tables,
    /// The engine, to be run.
    pub(crate) engine: Engine<RecordKey>,
    /// What the engine tells.
    pub(crate) handle: Handle<RecordKey>,
    /// The stage, to be run.
    pub(crate) checkups: Checkups,
    /// States on disk, to be kept up to date.
    pub(crate) state_file: StateFile,
    /// The sender of operators' overrides; held so that the engine's input stays open.
    pub(crate) overrides: watch::Sender<Overrides<RecordKey>>,
}

/// Prepares the checks of the tables' backends. States of the last run are in `state_dir`. Only tables from files of
/// this host may start programs.
pub(crate) fn start(tables: Tables, source: Source, state_dir: &Path) -> Started {
    let (wanted, wanted_receiver) = watch::channel(Wanted::new());
    let (overrides, overrides_receiver) = watch::channel(Overrides::new());
    let (checked, checked_receiver) = watch::channel(None);
    let state_file = StateFile::new(state_dir);
    let saved = state_file.load().unwrap_or_else(|error| {
        tracing::warn!("states of backends cannot be read, they are checked anew: {error}");
        None
    });
    let clock = Clock::new(&boot_id(), since_boot());
    let inputs = Inputs {
        wanted: wanted_receiver,
        overrides: overrides_receiver,
    };
    let prober = HostProber {
        context: Context::new(None),
        source,
    };
    let (engine, handle) = Engine::new(prober, Settings::default(), clock, inputs, saved);
    let checkups = Checkups {
        tables,
        health: handle.health.clone(),
        wanted,
        checked,
        records: ByRecord::new(),
    };
    Started {
        tables: checked_receiver,
        engine,
        handle,
        checkups,
        state_file,
        overrides,
    }
}

/// Runs probes, but no program and no file of a controller's choice.
#[derive(Debug, Clone)]
struct HostProber {
    context: Context,
    source: Source,
}

impl Prober for HostProber {
    fn probe(&self, check: Arc<Check>, target: Target) -> BoxFuture<'static, Outcome> {
        let is_local = matches!(check.probe, Probe::Exec(_) | Probe::File(_));
        if is_local && self.source != Source::File {
            let refused =
                Outcome::fail("exec and file checks are only run from files of this host");
            return Box::pin(std::future::ready(refused));
        }
        self.context.probe(check, target)
    }
}

impl Checkups {
    /// Runs until the source of tables ends or the token is cancelled.
    pub(crate) async fn run(mut self, token: CancellationToken) {
        let mut has_engine = true;
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
            };
            self.pass_on(is_table);
        }
    }

    /// Passes on the newest table with the newest health.
    fn pass_on(&mut self, is_table: bool) {
        // Both may have changed.
        let is_table = is_table || self.tables.has_changed().unwrap_or(false);
        let Some(table) = self.tables.borrow_and_update().clone() else {
            return;
        };
        if is_table {
            self.want(&table.table);
        }
        let health = health_of(&table.table, &self.health.borrow_and_update());
        let before = self.checked.borrow().clone();
        if !is_table && before.is_some_and(|before| before.table.health == health) {
            return;
        }
        let with_health = match health.is_empty() {
            true => table,
            false => Arc::new(with_health(&table, health, is_table)),
        };
        self.checked.send_replace(Some(with_health));
    }

    /// Tells the engine what is to be checked.
    fn want(&mut self, table: &NodeTable) {
        if table.records == self.records {
            return;
        }
        self.wanted.send_if_modified(|wanted| {
            let new = wanted::changed(&self.records, &table.records, wanted);
            let is_other = new != *wanted;
            *wanted = new;
            is_other
        });
        self.records = table.records.clone();
    }
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

/// The health of a table's records.
fn health_of(table: &NodeTable, verdicts: &Health) -> ByRecord<RecordHealth> {
    let known = verdicts
        .iter()
        .filter(|(key, _)| table.records.contains_key(*key));
    known
        .map(|(key, verdicts)| (key.clone(), Arc::new(health(verdicts))))
        .collect()
}

/// Health of a record. A backend that no check has judged yet is left out: it keeps the weight that it has in
/// the kernel.
fn health(verdicts: &Verdicts) -> RecordHealth {
    let is_judged = |address| {
        let status = verdicts.states.get(address);
        status.is_none_or(|status| status.state != State::Probing)
    };
    let judged = verdicts.backends.iter();
    let judged = judged.filter(|(address, _)| is_judged(address));
    let weights = judged.map(|(address, verdict)| {
        let is_there = verdict.presence == portolan_health::Presence::Present;
        (*address, is_there.then_some(u32::from(verdict.weight)))
    });
    let weights: std::collections::BTreeMap<_, _> = weights.collect();
    // With no result at all, nothing is known about the quorum either.
    let is_known = !weights.is_empty() || verdicts.backends.is_empty();
    RecordHealth {
        is_sorry: verdicts.sorry && is_known,
        lacks_quorum: !verdicts.quorum && is_known,
        weights,
    }
}

/// Identifier of this boot; empty if it cannot be read, and then no saved state is believed.
fn boot_id() -> String {
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
