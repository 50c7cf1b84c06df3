// SPDX-License-Identifier: Apache-2.0

//! Each reason why a Service is not visible, and that the first one is named.

use std::net::IpAddr;

use super::*;
use crate::vip::{Allocation, VipProblem};

/// Everything that can be in the way of the export `shop/web` of `b` to `a`.
struct Obstacles {
    requested: bool,
    service: Option<ServiceType>,
    policies: Vec<(&'static str, &'static str)>,
    namespace: bool,
    max_exports: u32,
    unreachable: Option<String>,
    ranges: Families,
    vips: Option<Allocation>,
    lost: bool,
}

impl Obstacles {
    fn none() -> Self {
        Self {
            requested: true,
            service: Some(ServiceType::ClusterIp),
            policies: Vec::new(),
            namespace: true,
            max_exports: 10,
            unreachable: None,
            ranges: Families::from_iter([Family::V4]),
            vips: None,
            lost: false,
        }
    }

    fn reason(&self) -> Option<String> {
        let candidate = Candidate {
            requested: self.requested,
            service: self.service,
            ..service()
        };
        let policies = policies("{}", &self.policies);
        let mut a = member("a", &[]);
        a.1.ranges = self.ranges;
        if !self.namespace {
            a.1.namespaces.clear();
        }
        let mut b = member("b", &[("shop/web", candidate)]);
        b.1.max_exports = self.max_exports;
        b.1.unreachable.clone_from(&self.unreachable);
        b.1.lost = self.lost;
        let world = policies.world([a, b]);
        let found = imports(&world);
        let name = import_name("shop/web");
        let vips = self.vips.as_ref();
        let explained = found.explain(&world, &"a".into(), &"b".into(), &name, vips);
        explained.invisible.map(|reason| reason.to_string())
    }
}

/// Function that puts an obstacle there, and the obstacle's text.
type Obstacle = (fn(&mut Obstacles), &'static str);

/// In the order in which they are named.
const ALL: [Obstacle; 12] = [
    (
        |all| all.requested = false,
        "not exported: no ServiceExport",
    ),
    (|all| all.service = None, "not exported: no such Service"),
    (
        |all| all.service = Some(ServiceType::ExternalName),
        "not exported: a Service of this type cannot be",
    ),
    (
        |all| {
            all.policies.push((
                "ExportPolicy",
                "{action: Deny, services: {namespaces: [shop]}, priority: 9}",
            ))
        },
        "not exported: denied by ExportPolicy p",
    ),
    (
        |all| all.policies.push(("ExportPolicy", "{to: {names: [c]}}")),
        "not exported to this cluster: ExportPolicy p",
    ),
    (
        |all| {
            all.policies.push((
                "ImportPolicy",
                "{from: {matchLabels: {name: b}}, action: Deny}",
            ))
        },
        "not imported: denied by ImportPolicy p",
    ),
    (
        |all| all.namespace = false,
        "not imported: no namespace shop in this cluster",
    ),
    (
        |all| all.max_exports = 0,
        "not exported: spec.quota.exports: 0 older exports are the most",
    ),
    (
        |all| all.unreachable = Some("10.0.0.0/8 overlaps".into()),
        "not imported: 10.0.0.0/8 overlaps",
    ),
    (
        |all| all.ranges = Families::NONE,
        "not imported: no clusterSetIPs of its families",
    ),
    (
        |all| {
            all.vips = Some(Allocation {
                ips: Vec::new(),
                problems: vec![VipProblem::Full(Family::V4)],
            });
        },
        "not imported: no address of family IPv4 is left in clusterSetIPs",
    ),
    (|all| all.lost = true, "the cluster is lost"),
];

#[test]
fn each_obstacle_is_named_and_of_several_the_first() {
    assert_eq!(Obstacles::none().reason(), None);
    for (index, (put, expected)) in ALL.iter().enumerate() {
        let mut alone = Obstacles::none();
        put(&mut alone);
        let reason = alone.reason().unwrap();
        assert!(reason.starts_with(expected), "{reason}: {expected}");
        // The later ones first, since an earlier one may be another value of the same fact.
        let mut with_later = Obstacles::none();
        for (put, _) in ALL[index..].iter().rev() {
            put(&mut with_later);
        }
        let reason = with_later.reason().unwrap();
        assert!(reason.starts_with(expected), "{reason}: {expected}");
    }
}

#[test]
fn defaults_that_deny_are_named() {
    for (set, expected) in [
        (
            "{exports: {default: Deny}}",
            "not exported: denied by the default of the ClusterSet",
        ),
        (
            "{imports: {default: Deny}}",
            "not imported: denied by the default of the ClusterSet",
        ),
    ] {
        let policies = policies(set, &[]);
        let world = policies.world([member("a", &[]), member("b", &[("shop/web", service())])]);
        let found = imports(&world);
        let (a, b) = (Arc::from("a"), Arc::from("b"));
        let reason = |importing| {
            let explained = found.explain(&world, importing, &b, &import_name("shop/web"), None);
            explained.invisible.map(|reason| reason.to_string())
        };
        assert_eq!(reason(&a).as_deref(), Some(expected));
        // A cluster imports what it exports itself.
        assert_eq!(reason(&b).is_none(), set.contains("imports"));
    }
}

#[test]
fn the_exporting_cluster_sees_its_export_whatever_the_policies_of_others_say() {
    let policies = policies(
        "{}",
        &[
            ("ExportPolicy", "{to: {names: [c]}}"),
            ("ImportPolicy", "{action: Deny}"),
        ],
    );
    let mut b = member("b", &[("shop/web", service())]);
    b.1.unreachable = Some("an overlap".into());
    let world = policies.world([member("a", &[]), b]);
    assert_eq!(listed(&imports(&world)), ["b shop/web: b shop/web"]);
}

#[test]
fn one_address_of_two_families_is_enough() {
    let ip: IpAddr = [10, 112, 0, 1].into();
    let vips = Allocation {
        ips: vec![ip],
        problems: vec![VipProblem::Full(Family::V6)],
    };
    let obstacles = Obstacles {
        vips: Some(vips),
        ..Obstacles::none()
    };
    assert_eq!(obstacles.reason(), None);
}

#[test]
fn headless_services_need_no_range_and_no_order_of_clusters() {
    let mut headless = service();
    headless.service = Some(ServiceType::Headless);
    headless.export.kind = ImportKind::Headless;
    let policies = policies("{}", &[]);
    let mut a = member("a", &[("shop/web", headless.clone())]);
    a.1.ranges = Families::NONE;
    let found = imports(&policies.world([a]));
    let here = &found.imports["a"][&import_name("shop/web")];
    assert!(here.families.is_empty() && !here.is_unsupported());
    headless.export.cluster_selectors = vec![portolan_policy::Tier::Rest];
    let found = imports(&policies.world([member("a", &[("shop/web", headless)])]));
    let status = &found.exports["a"][&import_name("shop/web")];
    assert_eq!(
        (status.valid, status.ready),
        (Valid::InvalidServiceType, Ready::Failed)
    );
    assert!(found.imports["a"].is_empty());
}
