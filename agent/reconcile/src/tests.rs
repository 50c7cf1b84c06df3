// SPDX-License-Identifier: Apache-2.0

use std::net::SocketAddr;

use portolan_dataplane::{Errno, FakeKernel, Fault};
use portolan_model::ipvs::Connections;
use portolan_model::{
    Affinity, Destination, Family, Frontend, FrontendAddress, FrontendKind, Protocol, Record,
};

use super::*;

mod faults;
mod foreign;
mod on_demand;
mod refused;

fn table(destinations: &[&str]) -> Arc<NodeTable> {
    let key = RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: "svc".into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    let vip = FrontendAddress::Vip("10.96.0.1".parse().unwrap());
    let record = Record {
        frontends: vec![Frontend::new(FrontendKind::ClusterIp, vip, 80)],
        destinations: destinations
            .iter()
            .map(|d| Destination::new(d.parse().unwrap()))
            .collect(),
        ..Record::new(key)
    };
    Arc::new(NodeTable {
        records: [(record.key.clone(), Arc::new(record))]
            .into_iter()
            .collect(),
        ..NodeTable::default()
    })
}

fn vip() -> VirtualServerKey {
    VirtualServerKey::new(Protocol::Tcp, "10.96.0.1".parse().unwrap(), 80)
}

#[tokio::test]
async fn second_run_and_restart_have_nothing_to_do() {
    let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
    let table = table(&["10.0.0.1:80"]);
    assert!(reconciler.reconcile(&table).await.unwrap().objects > 0);
    assert_eq!(reconciler.reconcile(&table).await.unwrap().objects, 0);

    let mut restarted = Reconciler::new(reconciler.into_dataplane(), Config::default());
    let outcome = restarted.reconcile(&table).await.unwrap();
    assert_eq!((outcome.objects, outcome.errors.len()), (0, 0));
}

#[tokio::test]
async fn deleted_objects_come_back_after_forgetting() {
    let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
    let table = table(&["10.0.0.1:80"]);
    reconciler.reconcile(&table).await.unwrap();
    reconciler.dataplane.state.virtual_servers.clear();
    reconciler.forget();
    assert_eq!(reconciler.reconcile(&table).await.unwrap().objects, 2);
    let wanted = reconciler.desired.read(|desired| desired.state.clone());
    assert_eq!(reconciler.dataplane.state, wanted);
}

#[tokio::test]
async fn affinity_by_mark_gets_a_hash_once_the_kernel_has_the_scheduler() {
    let mut one = NodeTable::clone(&table(&["10.0.0.1:80"]));
    let record = Record::clone(one.records.values().next().unwrap());
    let address = FrontendAddress::Vip("198.51.100.1".parse().unwrap());
    let frontend = Frontend {
        lists: portolan_model::Lists::Local,
        ..Frontend::new(FrontendKind::ExternalIp, address, 80)
    };
    let record = Record {
        frontends: vec![frontend],
        affinity: Some(Affinity {
            timeout_seconds: 60,
        }),
        ..record
    };
    one.records.insert(record.key.clone(), Arc::new(record));
    let one = Arc::new(one);
    let mut kernel = FakeKernel::default();
    kernel.facts.missing_schedulers = ["mh".to_owned()].into();
    let mut reconciler = Reconciler::new(kernel, Config::default());
    let by_mark = |reconciler: &Reconciler<FakeKernel>| {
        let mut servers = reconciler.dataplane.state.virtual_servers.iter();
        let (_, server) = servers.find(|(key, _)| key.mark().is_some()).unwrap();
        server.config.scheduler.to_string()
    };
    reconciler.reconcile(&one).await.unwrap();
    assert_eq!(by_mark(&reconciler), "rr");
    // Its module was loaded.
    reconciler.dataplane.facts.missing_schedulers.clear();
    assert!(reconciler.refresh_facts().await.unwrap());
    reconciler.reconcile(&one).await.unwrap();
    assert_eq!(by_mark(&reconciler), "mh");
}

