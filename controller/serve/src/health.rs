// SPDX-License-Identifier: Apache-2.0

//! The status of gRPC's health service, which follows the program's readiness.

use portolan_runtime::Readiness;
use tokio_util::sync::CancellationToken;
use tonic::server::NamedService as _;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::TablesServer;

/// The names that clients may ask for: the whole server, and the service of tables.
const NAMES: [&str; 2] = ["", TablesServer::NAME];

/// Reports the present status.
pub(crate) async fn report(readiness: &Readiness, reporter: &HealthReporter) {
    set(reporter, readiness.pending().is_empty()).await;
}

/// Reports each change of the readiness. After the shutdown nothing is served, and watches end.
pub(crate) async fn follow(
    readiness: Readiness,
    mut reporter: HealthReporter,
    shutdown: CancellationToken,
) {
    let mut pending = readiness.subscribe();
    loop {
        let is_ready = pending.borrow_and_update().is_empty();
        set(&reporter, is_ready).await;
        tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            changed = pending.changed() => if changed.is_err() {
                break;
            },
        }
    }
    set(&reporter, false).await;
    for name in NAMES {
        reporter.clear_service_status(name).await;
    }
}

async fn set(reporter: &HealthReporter, is_ready: bool) {
    let status = match is_ready {
        true => ServingStatus::Serving,
        false => ServingStatus::NotServing,
    };
    for name in NAMES {
        reporter.set_service_status(name, status).await;
    }
}

#[cfg(test)]
mod tests;
