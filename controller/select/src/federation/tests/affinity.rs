// SPDX-License-Identifier: Apache-2.0

//! Affinity that ends at gateways.

use portolan_catalog::{Condition, ExportPort, ImportSpec, OwnImport, ServiceImport};
use portolan_mcs::{Action, Awaited};

use super::rules::World;
use super::*;

/// `b` is behind gateways.
const BEHIND: [&str; 3] = [
    "nodeCIDRs: [192.168.1.0/24]",
    "mode: Gateway, nodeCIDRs: [192.168.2.0/24], gateway: {ports: 20000-20100}",
    "",
];

fn world(networks: [&str; 3], affinity_seconds: Option<u32>, more: &[(&str, &str)]) -> World {
    let mut world = World::of(policies_with("{}", networks, more));
    let facts = ServiceFacts {
        affinity_seconds,
        ..single()
    };
    world.apply(CLUSTERS.map(|cluster| export(cluster, "web", facts.clone())));
    world.apply([gateway("b", "n1", true)]);
    world
}

#[test]
fn importers_by_gateways_are_told_that_affinity_ends_there() {
    let ends = |world: &World| CLUSTERS.map(|cluster| world.import(cluster).affinity_ends);
    let by_gateways = world(BEHIND, Some(600), &[]);
    // `c` has no nodeCIDRs, so it does not import from there; `b` itself cannot reach the Flat ones.
    let of_a = [vec!["b".to_owned()], vec![], vec![]];
    assert_eq!(ends(&by_gateways), of_a);
    let none: [Vec<String>; 3] = Default::default();
    assert_eq!(ends(&world(BEHIND, None, &[])), none, "no affinity");
    assert_eq!(ends(&world([""; 3], Some(600), &[])), none, "no gateways");
    let unused = "{tiers: [{clusters: [{names: [a], weight: 1}, {names: [b], weight: 0}]}]}";
    let unused = world(BEHIND, Some(600), &[("TrafficPolicy", unused)]);
    assert_eq!(ends(&unused), none, "no connection goes there");
    let rest = "{tiers: [{clusters: [{local: true}]}, {rest: true}]}";
    let rest = world(BEHIND, Some(600), &[("TrafficPolicy", rest)]);
    assert_eq!(ends(&rest), of_a, "some do when its own pods are down");
}

#[test]
fn the_condition_is_written_where_affinity_ends() {
    let partial = |affinity_seconds| {
        let mut world = world(BEHIND, affinity_seconds, &[]);
        let here = world.import("a");
        let own = OwnImport {
            winner: "a".into(),
            spec: Some(ImportSpec {
                ports: vec![ExportPort {
                    name: "http".into(),
                    protocol: Protocol::Tcp,
                    port: 80,
                    app_protocol: None,
                }],
                ips: here.vips,
                families: vec![Family::V4],
                affinity_seconds,
                ..ImportSpec::default()
            }),
            conditions: Vec::<Condition>::new(),
            ..OwnImport::default()
        };
        world.apply([put(Object::ServiceImport(ServiceImport {
            key: key("a", "web"),
            uid: "u".into(),
            generation: 1,
            created: None,
            own: Some(Box::new(own)),
        }))]);
        let writes = world
            .pipeline()
            .mcs_writes(&"a".into(), &Awaited::default());
        let mut statuses = writes.iter().filter_map(|write| match &write.action {
            Action::ApplyStatus(object) if object["kind"] == "ServiceImport" => Some(object),
            _ => None,
        });
        let conditions = &statuses.next().unwrap()["status"]["conditions"];
        let conditions = conditions.as_array().unwrap().iter();
        let kinds = conditions.map(|one| format!("{} {}", one["type"], one["status"]));
        kinds.collect::<Vec<_>>()
    };
    let ready = "\"Ready\" \"True\"";
    assert_eq!(partial(Some(600)), [ready, "\"AffinityPartial\" \"True\""]);
    assert_eq!(partial(None), [ready]);
}
