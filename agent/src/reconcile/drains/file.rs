//! The deadlines in a file, `drains.json`.

use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use portolan_model::ipvs::VirtualServerKey;
use serde::{Deserialize, Serialize};

use super::Deadlines;
use crate::durable;

/// The version of the format; a file of another one is set aside.
const VERSION: u32 = 1;
const NAME: &str = "drains.json";

/// The file's content.
#[derive(Debug, Serialize, Deserialize)]
struct Content {
    version: u32,
    drains: Vec<Drain>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Drain {
    virtual_server: VirtualServerKey,
    real_server: SocketAddr,
    /// Milliseconds since 1970.
    deadline_ms: u64,
}

/// The file and what it holds.
#[derive(Debug)]
pub(super) struct DrainFile {
    directory: PathBuf,
    saved: Deadlines,
    /// Whether it was said that the file cannot be written.
    warned: bool,
}

impl DrainFile {
    /// Reads the file, if there is one. One that makes no sense is renamed to
    /// `drains.json.corrupt`: the drains in it begin anew.
    pub(super) fn open(directory: &Path) -> (Self, Deadlines) {
        let path = directory.join(NAME);
        let saved = match read(&path) {
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
        let file = Self {
            directory: directory.to_owned(),
            saved: saved.clone(),
            warned: false,
        };
        (file, saved)
    }

    /// Writes the deadlines, if they are others than those in the file.
    pub(super) async fn save(&mut self, deadlines: &Deadlines) {
        if *deadlines == self.saved {
            return;
        }
        let (directory, content) = (self.directory.clone(), encode(deadlines));
        let written =
            tokio::task::spawn_blocking(move || durable::write(&directory, NAME, &content?)).await;
        match written.map_err(io::Error::other).flatten() {
            Ok(()) => {
                self.saved = deadlines.clone();
                self.warned = false;
            }
            Err(error) if !self.warned => {
                self.warned = true;
                tracing::warn!(directory = %self.directory.display(), %error,
                    "deadlines of drains cannot be saved: an agent that starts anew begins them anew");
            }
            Err(_) => {}
        }
    }
}

fn read(path: &Path) -> io::Result<Deadlines> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Deadlines::default()),
        text => text?,
    };
    let content: Content = serde_json::from_slice(&text)?;
    if content.version != VERSION {
        let message = format!("version {}, expected {VERSION}", content.version);
        return Err(io::Error::other(message));
    }
    let deadline = |drain: Drain| {
        let deadline = UNIX_EPOCH.checked_add(Duration::from_millis(drain.deadline_ms))?;
        Some(((drain.virtual_server, drain.real_server), deadline))
    };
    Ok(Deadlines(
        content.drains.into_iter().filter_map(deadline).collect(),
    ))
}

fn encode(deadlines: &Deadlines) -> io::Result<Vec<u8>> {
    let drains = deadlines.0.iter();
    let drains = drains.map(|((virtual_server, real_server), deadline)| Drain {
        virtual_server: *virtual_server,
        real_server: *real_server,
        deadline_ms: milliseconds(*deadline),
    });
    let content = Content {
        version: VERSION,
        drains: drains.collect(),
    };
    Ok(serde_json::to_vec_pretty(&content)?)
}

fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}
