// SPDX-License-Identifier: Apache-2.0

use std::future::poll_fn;

use super::*;

const AGENT: Allowance = Allowance::AGENT;
const PATIENCE: Duration = AGENT.patience.unwrap();
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

/// What an allowance is for `time`, in bytes.
fn most_in(allowance: Allowance, time: Duration) -> f64 {
    let earned = time.as_secs_f64() * f64::from(allowance.bytes_per_second);
    f64::from(allowance.saved_bytes) + earned
}

#[tokio::test(start_paused = true)]
async fn a_peer_that_never_stops_is_slowed_down_and_then_cut_off() {
    let mut budget = Budget::default();
    let bytes = read_for(&mut budget, LESS).await.unwrap();
    let most = most_in(AGENT, LESS);
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

/// Also if it has spent all that was saved before.
#[tokio::test(start_paused = true)]
async fn a_peer_that_keeps_its_rate_is_never_cut_off() {
    for pause in [250, 160].map(Duration::from_millis) {
        let mut budget = Budget::default();
        budget.spend(AGENT.saved_bytes);
        let start = Instant::now();
        while start.elapsed() < Duration::from_secs(60) {
            let read = poll_fn(|context| budget.poll(context)).await;
            assert!(read.is_ok(), "after {:?} of {pause:?}", start.elapsed());
            budget.spend(8 << 10);
            sleep(pause).await;
        }
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

#[tokio::test(start_paused = true)]
async fn an_edge_is_slowed_down_and_never_cut_off() {
    let mut budget = Budget::default();
    // The budget of an agent is spent before the raise.
    read_for(&mut budget, LESS).await.unwrap();
    budget.raise(Allowance::EDGE);
    let time = Duration::from_secs(300);
    let bytes = read_for(&mut budget, time).await.unwrap();
    let most = most_in(Allowance::EDGE, time);
    assert!(bytes > most * 0.8 && bytes < most * 1.1, "{bytes}");
}
