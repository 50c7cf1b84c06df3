// SPDX-License-Identifier: Apache-2.0

//! States of backends on disk: one file, replaced whole, with a checksum.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use portolan_health::Saved;
use portolan_runtime::AtomicFile;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::watch;

const NAME: &str = "health";
const ASIDE: &str = "health.corrupt";
/// The kind of file, and the version of its format.
const MAGIC: &[u8; 18] = b"portolan health 1\n";

/// A file that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateFileError {
    /// It cannot be read now, and is left where it is.
    #[error("{}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Reason.
        #[source]
        error: io::Error,
    },
    /// Its content is of no use. It has been renamed to `health.corrupt` if that was possible.
    #[error("{}: {reason}", path.display())]
    Unusable {
        /// The file.
        path: PathBuf,
        /// Reason.
        reason: String,
    },
}

/// The file `health` in the state directory.
#[derive(Debug, Clone)]
pub struct StateFile {
    directory: PathBuf,
}

impl StateFile {
    /// The file in a directory, which exists.
    #[must_use]
    pub fn new(directory: &Path) -> Self {
        Self {
            directory: directory.to_owned(),
        }
    }

    /// Reads the states of the last run; `None` without a file. Blocks.
    ///
    /// # Errors
    /// If the file cannot be read, or is not whole. Then all backends are probed anew.
    pub fn load<K: DeserializeOwned>(&self) -> Result<Option<Saved<K>>, StateFileError> {
        let path = self.directory.join(NAME);
        let content = match fs::read(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(StateFileError::Read { path, error }),
            Ok(content) => content,
        };
        decode(&content).map(Some).map_err(|reason| {
            // If that fails, the next states replace the file.
            let _ = fs::rename(&path, self.directory.join(ASIDE));
            let reason = reason.to_string();
            StateFileError::Unusable { path, reason }
        })
    }

    /// Replaces the states. Blocks.
    ///
    /// # Errors
    /// If the file cannot be written; the last one stays.
    pub fn write<K: Serialize>(&self, saved: &Saved<K>) -> io::Result<()> {
        let body = serde_json::to_vec(saved)?;
        let checksum = blake3::hash(&body);
        let content = [&MAGIC[..], checksum.as_bytes(), &body].concat();
        AtomicFile::new(&self.directory.join(NAME))
            .private()
            .write(&content)
    }

    /// Writes all states that the engine gives, until the engine ends and its last ones are written.
    pub async fn keep<K>(self, mut states: watch::Receiver<Arc<Saved<K>>>)
    where
        K: Serialize + Send + Sync + 'static,
    {
        let mut fails = false;
        while states.changed().await.is_ok() {
            let (file, saved) = (self.clone(), Arc::clone(&states.borrow_and_update()));
            // A host without load balancers gets no file.
            if saved.balancers.is_empty() && !self.directory.join(NAME).exists() {
                continue;
            }
            let written = tokio::task::spawn_blocking(move || file.write(&saved)).await;
            match written.map_err(io::Error::other).flatten() {
                Ok(()) => fails = false,
                Err(error) if !fails => {
                    fails = true;
                    let directory = self.directory.display();
                    tracing::warn!(%directory, %error, "states of backends cannot be saved");
                }
                Err(_) => {}
            }
        }
    }
}

/// Reason why a file has no states.
#[derive(Debug, thiserror::Error)]
enum StatesError {
    #[error("not states of this version")]
    Version,
    #[error("cut off")]
    CutOff,
    #[error("the checksum is wrong")]
    Checksum,
    #[error(transparent)]
    Content(#[from] serde_json::Error),
}

fn decode<K: DeserializeOwned>(content: &[u8]) -> Result<Saved<K>, StatesError> {
    let rest = content.strip_prefix(MAGIC).ok_or(StatesError::Version)?;
    let (checksum, body) = rest.split_first_chunk::<32>().ok_or(StatesError::CutOff)?;
    if blake3::hash(body) != *checksum {
        return Err(StatesError::Checksum);
    }
    Ok(serde_json::from_slice(body)?)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn saved(seconds: u64) -> Saved<(String, u16)> {
        Saved {
            boot: "boot".to_owned(),
            at: Duration::from_secs(seconds),
            balancers: vec![portolan_health::SavedBalancer {
                key: ("default/web".to_owned(), 80),
                quorum: Some(true),
                is_lost: false,
                backends: Vec::new(),
            }],
        }
    }

    #[test]
    fn states_come_back_and_damaged_ones_do_not() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::new(directory.path());
        let load = || file.load::<(String, u16)>();
        assert!(load().unwrap().is_none());
        for seconds in [1, 2] {
            file.write(&saved(seconds)).unwrap();
            assert_eq!(load().unwrap().unwrap(), saved(seconds));
        }
        let path = directory.path().join(NAME);
        let good = fs::read(&path).unwrap();
        for place in [0, MAGIC.len(), good.len() - 1] {
            let mut bad = good.clone();
            bad[place] ^= 1;
            fs::write(&path, bad).unwrap();
            assert!(
                matches!(load(), Err(StateFileError::Unusable { .. })),
                "{place}"
            );
            assert!(load().unwrap().is_none(), "renamed");
        }
        fs::write(&path, &good[..30]).unwrap();
        let error = load().unwrap_err().to_string();
        assert!(error.ends_with("health: cut off"), "{error}");
        assert!(directory.path().join(ASIDE).exists());
    }

    #[tokio::test]
    async fn the_last_states_are_written_when_the_engine_ends() {
        let directory = tempfile::tempdir().unwrap();
        let file = StateFile::new(directory.path());
        let (sender, receiver) = watch::channel(Arc::new(saved(1)));
        let task = tokio::spawn(file.clone().keep(receiver));
        sender.send(Arc::new(saved(2))).unwrap();
        sender.send(Arc::new(saved(3))).unwrap();
        drop(sender);
        task.await.unwrap();
        assert_eq!(file.load().unwrap(), Some(saved(3)));
    }

    #[tokio::test]
    async fn a_directory_that_is_missing_ends_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let place = directory.path().join("state");
        let (sender, receiver) = watch::channel(Arc::new(saved(1)));
        let task = tokio::spawn(StateFile::new(&place).keep(receiver));
        sender.send(Arc::new(saved(2))).unwrap();
        fs::create_dir(&place).unwrap();
        sender.send(Arc::new(saved(3))).unwrap();
        drop(sender);
        task.await.unwrap();
        assert_eq!(StateFile::new(&place).load().unwrap(), Some(saved(3)));
    }
}
