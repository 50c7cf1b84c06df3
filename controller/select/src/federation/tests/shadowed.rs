// SPDX-License-Identifier: Apache-2.0

//! TrafficPolicies that select an import and do not apply.

use super::rules::World;

#[test]
fn an_import_names_the_policies_that_another_one_comes_before() {
    let local = "{priority: -1, tiers: [{clusters: [{local: true}]}, {rest: true}]}";
    let close = "{services: {names: [web]}, tiers: [{clusters: [{names: [b]}]}, {rest: true}]}";
    let both = [("TrafficPolicy", local), ("TrafficPolicy", close)];
    let shown = World::new("{}", &both).import("a");
    assert!(
        shown.policy.starts_with("TrafficPolicy p1: "),
        "{}",
        shown.policy
    );
    assert_eq!(shown.shadowed, ["p0"]);
    let alone = World::new("{}", &both[..1]).import("a");
    assert_eq!(alone.shadowed, [""; 0]);
}
