// SPDX-License-Identifier: Apache-2.0

//! Guards that go on from where others have ended.

use super::*;

impl Rig {
    /// The source starts again; the consumer has what it had.
    fn restart(&mut self) {
        let config = self.guard.config;
        let ended = std::mem::replace(&mut self.guard, DeletionGuard::new(config));
        self.guard = DeletionGuard::seeded(config, ended.into_remains(), self.now);
    }

    /// A guard that holds the deletions of 100 objects of one ready endpoint each.
    fn holding() -> Self {
        let mut rig = Self::with(100, 1);
        assert!(!rig.list(&[], false));
        assert!(rig.list(&[], true));
        rig
    }
}

#[test]
fn a_guard_that_starts_again_doubts_a_listing_and_then_holds_its_deletions() {
    let mut rig = Rig::with(100, 1);
    rig.restart();
    assert_eq!(rig.lost(), None);
    assert!(!rig.list(&some(0..1, 1), false), "doubted");
    assert_eq!((rig.told.len(), rig.lost()), (100, None));
    assert!(rig.list(&some(0..1, 1), true));
    assert_eq!((rig.told.len(), rig.lost()), (100, Some([99, 99])));
}

#[test]
fn held_losses_stay_held_until_the_same_time() {
    let mut rig = Rig::holding();
    rig.pass(MINUTES_30 / 2);
    rig.restart();
    assert_eq!(rig.lost(), Some([100, 100]), "before the next listing");
    // Few of those that were held: held still, and not judged anew.
    assert!(rig.list(&some(0..80, 1), false));
    assert_eq!((rig.told.len(), rig.lost()), (100, Some([20, 20])));
    rig.pass(MINUTES_30 / 2 - SETTLE);
    assert_eq!(rig.told.len(), 100);
    rig.pass(SETTLE);
    assert_eq!((rig.told.len(), rig.lost()), (80, None));
}

#[test]
fn losses_that_are_confirmed_between_the_listings_of_two_sources_are_gone_at_once() {
    let mut rig = Rig::holding();
    rig.restart();
    // The next listing has begun, and nothing has come yet.
    rig.guard.begin(rig.now);
    rig.confirm();
    assert_eq!((rig.told.len(), rig.lost()), (0, None));
    assert!(rig.list(&some(0..3, 1), false), "nothing is missing");
    assert_eq!((rig.told.len(), rig.lost()), (3, None));
}

#[test]
fn a_slice_that_has_lost_endpoints_is_told_by_a_confirmation_between_two_sources() {
    let mut rig = Rig::with(100, 2);
    assert!(!rig.list(&some(0..100, 1), false));
    assert!(rig.list(&some(0..100, 1), true));
    assert_eq!((rig.ready(), rig.lost()), (200, Some([0, 100])));
    rig.restart();
    rig.confirm();
    assert_eq!((rig.ready(), rig.lost()), (100, None));
}

#[test]
fn a_listing_that_brings_objects_is_waited_for_by_a_confirmation() {
    let mut rig = Rig::holding();
    rig.restart();
    rig.guard.begin(rig.now);
    let (first, facts) = (key("o0"), Facts::default());
    let news = (first.to_string(), Some(0));
    let told = rig.guard.listed(first, Some(facts), news, rig.now);
    assert!(told.is_none(), "fewer endpoints");
    rig.confirm();
    assert_eq!((rig.told.len(), rig.lost()), (100, None));
    let verdict = rig.guard.complete(false, news_of, rig.now);
    assert!(matches!(verdict, Verdict::Settled { kept, .. } if kept.is_empty()));
}

#[test]
fn objects_that_return_with_the_next_source_end_the_hold() {
    let mut rig = Rig::holding();
    rig.restart();
    assert!(rig.list(&some(0..100, 1), false));
    assert_eq!((rig.told.len(), rig.lost()), (100, None));
    assert_eq!(rig.guard.due(rig.now), None);
    assert!(!rig.list(&[], false), "a new loss is doubted");
}
