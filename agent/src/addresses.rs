//! Tells the reconcile loop when the node's addresses change.

use std::sync::Arc;
use std::time::Duration;

use portolan_dataplane::AddressMonitor;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

/// Changes that come within this time are one: an interface that comes up is a dozen messages.
const TOGETHER: Duration = Duration::from_millis(50);
/// Before another attempt after a subscription has failed.
const AGAIN: Duration = Duration::from_secs(1);

/// Follows the kernel's messages for ever.
pub async fn follow(notify: Arc<Notify>) {
    let mut failed = false;
    loop {
        match AddressMonitor::open() {
            Ok(monitor) => {
                failed = false;
                follow_one(monitor, &notify).await;
                tracing::warn!("the subscription to address changes has ended, begins anew");
            }
            Err(error) => {
                if !std::mem::replace(&mut failed, true) {
                    tracing::warn!(%error,
                        "address changes cannot be subscribed to: they are seen every sync period");
                }
            }
        }
        sleep(AGAIN).await;
    }
}

/// Follows one subscription until it ends.
async fn follow_one(mut monitor: AddressMonitor, notify: &Notify) {
    // Something may have changed before it began.
    notify.notify_one();
    while monitor.changed().await {
        let until = Instant::now() + TOGETHER;
        while let Ok(true) = timeout_at(until, monitor.changed()).await {}
        notify.notify_one();
    }
}
