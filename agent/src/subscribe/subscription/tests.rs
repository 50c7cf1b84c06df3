// SPDX-License-Identifier: Apache-2.0

use super::*;
use crate::subscribe::tests::support::config;

#[tokio::test(start_paused = true)]
async fn a_write_that_hangs_does_not_keep_the_agent_from_its_next_stream() {
    let (tables, _tables) = watch::channel(None);
    let (_reports, reports) = watch::channel(None);
    let (stats, held) = (Arc::new(Stats::default()), HeldView::default());
    let mut subscription = Subscription::new(&config(), tables, reports, stats, held);
    subscription.saver.hang();
    let ended = timeout(2 * SAVE_PATIENCE, subscription.ended(false)).await;
    ended.expect("in time");
    // No other write begins beside it.
    let settled = timeout(2 * SAVE_PATIENCE, subscription.saver.settle()).await;
    assert!(settled.is_err(), "the write was forgotten");
}
