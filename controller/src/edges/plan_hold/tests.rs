// SPDX-License-Identifier: Apache-2.0

//! Tests of held losses, and plans for tests.

use std::time::Duration;

use portolan_federate::imports::{ImportName, Traffic, TrafficReason};
use portolan_federate::merge::Affinity;
use portolan_federate::plans::{ExportName, PlanEndpoint, PlanPort, PortPlan};
use portolan_model::{Protocol, Scheduling};
use portolan_policy::Threshold;
use portolan_policy::spec::SpillOver;

use super::*;

const TIME: Duration = Duration::from_secs(1_800);

fn name(number: u8) -> ImportName {
    ImportName {
        namespace: "shop".into(),
        name: format!("web-{number}").into(),
    }
}

fn export(cluster: &str, number: u8) -> ExportName {
    ExportName {
        cluster: cluster.into(),
        service: name(number),
    }
}

/// An import from these clusters.
fn import(number: u8, clusters: &[&str]) -> ImportPlan {
    let sources = clusters.iter();
    let sources = sources.map(|cluster| (Arc::from(*cluster), name(number)));
    ImportPlan {
        ips: vec![[10, 112, 0, number].into()],
        winner: clusters[0].into(),
        ports: Vec::new(),
        affinity: Affinity::None,
        internal_local: false,
        traffic_distribution: None,
        sources: sources.collect(),
        nodes: None,
        traffic: Traffic {
            reason: TrafficReason::Alike,
            shadowed: Vec::new(),
            tiers: Vec::new(),
            min_healthy: Threshold::Number(1),
            spill_over: SpillOver::AllAtOnce,
            panic_threshold: 0,
            max_endpoints: 64,
            scheduler: None,
        },
        scheduling: Scheduling::default(),
        drain_seconds: None,
    }
}

/// A Service with so many endpoints.
fn service(endpoints: u8) -> Arc<ServicePlan> {
    let endpoint = PlanEndpoint {
        ready: true,
        serving: true,
        terminating: false,
        weight: 1,
        zone: None,
    };
    let address = |last| ([10, 1, 0, last], 8080).into();
    let endpoints = (0..endpoints).map(|last| (address(last), endpoint.clone()));
    let port = PlanPort {
        name: "".into(),
        protocol: Protocol::Tcp,
        number: 80,
    };
    let plan = PortPlan {
        endpoints: endpoints.collect(),
        ..PortPlan::default()
    };
    Arc::new(ServicePlan {
        by_gateways: false,
        ports: [(port, plan)].into(),
    })
}

/// So many imports from two clusters, of which `b` has an endpoint for each.
pub(crate) fn plans(count: u8) -> PlanChanges {
    let mut plans = PlanChanges::default();
    for number in 0..count {
        let import = import(number, &["a", "b"]);
        plans.imports.insert(name(number), Some(import));
        plans.services.insert(export("b", number), Some(service(1)));
    }
    plans
}

/// The deletion of everything in plans.
pub(crate) fn gone(plans: &PlanChanges) -> PlanChanges {
    let imports = plans.imports.keys();
    let services = plans.services.keys();
    PlanChanges {
        imports: imports.map(|name| (name.clone(), None)).collect(),
        services: services.map(|name| (name.clone(), None)).collect(),
        ..PlanChanges::default()
    }
}

fn size(count: usize) -> TableSize {
    TableSize {
        records: count,
        endpoints: count,
    }
}

/// A guard that holds all of 100 imports.
fn holding(now: Instant) -> PlanHold {
    let mut hold = PlanHold::new(GuardConfig::default());
    let passed = hold.replace(gone(&plans(100)), plans(100), size(100), now);
    assert!(passed.is_empty(), "{passed:?}");
    hold
}

#[test]
fn a_stream_that_lacks_too_much_deletes_nothing() {
    let now = Instant::now();
    let mut hold = holding(now);
    let held = hold.held().unwrap();
    let all = Size {
        objects: 100,
        ready: 100,
    };
    assert_eq!((held.lost, held.of), (all, all));
    assert_eq!(held.until, Some(now + TIME));
    // Another stream that lacks them too does not restart the time.
    let later = now + TIME / 2;
    let passed = hold.replace(
        PlanChanges::default(),
        PlanChanges::default(),
        size(0),
        later,
    );
    assert!(passed.is_empty());
    assert_eq!(hold.held(), Some(held));
    assert_eq!(hold.release(), gone(&plans(100)));
    assert_eq!(hold.held(), None);
}

