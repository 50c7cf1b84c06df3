// SPDX-License-Identifier: Apache-2.0

//! Backends in maintenance: those that a file of `spec.maintenanceDirectory` is named after, as with ldirectord.

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use portolan_health::Administrative;
use portolan_model::{ByRecord, Record, RecordKey};
use portolan_probe::Overrides;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::OverrideStore;
use super::map::addresses;
use crate::state_file;

/// Time between two looks at the directory.
const PERIOD: Duration = Duration::from_secs(1);
/// Name of the file with the backends that were in maintenance last.
const NAME: &str = "maintenance.json";
/// Files of a directory that are read, at most.
const MOST: usize = 10_000;

/// The backends in maintenance, of all load balancers.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Maintenance(BTreeSet<(IpAddr, Option<u16>)>);

impl Maintenance {
    /// Reads the names of a directory's files: `ADDRESS`, or `ADDRESS:PORT`. Others are of no meaning.
    ///
    /// # Errors
    /// If the directory cannot be read, or has more than 10,000 files.
    pub(crate) fn read(directory: &Path) -> io::Result<Self> {
        let mut all = BTreeSet::new();
        for (number, entry) in std::fs::read_dir(directory)?.enumerate() {
            if number >= MOST {
                return Err(io::Error::other(format!("more than {MOST} files")));
            }
            all.extend(entry?.file_name().to_str().and_then(named));
        }
        Ok(Self(all))
    }

    /// Those of the last run; none if the file cannot be read, which is logged. Blocks.
    pub(super) fn load(state_dir: &Path) -> Self {
        state_file::load(state_dir, NAME)
    }

    /// Replaces those on disk. Blocks.
    pub(super) fn save(&self, state_dir: &Path) -> io::Result<()> {
        state_file::save(state_dir, NAME, self)
    }

    /// Returns `true` if a backend of the address is in maintenance.
    pub(super) fn covers(&self, address: SocketAddr) -> bool {
        let has = |port| self.0.contains(&(address.ip(), port));
        has(None) || has(Some(address.port()))
    }

    /// Drains the backends of records, but where an operator has given another state by command. One that its file
    /// disables stays so.
    pub(crate) fn drain(
        &self,
        records: &ByRecord<Record>,
        mut overrides: Overrides<RecordKey>,
    ) -> Overrides<RecordKey> {
        if self.0.is_empty() {
            return overrides;
        }
        for record in records.values() {
            let enabled = addresses(record).filter(|(_, state)| *state < Administrative::Drain);
            for (address, _) in enabled.filter(|(address, _)| self.covers(*address)) {
                let place = (record.key.clone(), address);
                overrides.entry(place).or_insert(Administrative::Drain);
            }
        }
        overrides
    }
}

/// The backend that a file is named after.
fn named(name: &str) -> Option<(IpAddr, Option<u16>)> {
    match name.parse::<SocketAddr>() {
        Ok(socket) => Some((socket.ip(), Some(socket.port()))),
        Err(_) => Some((name.parse().ok()?, None)),
    }
}

impl OverrideStore {
    /// Follows the files of the director's directory until the token is cancelled. One that cannot be read
    /// changes nothing, nor does a director that is not known yet (`None`).
    pub(crate) async fn keep_maintenance(
        self,
        mut directory: watch::Receiver<Option<Option<PathBuf>>>,
        token: CancellationToken,
    ) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut warned = None;
        let mut disk = Disk {
            content: Some(self.lock().maintenance.clone()),
            error: None,
        };
        loop {
            let path = directory.borrow_and_update().clone();
            let read = match path {
                None => None,
                Some(None) => Some(Ok(Maintenance::default())),
                Some(Some(path)) => {
                    let read = tokio::task::spawn_blocking(move || {
                        Maintenance::read(&path)
                            .map_err(|error| format!("{}: {error}", path.display()))
                    });
                    Some(read.await.unwrap_or_else(|error| Err(error.to_string())))
                }
            };
            match read {
                Some(Ok(maintenance)) => {
                    warned = None;
                    self.maintain(maintenance);
                }
                Some(Err(error)) if warned.as_ref() != Some(&error) => {
                    tracing::warn!("spec.maintenanceDirectory: {error}: backends stay as they are");
                    warned = Some(error);
                }
                Some(Err(_)) | None => {}
            }
            // Also while the directory cannot be read: the next start has nothing but the disk then.
            self.save_maintenance(&mut disk).await;
            let is_saved = disk.content.is_some();
            let waits = !is_saved || matches!(*directory.borrow(), Some(Some(_)));
            tokio::select! {
                () = token.cancelled() => return,
                changed = directory.changed() => if changed.is_err() {
                    return;
                },
                _ = ticks.tick(), if waits => {}
            }
        }
    }

    fn maintain(&self, maintenance: Maintenance) {
        let mut state = self.lock();
        if state.maintenance != maintenance {
            tracing::info!(backends = maintenance.0.len(), "maintenance changed");
            state.maintenance = maintenance;
            self.publish(&state);
        }
    }

    /// Saves the backends in maintenance, unless the disk has them. It is to be called again if that fails.
    async fn save_maintenance(&self, disk: &mut Disk) {
        let maintenance = self.lock().maintenance.clone();
        if disk.content.as_ref() == Some(&maintenance) {
            return;
        }
        let (this, new) = (self.clone(), maintenance.clone());
        let save = move || new.save(&this.0.directory);
        let saved = tokio::task::spawn_blocking(save).await;
        let saved = saved.unwrap_or_else(|error| Err(io::Error::other(error)));
        let error = saved.err().map(|error| error.to_string());
        // It matters only if the directory cannot be read at the next start.
        if let Some(error) = &error
            && disk.error.as_ref() != Some(error)
        {
            tracing::warn!(%error, "the backends in maintenance cannot be saved yet");
        }
        let content = error.is_none().then_some(maintenance);
        *disk = Disk { content, error };
    }
}

/// The content of the disk, as far as it is known.
#[derive(Debug)]
struct Disk {
    /// The backends in maintenance; `None` after an attempt to save others that failed.
    content: Option<Maintenance>,
    /// The error of that attempt, to log it once.
    error: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_named_after_addresses_with_or_without_a_port() {
        let directory = tempfile::tempdir().unwrap();
        let names = [
            "10.0.0.1",
            "10.0.0.2:80",
            "fd00::1",
            "[fd00::2]:80",
            "README",
        ];
        for name in names {
            std::fs::write(directory.path().join(name), "").unwrap();
        }
        let maintenance = Maintenance::read(directory.path()).unwrap();
        let covered = [
            "10.0.0.1:443",
            "10.0.0.2:80",
            "10.0.0.2:81",
            "[fd00::1]:1",
            "[fd00::2]:80",
            "[fd00::2]:81",
        ]
        .map(|address| maintenance.covers(address.parse().unwrap()));
        assert_eq!(covered, [true, true, false, true, true, false]);
        assert!(Maintenance::read(&directory.path().join("none")).is_err());
    }
}
