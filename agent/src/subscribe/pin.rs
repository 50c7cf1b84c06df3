// SPDX-License-Identifier: Apache-2.0

//! The cluster that this node belongs to, on the node's disk. A controller of another cluster, reached
//! by a wrong address or name, must not program the node.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use portolan_runtime::AtomicFile;
use serde::Serialize;
use tracing::{error, info, warn};

const NAME: &str = "cluster";

/// The longest identity that is read, in bytes.
const MAX_BYTES: usize = 253;

/// A controller of another cluster.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the controller is of cluster {theirs:?}, and this node belongs to {ours:?}")]
pub struct WrongCluster {
    /// The controller's cluster.
    pub theirs: String,
    /// The node's.
    pub ours: String,
}

/// The node's cluster, pinned at the first contact with a controller that states its own. Shared by
/// all clients of controllers.
#[derive(Debug, Clone, Default)]
pub struct ClusterPin(Arc<Mutex<Pin>>);

/// For `/debug/status`.
#[derive(Debug, Clone, Default, Serialize)]
pub struct PinStatus {
    /// The node's cluster; `None` before the first contact.
    pub pinned: Option<String>,
    /// The cluster of the controller that was refused last, until one of the node's answers.
    pub refused: Option<String>,
}

#[derive(Debug, Default)]
struct Pin {
    /// `None` if it is not kept.
    directory: Option<PathBuf>,
    status: PinStatus,
    /// The cluster of the last table that was taken, also after `forget`; `None` before the first table, and if it is
    /// unknown.
    of_table: Option<String>,
    /// Whether the cluster was in the file. If the file is missing then, `forget` was run.
    is_on_disk: bool,
    /// Number of times that `forget` was noticed.
    forgotten: u64,
}

/// Deletes the pin in a directory. Returns the pinned cluster, if there was one.
///
/// # Errors
/// If it cannot be read or deleted.
pub fn forget(directory: &Path) -> io::Result<Option<String>> {
    let id = match fs::read_to_string(directory.join(NAME)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        read => read?,
    };
    fs::remove_file(directory.join(NAME))?;
    Ok(Some(id.trim().to_owned()))
}

