// SPDX-License-Identifier: Apache-2.0

use std::net::SocketAddr;

use portolan_model::Protocol;
use portolan_model::ipvs::VirtualServerKey;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn at(seconds: u64) -> Duration {
    Duration::from_secs(1_000_000 + seconds)
}

fn clock(seconds: u64) -> BootClock {
    BootClock::new("this", move || at(seconds))
}

fn draining(last: u8) -> Draining {
    let key = VirtualServerKey::new(Protocol::Tcp, "10.96.0.1".parse().unwrap(), 80);
    (key, SocketAddr::from(([10, 0, 0, last], 80)))
}

fn limits(each: &[(u8, Duration)]) -> BTreeMap<Draining, Duration> {
    each.iter().map(|(last, d)| (draining(*last), *d)).collect()
}

#[test]
fn deadline_counts_from_the_beginning_and_ends_with_the_drain() {
    let mut deadlines = Deadlines::default();
    deadlines.update(&limits(&[(1, MINUTE)]), at(0));
    deadlines.update(&limits(&[(1, MINUTE), (2, MINUTE)]), at(30));
    assert_eq!(deadlines.nearest(), Some(at(60)));
    assert!(!deadlines.has_passed(&draining(1), at(59)));
    assert!(deadlines.has_passed(&draining(1), at(60)));
    assert!(!deadlines.has_passed(&draining(2), at(60)));

    // It came back and drains again: that is a new drain.
    deadlines.update(&limits(&[(2, MINUTE)]), at(40));
    assert!(!deadlines.has_passed(&draining(1), at(1000)));
    deadlines.update(&limits(&[(1, MINUTE), (2, MINUTE)]), at(50));
    assert!(!deadlines.has_passed(&draining(1), at(109)));
    assert!(deadlines.has_passed(&draining(1), at(110)));
}

#[test]
fn limit_of_zero_has_passed_at_once() {
    let mut deadlines = Deadlines::default();
    deadlines.update(&limits(&[(1, Duration::ZERO)]), at(0));
    assert!(deadlines.has_passed(&draining(1), at(0)));
}

#[test]
fn shorter_limit_advances_the_deadline_and_a_longer_one_does_not_postpone_it() {
    let mut deadlines = Deadlines::default();
    deadlines.update(&limits(&[(1, MINUTE), (2, MINUTE)]), at(0));
    deadlines.update(&limits(&[(1, MINUTE * 2), (2, MINUTE / 6)]), at(10));
    assert!(deadlines.has_passed(&draining(2), at(20)));
    assert!(!deadlines.has_passed(&draining(1), at(59)));
    assert!(deadlines.has_passed(&draining(1), at(60)));
}

#[tokio::test]
async fn restart_changes_no_deadline() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("not/there/yet");
    let open = |now: u64| Drainer::open(&state, MINUTE, clock(now));
    let both = BTreeMap::from([(draining(1), None), (draining(2), Some(600))]);
    let mut first = open(0);
    first.note(&both);
    first.close().await;

    let mut restarted = open(45);
    restarted.note(&both);
    assert_eq!(restarted.until_nearest(), Some(MINUTE / 4));
    restarted.close().await;
    assert!(open(60).has_passed(&draining(1)));
    assert!(!open(599).has_passed(&draining(2)));
    assert!(open(600).has_passed(&draining(2)));

    // Times of another boot mean nothing.
    for boot in ["another", ""] {
        let clock = BootClock::new(boot, || at(600));
        assert_eq!(Drainer::open(&state, MINUTE, clock).until_nearest(), None);
    }
}

#[tokio::test]
async fn malformed_file_is_set_aside() {
    for text in ["{\"version\": 1, \"drai", "{\"version\":1,\"drains\":[]}"] {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("drains.json");
        std::fs::write(&path, text).unwrap();
        let mut drainer = Drainer::open(directory.path(), MINUTE, clock(0));
        assert_eq!(drainer.until_nearest(), None);
        let aside = directory.path().join("drains.json.corrupt");
        assert_eq!(std::fs::read_to_string(aside).unwrap(), text);

        drainer.note(&[(draining(1), None)].into());
        drainer.close().await;
        assert!(
            std::fs::read_to_string(&path)
                .unwrap()
                .contains("10.0.0.1:80")
        );
    }
}

#[tokio::test]
async fn unreadable_file_is_left_alone() {
    let directory = tempfile::tempdir().unwrap();
    // Reading a directory fails.
    let path = directory.path().join("drains.json");
    std::fs::create_dir(&path).unwrap();
    let drainer = Drainer::open(directory.path(), MINUTE, clock(0));
    assert_eq!(drainer.until_nearest(), None);
    drainer.close().await;
    assert!(path.is_dir());
    assert!(!directory.path().join("drains.json.corrupt").exists());
}

#[tokio::test]
async fn unwritable_directory_is_ignored() {
    let directory = tempfile::tempdir().unwrap();
    let occupied = directory.path().join("file");
    std::fs::write(&occupied, "").unwrap();
    let mut drainer = Drainer::open(&occupied.join("state"), MINUTE, clock(0));
    drainer.note(&[(draining(1), None)].into());
    assert_eq!(drainer.until_nearest(), Some(MINUTE));
    drainer.close().await;
    assert_eq!(std::fs::read_to_string(occupied).unwrap(), "");
}

#[tokio::test]
async fn failed_write_is_repeated_with_the_newest_deadlines() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    std::fs::write(&state, "").unwrap();
    let mut drainer = Drainer::open(&state, MINUTE, clock(0));
    drainer.note(&[(draining(1), None)].into());
    tokio::task::yield_now().await;
    std::fs::remove_file(&state).unwrap();
    for last in 2..=100 {
        drainer.note(&[(draining(last), None)].into());
    }
    drainer.close().await;
    let written = std::fs::read_to_string(state.join("drains.json")).unwrap();
    assert!(written.contains("10.0.0.100:80"), "{written}");
    assert!(!written.contains("10.0.0.99:80"), "{written}");
}

#[tokio::test(start_paused = true)]
async fn a_directory_that_can_be_written_later_gets_what_nobody_says_again() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    std::fs::write(&state, "").unwrap();
    let mut drainer = Drainer::open(&state, MINUTE, clock(0));
    drainer.note(&[(draining(1), None)].into());
    tokio::time::sleep(MINUTE / 2).await;
    std::fs::remove_file(&state).unwrap();
    tokio::time::sleep(MINUTE).await;
    drainer.close().await;
    let written = std::fs::read_to_string(state.join("drains.json")).unwrap();
    assert!(written.contains("10.0.0.1:80"), "{written}");
}