#[tokio::test]
async fn foreign_route_is_reported_and_left_untouched() {
    let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
    let theirs = BTreeSet::from(["10.96.0.1".parse().unwrap()]);
    reconciler.dataplane.state.foreign_routes = theirs.clone();
    let (one, other) = (table(&["10.0.0.1:80"]), table(&["10.0.0.2:80"]));
    for table in [&one, &other, &Arc::default(), &one] {
        let outcome = reconciler.reconcile(table).await.unwrap();
        let told = outcome.errors.iter().filter_map(|(record, message)| {
            assert!(message.contains("10.96.0.1 "), "{message}");
            record.as_ref()
        });
        let told: Vec<_> = told.collect();
        assert_eq!(told, table.records.keys().collect::<Vec<_>>());
        assert_eq!(reconciler.dataplane.state.foreign_routes, theirs);
    }
    // Ours remains when it is deleted, and no error is left.
    assert_eq!(reconciler.glance().await.unwrap(), None);
    reconciler.dataplane.state.foreign_routes.clear();
    assert!(reconciler.glance().await.unwrap().is_some());
    let outcome = reconciler.reconcile(&one).await.unwrap();
    assert_eq!((outcome.objects, outcome.errors), (0, vec![]));
    assert_eq!(reconciler.dataplane.state.routes.len(), 1);
}

#[tokio::test]
async fn error_names_the_record_and_the_next_run_repairs_it() {
    let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
    reconciler.reconcile(&Arc::default()).await.unwrap();
    // Two entries in sets, ownership, route: then comes the virtual server.
    let first = reconciler.dataplane.applied.len();
    let fail = (first..first + 20).map(|number| (number, "ENOMEM".to_owned()));
    reconciler.dataplane.failures = fail.collect();
    let outcome = reconciler
        .reconcile(&table(&["10.0.0.1:80"]))
        .await
        .unwrap();
    assert!(outcome.errors.iter().any(|(record, message)| {
        record.as_ref().is_some_and(|r| &*r.service == "svc")
            && message == "add virtual server TCP 10.96.0.1:80: held back: a set entry that it needs is missing"
    }), "{:?}", outcome.errors);
    assert!(reconciler.dataplane.state.virtual_servers.is_empty());

    // Entries missing in a set are reported for the record too.
    let message = "add 1 entries to set KUBE-CLUSTER-IP: ENOMEM";
    assert!(
        outcome.errors.iter().any(|(record, text)| {
            record.as_ref().is_some_and(|r| &*r.service == "svc") && text == message
        }),
        "{:?}",
        outcome.errors
    );

    reconciler.dataplane.failures.clear();
    let outcome = reconciler
        .reconcile(&table(&["10.0.0.1:80"]))
        .await
        .unwrap();
    assert!(outcome.errors.is_empty());
    let wanted = reconciler.desired.read(|desired| desired.state.clone());
    assert_eq!(reconciler.dataplane.state, wanted);
}

#[tokio::test]
async fn draining_real_server_is_deleted_when_its_connections_have_ended() {
    let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
    reconciler
        .reconcile(&table(&["10.0.0.1:80", "10.0.0.2:80"]))
        .await
        .unwrap();
    reconciler
        .reconcile(&table(&["10.0.0.1:80"]))
        .await
        .unwrap();
    let leaving: SocketAddr = "10.0.0.2:80".parse().unwrap();
    let weight = |reconciler: &Reconciler<FakeKernel>| {
        let server = &reconciler.dataplane.state.virtual_servers[&vip()];
        server
            .real_servers
            .get(&leaving)
            .map(|config| config.weight)
    };
    assert_eq!(weight(&reconciler), Some(0));

    let connections = Connections {
        active: 1,
        ..Connections::default()
    };
    reconciler
        .dataplane
        .connections
        .insert((vip(), leaving), connections);
    assert_eq!(reconciler.finish_drains(|_| false).await.unwrap(), 1);
    assert_eq!(weight(&reconciler), Some(0));

    reconciler.dataplane.connections.clear();
    assert_eq!(reconciler.finish_drains(|_| false).await.unwrap(), 0);
    assert_eq!(weight(&reconciler), None);
    let observed = reconciler.observed().cloned();
    assert_eq!(observed.as_ref(), Some(&reconciler.dataplane.state));
}

