// SPDX-License-Identifier: Apache-2.0

//! Lock of the state directory, so that `apply --once` and `cleanup` never run beside an agent.

use std::fs::{File, OpenOptions, TryLockError};
use std::path::Path;

use anyhow::{Context as _, bail};

/// Name of the lock file in the state directory. It stays when the lock is released.
const FILE: &str = "lock";

/// Holds the lock until it is dropped. The kernel releases it when the process ends in any way.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateLock {
    /// Locks the directory for an agent. Several agents may: one that ends and its successor.
    ///
    /// # Errors
    /// If an `apply` or a `cleanup` runs. A directory that cannot be written is only logged: the agent runs with it.
    pub fn shared(directory: &Path) -> anyhow::Result<Option<Self>> {
        let refused = "`portolan-agent apply` or `cleanup` is running with this state directory";
        Self::if_possible(directory, open(directory), File::try_lock_shared, refused)
    }

    /// Locks the directory for a `cleanup`. One that is not there stays so.
    ///
    /// # Errors
    /// If an agent, an `apply` or another `cleanup` runs. A directory that is not there or cannot be written is only
    /// logged: the `cleanup` of a container has none, and nothing else removes what an agent has left.
    pub fn of_cleanup(directory: &Path) -> anyhow::Result<Option<Self>> {
        if !directory.exists() {
            tracing::info!(
                directory = %directory.display(),
                "no state directory: nothing tells whether an agent runs"
            );
            return Ok(None);
        }
        let refused = "an agent is running with this state directory: stop it first";
        Self::if_possible(directory, open_file(directory), File::try_lock, refused)
    }

    /// Locks the directory if its file can be opened and locked at all; an error if somebody else has locked it.
    fn if_possible(
        directory: &Path,
        opened: anyhow::Result<File>,
        lock: fn(&File) -> Result<(), TryLockError>,
        refused: &str,
    ) -> anyhow::Result<Option<Self>> {
        let file = match opened {
            Ok(file) => file,
            Err(error) => {
                tracing::warn!("the state directory is not locked: {error:#}");
                return Ok(None);
            }
        };
        match lock(&file) {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => bail!("{}: {refused}", directory.display()),
            Err(TryLockError::Error(error)) => {
                tracing::warn!(%error, "the state directory is not locked");
                Ok(None)
            }
        }
    }

    /// Locks the directory for an `apply`.
    ///
    /// # Errors
    /// If an agent or another `apply` runs, or the directory cannot be written.
    pub fn exclusive(directory: &Path) -> anyhow::Result<Self> {
        let file = open(directory)?;
        match file.try_lock() {
            Ok(()) => Ok(Self { _file: file }),
            Err(TryLockError::WouldBlock) => bail!(
                "{}: an agent is running with this state directory, and programs the kernel",
                directory.display()
            ),
            Err(TryLockError::Error(error)) => {
                Err(error).with_context(|| directory.join(FILE).display().to_string())
            }
        }
    }
}

fn open(directory: &Path) -> anyhow::Result<File> {
    std::fs::create_dir_all(directory).with_context(|| directory.display().to_string())?;
    open_file(directory)
}

/// The lock file in a directory that is there.
fn open_file(directory: &Path) -> anyhow::Result<File> {
    let path = directory.join(FILE);
    let opened = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .open(&path);
    opened.with_context(|| path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_apply_excludes_agents_and_agents_exclude_it() {
        let dir = tempfile::tempdir().unwrap();
        let first = StateLock::shared(dir.path()).unwrap();
        let second = StateLock::shared(dir.path()).unwrap();
        assert!(first.is_some() && second.is_some());
        let refused = StateLock::exclusive(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("an agent is running"), "{refused}");
        drop((first, second));
        let apply = StateLock::exclusive(dir.path()).unwrap();
        StateLock::exclusive(dir.path()).unwrap_err();
        let refused = StateLock::shared(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("`portolan-agent apply`"), "{refused}");
        drop(apply);
        assert!(StateLock::shared(dir.path()).unwrap().is_some());
    }

    #[test]
    fn a_cleanup_excludes_agents_and_agents_exclude_it() {
        let dir = tempfile::tempdir().unwrap();
        let agent = StateLock::shared(dir.path()).unwrap();
        let refused = StateLock::of_cleanup(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("an agent is running"), "{refused}");
        drop(agent);
        let cleanup = StateLock::of_cleanup(dir.path()).unwrap();
        assert!(cleanup.is_some());
        let refused = StateLock::shared(dir.path()).unwrap_err().to_string();
        assert!(refused.contains("`cleanup` is running"), "{refused}");
        StateLock::exclusive(dir.path()).unwrap_err();
    }

    #[test]
    fn a_cleanup_goes_on_without_a_directory_and_makes_none() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        assert!(StateLock::of_cleanup(&missing).unwrap().is_none());
        assert!(!missing.exists());
        // A directory in which nothing can be written.
        assert!(StateLock::of_cleanup(Path::new("/proc")).unwrap().is_none());
    }

    #[test]
    fn an_agent_runs_with_a_directory_that_is_not_there() {
        let missing = Path::new("/proc/portolan");
        assert!(StateLock::shared(missing).unwrap().is_none());
        StateLock::exclusive(missing).unwrap_err();
    }
}
