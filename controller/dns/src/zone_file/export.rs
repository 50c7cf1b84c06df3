// SPDX-License-Identifier: Apache-2.0

//! Keeps zone files up to date.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hickory_proto::rr::Name;
use tokio::task::spawn_blocking;

use super::render::render;
use super::write::{Written, write};
use crate::shared::SharedZone;

/// Configuration of an export: files and interval.
#[derive(Debug, Clone)]
pub struct ExportConfig {
    /// The zones and their files, which have to be on a local file system.
    pub files: Vec<(Name, PathBuf)>,
    /// The shortest time between two rounds of writing. CoreDNS reads its files once a minute.
    pub interval: Duration,
    /// The time to try again after a round that failed.
    pub retry: Duration,
    /// The serial of a file that is not there yet: the time, in seconds since 1970.
    pub first_serial: u32,
}

/// Writes the files each time the zone changed, from the time when it is synced until `shutdown`.
pub async fn export(
    zone: Arc<SharedZone>,
    config: ExportConfig,
    shutdown: impl Future<Output = ()>,
) {
    tokio::select! {
        () = shutdown => {}
        () = run(zone, Arc::new(config)) => {}
    }
}

async fn run(zone: Arc<SharedZone>, config: Arc<ExportConfig>) {
    let mut subscription = zone.subscribe("zone_file");
    loop {
        // Any change rewrites the whole file.
        let dirty = subscription.changed().await;
        if !zone.read().is_synced() {
            continue;
        }
        let (zone, files) = (Arc::clone(&zone), Arc::clone(&config));
        let done = spawn_blocking(move || round(&zone, &files)).await;
        if done.is_ok_and(|all| all) {
            subscription.done();
            tokio::time::sleep(config.interval).await;
        } else {
            subscription.put_back(&dirty);
            tokio::time::sleep(config.retry).await;
        }
    }
}

/// Writes each file that needs it. Whether all could be.
fn round(zone: &SharedZone, config: &ExportConfig) -> bool {
    let mut all = true;
    for (origin, path) in &config.files {
        let text = |serial| render(zone, origin, serial);
        match write(path, config.first_serial, text) {
            Ok(Written::Unchanged) => {}
            Ok(Written::Replaced(serial)) => {
                tracing::info!(zone = %origin, serial, path = %path.display(), "wrote zone file");
            }
            Err(error) => {
                all = false;
                tracing::warn!(zone = %origin, path = %path.display(), %error, "cannot write zone file");
            }
        }
    }
    all
}