/// Listings of the kernel lack real servers of the other family than that of the virtual server.
#[tokio::test]
async fn a_draining_real_server_that_is_not_shown_ends_at_its_deadline() {
    let leaving: SocketAddr = "10.0.0.2:80".parse().unwrap();
    for is_gone in [false, true] {
        let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
        for destinations in [&["10.0.0.1:80", "10.0.0.2:80"][..], &["10.0.0.1:80"]] {
            reconciler.reconcile(&table(destinations)).await.unwrap();
        }
        let kernel = &mut reconciler.dataplane;
        kernel.unshown.insert(leaving);
        if is_gone {
            // Somebody has deleted it.
            let server = kernel.state.virtual_servers.get_mut(&vip()).unwrap();
            Arc::make_mut(&mut server.real_servers).remove(&leaving);
        }
        assert_eq!(reconciler.finish_drains(|_| false).await.unwrap(), 1);
        let servers = &reconciler.dataplane.state.virtual_servers;
        let is_there = servers[&vip()].real_servers.contains_key(&leaving);
        assert_eq!(is_there, !is_gone);

        assert_eq!(reconciler.finish_drains(|_| true).await.unwrap(), 0);
        let servers = &reconciler.dataplane.state.virtual_servers;
        assert!(!servers[&vip()].real_servers.contains_key(&leaving));
    }
}

/// Like [`table`], with a second Service at 10.96.0.2.
fn two(destinations: &[&str], second: &[&str]) -> Arc<NodeTable> {
    let mut both = NodeTable::clone(&table(destinations));
    let of_second = table(second).records.values().next().unwrap().clone();
    let vip = FrontendAddress::Vip("10.96.0.2".parse().unwrap());
    let key = RecordKey {
        service: "second".into(),
        ..of_second.key.clone()
    };
    let record = Record {
        key: key.clone(),
        frontends: vec![Frontend::new(FrontendKind::ClusterIp, vip, 80)],
        ..Record::clone(&of_second)
    };
    both.records.insert(key, Arc::new(record));
    Arc::new(both)
}

/// The same table with another version of its second Service.
fn changed(before: &Arc<NodeTable>, second: &[&str]) -> Arc<NodeTable> {
    let mut table = NodeTable::clone(before);
    let new = two(&[], second);
    let (key, record) = new.records.iter().next().unwrap();
    assert_eq!(&*key.service, "second");
    table.records.insert(key.clone(), Arc::clone(record));
    Arc::new(table)
}

#[tokio::test]
async fn refused_step_costs_others_nothing_and_is_retried_when_asked() {
    let both = two(&["10.0.0.1:80"], &["10.0.0.2:80"]);
    let is_bad = |step: &Step| matches!(step, Step::AddVirtualServer { key, .. } if *key == vip());
    let mut probe = Reconciler::new(FakeKernel::default(), Config::default());
    probe.reconcile(&both).await.unwrap();
    let bad = probe.dataplane.applied.iter().position(is_bad).unwrap();
    // No such scheduler.
    let refused = |number| [(number, Fault::Refused(Errno::ENOENT))].into();
    let kernel = FakeKernel {
        faults: refused(bad),
        ..FakeKernel::default()
    };
    let mut reconciler = Reconciler::new(kernel, Config::default());
    let outcome = reconciler.reconcile(&both).await.unwrap();
    assert!(outcome.again && outcome.broken.is_empty());
    let of_svc = |outcome: &Outcome| {
        let services = outcome.errors.iter().map(|(record, _)| record.clone());
        let services = services.map(|record| record.unwrap().service.to_string());
        services.collect::<Vec<_>>()
    };
    assert_eq!(
        of_svc(&outcome),
        ["svc"],
        "its real servers say nothing more"
    );

    // Others go on: the kernel is not read, and one change is one step.
    reconciler.dataplane.unreadable = 1;
    let taken = reconciler.dataplane.applied.len();
    let both = changed(&both, &["10.0.0.2:80", "10.0.0.3:80"]);
    let outcome = reconciler.reconcile(&both).await.unwrap();
    assert_eq!(reconciler.dataplane.applied.len(), taken + 1);
    assert_eq!(of_svc(&outcome), ["svc"], "it still lacks");
    let observed = reconciler.observed().cloned();
    assert_eq!(observed.as_ref(), Some(&reconciler.dataplane.state));

    // Asked for, it is tried again, and fails again.
    let next = reconciler.dataplane.applied.len();
    reconciler.dataplane.faults = refused(next);
    reconciler.try_again(Instant::now());
    let outcome = reconciler.reconcile(&both).await.unwrap();
    assert_eq!(reconciler.dataplane.applied.len(), next + 1);
    assert_eq!(of_svc(&outcome), ["svc"]);
    // Then it works.
    reconciler.try_again(Instant::now());
    let outcome = reconciler.reconcile(&both).await.unwrap();
    assert_eq!((outcome.errors, outcome.again), (vec![], false));
    let wanted = reconciler.desired.read(|desired| desired.state.clone());
    assert_eq!(reconciler.dataplane.state, wanted);
    assert_eq!(
        reconciler.dataplane.unreadable, 1,
        "it was never read again"
    );
}

