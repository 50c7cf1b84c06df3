//! The deadlines in a file, `drains.json`.

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

/// The version of the format; a file of another one is set aside.
const VERSION: u32 = 2;
const NAME: &str = "drains.json";
/// After so long what could not be written is tried again, if it does not change before.
const RETRY: Duration = Duration::from_secs(60);

/// The file's content.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    version: u32,
    /// In which start of the machine the times are.
    boot: String,
    drains: Vec<Drain>,
}

/// What a file of any version has.
#[derive(Debug, Deserialize)]
struct Version {
    version: u32,
}

#[derive(Debug, Serialize, Deserialize)]
struct Drain {
    virtual_server: VirtualServerKey,
    real_server: SocketAddr,
    /// Milliseconds since the machine's start.
    deadline_ms: u64,
}

/// The file, which a task of its own writes: a disk that is slow holds up nobody who programs the
/// kernel. What is newest is written; what came while the last was being written is left out.
#[derive(Debug)]
pub(super) struct DrainFile {
    newest: watch::Sender<Deadlines>,
    writing: JoinHandle<()>,
}

impl DrainFile {
    /// Reads the file, if there is one. One that makes no sense is renamed to
    /// `drains.json.corrupt`: the drains in it begin anew. To be called within a tokio runtime.
    pub(super) fn open(directory: &Path, clock: BootClock) -> (Self, Deadlines) {
        let path = directory.join(NAME);
        let saved = match read(&path, &clock) {
            Ok(deadlines) => deadlines,
            Err(error) => {
                let aside = directory.join(format!("{NAME}.corrupt"));
                tracing::warn!(file = %path.display(), aside = %aside.display(), %error,
                    "deadlines of drains cannot be read: drains begin anew, the file is set aside");
                if let Err(error) = fs::rename(&path, &aside) {
                    tracing::warn!(file = %path.display(), %error, "cannot be set aside");
                }
                Deadlines::default()
            }
        };
        let (newest, to_write) = watch::channel(saved.clone());
        let writing = tokio::spawn(write_newest(directory.to_owned(), clock, to_write));
        (Self { newest, writing }, saved)
    }

    /// Has the deadlines written, if they are others than before.
    pub(super) fn save(&self, deadlines: &Deadlines) {
        self.newest.send_if_modified(|newest| {
            let differs = newest != deadlines;
            if differs {
                newest.clone_from(deadlines);
            }
            differs
        });
    }

    /// Waits until what is newest was written, or could not be.
    pub(super) async fn close(self) {
        drop(self.newest);
        if let Err(error) = self.writing.await {
            tracing::warn!(%error, "deadlines of drains were not saved");
        }
    }
}

/// Writes until there is nobody any more who could say something new.
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

/// The deadlines; none if there is no file, or if it is of another start of the machine.
fn read(path: &Path, clock: &BootClock) -> io::Result<Deadlines> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Deadlines::default()),
        text => text?,
    };
    let version: Version = serde_json::from_slice(&text)?;
    if version.version != VERSION {
        let message = format!("version {}, expected {VERSION}", version.version);
        return Err(io::Error::other(message));
    }
    let content: Content = serde_json::from_slice(&text)?;
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
