// SPDX-License-Identifier: Apache-2.0

//! The quota of ready endpoints of a cluster.

use portolan_catalog::Reason;

use super::rules::World;
use super::*;

/// A policy that lets `b` export so many endpoints.
fn quota(endpoints: u32) -> Objects {
    let of_b = format!("quota: {{endpoints: {endpoints}}}");
    policies_of("{}", [""; 3], ["", &of_b, ""], &[])
}

/// A Service of `b` with pods from this number on.
fn dated(name: &str, created: i64) -> ObjectChange {
    put(Object::ServiceExport(ServiceExport {
        requested: true,
        created: Some(created),
        service: Some(Arc::new(single())),
        ..ServiceExport::new(key("b", name))
    }))
}

fn pods(name: &str, ready: impl IntoIterator<Item = u8>, unready: u8) -> ObjectChange {
    let ready = ready
        .into_iter()
        .map(|number| Endpoint::new(pod("b", number)));
    let unready = (0..unready).map(|number| Endpoint {
        ready: false,
        ..Endpoint::new(pod("b", 200 + number))
    });
    slice("b", name, ready.chain(unready).collect())
}

/// `web` of `b` with 7 pods, as in [`World`], and the newer `api` with 4.
fn world(endpoints: u32) -> World {
    let mut world = World::of(quota(endpoints));
    world.apply([
        dated("web", 1),
        put(Object::Service(service("b", "api"))),
        dated("api", 2),
        pods("api", 11..=14, 0),
    ]);
    world
}

/// The numbers of endpoints of the imports `web` and `api` in `a` that are of `b`.
fn used(world: &World) -> [usize; 2] {
    ["web", "api"].map(|name| {
        let record = world.tables().import("a", name);
        let all = record.into_iter().flat_map(|record| &record.destinations);
        let of_b = all.filter(|one| one.address.to_string().starts_with("10.2."));
        of_b.count()
    })
}

#[test]
fn the_newest_exports_wait_until_the_older_ones_leave_them_room() {
    let mut world = world(11);
    assert_eq!(used(&world), [7, 4]);
    world.policies(quota(10));
    assert_eq!(used(&world), [7, 0]);
    world.apply([pods("web", 1..=6, 1)]);
    assert_eq!(used(&world), [6, 4], "its import has its address at once");
    world.apply([pods("web", 1..=7, 0)]);
    assert_eq!(used(&world), [7, 0]);
    world.apply([pods("api", 11..=13, 1)]);
    assert_eq!(used(&world), [7, 3]);
    // Others are nothing that it could use.
    let foreign = Endpoint::new([10, 9, 0, 1].into());
    let web = (1..=7).map(|number| Endpoint::new(pod("b", number)));
    world.apply([slice("b", "web", web.chain([foreign]).collect())]);
    assert_eq!(used(&world), [7, 3]);
    world.apply([dated("api", 0), pods("api", 11..=20, 0)]);
    assert_eq!(used(&world), [0, 10], "it is the older one now");
    world.policies(quota(9));
    assert_eq!(used(&world), [0, 0]);
}

#[test]
fn a_quota_decides_as_soon_as_there_are_more_endpoints_than_it_admits() {
    let mut world = world(10);
    assert_eq!(used(&world), [7, 0]);
    // Ten of all endpoints of the cluster need no count.
    world.apply([pods("web", 1..=6, 0)]);
    assert_eq!(used(&world), [6, 4]);
    // Those of a Service that is not exported are no part of it.
    world.apply([pods("other", 21..=60, 0)]);
    assert_eq!(used(&world), [6, 4]);
    world.apply([pods("web", 1..=7, 0)]);
    assert_eq!(used(&world), [7, 0]);
    world.apply([pods("other", [], 0)]);
    assert_eq!(used(&world), [7, 0]);
    world.apply([pods("api", 11..=13, 0)]);
    assert_eq!(used(&world), [7, 3]);
    world.apply([pods("api", 11..=14, 0)]);
    assert_eq!(used(&world), [7, 0]);
}

#[test]
fn only_the_first_endpoints_of_a_large_export_count() {
    let mut world = world(8);
    assert_eq!(used(&world), [7, 0]);
    let bounded = policies_of(
        "{quota: {endpointsPerExport: 4}}",
        [""; 3],
        ["", "quota: {endpoints: 8}", ""],
        &[],
    );
    world.policies(bounded);
    assert_eq!(used(&world), [4, 4]);
}

#[test]
fn a_refused_export_is_named_with_the_field() {
    let world = world(10);
    let why = "spec.quota.endpoints: with the older exports it has more ready endpoints than 10";
    let object = super::super::export::object(&key("b", "api"));
    let [problem] = &world.problems()[&object][..] else {
        panic!("{:?}", world.problems())
    };
    assert_eq!(problem.reason, Reason::TooMany);
    assert_eq!(problem.message, format!("QuotaExceeded: {why}"));
    let name = import_name(&key("b", "api@clusterset")).unwrap();
    let shown = world.pipeline().show_export(&"b".into(), &name).unwrap();
    assert_eq!(shown.ready.as_deref(), Some("QuotaExceeded"));
    for (cluster, answer) in &shown.importers {
        assert_eq!(*answer, Err(format!("not exported: {why}")), "{cluster}");
    }
    // The wider policy is planned with numbers of its own.
    let planned = world.planned(quota(11));
    let planned: Vec<_> = planned
        .iter()
        .map(|one| (&*one.cluster, &*one.name, one.after.is_some()))
        .collect();
    let admitted = CLUSTERS.map(|cluster| (cluster, "ns/api", true));
    assert_eq!(planned, admitted);
    let narrower = world.planned(quota(6));
    assert_eq!(narrower.len(), 3);
    let web = "not exported: spec.quota.endpoints: with the older exports it has more ready endpoints than 6";
    for one in &narrower {
        assert_eq!(one.name, "ns/web");
        assert_eq!(one.refused, [("b".to_owned(), web.to_owned())].into());
    }
}
