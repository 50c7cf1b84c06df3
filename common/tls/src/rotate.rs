// SPDX-License-Identifier: Apache-2.0

//! Credentials in files that are replaced while the program runs.
//!
//! Files are polled and compared by content: Kubernetes swaps a symlink above the files, other tools
//! write them one after the other. Unusable content never replaces usable content.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::file::{File, FileError, read};

/// Poll period of files.
pub const POLL: Duration = Duration::from_secs(10);

/// A value loaded from files.
#[derive(Debug)]
pub struct Loaded<T> {
    /// The value.
    pub value: T,
    /// Time of expiry, if any.
    pub expires: Option<SystemTime>,
}

/// Health of a set of files, for metrics.
#[derive(Debug, Default)]
pub struct Health {
    reloads: AtomicU64,
    failures: AtomicU64,
    broken: AtomicBool,
    expires: AtomicU64,
}

impl Health {
    /// Records that content was loaded, for the first time or again.
    pub fn note_loaded(&self, expires: Option<SystemTime>) {
        self.broken.store(false, Ordering::Relaxed);
        if self.expires.swap(unix(expires), Ordering::Relaxed) != 0 {
            self.reloads.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that the current content cannot be used.
    pub fn note_broken(&self) {
        self.broken.store(true, Ordering::Relaxed);
        self.failures.fetch_add(1, Ordering::Relaxed);
    }

    /// Records that the content in force is the current one again.
    pub fn note_usable(&self) {
        self.broken.store(false, Ordering::Relaxed);
    }

    /// Number of reloads.
    #[must_use]
    pub fn reloads(&self) -> u64 {
        self.reloads.load(Ordering::Relaxed)
    }

    /// Number of changes that could not be used.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Returns `true` if the current files cannot be used, so that older content is in force.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// Expiry of the content in force, in seconds of Unix time; 0 if it does not expire.
    #[must_use]
    pub fn expires(&self) -> u64 {
        self.expires.load(Ordering::Relaxed)
    }
}

type Read = Result<Vec<File>, FileError>;
type Load<T> = dyn Fn(&[File]) -> Result<Loaded<T>, FileError> + Send + Sync;

/// A value that is loaded from files, and reloaded when they change.
pub struct Rotating<T> {
    name: &'static str,
    paths: Vec<PathBuf>,
    load: Box<Load<T>>,
    /// The files at the last poll.
    seen: Read,
    /// Whether they are in force, or reported as unusable.
    settled: bool,
    value: watch::Sender<Arc<T>>,
    health: Arc<Health>,
}

impl<T: Send + Sync + 'static> Rotating<T> {
    /// Reads the files for the first time. Blocks.
    ///
    /// # Errors
    /// If a file cannot be read or used: there is no older content yet.
    pub fn open(
        name: &'static str,
        paths: Vec<PathBuf>,
        load: impl Fn(&[File]) -> Result<Loaded<T>, FileError> + Send + Sync + 'static,
    ) -> Result<Self, FileError> {
        let files = read_all(&paths)?;
        let Loaded { value, expires } = load(&files)?;
        let health = Arc::new(Health::default());
        health.expires.store(unix(expires), Ordering::Relaxed);
        Ok(Self {
            name,
            paths,
            load: Box::new(load),
            seen: Ok(files),
            settled: true,
            value: watch::Sender::new(Arc::new(value)),
            health,
        })
    }

    /// As [`Self::open`], with a value that is in force until the files can be used. Blocks.
    pub fn open_or(
        name: &'static str,
        paths: Vec<PathBuf>,
        fallback: T,
        load: impl Fn(&[File]) -> Result<Loaded<T>, FileError> + Send + Sync + 'static,
    ) -> Self {
        let seen = read_all(&paths);
        let loaded = seen.as_deref().map_err(Clone::clone).and_then(&load);
        let health = Arc::new(Health::default());
        let Loaded { value, expires } = loaded.unwrap_or_else(|error| {
            tracing::warn!(files = name, "{error}: waiting for files that can be used");
            health.broken.store(true, Ordering::Relaxed);
            Loaded {
                value: fallback,
                expires: None,
            }
        });
        health.expires.store(unix(expires), Ordering::Relaxed);
        Self {
            name,
            paths,
            load: Box::new(load),
            seen,
            settled: true,
            value: watch::Sender::new(Arc::new(value)),
            health,
        }
    }

    /// The value in force, and its successors.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<T>> {
        self.value.subscribe()
    }

    /// Name of the files in metrics, and their health.
    #[must_use]
    pub fn health(&self) -> (&'static str, Arc<Health>) {
        (self.name, Arc::clone(&self.health))
    }

    /// Polls the files until the token is cancelled.
    pub async fn follow(self, period: Duration, token: CancellationToken) {
        let mut this = self;
        let mut ticks = tokio::time::interval(period);
        while token.run_until_cancelled(ticks.tick()).await.is_some() {
            // Reading blocks, for long if the files are on a network.
            let polled = tokio::task::spawn_blocking(move || {
                this.poll();
                this
            });
            match polled.await {
                Ok(same) => this = same,
                Err(error) => {
                    tracing::error!(%error, "files are no longer followed");
                    return;
                }
            }
        }
    }

    /// Polls the files once. A failure is reported when the same content is seen twice: a file may be
    /// read before its neighbour is replaced.
    fn poll(&mut self) {
        let now = read_all(&self.paths);
        let again = now == self.seen;
        if again && self.settled {
            return;
        }
        self.settled = again;
        match now.as_deref().map_err(Clone::clone).and_then(&self.load) {
            Ok(loaded) => self.replace(loaded),
            Err(error) if again => self.report_broken(&error),
            Err(_) => {}
        }
        self.seen = now;
    }

    fn replace(&mut self, loaded: Loaded<T>) {
        let Loaded { value, expires } = loaded;
        self.settled = true;
        self.value.send_replace(Arc::new(value));
        self.health.expires.store(unix(expires), Ordering::Relaxed);
        self.health.broken.store(false, Ordering::Relaxed);
        self.health.reloads.fetch_add(1, Ordering::Relaxed);
        tracing::info!(files = self.name, "changed files loaded");
    }

    fn report_broken(&self, error: &FileError) {
        self.health.note_broken();
        tracing::error!(
            files = self.name,
            "{error}; the previous content stays in force"
        );
    }
}

fn read_all(paths: &[PathBuf]) -> Read {
    paths.iter().map(|path| read(path)).collect()
}

fn unix(time: Option<SystemTime>) -> u64 {
    let since = time.and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    since.map_or(0, |since| since.as_secs())
}

/// Omits the content, which has keys.
impl<T> fmt::Debug for Rotating<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rotating")
            .field("name", &self.name)
            .field("paths", &self.paths)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
