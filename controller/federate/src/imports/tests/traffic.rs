// SPDX-License-Identifier: Apache-2.0

//! Tiers of imports from policies and from wishes of owners.

use portolan_policy::spec::SpillOver;
use portolan_policy::{Because, Threshold};

use super::*;
use crate::shares::Tier;

fn alike(ids: &[&str]) -> Tier {
    Tier::Alike(ids.iter().map(|id| Arc::from(*id)).collect())
}

fn weighted(weights: &[(&str, u16)]) -> Tier {
    let weights = weights.iter();
    Tier::Weighted(
        weights
            .map(|(id, weight)| (Arc::from(*id), *weight))
            .collect(),
    )
}

/// The traffic to `shop/web` in cluster `a`, exported by all three with these candidates.
fn traffic(set: &str, specs: &[(&str, &str)], candidates: [Candidate; 3]) -> Traffic {
    let policies = policies(set, specs);
    let [a, b, c] = candidates;
    let world = policies.world([
        member("a", &[("shop/web", a)]),
        member("b", &[("shop/web", b)]),
        member("c", &[("shop/web", c)]),
    ]);
    let here = &imports(&world).imports["a"][&import_name("shop/web")];
    Traffic::clone(&here.traffic)
}

fn plain() -> [Candidate; 3] {
    [service(), service(), service()]
}

const LOCAL_FIRST: &str =
    "{services: {}, priority: -1, tiers: [{clusters: [{local: true}]}, {rest: true}]}";
const SPLIT: &str = "{services: {names: [web]}, tiers: [{clusters: [{names: [b], weight: 70}, {names: [c], weight: 30}]}], minHealthy: 70%, panicThreshold: 20, maxEndpoints: 12, scheduler: wlc}";

#[test]
fn without_anything_all_clusters_are_alike() {
    let found = traffic("{}", &[], plain());
    assert_eq!(found.reason, TrafficReason::Alike);
    assert_eq!(found.tiers, [alike(&["id-a", "id-b", "id-c"])]);
    assert_eq!(
        (found.min_healthy, found.max_endpoints),
        (Threshold::Number(1), 256)
    );
}

#[test]
fn the_closest_policy_gives_tiers_and_thresholds() {
    let specs = [("TrafficPolicy", LOCAL_FIRST), ("TrafficPolicy", SPLIT)];
    let found = traffic("{}", &specs, plain());
    assert_eq!(found.tiers, [weighted(&[("id-b", 70), ("id-c", 30)])]);
    assert_eq!(found.min_healthy, Threshold::Percent(70));
    assert_eq!(found.spill_over, SpillOver::Proportional);
    assert_eq!((found.panic_threshold, found.max_endpoints), (20, 12));
    assert_eq!(found.scheduler, Some(portolan_policy::SchedulerName::Wlc));
    assert_eq!(found.shadowed, ["p1"]);
    let found = traffic("{}", &specs[..1], plain());
    assert_eq!(
        found.reason,
        TrafficReason::Policy(Because::Only("p1".into()))
    );
    assert_eq!(found.tiers, [alike(&["id-a"]), alike(&["id-b", "id-c"])]);
}

#[test]
fn the_policys_scheduler_comes_first() {
    let scheduler = |specs, of_service, affinity| {
        let traffic = traffic("{}", specs, plain());
        let endpoint = |last| crate::shares::Endpoint {
            address: ([10, 0, 0, last], 80).into(),
            weight: u32::from(last),
            usable: true,
        };
        let cluster = crate::shares::Cluster {
            endpoints: vec![endpoint(1), endpoint(2)],
            ready: 2,
            expected: 2,
            step: 20,
            ..Default::default()
        };
        let record = ImportRecord {
            importing: "id-a",
            key: b"key",
            affinity,
            scheduler: of_service,
        };
        let shares = traffic.shares(record, &BTreeMap::from([("id-b".into(), cluster)]));
        shares.scheduler
    };
    let policy = &[("TrafficPolicy", SPLIT)][..];
    let named = |name: &str| Some(name.to_owned());
    assert_eq!(scheduler(policy, Some("lc"), true), named("wlc"));
    assert_eq!(scheduler(&[], Some("lc"), true), named("lc"));
    assert_eq!(scheduler(&[], None, true), named("mh"));
    assert_eq!(scheduler(&[], None, false), named("wrr"));
}

fn with_hints() -> [Candidate; 3] {
    let tiers = portolan_policy::read(&[File {
        name: "p.yaml",
        text: "apiVersion: portolan.dev/v1alpha1\nkind: TrafficPolicy\nmetadata: {name: x}\nspec: {tiers: [{clusters: [{names: [c]}]}]}\n",
    }]);
    let tiers = &tiers.objects.traffic["x"].tiers;
    plain().map(|mut candidate| {
        candidate.weight = Some(5);
        candidate.export.cluster_selectors.clone_from(tiers);
        candidate
    })
}

#[test]
fn owners_are_heard_where_no_policy_applies() {
    let found = traffic("{}", &[], with_hints());
    assert_eq!(found.reason, TrafficReason::ClusterSelectors);
    assert_eq!(found.tiers, [alike(&["id-c"]), alike(&["id-a", "id-b"])]);
    assert_eq!(found.spill_over, SpillOver::AllAtOnce);
    let weights = plain().map(|candidate| Candidate {
        weight: Some(5),
        ..candidate
    });
    let found = traffic("{}", &[], weights.clone());
    assert_eq!(found.reason, TrafficReason::Weights);
    assert_eq!(
        found.tiers,
        [weighted(&[("id-a", 5), ("id-b", 5), ("id-c", 5)])]
    );
    // One without a weight, and no weights count.
    let [a, b, _] = weights;
    let found = traffic("{}", &[], [a, b, service()]);
    assert_eq!(found.reason, TrafficReason::Alike);
    for (set, specs) in [
        ("{ownerHints: Ignore}", &[][..]),
        ("{}", &[("TrafficPolicy", "{}")][..]),
    ] {
        let found = traffic(set, specs, with_hints());
        assert_eq!(found.tiers, [alike(&["id-a", "id-b", "id-c"])]);
    }
}
