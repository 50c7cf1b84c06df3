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

/// Returns the bytes that an allowance permits in `time`.
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

/// Says so many bytes each second for `time`, however fast they are read.
async fn say_for(budget: &mut Budget, bytes_per_second: u32, time: Duration) -> io::Result<()> {
    const READ: u32 = 2 << 10;
    let start = Instant::now();
    let mut read = 0.0;
    while start.elapsed() < time {
        poll_fn(|context| budget.poll(context)).await?;
        let said = start.elapsed().as_secs_f64() * f64::from(bytes_per_second);
        if said - read < f64::from(READ) {
            sleep(Duration::from_millis(5)).await;
            continue;
        }
        budget.spend(READ);
        read += f64::from(READ);
    }
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn a_peer_with_the_documented_rate_is_never_cut_off_and_one_above_the_limit_is() {
    for rate in [58 << 10, 60 << 10, AGENT_RATE] {
        let mut budget = Budget::default();
        budget.spend(AGENT.saved_bytes);
        let said = say_for(&mut budget, rate, Duration::from_secs(120)).await;
        assert!(said.is_ok(), "{rate} bytes a second");
    }
    let mut budget = Budget::default();
    budget.spend(AGENT.saved_bytes);
    let rate = AGENT.bytes_per_second;
    let said = say_for(&mut budget, rate, Duration::from_secs(120)).await;
    assert_eq!(said.unwrap_err().kind(), io::ErrorKind::TimedOut);
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
