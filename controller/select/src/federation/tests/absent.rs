// SPDX-License-Identifier: Apache-2.0

//! Clusters that are no members yet: their Clusters may be in a policy that cannot be read.

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
