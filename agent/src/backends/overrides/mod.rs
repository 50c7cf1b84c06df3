// SPDX-License-Identifier: Apache-2.0

//! States that operators give backends while the agent runs: `portolan-agent backend drain|enable|disable`.
//!
//! ```text
//! command ──► OverrideStore ──► disk
//!                  │ by record and address
//!                  ├──► engine: quorum and weights without the backend
//!                  └──► Checkups: weights of the table, at once
//! ```

mod command;
mod maintenance;
mod map;
mod saved;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use portolan_health::Administrative;
use portolan_model::{ByRecord, Record, RecordKey};
use portolan_probe::Overrides;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use super::Health;
use crate::args::{BackendCommand, BackendName};
use map::Place;

pub(crate) use command::Commands;
pub use command::ask;
pub(crate) use maintenance::Maintenance;
pub(crate) use map::{Override, OverrideMap, Refused, addresses, balancer_name};
pub(crate) use saved::{Now, load};

/// Time between two saves of the time that overrides have left. It is the longest sleep before an end as well: timers
/// stand still while the machine is suspended.
const PERIOD: Duration = Duration::from_secs(60);

/// Replaces the overrides on disk.
type Save = fn(&Path, &OverrideMap, &Now) -> io::Result<()>;

/// The overrides of this host. Clones are the same.
#[derive(Debug, Clone)]
pub(crate) struct OverrideStore(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    directory: PathBuf,
    /// Held while overrides change until they are on disk, and taken before `state`. `state` is not held meanwhile: a
    /// slow disk stops nobody who asks.
    saving: Mutex<()>,
    /// [`saved::save`], but for tests.
    save: Save,
    state: Mutex<State>,
    /// Those of the table's backends.
    in_force: watch::Sender<Overrides<RecordKey>>,
    health: watch::Receiver<Health>,
    changed: Notify,
}

#[derive(Debug, Default)]
struct State {
    overrides: OverrideMap,
    maintenance: Maintenance,
    records: ByRecord<Record>,
}

/// Reason why a command is not followed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CommandError {
    /// It cannot be.
    #[error("{0}")]
    Refused(#[from] Refused),
    /// It would not outlive a restart.
    #[error("the state of the backend cannot be saved: {0}")]
    Disk(#[from] io::Error),
}

impl OverrideStore {
    /// The overrides on disk, of a table that is not known yet. The backends in maintenance are those of the last run
    /// until the director is known, and as long as its directory cannot be read. Blocks.
    pub(crate) fn open(
        directory: &Path,
        in_force: watch::Sender<Overrides<RecordKey>>,
        health: watch::Receiver<Health>,
    ) -> Self {
        let overrides = load(directory, &Now::read());
        Self(Arc::new(Inner {
            directory: directory.to_owned(),
            saving: Mutex::default(),
            save: saved::save,
            state: Mutex::new(State {
                overrides,
                maintenance: Maintenance::load(directory),
                records: ByRecord::new(),
            }),
            in_force,
            health,
            changed: Notify::new(),
        }))
    }

    /// Follows the records of the table.
    pub(crate) fn follow(&self, records: &ByRecord<Record>) {
        let mut state = self.lock();
        state.records = records.clone();
        self.publish(&state);
    }

    /// The overrides of the table's backends.
    pub(crate) fn in_force(&self) -> watch::Receiver<Overrides<RecordKey>> {
        self.0.in_force.subscribe()
    }

    /// Returns `true` if the table has a backend.
    fn knows(&self, (key, address): &Place) -> bool {
        let state = self.lock();
        let record = state.records.get(key);
        let mut backends = record.into_iter().flat_map(|record| addresses(record));
        backends.any(|(backend, _)| backend == *address)
    }

    /// All overrides, also those of backends that the table does not have.
    pub(crate) fn all(&self) -> OverrideMap {
        self.lock().overrides.clone()
    }

    /// Follows a command, for a time if one is given; gives the backends, by frontend. Blocks on the disk.
    pub(crate) fn command(
        &self,
        command: BackendCommand,
        name: &BackendName,
        duration: Option<Duration>,
        now: &Now,
    ) -> Result<Vec<Place>, CommandError> {
        let health = self.0.health.borrow().clone();
        let until = duration.map(|duration| now.since_boot + duration);
        let _saving = self.lock_disk();
        let state = self.lock();
        let maintenance = state.maintenance.clone();
        let said = |(key, address): &Place| {
            let status = health.get(key).and_then(|each| each.states.get(address));
            let said = status.map_or(Administrative::Enabled, |status| status.said);
            match maintenance.covers(*address) {
                true => said.max(Administrative::Drain),
                false => said,
            }
        };
        let mut new = state.overrides.clone();
        let places = new.command(command, name, until, &state.records, said)?;
        let is_other = new != state.overrides;
        drop(state);
        if is_other {
            // An agent that is killed now comes back with the new state.
            (self.0.save)(&self.0.directory, &new, now)?;
        }
        let mut state = self.lock();
        if is_other {
            state.overrides = new;
            tracing::info!(backend = %name, command = command.name(), ?duration, "commanded");
        }
        self.publish(&state);
        drop(state);
        self.0.changed.notify_one();
        Ok(places)
    }

    /// Ends overrides when their time is over, until the token is cancelled. As long as there is one with an end, it
    /// saves once a minute how much time is left.
    pub(crate) async fn keep_time(self, token: CancellationToken) {
        let mut saved = Now::read().since_boot;
        loop {
            let now = Now::read();
            let next = self.lock().overrides.next_end();
            let due = next.map(|next| next.min(saved + PERIOD));
            let left = due.map(|due| due.saturating_sub(now.since_boot));
            if left == Some(Duration::ZERO) {
                saved = now.since_boot;
                let this = self.clone();
                let passed = tokio::task::spawn_blocking(move || this.pass_time(&now)).await;
                if let Ok(Err(error)) = passed {
                    // In this boot it counts all the same at the next start.
                    tracing::warn!(%error, "the time left of backends' states cannot be saved");
                }
                continue;
            }
            let sleep = async {
                match left {
                    Some(left) => tokio::time::sleep(left).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = token.cancelled() => return,
                () = sleep => {}
                () = self.0.changed.notified() => {}
            }
        }
    }

    /// Ends what has ended at a time, and saves how much time the rest has left: a reboot gives none of it back,
    /// however far behind the clock is. Blocks on the disk.
    fn pass_time(&self, now: &Now) -> io::Result<()> {
        let _saving = self.lock_disk();
        let mut state = self.lock();
        if state.overrides.expire(now.since_boot) {
            tracing::info!("the time of a command about backends is over");
            self.publish(&state);
        }
        let overrides = state.overrides.clone();
        drop(state);
        (self.0.save)(&self.0.directory, &overrides, now)
    }

    fn publish(&self, state: &State) {
        let commanded = state.overrides.of_records(&state.records);
        let new = state.maintenance.drain(&state.records, commanded);
        self.0.in_force.send_if_modified(|in_force| {
            let is_other = *in_force != new;
            *in_force = new;
            is_other
        });
    }

    fn lock_disk(&self) -> MutexGuard<'_, ()> {
        self.0.saving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests;
