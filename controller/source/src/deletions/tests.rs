// SPDX-License-Identifier: Apache-2.0

//! Examples, and properties in a module of their own.

mod properties;
mod resumed;

use std::sync::Arc;

use super::*;

/// An event about an object: its ready endpoints, or `None` for its deletion.
type News = (String, Option<usize>);

const MINUTES_30: Duration = Duration::from_secs(1800);

fn key(name: &str) -> ObjectKey {
    let (namespace, name) = name.split_once('/').unwrap_or(("default", name));
    ObjectKey {
        cluster: "".into(),
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn news_of(key: &ObjectKey) -> News {
    (key.to_string(), None)
}

/// A guard and its consumer.
struct Rig {
    guard: DeletionGuard<News>,
    told: BTreeMap<String, usize>,
    now: Instant,
}

impl Rig {
    fn new() -> Self {
        Self {
            guard: DeletionGuard::new(GuardConfig::default()),
            told: BTreeMap::new(),
            now: Instant::now(),
        }
    }

    /// A guard with `count` objects of `ready` endpoints each, listed long ago.
    fn with(count: usize, ready: usize) -> Self {
        let mut rig = Self::new();
        let all: Vec<_> = (0..count).map(|i| (format!("o{i}"), ready)).collect();
        rig.list(&all, false);
        rig.pass(2 * WINDOW);
        rig
    }

    fn tell(&mut self, news: impl IntoIterator<Item = News>) {
        for (name, ready) in news {
            match ready {
                Some(ready) => _ = self.told.insert(name, ready),
                None => _ = self.told.remove(&name),
            }
        }
    }

    fn put(&mut self, name: &str, ready: usize) {
        self.put_of(name, ready, None);
    }

    fn put_of(&mut self, name: &str, ready: usize, service: Option<&str>) {
        let service = service.map(Arc::from);
        let facts = Some(Facts {
            ready,
            service,
            ..Facts::default()
        });
        let key = key(name);
        let news = (key.to_string(), Some(ready));
        let told = self.guard.put(key, facts, news, self.now);
        self.tell(told);
    }

    fn delete(&mut self, name: &str) {
        let key = key(name);
        let news = news_of(&key);
        let told = self.guard.delete(key, news, self.now);
        self.tell(told);
    }

    /// Lists these objects; returns whether the listing was settled.
    fn list(&mut self, objects: &[(String, usize)], is_sure: bool) -> bool {
        let objects: Vec<_> = objects.iter().map(|(n, r)| (n.clone(), *r, None)).collect();
        self.list_of(&objects, is_sure)
    }

    fn list_of(&mut self, objects: &[(String, usize, Option<&str>)], is_sure: bool) -> bool {
        self.guard.begin(self.now);
        for (name, ready, service) in objects {
            let key = key(name);
            let news = (key.to_string(), Some(*ready));
            let service = service.map(Arc::from);
            let facts = Some(Facts {
                ready: *ready,
                service,
                ..Facts::default()
            });
            let told = self.guard.listed(key, facts, news, self.now);
            self.tell(told);
        }
        let listed: Vec<_> = objects.iter().map(|(n, ..)| key(n).to_string()).collect();
        match self.guard.complete(is_sure, news_of, self.now) {
            Verdict::Doubted { .. } => false,
            Verdict::Settled { told, kept } => {
                self.tell(told);
                let kept: Vec<_> = kept.iter().map(ToString::to_string).collect();
                self.told
                    .retain(|name, _| listed.contains(name) || kept.contains(name));
                true
            }
        }
    }

    /// Lets time pass, with the looks that the guard asks for.
    fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        while let Some(due) = self.guard.due(self.now).filter(|due| *due <= end) {
            self.now = self.now.max(due);
            let told = self.guard.look(self.now);
            self.tell(told);
        }
        self.now = end;
    }

    fn confirm(&mut self) {
        let told = self.guard.confirm(self.now);
        self.tell(told);
    }

    fn lost(&self) -> Option<[usize; 2]> {
        let held = self.guard.held()?;
        Some([held.lost.objects, held.lost.ready])
    }

    fn ready(&self) -> usize {
        self.told.values().sum()
    }
}

fn some(range: std::ops::Range<usize>, ready: usize) -> Vec<(String, usize)> {
    range.map(|i| (format!("o{i}"), ready)).collect()
}

#[test]
fn an_empty_listing_is_doubted_then_held_and_confirmed_by_time() {
    let mut rig = Rig::with(100, 0);
    assert!(!rig.list(&[], false), "doubted");
    assert_eq!(rig.told.len(), 100);
    assert_eq!(rig.guard.held(), None);
    assert!(rig.list(&[], true));
    assert_eq!(rig.told.len(), 100);
    assert_eq!(rig.lost(), Some([100, 0]));
    rig.pass(MINUTES_30 - SETTLE);
    assert_eq!(rig.told.len(), 100);
    rig.pass(SETTLE);
    assert_eq!((rig.told.len(), rig.lost()), (0, None));
}

#[test]
fn a_complete_second_listing_ends_the_doubt() {
    let mut rig = Rig::with(100, 0);
    assert!(!rig.list(&some(0..10, 0), false));
    assert!(rig.list(&some(0..100, 0), true));
    assert_eq!((rig.told.len(), rig.lost()), (100, None));
}

#[test]
fn small_losses_of_a_listing_are_believed() {
    // Fewer than 50, however large the share.
    let mut rig = Rig::with(60, 0);
    assert!(rig.list(&some(0..11, 0), false));
    assert_eq!(rig.told.len(), 11);
    // No more than a fifth.
    let mut rig = Rig::with(500, 0);
    assert!(rig.list(&some(0..400, 0), false));
    assert_eq!(rig.told.len(), 400);
    assert!(!rig.list(&some(0..319, 0), false));
}

#[test]
fn new_objects_of_a_listing_do_not_outweigh_those_that_are_absent() {
    let mut rig = Rig::with(100, 0);
    assert!(!rig.list(&some(50..2000, 0), false));
    assert!(rig.list(&some(50..2000, 0), true));
    assert_eq!((rig.told.len(), rig.lost()), (2000, Some([50, 0])));
}

#[test]
fn additions_and_changes_go_on_while_deletions_are_held() {
    let mut rig = Rig::with(100, 1);
    rig.list(&[], false);
    rig.list(&[], true);
    rig.put("new", 1);
    rig.put("o1", 5);
    assert_eq!((rig.told["default/new"], rig.told["default/o1"]), (1, 5));
    // A deletion joins the held ones, also of a new object.
    rig.delete("new");
    rig.pass(WINDOW);
    assert_eq!(rig.lost(), Some([100, 100]));
    assert_eq!(rig.told.len(), 101);
    rig.confirm();
    assert_eq!(rig.told.len(), 1);
}

#[test]
fn objects_that_return_are_released() {
    let mut rig = Rig::with(100, 2);
    rig.list(&[], false);
    rig.list(&[], true);
    for i in 0..99 {
        rig.put(&format!("o{i}"), 2);
        rig.pass(Duration::from_millis(100));
    }
    assert_eq!(rig.lost(), Some([1, 2]));
    rig.put("o99", 1);
    assert_eq!(rig.lost(), Some([0, 1]), "one endpoint is missing");
    rig.put("o99", 2);
    assert_eq!((rig.lost(), rig.ready()), (None, 200));
}

#[test]
fn a_complete_listing_ends_the_hold() {
    let mut rig = Rig::with(100, 0);
    rig.list(&[], false);
    rig.list(&[], true);
    assert!(rig.list(&some(0..100, 0), false));
    assert_eq!((rig.told.len(), rig.lost()), (100, None));
}

#[test]
fn ready_endpoints_count_as_objects_do() {
    let mut rig = Rig::with(10, 10);
    assert!(!rig.list(&some(0..10, 5), false), "half of 100");
    assert_eq!(rig.ready(), 100);
    assert!(rig.list(&some(0..10, 5), true));
    assert_eq!((rig.ready(), rig.lost()), (100, Some([0, 50])));
    rig.confirm();
    assert_eq!(rig.ready(), 50);
    assert!(rig.list(&some(0..10, 1), false), "40 are fewer than 50");
    assert_eq!(rig.ready(), 10);
}

#[test]
fn slices_may_be_replaced_by_others_of_their_service() {
    let slices = |generation: char, services: usize| -> Vec<_> {
        let slices = (0..services).map(|i| {
            let service = ["a", "b", "c", "d"][i % 4];
            (format!("{generation}{i}"), 3, Some(service))
        });
        slices.collect()
    };
    let mut rig = Rig::new();
    assert!(rig.list_of(&slices('x', 100), false));
    assert!(rig.list_of(&slices('y', 100), false), "all are replaced");
    assert_eq!((rig.told.len(), rig.lost()), (100, None));
    // Held losses are released Service by Service.
    rig.list(&[], false);
    rig.list(&[], true);
    assert_eq!(rig.lost(), Some([100, 300]));
    for i in 0..25 {
        rig.put_of(&format!("z{i}"), 3, Some("a"));
    }
    rig.pass(SETTLE);
    assert_eq!(rig.lost(), Some([75, 225]));
    assert_eq!(rig.told.len(), 100);
}

#[test]
fn single_deletions_of_a_watch_wait_a_second_and_are_believed() {
    let mut rig = Rig::with(100, 0);
    rig.delete("o1");
    assert_eq!(rig.told.len(), 100);
    rig.pass(SETTLE);
    assert_eq!(rig.told.len(), 99);
    // Those that never stop, but are few, wait no longer than they may.
    let mut rig = Rig::with(1000, 0);
    for i in 0..20 {
        rig.delete(&format!("o{i}"));
        rig.pass(SETTLE / 2);
    }
    assert!(rig.told.len() <= 990, "{}", rig.told.len());
    // In small kinds nothing waits.
    let mut rig = Rig::with(49, 0);
    rig.delete("o1");
    assert_eq!(rig.told.len(), 48);
}

#[test]
fn half_of_all_deleted_on_purpose_is_believed_and_nearly_all_is_held() {
    for (deleted, left) in [(50, 50), (80, 20), (81, 100), (100, 100)] {
        let mut rig = Rig::with(100, 0);
        for i in 0..deleted {
            rig.delete(&format!("o{i}"));
            rig.pass(Duration::from_millis(200));
        }
        rig.pass(WINDOW);
        assert_eq!(rig.told.len(), left, "{deleted} deleted");
        assert_eq!(rig.lost().is_some(), left == 100, "{deleted} deleted");
    }
}

/// A slow API server sends deletions in clumps.
#[test]
fn a_burst_may_pause_for_some_seconds() {
    let mut rig = Rig::with(120, 2);
    for i in 0..120 {
        rig.delete(&format!("o{i}"));
        rig.pass(Duration::from_millis(if i % 10 == 9 { 4_000 } else { 20 }));
    }
    rig.pass(WINDOW);
    assert_eq!((rig.told.len(), rig.lost()), (120, Some([120, 240])));
}

#[test]
fn losses_believed_within_the_minute_count_too() {
    let mut rig = Rig::with(100, 0);
    for i in 0..50 {
        rig.delete(&format!("o{i}"));
    }
    rig.pass(Duration::from_secs(20));
    assert_eq!(rig.told.len(), 50, "half is believed");
    for i in 50..90 {
        rig.delete(&format!("o{i}"));
    }
    rig.pass(Duration::from_secs(20));
    assert_eq!((rig.told.len(), rig.lost()), (50, Some([40, 0])));
    // In another minute it would have been another half.
    let mut rig = Rig::with(200, 0);
    for i in 0..100 {
        rig.delete(&format!("o{i}"));
    }
    rig.pass(2 * WINDOW);
    for i in 100..180 {
        rig.delete(&format!("o{i}"));
    }
    rig.pass(WINDOW);
    assert_eq!((rig.told.len(), rig.lost()), (20, None));
}

#[test]
fn replacing_all_objects_one_by_one_is_no_loss() {
    let mut rig = Rig::with(100, 2);
    for i in 0..1000 {
        rig.delete(&format!("o{i}"));
        rig.put(&format!("o{}", i + 100), 2);
        rig.pass(Duration::from_millis(10));
    }
    rig.pass(PATIENCE);
    assert_eq!((rig.told.len(), rig.lost()), (100, None));
}

#[test]
fn endpoints_that_all_become_unready_are_held_but_not_a_few() {
    let mut rig = Rig::with(100, 2);
    rig.put("o1", 1);
    rig.put("o2", 0);
    assert_eq!(rig.ready(), 197, "at once");
    for i in 0..100 {
        rig.put(&format!("o{i}"), 0);
    }
    rig.pass(WINDOW);
    // A fifth may go before it is a burst.
    assert!(rig.lost().is_some());
    assert!(rig.ready() >= 150, "{}", rig.ready());
    // Ordinary changes go on.
    rig.pass(2 * WINDOW);
    rig.put("more", 9);
    rig.put("more", 3);
    assert_eq!(rig.told["default/more"], 3);
}

#[test]
fn confirmation_lets_the_rest_of_the_burst_through() {
    let mut rig = Rig::with(100, 0);
    for i in 0..90 {
        rig.delete(&format!("o{i}"));
    }
    rig.pass(Duration::from_secs(5));
    assert!(rig.lost().is_some());
    rig.confirm();
    assert_eq!(rig.told.len(), 10);
    rig.delete("o95");
    assert_eq!(rig.told.len(), 9);
    assert_eq!(rig.lost(), None);
}

#[test]
fn a_guard_that_is_off_holds_nothing() {
    let mut rig = Rig::with(100, 3);
    rig.guard.config = GuardConfig::OFF;
    rig.put("o1", 0);
    rig.delete("o2");
    assert_eq!(rig.told.len(), 99);
    assert!(rig.list(&[], false));
    assert_eq!(rig.told.len(), 0);
}

/// Endpoints that move are in two slices for a while; leaving the first one is no loss.
#[test]
fn endpoints_that_are_still_in_another_slice_are_not_lost() {
    let now = Instant::now();
    let mut guard = DeletionGuard::new(GuardConfig::default());
    let list = |guard: &mut DeletionGuard<()>, slices: [std::ops::Range<u64>; 2]| {
        guard.begin(now);
        for (name, addresses) in ["a", "b"].into_iter().zip(slices) {
            let addresses: Arc<[u64]> = addresses.collect();
            let facts = Facts {
                ready: addresses.len(),
                service: Some("web".into()),
                addresses,
            };
            let _ = guard.listed(key(name), Some(facts), (), now);
        }
        guard.complete(true, |_| (), now)
    };
    list(&mut guard, [0..200, 0..200]);
    list(&mut guard, [0..100, 100..200]);
    assert_eq!(guard.held(), None, "each is in one slice still");
    list(&mut guard, [0..1, 100..101]);
    assert_eq!(guard.held().unwrap().lost.ready, 198, "these are in none");
}

/// A guard with Services `s0`, `s1`, ... of two slices each, with `ready` endpoints in a slice.
fn guard_of_pairs(services: usize, ready: usize) -> Rig {
    let mut rig = Rig::new();
    assert!(rig.list_pairs(services, ready, 2, false));
    rig.pass(2 * WINDOW);
    rig
}

impl Rig {
    /// Lists the first `slices` slices of each Service.
    fn list_pairs(&mut self, services: usize, ready: usize, slices: usize, is_sure: bool) -> bool {
        let names: Vec<_> = (0..services).map(|i| format!("s{i}")).collect();
        let all = names.iter().flat_map(|service| {
            let slice = move |part| (format!("{service}-{part}"), ready, Some(service.as_str()));
            (0..slices).map(slice)
        });
        let all: Vec<_> = all.collect();
        self.list_of(&all, is_sure)
    }
}

#[test]
fn untouched_slices_replace_nothing() {
    // Each Service keeps as many endpoints as it loses, in an untouched slice.
    let mut rig = guard_of_pairs(10, 50);
    assert!(!rig.list_pairs(10, 50, 1, false), "half is gone");
    assert!(rig.list_pairs(10, 50, 1, true));
    assert_eq!((rig.ready(), rig.lost()), (1000, Some([10, 500])));
    // Nor do they later: nothing new has come.
    rig.put_of("s0-0", 50, Some("s0"));
    rig.pass(MINUTES_30 / 2);
    assert_eq!((rig.ready(), rig.lost()), (1000, Some([10, 500])));
    // One Service gets as many as it lost.
    rig.put_of("s0-new", 50, Some("s0"));
    rig.pass(SETTLE);
    assert_eq!((rig.ready(), rig.lost()), (1000, Some([9, 450])));
}

#[test]
fn endpoints_that_came_long_before_replace_nothing() {
    let mut rig = guard_of_pairs(10, 50);
    for i in 0..10 {
        rig.put_of(&format!("s{i}-2"), 50, Some(&format!("s{i}")));
    }
    rig.pass(2 * WINDOW);
    assert!(!rig.list_pairs(10, 50, 2, false), "a third is gone");
    assert!(rig.list_pairs(10, 50, 2, true));
    assert_eq!((rig.ready(), rig.lost()), (1500, Some([10, 500])));
}

#[test]
fn one_replacement_counts_once() {
    let mut rig = guard_of_pairs(10, 50);
    rig.list_pairs(10, 50, 0, false);
    rig.list_pairs(10, 50, 0, true);
    assert_eq!(rig.lost(), Some([20, 1000]));
    for part in ["a", "b"] {
        rig.put_of(&format!("s0-{part}"), 50, Some("s0"));
    }
    rig.pass(SETTLE);
    assert_eq!(rig.lost(), Some([18, 900]), "replaced");
    // The loss of a replacement is held like any other.
    rig.delete("s0-a");
    rig.put_of("s1-a", 1, Some("s1"));
    rig.pass(WINDOW);
    assert_eq!(rig.lost(), Some([19, 950]));
}
