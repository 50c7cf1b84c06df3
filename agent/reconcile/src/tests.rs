use std::net::SocketAddr;

use portolan_dataplane::FakeKernel;
use portolan_model::ipvs::Connections;
use portolan_model::{Destination, Frontend, FrontendAddress, FrontendKind, Protocol, Record};

use super::*;

mod faults;

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
async fn a_second_run_has_nothing_to_do_and_a_restart_neither() {
    let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
    let table = table(&["10.0.0.1:80"]);
    assert!(reconciler.reconcile(&table).await.unwrap().objects > 0);
    assert_eq!(reconciler.reconcile(&table).await.unwrap().objects, 0);

    let mut restarted = Reconciler::new(reconciler.into_dataplane(), Config::default());
    let outcome = restarted.reconcile(&table).await.unwrap();
    assert_eq!((outcome.objects, outcome.errors.len()), (0, 0));
}

#[tokio::test]
async fn what_somebody_deleted_comes_back_after_forgetting() {
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
async fn an_error_names_the_record_and_the_next_run_mends_it() {
    let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
    reconciler.reconcile(&Arc::default()).await.unwrap();
    // Two entries in sets, ownership, route: then comes the virtual server.
    let first = reconciler.dataplane.taken.len();
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

    // What is missing in a set is told of the record too.
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
async fn a_draining_real_server_goes_when_its_connections_have_ended() {
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
    let known = reconciler.known().cloned();
    assert_eq!(known.as_ref(), Some(&reconciler.dataplane.state));
}

#[tokio::test]
async fn only_what_a_whole_family_needs_breaks_it() {
    let broken = async |fails: fn(&Step) -> bool| {
        let mut probe = Reconciler::new(FakeKernel::default(), Config::default());
        probe.reconcile(&table(&["10.0.0.1:80"])).await.unwrap();
        let taken = probe.dataplane.taken.iter().enumerate();
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
    assert_eq!(broken(server).await, []);
    let route = |step: &Step| matches!(step, Step::PutRoute { .. });
    assert_eq!(broken(route).await, []);
}
