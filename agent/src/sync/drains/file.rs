// SPDX-License-Identifier: Apache-2.0

//! File with the deadlines, `drains.json`.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use portolan_model::ipvs::VirtualServerKey;
use portolan_runtime::AtomicFile;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use tokio::task::{JoinHandle, spawn_blocking};
use tokio::time::timeout;

use super::{BootClock, Deadlines};

/// Version of the format; files of other versions are set aside.
const VERSION: u32 = 2;
const NAME: &str = "drains.json";
/// Pause before a failed write is retried without a change.
const RETRY: Duration = Duration::from_secs(60);

/// Content of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    version: u32,
    /// Identifier of the boot that the times belong to.
    boot: String,
    drains: Vec<Drain>,
}

/// Part common to all versions.
#[derive(Debug, Deserialize)]
struct Version {
    version: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Drain {
    virtual_server: VirtualServerKey,
    real_server: SocketAddr,
    /// Milliseconds since boot.
    deadline_ms: u64,
}

/// The file, written by a background task so that a slow disk does not delay programming. Only the newest
/// deadlines are written.
#[derive(Debug)]
pub(super) struct DrainFile {
    newest: watch::Sender<Deadlines>,
    writing: JoinHandle<()>,
}

impl DrainFile {
    /// Reads the file, if there is one. A file of no use is renamed to `drains.json.corrupt`; one that
    /// cannot be read for now is left where it is. In both cases the drains begin again. Must be called
    /// within a tokio runtime.
    pub(super) fn open(directory: &Path, clock: BootClock) -> (Self, Deadlines) {
        let path = directory.join(NAME);
        let saved = read(&path, &clock).unwrap_or_else(|error| {
            tracing::warn!(file = %path.display(), %error,
                "deadlines of drains cannot be read: drains begin again");
            if let ReadError::Unusable(_) = error {
                let aside = directory.join(format!("{NAME}.corrupt"));
                match fs::rename(&path, &aside) {
                    Ok(()) => tracing::warn!(aside = %aside.display(), "renamed the file"),
                    Err(error) => tracing::warn!(%error, "cannot rename the file"),
                }
            }
            Deadlines::default()
        });
        let (newest, to_write) = watch::channel(saved.clone());
        let writing = tokio::spawn(write_newest(directory.to_owned(), clock, to_write));
        (Self { newest, writing }, saved)
    }

    /// Saves the deadlines if they have changed.
    pub(super) fn save(&self, deadlines: &Deadlines) {
        self.newest.send_if_modified(|newest| {
            let differs = newest != deadlines;
            if differs {
                newest.clone_from(deadlines);
            }
            differs
        });
    }

    /// Waits for the last write, successful or not.
    pub(super) async fn close(self) {
        drop(self.newest);
        if let Err(error) = self.writing.await {
            tracing::warn!(%error, "deadlines of drains were not saved");
        }
    }
}

/// Writes the newest deadlines until the sender is dropped.
async fn write_newest(
    directory: PathBuf,
    clock: BootClock,
    mut newest: watch::Receiver<Deadlines>,
) {
    let mut failed = false;
    loop {
        let changed = match failed {
            false => newest.changed().await,
            true => timeout(RETRY, newest.changed()).await.unwrap_or(Ok(())),
        };
        if changed.is_err() {
            return;
        }
        let (to, clock) = (directory.clone(), clock.clone());
        let deadlines = newest.borrow_and_update().clone();
        let write = move || {
            let path = to.join(NAME);
            let file = AtomicFile::new(&path).creating_directory();
            file.write(&encode(&deadlines, &clock)?)
        };
        let written = spawn_blocking(write).await;
        match written.map_err(io::Error::other).flatten() {
            Ok(()) => failed = false,
            Err(error) => {
                if !std::mem::replace(&mut failed, true) {
                    tracing::warn!(directory = %directory.display(), %error,
                        "deadlines of drains cannot be saved: an agent that starts anew begins \
                         them anew");
                }
            }
        }
    }
}

/// A file with deadlines that cannot be used.
#[derive(Debug, thiserror::Error)]
enum ReadError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Unusable(#[from] FormatError),
}

/// Content that is not a file of deadlines.
#[derive(Debug, thiserror::Error)]
enum FormatError {
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("version {0}, expected {VERSION}")]
    Version(u32),
}

/// The deadlines; none without a file, or with a file of another boot.
fn read(path: &Path, clock: &BootClock) -> Result<Deadlines, ReadError> {
    match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Deadlines::default()),
        Err(error) => Err(error.into()),
        Ok(text) => Ok(decode(&text, clock)?),
    }
}

fn decode(text: &[u8], clock: &BootClock) -> Result<Deadlines, FormatError> {
    let version: Version = serde_json::from_slice(text)?;
    if version.version != VERSION {
        return Err(FormatError::Version(version.version));
    }
    let content: Content = serde_json::from_slice(text)?;
    if !clock.is_of(&content.boot) {
        return Ok(Deadlines::default());
    }
    let deadline = |drain: Drain| {
        let deadline = Duration::from_millis(drain.deadline_ms);
        ((drain.virtual_server, drain.real_server), deadline)
    };
    Ok(Deadlines(
        content.drains.into_iter().map(deadline).collect(),
    ))
}

fn encode(deadlines: &Deadlines, clock: &BootClock) -> io::Result<Vec<u8>> {
    let drains = deadlines.0.iter();
    let drains = drains.map(|((virtual_server, real_server), deadline)| Drain {
        virtual_server: *virtual_server,
        real_server: *real_server,
        deadline_ms: u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX),
    });
    let content = Content {
        version: VERSION,
        boot: clock.boot().to_owned(),
        drains: drains.collect(),
    };
    Ok(serde_json::to_vec_pretty(&content)?)
}
