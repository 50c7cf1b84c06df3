// SPDX-License-Identifier: Apache-2.0

use std::net::IpAddr;

use proptest::collection::vec;
use proptest::prelude::*;
use tokio::task::{JoinHandle, yield_now};

use super::*;

const PATIENCE: Duration = Duration::from_millis(250);

fn turns(turns: usize, waiting: usize) -> Turns {
    let limits = TurnLimits {
        turns,
        waiting,
        patience: PATIENCE,
    };
    Turns::new(limits)
}

fn source(last: u8) -> Source {
    IpAddr::from([192, 0, 2, last]).into()
}

/// Asks for a turn in a task. Returns once it is in the queue.
async fn ask(turns: &Turns, last: u8) -> JoinHandle<Option<Turn>> {
    let (turns, source) = (turns.clone(), source(last));
    let asked = tokio::spawn(async move { turns.turn(source).await });
    yield_now().await;
    asked
}

#[tokio::test]
async fn the_next_turn_is_for_the_source_with_the_fewest() {
    let turns = turns(3, 10);
    let mut held = Vec::new();
    for last in [1, 1, 2] {
        held.push(turns.turn(source(last)).await.unwrap());
    }
    let asked = [
        ask(&turns, 1).await,
        ask(&turns, 2).await,
        ask(&turns, 3).await,
    ];
    drop(held.remove(0));
    let [first, second, third] = asked;
    let third = third.await.unwrap().unwrap();
    assert!(!first.is_finished() && !second.is_finished());
    // Of two sources with the same number, the one that has waited longer is first.
    drop(third);
    first.await.unwrap().unwrap();
    second.await.unwrap().unwrap();
}

#[tokio::test]
async fn the_source_with_most_in_the_queue_is_refused() {
    let turns = turns(1, 3);
    let held = turns.turn(source(1)).await.unwrap();
    let asked = [
        ask(&turns, 1).await,
        ask(&turns, 1).await,
        ask(&turns, 1).await,
    ];
    assert!(turns.turn(source(1)).await.is_none());
    let other = ask(&turns, 2).await;
    let [first, second, third] = asked;
    assert!(third.await.unwrap().is_none());
    drop(held);
    for asked in [first, second, other] {
        drop(asked.await.unwrap().unwrap());
    }
    assert!(turns.state().sources.is_empty());
}

#[tokio::test(start_paused = true)]
async fn those_with_more_than_their_share_lose_their_turns_first() {
    let turns = turns(4, 10);
    let watch = turns.clone();
    tokio::spawn(async move { watch.watch().await });
    let start = Instant::now();
    let modest = turns.turn(source(1)).await.unwrap();
    let mut greedy = Vec::new();
    for _ in 0..3 {
        greedy.push(turns.turn(source(2)).await.unwrap());
    }
    let third = turns.turn(source(3)).await.unwrap();
    assert!(start.elapsed() >= PATIENCE && start.elapsed() < 2 * PATIENCE);
    let lost = |turn: &Turn| turn.lost.is_cancelled();
    assert!(!lost(&modest) && lost(&greedy[0]) && !lost(&greedy[1]));
    let _fourth = turns.turn(source(4)).await.unwrap();
    assert!(!lost(&modest) && !lost(&third));
    // No source has more than its share any more, and the oldest turn is lost all the same.
    let _fifth = turns.turn(source(5)).await.unwrap();
    assert!(start.elapsed() >= PATIENCE * MODEST && lost(&modest));
}

#[tokio::test(start_paused = true)]
async fn no_turn_is_lost_while_none_wait() {
    let turns = turns(2, 10);
    let watch = turns.clone();
    tokio::spawn(async move { watch.watch().await });
    let held = [
        turns.turn(source(1)).await.unwrap(),
        turns.turn(source(1)).await.unwrap(),
    ];
    sleep(100 * PATIENCE).await;
    assert!(held.iter().all(|turn| !turn.lost.is_cancelled()));
}

/// A thousand well-behaved agents of one source get their turns in order.
#[tokio::test(start_paused = true)]
async fn a_storm_from_one_source_is_served_whole() {
    let turns = turns(4, 1_000);
    let watch = turns.clone();
    tokio::spawn(async move { watch.watch().await });
    let mut agents = Vec::new();
    for _ in 0..1_000 {
        let turns = turns.clone();
        agents.push(tokio::spawn(async move {
            let turn = turns.turn(source(1)).await.unwrap();
            sleep(PATIENCE).await;
            assert!(!turn.lost.is_cancelled());
        }));
    }
    for agent in agents {
        agent.await.unwrap();
    }
}

proptest! {
    /// In any order of events, no more turns are held than there are, and none disappears.
    #[test]
    fn turns_are_passed_on(ops in vec((0..4_u8, any::<bool>()), 0..100)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(async {
            let turns = turns(3, 5);
            let mut asked = Vec::new();
            for (last, leaves) in ops {
                if leaves && !asked.is_empty() {
                    let asked: JoinHandle<Option<Turn>> = asked.remove(asked.len() / 2);
                    asked.abort();
                    drop(asked.await);
                } else {
                    asked.push(ask(&turns, last).await);
                }
                yield_now().await;
                let state = turns.state();
                assert!(state.held.len() <= 3 && state.waiting <= 5);
                assert!(state.waiting == 0 || state.held.len() == 3);
            }
            for asked in asked {
                asked.abort();
                drop(asked.await);
            }
            assert!(turns.state().held.is_empty());
        });
    }
}
