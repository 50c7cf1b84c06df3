// SPDX-License-Identifier: Apache-2.0

//! Lock of the state directory, so that `apply --once` never runs beside an agent.

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
    /// If an `apply` runs. A directory that cannot be written is only logged: the agent runs with it.
    pub fn shared(directory: &Path) -> anyhow::Result<Option<Self>> {
        let file = match open(directory) {
            Ok(file) => file,
            Err(error) => {
                tracing::warn!("the state directory is not locked: {error:#}");
                return Ok(None);
            }
        };
        match file.try_lock_shared() {
            Ok(()) => Ok(Some(Self { _file: file })),
            Err(TryLockError::WouldBlock) => bail!(
                "{}: `portolan-agent apply` is running with this state directory",
                directory.display()
            ),
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
    fn an_agent_runs_with_a_directory_that_is_not_there() {
        let missing = Path::new("/proc/portolan");
        assert!(StateLock::shared(missing).unwrap().is_none());
        StateLock::exclusive(missing).unwrap_err();
    }
}