#[test]
fn small_losses_and_losses_of_a_stream_pass() {
    let now = Instant::now();
    let mut hold = PlanHold::new(GuardConfig::default());
    let few = gone(&plans(49));
    let passed = hold.replace(few.clone(), plans(100), size(100), now);
    assert_eq!(passed, few);
    let all = gone(&plans(100));
    assert_eq!(hold.follow(all.clone()), all);
    assert_eq!(hold.held(), None);
}

#[test]
fn an_import_that_lost_a_cluster_stays_with_the_endpoints_of_it() {
    let now = Instant::now();
    let mut hold = PlanHold::new(GuardConfig::default());
    // The centre knows nothing of cluster `b` yet.
    let mut told = gone(&plans(100));
    for (name, plan) in (0..100).map(|number| (name(number), import(number, &["a"]))) {
        told.imports.insert(name, Some(plan));
    }
    let passed = hold.replace(told, plans(100), size(100), now);
    assert!(passed.is_empty());
    let lost = hold.held().unwrap().lost;
    assert_eq!((lost.objects, lost.ready), (0, 100));
    // A change that lacks the cluster still is held, as one that has it is not.
    let mut change = PlanChanges::default();
    let ports = ImportPlan {
        internal_local: true,
        ..import(1, &["a"])
    };
    change.imports.insert(name(1), Some(ports));
    assert!(hold.follow(change.clone()).is_empty());
    let whole = ImportPlan {
        internal_local: true,
        ..import(1, &["a", "b"])
    };
    change.imports.insert(name(1), Some(whole));
    change.services.insert(export("b", 1), Some(service(2)));
    assert_eq!(hold.follow(change.clone()), change);
    assert_eq!(hold.held().unwrap().lost.ready, 99);
}

#[test]
fn what_returns_is_held_no_longer() {
    let mut hold = holding(Instant::now());
    let new = {
        let mut new = PlanChanges::default();
        new.imports.insert(name(200), Some(import(200, &["c"])));
        new
    };
    assert_eq!(hold.follow(new.clone()), new);
    let returned = plans(100);
    assert_eq!(hold.follow(returned.clone()), returned);
    assert_eq!(hold.held(), None);
    // From now on losses of the stream are believed.
    assert_eq!(hold.follow(gone(&returned)), gone(&returned));
}

#[test]
fn a_hold_is_not_measured_by_one_before_it() {
    let now = Instant::now();
    let mut hold = PlanHold::new(GuardConfig::default());
    let passed = hold.replace(gone(&plans(250)), plans(250), size(1000), now);
    assert!(passed.is_empty(), "{passed:?}");
    assert_eq!(hold.follow(plans(250)), plans(250));
    assert_eq!(hold.held(), None);
    // By now there are fewer.
    let passed = hold.replace(gone(&plans(60)), plans(100), size(100), now);
    assert!(passed.is_empty(), "{passed:?}");
    let held = hold.held().unwrap();
    assert_eq!((held.lost.objects, held.of.objects), (60, 100));
}

#[test]
fn an_import_whose_address_another_one_has_is_let_go() {
    let mut hold = holding(Instant::now());
    let mut change = PlanChanges::default();
    let other = ImportPlan {
        ips: vec![[10, 112, 0, 7].into()],
        ..import(200, &["c"])
    };
    change.imports.insert(name(200), Some(other));
    let mut expected = change.clone();
    expected.imports.insert(name(7), None);
    assert_eq!(hold.follow(change), expected);
    assert_eq!(hold.held().unwrap().lost.objects, 99);
}

#[test]
fn time_counts_only_while_a_stream_stands_by_the_loss() {
    let now = Instant::now();
    let mut hold = holding(now);
    hold.pause();
    assert_eq!(hold.held().unwrap().until, None);
    let (nothing, late) = (PlanChanges::default, now + TIME * 2);
    let passed = hold.replace(nothing(), nothing(), size(0), late);
    assert_eq!(passed, gone(&plans(100)));
    assert_eq!(hold.held(), None);
}

#[test]
fn a_guard_that_is_off_holds_nothing() {
    let mut hold = PlanHold::new(GuardConfig::OFF);
    let all = gone(&plans(100));
    let passed = hold.replace(all.clone(), plans(100), size(100), Instant::now());
    assert_eq!(passed, all);
}
