//! Files that are replaced while the program runs.
//!
//! Looked at every few seconds, by content: Kubernetes swaps a symlink above the files, other tools
//! write them one after the other. What cannot be used never takes the place of what can.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::file::{File, FileError, read};

/// How often files are looked at.
pub const POLL: Duration = Duration::from_secs(10);

/// What came out of files.
#[derive(Debug)]
pub struct Loaded<T> {
    /// The value.
    pub value: T,
    /// When it expires, if it does.
    pub expires: Option<SystemTime>,
}

/// How a set of files does, for metrics.
#[derive(Debug, Default)]
pub struct Health {
    reloads: AtomicU64,
    failures: AtomicU64,
    broken: AtomicBool,
    expires: AtomicU64,
}

impl Health {
    /// How often newer content was taken.
    #[must_use]
    pub fn reloads(&self) -> u64 {
        self.reloads.load(Ordering::Relaxed)
    }

    /// How often newer content could not be used.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Whether the files cannot be used now, so that an older content of them is in force.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.broken.load(Ordering::Relaxed)
    }

    /// When what is in force expires, in seconds of Unix time; 0 if it does not.
    #[must_use]
    pub fn expires(&self) -> u64 {
        self.expires.load(Ordering::Relaxed)
    }
}

type Read = Result<Vec<File>, FileError>;
type Load<T> = dyn Fn(&[File]) -> Result<Loaded<T>, FileError> + Send + Sync;

/// A value that is made from files, and made again when they change.
pub struct Rotating<T> {
    name: &'static str,
    paths: Vec<PathBuf>,
    load: Box<Load<T>>,
    /// What the files were the last time.
    seen: Read,
    /// Whether that is in force, or is known to be unusable.
    settled: bool,
    value: watch::Sender<Arc<T>>,
    health: Arc<Health>,
}

impl<T: Send + Sync + 'static> Rotating<T> {
    /// Reads the files for the first time. Blocks.
    ///
    /// # Errors
    /// If one cannot be read or used: there is no older content to go on with.
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

    /// What is in force, now and later.
    #[must_use]
    pub fn subscribe(&self) -> watch::Receiver<Arc<T>> {
        self.value.subscribe()
    }

    /// What the files are called in metrics, and how they do.
    #[must_use]
    pub fn health(&self) -> (&'static str, Arc<Health>) {
        (self.name, Arc::clone(&self.health))
    }

    /// Looks at the files so often, until the token is cancelled.
    pub async fn follow(self, period: Duration, token: CancellationToken) {
        let mut this = self;
        let mut ticks = tokio::time::interval(period);
        while token.run_until_cancelled(ticks.tick()).await.is_some() {
            // Reading may block: the files may be on a network.
            let looked = tokio::task::spawn_blocking(move || {
                this.look();
                this
            });
            match looked.await {
                Ok(same) => this = same,
                Err(error) => {
                    tracing::error!(%error, "files are no longer looked at");
                    return;
                }
            }
        }
    }

    /// Looks at the files once. What fails is reported the second time it is seen: a file may have
    /// been read while its neighbour was not yet replaced.
    fn look(&mut self) {
        let now = read_all(&self.paths);
        let again = now == self.seen;
        if again && self.settled {
            return;
        }
        self.settled = again;
        match now.as_deref().map_err(Clone::clone).and_then(&self.load) {
            Ok(loaded) => self.take(loaded),
            Err(error) if again => self.broken(&error),
            Err(_) => {}
        }
        self.seen = now;
    }

    fn take(&mut self, loaded: Loaded<T>) {
        let Loaded { value, expires } = loaded;
        self.settled = true;
        self.value.send_replace(Arc::new(value));
        self.health.expires.store(unix(expires), Ordering::Relaxed);
        self.health.broken.store(false, Ordering::Relaxed);
        self.health.reloads.fetch_add(1, Ordering::Relaxed);
        tracing::info!(what = self.name, "files changed, using them");
    }

    fn broken(&self, error: &FileError) {
        self.health.broken.store(true, Ordering::Relaxed);
        self.health.failures.fetch_add(1, Ordering::Relaxed);
        tracing::error!(
            what = self.name,
            "{error}; going on with what was there before"
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

/// Without what was read: there are keys in it.
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
