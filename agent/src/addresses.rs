// SPDX-License-Identifier: Apache-2.0

//! Notification of the sync loop about changed node addresses.

use std::sync::Arc;
use std::time::Duration;

use portolan_dataplane::AddressMonitor;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

/// Changes within this time count as one: an interface that comes up causes a dozen messages.
const TOGETHER: Duration = Duration::from_millis(50);
/// Pause before a failed subscription is repeated.
const AGAIN: Duration = Duration::from_secs(1);

/// Follows the kernel's messages, with a new subscription whenever one ends.
pub async fn follow(notify: Arc<Notify>) {
    let mut failed = false;
    loop {
        match AddressMonitor::open() {
            Ok(monitor) => {
                failed = false;
                follow_one(monitor, &notify).await;
                tracing::warn!("subscription to address changes ended: subscribing again");
            }
            Err(error) => {
                if !std::mem::replace(&mut failed, true) {
                    tracing::warn!(%error,
                        "cannot subscribe to address changes: they are noticed once in a sync period");
                }
            }
        }
        sleep(AGAIN).await;
    }
}

/// Follows one subscription until it ends.
async fn follow_one(mut monitor: AddressMonitor, notify: &Notify) {
    // Addresses may have changed before the subscription.
    notify.notify_one();
    while monitor.changed().await {
        let until = Instant::now() + TOGETHER;
        while let Ok(true) = timeout_at(until, monitor.changed()).await {}
        notify.notify_one();
    }
}
