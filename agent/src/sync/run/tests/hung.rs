// SPDX-License-Identifier: Apache-2.0

//! Signs of life for the service manager.

use super::*;
use crate::notify::tests::{arrived, manager};

const LIMIT: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn a_loop_that_hangs_gives_no_sign_of_life() {
    let (_directory, socket, manager) = manager(Some(LIMIT));
    let (kernel, state) = (Shared::default(), tempfile::tempdir().unwrap());
    let (clock, search) = (boot_clock(Instant::now()), Search::default());
    let mut rig = Rig::watched(kernel, state, clock, search, manager.watchdog());
    // Idle, and without any table, the loop is alive.
    pass(60).await;
    let idle = arrived(&socket);
    assert!((2..=5).contains(&idle), "{idle} in the limit");
    rig.put(1, tcp(&[STAYS])).await;
    pass(60).await;
    assert!(arrived(&socket) >= 2);

    // A request to the kernel that is never answered.
    let kernel = rig.kernel.clone();
    let hangs = kernel.0.lock().await;
    pass(30).await;
    arrived(&socket);
    pass(600).await;
    assert_eq!(arrived(&socket), 0);
    drop(hangs);
    pass(30).await;
    assert!(arrived(&socket) >= 1);
}
