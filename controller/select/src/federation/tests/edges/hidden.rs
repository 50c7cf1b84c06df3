// SPDX-License-Identifier: Apache-2.0

//! Plans that an edge is not sent: whoever has captured it reads what its cluster imports, and nothing else.

use super::*;

/// The clusters whose Services the edge of a cluster has plans of.
fn exporters(set: &Set, cluster: &str) -> Vec<String> {
    let mut book = PlanBook::new(cluster.into());
    let all = set.centre.plan_changes(&mut book, &mut Default::default());
    let services = all.services.keys();
    services.map(|export| export.cluster.to_string()).collect()
}

#[test]
fn an_edge_is_sent_nothing_of_what_its_cluster_does_not_import() {
    let mut set = begun();
    assert_eq!(exporters(&set, "a"), ["b", "c"]);
    // Nobody imports from `b`.
    set.take(Step::Policies(3));
    taken(&mut set, vec![]);
    assert_eq!(exporters(&set, "a"), ["c"]);
    assert_eq!(exporters(&set, "c"), ["a"]);
    let other = slice("b", "s0", vec![Endpoint::new(pod("b", 1))]);
    let plans = plans_of(&mut set, Step::Object(Box::new(other)));
    assert_eq!([plans[0], plans[2]], [[0; 3]; 2]);
}
