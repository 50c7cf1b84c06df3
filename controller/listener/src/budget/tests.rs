// SPDX-License-Identifier: Apache-2.0

use std::future::poll_fn;

use super::*;

/// Too short for a cut.
const LESS: Duration = PATIENCE.saturating_sub(Duration::from_secs(1));

/// Reads as fast as possible for `time`. Returns the number of bytes.
async fn read_for(budget: &mut Budget, time: Duration) -> io::Result<f64> {
    let start = Instant::now();
    let mut bytes = 0.0;
    while start.elapsed() < time {
        poll_fn(|context| budget.poll(context)).await?;
        budget.spend_read(4_096);
        bytes += 4_096.0;
    }
    Ok(bytes)
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_stops_is_slowed_down_and_then_cut_off() {
    let mut budget = Budget::default();
    let bytes = read_for(&mut budget, LESS).await.unwrap();
    let most = f64::from(SAVED_BYTES) + LESS.as_secs_f64() * f64::from(BYTES_PER_SECOND);
    assert!(bytes > most * 0.8 && bytes < most * 1.1, "{bytes}");
    let error = read_for(&mut budget, PATIENCE).await.unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_rests_is_never_cut_off() {
    let mut budget = Budget::default();
    for _ in 0..100 {
        read_for(&mut budget, LESS).await.unwrap();
        sleep(Duration::from_secs(20)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn small_reads_cost_too() {
    let mut budget = Budget::default();
    let start = Instant::now();
    for _ in 0..10_000 {
        poll_fn(|context| budget.poll(context)).await.unwrap();
        budget.spend_read(17);
        if start.elapsed() > LESS {
            return;
        }
    }
    panic!("10,000 reads in {:?}", start.elapsed());
}