impl ClusterPin {
    /// Reads the pin of an earlier run in a directory.
    #[must_use]
    pub fn open(directory: &Path) -> Self {
        let mut pin = Pin {
            directory: Some(directory.to_owned()),
            ..Pin::default()
        };
        match fs::read_to_string(directory.join(NAME)) {
            Ok(id) if (1..=MAX_BYTES).contains(&id.trim().len()) => {
                pin.status.pinned = Some(id.trim().to_owned());
                pin.is_on_disk = true;
            }
            Ok(_) => {
                warn!(directory = %directory.display(), "the file `cluster` holds no identity")
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => {
                warn!(directory = %directory.display(), %error, "cannot read the file `cluster`");
            }
        }
        Self(Arc::new(Mutex::new(pin)))
    }

    /// The node's cluster; empty before the first contact, or after `forget`.
    #[must_use]
    pub fn id(&self) -> String {
        let mut pin = self.lock();
        pin.look();
        pin.status.pinned.clone().unwrap_or_default()
    }

    /// Checks the cluster of a controller; one without an identity passes. The first one pins the
    /// node.
    ///
    /// # Errors
    /// If the node belongs to another cluster.
    pub fn check(&self, theirs: &str) -> Result<(), WrongCluster> {
        if theirs.is_empty() {
            return Ok(());
        }
        let mut pin = self.lock();
        pin.look();
        match pin.status.pinned.clone() {
            None => pin.pin(theirs),
            Some(ours) if ours != theirs => {
                pin.refuse(theirs);
                let theirs = theirs.to_owned();
                return Err(WrongCluster { theirs, ours });
            }
            Some(_) => pin.status.refused = None,
        }
        Ok(())
    }

    /// Notes that a table of a cluster was taken. If its controller has no identity, it is of the node's cluster.
    pub(super) fn took_table(&self, id: &str) {
        let mut pin = self.lock();
        let id = (!id.is_empty()).then(|| id.to_owned());
        let id = id.or_else(|| pin.status.pinned.clone());
        pin.of_table = id;
    }

    /// Notes the cluster of the table of an earlier run, which is empty if that did not say.
    pub(super) fn restored_table(&self, id: &str) {
        if !id.is_empty() {
            self.lock().of_table = Some(id.to_owned());
        }
    }

    /// The cluster of the last table that was taken: after `forget`, and after the first contact with the next
    /// cluster, it is still the former one. Empty if it is unknown.
    pub(super) fn of_table(&self) -> String {
        let pin = self.lock();
        let id = pin.of_table.as_ref().or(pin.status.pinned.as_ref());
        id.cloned().unwrap_or_default()
    }

    /// Number of times that `forget` was noticed since the start.
    #[must_use]
    pub fn forgotten(&self) -> u64 {
        self.lock().forgotten
    }

    /// The pin, and the last refusal.
    #[must_use]
    pub fn status(&self) -> PinStatus {
        self.lock().status.clone()
    }

    fn lock(&self) -> MutexGuard<'_, Pin> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Pin {
    /// Notices `forget`.
    fn look(&mut self) {
        let Some(directory) = self.directory.as_ref().filter(|_| self.is_on_disk) else {
            return;
        };
        let gone = fs::symlink_metadata(directory.join(NAME))
            .is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
        if gone {
            info!("the node's cluster was forgotten: the next controller sets it");
            let pinned = std::mem::take(&mut self.status).pinned;
            self.of_table = self.of_table.take().or(pinned);
            self.is_on_disk = false;
            self.forgotten += 1;
        }
    }

    fn pin(&mut self, id: &str) {
        self.status = PinStatus {
            pinned: Some(id.to_owned()),
            refused: None,
        };
        info!(
            cluster = id,
            "this node belongs to this cluster from now on"
        );
        let Some(directory) = &self.directory else {
            return;
        };
        let path = directory.join(NAME);
        let file = AtomicFile::new(&path).creating_directory();
        match file.write(id.as_bytes()) {
            Ok(()) => self.is_on_disk = true,
            Err(error) => warn!(directory = %directory.display(), %error,
                "cannot write the node's cluster to disk: the next start forgets it"),
        }
    }

    fn refuse(&mut self, theirs: &str) {
        if self.status.refused.as_deref() != Some(theirs) {
            error!(
                theirs,
                ours = self.status.pinned,
                "refusing a controller of another cluster; the table in force stays. If the node has \
                 moved, run `portolan-agent forget` on it"
            );
            self.status.refused = Some(theirs.to_owned());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_contact_pins_the_node_also_over_a_restart() {
        let dir = tempfile::tempdir().unwrap();
        let pin = ClusterPin::open(dir.path());
        assert_eq!(pin.id(), "");
        pin.check("").unwrap();
        assert_eq!(pin.id(), "", "a controller that does not know pins nothing");
        pin.check("a").unwrap();
        for pin in [pin, ClusterPin::open(dir.path())] {
            assert_eq!(pin.id(), "a");
            pin.check("a").unwrap();
            pin.check("").unwrap();
            let error = pin.check("b").unwrap_err();
            assert_eq!((&*error.theirs, &*error.ours), ("b", "a"));
            assert_eq!(pin.status().refused.as_deref(), Some("b"));
            pin.check("a").unwrap();
            assert_eq!(pin.status().refused, None);
        }
    }

    #[test]
    fn forget_lets_the_node_belong_to_another_while_the_agent_runs() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(forget(dir.path()).unwrap(), None);
        let pin = ClusterPin::open(dir.path());
        pin.check("a").unwrap();
        assert_eq!(forget(dir.path()).unwrap().as_deref(), Some("a"));
        pin.check("b").unwrap();
        assert_eq!(ClusterPin::open(dir.path()).id(), "b");
    }

    #[test]
    fn without_a_place_on_disk_it_lasts_as_long_as_the_agent() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("no-directory");
        fs::write(&file, "").unwrap();
        for pin in [ClusterPin::default(), ClusterPin::open(&file)] {
            pin.check("a").unwrap();
            pin.check("b").unwrap_err();
        }
    }
}
