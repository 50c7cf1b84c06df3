// SPDX-License-Identifier: Apache-2.0

//! Work that blocks a thread for as long as a file system likes.

use std::collections::HashMap;
use std::fs::File;
use std::hash::Hash;
use std::io::{self, Read as _};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::future::{BoxFuture, FutureExt as _, Shared};
use portolan_health::Reason;
use rustix::fs::{Mode, OFlags};

use crate::fault::{Checked, Stop, plain};

/// Work that runs, by its key.
type Running<K, T> = HashMap<K, Shared<BoxFuture<'static, Checked<T>>>>;

/// Blocking work, of which each key has one at a time. Nothing can end it while a mount hangs: a probe whose time is over
/// leaves its thread behind, and the next one waits for that thread's result instead of taking another.
#[derive(Debug)]
pub(crate) struct Blocking<K: Eq + Hash, T: Clone>(Arc<Mutex<Running<K, T>>>);

impl<K: Eq + Hash, T: Clone> Default for Blocking<K, T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<K: Clone + Eq + Hash + Send + 'static, T: Clone + Send + Sync + 'static> Blocking<K, T> {
    /// The result of the work that runs for a key, or else of this one.
    pub(crate) async fn run(
        &self,
        key: &K,
        work: impl FnOnce(&K) -> T + Send + 'static,
    ) -> Checked<T> {
        let running = self.start(key, work);
        running.await
    }

    fn start(
        &self,
        key: &K,
        work: impl FnOnce(&K) -> T + Send + 'static,
    ) -> Shared<BoxFuture<'static, Checked<T>>> {
        let mut all = lock(&self.0);
        if let Some(running) = all.get(key) {
            return running.clone();
        }
        let entry = Entry {
            all: Arc::clone(&self.0),
            key: key.clone(),
        };
        let task = tokio::task::spawn_blocking(move || work(&entry.key));
        let running = task.map(|ended| ended.map_err(Stop::ours)).boxed().shared();
        all.insert(key.clone(), running.clone());
        running
    }
}

/// The place of work that runs. It ends with the work.
struct Entry<K: Eq + Hash, T: Clone> {
    all: Arc<Mutex<Running<K, T>>>,
    key: K,
}

impl<K: Eq + Hash, T: Clone> Drop for Entry<K, T> {
    fn drop(&mut self) {
        let ended = lock(&self.all).remove(&self.key);
        drop(ended);
    }
}

fn lock<K, T: Clone>(all: &Mutex<Running<K, T>>) -> MutexGuard<'_, Running<K, T>> {
    all.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first bytes of a file, or why it cannot be read.
pub(crate) type Content = Result<Arc<[u8]>, Reason>;

/// Reads of files.
#[derive(Debug, Default)]
pub(crate) struct Files(Blocking<(String, u64), Content>);

impl Files {
    /// At most so many bytes of a regular file.
    pub(crate) async fn read(&self, path: &str, most: u64) -> Checked<Content> {
        let key = (path.to_owned(), most);
        let work = |(path, most): &(String, u64)| {
            let unreadable = |error| Reason::from(format!("{path}: {}", plain(&error)));
            read(path, *most).map(Arc::from).map_err(unreadable)
        };
        self.0.run(&key, work).await
    }
}

/// Reads a part of a file. A pipe or a device is refused: its end may never come, nor its first byte.
fn read(path: &str, most: u64) -> io::Result<Vec<u8>> {
    // Without NONBLOCK, opening a pipe waits for its writer.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    let file = File::from(rustix::fs::open(path, flags, Mode::empty())?);
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("not a regular file"));
    }
    let mut content = Vec::new();
    file.take(most).read_to_end(&mut content)?;
    Ok(content)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn work_that_hangs_is_not_done_twice() {
        let reads = Blocking::<&str, usize>::default();
        let count = Arc::new(AtomicUsize::new(0));
        let (let_go, hangs) = mpsc::channel::<()>();
        let hangs = Arc::new(Mutex::new(hangs));
        let work = || {
            let (count, hangs) = (Arc::clone(&count), Arc::clone(&hangs));
            move |_: &&str| {
                let number = count.fetch_add(1, Ordering::SeqCst);
                let _ = hangs.lock().unwrap().recv();
                number
            }
        };
        for _ in 0..3 {
            let late = timeout(Duration::from_millis(1), reads.run(&"/hangs", work())).await;
            assert!(late.is_err());
        }
        let quick = reads.run(&"/other", |_| 7).await;
        assert_eq!(quick, Ok(7), "other work goes on");
        let both = tokio::join!(
            reads.run(&"/hangs", work()),
            reads.run(&"/hangs", work()),
            async { let_go.send(()).unwrap() },
        );
        assert_eq!(both, (Ok(0), Ok(0), ()));
        assert_eq!(count.load(Ordering::SeqCst), 1);
        let_go.send(()).unwrap();
        let again = reads.run(&"/hangs", work()).await;
        assert_eq!(again, Ok(1), "work that has ended is done again");
    }
}
