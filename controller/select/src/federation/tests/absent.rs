// SPDX-License-Identifier: Apache-2.0

//! Clusters that are waited for: members that are away, and clusters that are no members yet, since their Clusters may
//! be in a policy that cannot be read.

use portolan_catalog::{Kind, ObjectRef};
use portolan_mcs::Awaited;

use super::*;

#[test]
fn what_is_kept_for_a_cluster_that_is_no_member_stays_while_it_is_waited_for() {
    let import = key("a", "web@clusterset");
    let kept = Kept {
        winner: Some("z".into()),
        clusters: Arc::new(["b".into(), "z".into()].into()),
        ..Kept::default()
    };
    let mut pipeline = Pipeline::default();
    pipeline.set_kept([(import.clone(), kept.clone())].into());
    pipeline.set_policies(policies("{}", &[]));
    pipeline.await_absent(["z".into()].into());
    // Others are given up meanwhile.
    pipeline.give_up(["c".into()].into());
    pipeline.set_states(full());
    for cluster in CLUSTERS {
        pipeline.apply(namespace(cluster));
    }
    pipeline.apply(export("b", "web", facts()));
    pipeline.flush();
    assert_eq!(pipeline.kept()[&import], kept);

    pipeline.await_absent(BTreeSet::new());
    assert!(pipeline.is_dirty());
    pipeline.flush();
    let left = Kept {
        winner: Some("b".into()),
        clusters: Arc::new(["b".into()].into()),
        ..Kept::default()
    };
    assert_eq!(pipeline.kept()[&import], left);
}

/// The winner of the import of `web` in `a`, once `a` exports it no more.
fn winner_after(pipeline: &mut Pipeline) -> Option<Arc<str>> {
    let gone = ObjectRef {
        kind: Kind::ServiceExport,
        key: key("a", "web"),
    };
    pipeline.apply(ObjectChange::Delete(gone));
    pipeline.flush();
    pipeline.kept()[&key("a", "web@clusterset")].winner.clone()
}

/// `web` of `a` and `b`, which have come; `c` has not. These clusters exported it before.
fn without_c(before: &[&str]) -> Pipeline {
    let kept = Kept {
        winner: Some("a".into()),
        clusters: Arc::new(before.iter().map(|id| Arc::from(*id)).collect()),
        ..Kept::default()
    };
    let mut pipeline = Pipeline::default();
    if !before.is_empty() {
        pipeline.set_kept([(key("a", "web@clusterset"), kept)].into());
    }
    pipeline.set_policies(policies("{}", &[]));
    let mut states = full();
    states.remove("c");
    pipeline.set_states(states);
    for cluster in ["a", "b"] {
        pipeline.apply(namespace(cluster));
        pipeline.apply(export(cluster, "web", facts()));
    }
    pipeline.flush();
    pipeline
}

#[test]
fn a_member_that_is_away_holds_up_no_winner_of_what_it_does_not_export() {
    let winner = winner_after(&mut without_c(&["a", "b"]));
    assert_eq!(winner.as_deref(), Some("b"));
    // Its export may be the oldest.
    let winner = winner_after(&mut without_c(&["a", "b", "c"]));
    assert_eq!(winner.as_deref(), Some("a"));
}

#[test]
fn a_new_import_waits_for_a_member_that_never_is_lost_for_a_while() {
    let mut pipeline = without_c(&[]);
    let import = key("a", "web@clusterset");
    assert_eq!(pipeline.kept()[&import].winner, None);
    pipeline.expect_no_more(["c".into()].into());
    assert_eq!(pipeline.kept()[&import].winner.as_deref(), Some("a"));
}

#[test]
fn what_a_member_that_is_away_exports_is_known_by_what_is_kept() {
    let awaited = Awaited {
        ids: ["c".into()].into(),
        ..Awaited::default()
    };
    for (before, is_concerned) in [(&["a", "b"][..], false), (&["a", "b", "c"][..], true)] {
        let mut pipeline = without_c(before);
        pipeline.apply(export("a", "api", facts()));
        pipeline.flush();
        let expected: BTreeSet<&str> = is_concerned.then_some("web").into_iter().collect();
        for found in [
            pipeline.awaited_exports(&awaited.ids),
            pipeline.awaited_imports(&"a".into(), &awaited),
        ] {
            let names: BTreeSet<&str> = found.iter().map(|name| &*name.name).collect();
            assert_eq!(names, expected);
        }
    }
}