#[tokio::test]
async fn refusal_is_forgotten_with_its_record() {
    let one = table(&["10.0.0.1:80"]);
    let mut probe = Reconciler::new(FakeKernel::default(), Config::default());
    probe.reconcile(&one).await.unwrap();
    let is_bad = |step: &Step| matches!(step, Step::AddVirtualServer { .. });
    let bad = probe.dataplane.applied.iter().position(is_bad).unwrap();
    let kernel = FakeKernel {
        faults: [(bad, Fault::Refused(Errno::ENOENT))].into(),
        ..FakeKernel::default()
    };
    let mut reconciler = Reconciler::new(kernel, Config::default());
    assert!(reconciler.reconcile(&one).await.unwrap().again);
    let outcome = reconciler.reconcile(&Arc::default()).await.unwrap();
    assert_eq!((outcome.errors, outcome.again), (vec![], false));
    let wanted = reconciler.desired.read(|desired| desired.state.clone());
    assert_eq!(reconciler.dataplane.state, wanted);
}

#[tokio::test]
async fn a_family_whose_answer_was_lost_is_served_once_the_kernel_is_read() {
    let one = table(&["10.0.0.1:80"]);
    let mut probe = Reconciler::new(FakeKernel::default(), Config::default());
    probe.reconcile(&one).await.unwrap();
    let is_lost = |step: &Step| matches!(step, Step::AddVirtualServer { .. });
    let lost = probe.dataplane.applied.iter().position(is_lost).unwrap();
    let kernel = FakeKernel {
        faults: [(lost, Fault::AnswerLost)].into(),
        ..FakeKernel::default()
    };
    let mut reconciler = Reconciler::new(kernel, Config::default());
    let outcome = reconciler.reconcile(&one).await.unwrap();
    assert_eq!(outcome.broken.iter().collect::<Vec<_>>(), [Family::V4]);
    reconciler.try_again(Instant::now());
    let outcome = reconciler.reconcile(&one).await.unwrap();
    let wanted = reconciler.desired.read(|desired| desired.state.clone());
    assert_eq!(reconciler.dataplane.state, wanted);
    assert_eq!(outcome.broken.iter().collect::<Vec<_>>(), []);
}

#[tokio::test]
async fn only_rules_and_sets_break_a_family() {
    let broken = async |fails: fn(&Step) -> bool| {
        let mut probe = Reconciler::new(FakeKernel::default(), Config::default());
        probe.reconcile(&table(&["10.0.0.1:80"])).await.unwrap();
        let taken = probe.dataplane.applied.iter().enumerate();
        let failures = taken.filter(|(_, step)| fails(step));
        let kernel = FakeKernel {
            failures: failures
                .map(|(number, _)| (number, "no".to_owned()))
                .collect(),
            ..FakeKernel::default()
        };
        let mut reconciler = Reconciler::new(kernel, Config::default());
        let outcome = reconciler
            .reconcile(&table(&["10.0.0.1:80"]))
            .await
            .unwrap();
        assert!(!outcome.errors.is_empty());
        outcome.broken.iter().collect::<Vec<_>>()
    };
    let v4_rules = |step: &Step| {
        matches!(
            step,
            Step::WriteRules {
                family: Family::V4,
                ..
            }
        )
    };
    assert_eq!(broken(v4_rules).await, [Family::V4]);
    let server = |step: &Step| matches!(step, Step::AddVirtualServer { .. });
    assert_eq!(broken(server).await, [Family::V4], "it was the only one");
    let route = |step: &Step| matches!(step, Step::AddRoute { .. });
    assert_eq!(broken(route).await, []);
}
