// SPDX-License-Identifier: Apache-2.0

//! The file of plans, from which an edge controller that starts without its centre serves imports.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use portolan_edge::plans::{Plans, SavedError};
use portolan_runtime::AtomicFile;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::plan_desk::PlanDesk;

/// The shortest time between two writes, and the pause before a failed one is tried again.
const PAUSE: Duration = Duration::from_secs(1);
/// A write that takes long is not to keep the machine busy: the pause after it is so many times as long.
const REST: u32 = 20;

/// The path of the file in `--state-dir`.
pub(super) fn path(directory: &Path, cluster: &str) -> PathBuf {
    directory.join(format!("plans-{cluster}.bin"))
}

/// The plans of a file; `None` without one. A file that cannot be used is named, and its plans are not served: they come
/// again from the centre.
pub(super) fn read(path: &Path) -> Option<Plans> {
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        Err(error) => {
            tracing::error!(%error, path = %path.display(), "plans of imports cannot be read");
            return None;
        }
    };
    match Plans::from_bytes(bytes) {
        Ok((plans, refused)) => {
            for plan in &refused {
                tracing::warn!(%plan, path = %path.display(), "saved plan is not served");
            }
            tracing::info!(
                plans = plans.len(),
                "imports are served by saved plans until the centre tells others"
            );
            Some(plans)
        }
        Err(error) => {
            let error: SavedError = error;
            tracing::error!(%error, path = %path.display(), "plans of imports cannot be used");
            None
        }
    }
}

/// Writes the plans in force whenever they have changed, the last ones also when the program ends.
pub(super) async fn follow(path: PathBuf, desk: Arc<PlanDesk>, ending: CancellationToken) {
    let mut news = desk.news();
    let (mut is_written, mut is_named) = (true, false);
    let mut pause = PAUSE;
    loop {
        let is_ending = tokio::select! {
            // The sender is in the desk.
            _ = news.changed(), if is_written => false,
            () = sleep(pause), if !is_written => false,
            () = ending.cancelled() => true,
        };
        let has_news = !is_written || !is_ending || news.has_changed().unwrap_or(false);
        news.mark_unchanged();
        if has_news {
            let started = Instant::now();
            let written = write(&path, &desk).await;
            pause = PAUSE.max(started.elapsed() * REST);
            if let Err(error) = &written
                && !is_named
            {
                tracing::error!(%error, path = %path.display(), "plans of imports cannot be written; retrying");
            }
            is_named = written.is_err();
            is_written = written.is_ok();
        }
        if is_ending {
            return;
        }
        if is_written {
            // What changes meanwhile is in the next write.
            tokio::select! {
                () = sleep(pause) => {}
                () = ending.cancelled() => {}
            }
        }
    }
}

async fn write(path: &Path, desk: &Arc<PlanDesk>) -> anyhow::Result<()> {
    // While losses are held the file has the plans from before, for a process that starts meanwhile.
    if !desk.is_known() || desk.held().borrow().is_some() {
        return Ok(());
    }
    let (path, desk) = (path.to_owned(), Arc::clone(desk));
    let write = move || {
        let file = AtomicFile::new(&path).private().creating_directory();
        file.write(&desk.to_bytes())
    };
    Ok(tokio::task::spawn_blocking(write).await??)
}
