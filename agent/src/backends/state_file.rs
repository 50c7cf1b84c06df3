// SPDX-License-Identifier: Apache-2.0

//! States of backends on disk, so that a restart of the agent begins where it ended.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use portolan_health::Saved;
use portolan_model::RecordKey;
use tokio::sync::watch;

/// Name of the file in the state directory.
const NAME: &str = "backends";

/// The file: a line with the BLAKE3 hash of the rest in hexadecimal, then JSON.
#[derive(Debug)]
pub(crate) struct StateFile {
    path: PathBuf,
    /// Whether the last writing failed; each series of failures is logged once.
    has_failed: bool,
}

impl StateFile {
    /// The file of a state directory, and the states in it. A file that cannot be read is as good as none.
    pub(super) fn open(directory: &Path) -> (Self, Option<Saved<RecordKey>>) {
        let path = directory.join(NAME);
        let saved = match read(&path) {
            Ok(saved) => saved,
            Err(error) => {
                let path = path.display();
                tracing::warn!(%path, "states of backends cannot be read: {error:#}");
                None
            }
        };
        let this = Self {
            path,
            has_failed: false,
        };
        (this, saved)
    }

    /// Writes states until their sender is gone.
    pub(crate) async fn follow(mut self, mut saved: watch::Receiver<Arc<Saved<RecordKey>>>) {
        while saved.changed().await.is_ok() {
            let saved = Arc::clone(&saved.borrow_and_update());
            let path = self.path.clone();
            let written = tokio::task::spawn_blocking(move || write(&path, &saved)).await;
            let error = match written {
                Ok(written) => written.err(),
                Err(panic) => Some(panic.into()),
            };
            if let Some(error) = &error
                && !self.has_failed
            {
                tracing::warn!("states of backends cannot be saved: {error:#}");
            }
            self.has_failed = error.is_some();
        }
    }
}

fn read(path: &Path) -> anyhow::Result<Option<Saved<RecordKey>>> {
    let text = match fs::read_to_string(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        text => text?,
    };
    let (hash, json) = text.split_once('\n').context("no checksum")?;
    let is_whole = hash == blake3::hash(json.as_bytes()).to_hex().as_str();
    ensure!(is_whole, "the checksum is wrong");
    Ok(Some(serde_json::from_str(json)?))
}

fn write(path: &Path, saved: &Saved<RecordKey>) -> anyhow::Result<()> {
    // Without a load balancer there is nothing to write, and no file on other hosts.
    if saved.balancers.is_empty() && !path.exists() {
        return Ok(());
    }
    let json = serde_json::to_string(saved)?;
    let hash = blake3::hash(json.as_bytes()).to_hex();
    let new = path.with_extension("new");
    let mut file = fs::File::create(&new).with_context(|| new.display().to_string())?;
    file.write_all(format!("{hash}\n{json}").as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, path)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn saved() -> Saved<RecordKey> {
        Saved {
            boot: "boot".to_owned(),
            at: Duration::from_secs(7),
            balancers: vec![portolan_health::SavedBalancer {
                key: RecordKey {
                    cluster: "".into(),
                    namespace: "default".into(),
                    service: "web".into(),
                    port: "http".into(),
                    protocol: portolan_model::Protocol::Tcp,
                },
                quorum: Some(true),
                backends: Vec::new(),
            }],
        }
    }

    #[test]
    fn states_survive_and_a_damaged_file_is_ignored() {
        let dir = tempfile::tempdir().unwrap();
        assert!(StateFile::open(dir.path()).1.is_none());
        let path = dir.path().join(NAME);
        write(&path, &saved()).unwrap();
        assert_eq!(StateFile::open(dir.path()).1, Some(saved()));
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("true", "null")).unwrap();
        assert!(StateFile::open(dir.path()).1.is_none());
    }

    #[test]
    fn a_host_without_load_balancers_gets_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        let none = Saved {
            balancers: Vec::new(),
            ..saved()
        };
        write(&path, &none).unwrap();
        assert!(!path.exists());
        write(&path, &saved()).unwrap();
        write(&path, &none).unwrap();
        assert_eq!(read(&path).unwrap(), Some(none), "nothing old is left");
    }
}
