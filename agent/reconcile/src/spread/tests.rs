// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use portolan_dataplane::FakeKernel;
use portolan_model::{
    Destination, Frontend, FrontendAddress, FrontendKind, NodeTable, Protocol, Record, RecordKey,
};
use portolan_plan::Config;

use super::*;
use crate::trash::Trash;

const SERVICES: u16 = 300;
const ENDPOINTS: u8 = 10;
const ALL: usize = 3_000;

fn key(protocol: Protocol, service: u16) -> VirtualServerKey {
    let [high, low] = service.to_be_bytes();
    VirtualServerKey::new(protocol, [10, 96, high, low].into(), 80)
}

fn endpoint(version: u8, service: u16, number: u8) -> SocketAddr {
    let [high, low] = service.to_be_bytes();
    ([100 + version, high, low, number], 8080).into()
}

/// Services with endpoints of a version.
fn table(protocol: Protocol, version: u8) -> Arc<NodeTable> {
    let record = |service: u16| {
        let of = RecordKey {
            cluster: "".into(),
            namespace: "ns".into(),
            service: format!("s{service}").into(),
            port: "".into(),
            protocol,
        };
        let vip = key(protocol, service).socket().unwrap().ip();
        let vip = FrontendAddress::Vip(vip);
        let endpoints = (0..ENDPOINTS).map(|number| endpoint(version, service, number));
        Record {
            frontends: vec![Frontend::new(FrontendKind::ClusterIp, vip, 80)],
            destinations: endpoints.map(Destination::new).collect(),
            ..Record::new(of)
        }
    };
    let records = (0..SERVICES).map(record);
    Arc::new(NodeTable {
        records: records.map(|r| (r.key.clone(), Arc::new(r))).collect(),
        ..NodeTable::default()
    })
}

fn reconciler() -> Reconciler<FakeKernel> {
    Reconciler::new(FakeKernel::default(), Config::default())
}

async fn reconcile(reconciler: &mut Reconciler<FakeKernel>, table: &Arc<NodeTable>) {
    let outcome = reconciler.reconcile(table).await.unwrap();
    assert_eq!(outcome.errors, []);
}

fn real_servers(reconciler: &Reconciler<FakeKernel>) -> Vec<RealServerConfig> {
    let servers = reconciler.dataplane.state.virtual_servers.values();
    let configs = servers.flat_map(|server| server.real_servers.values());
    configs.copied().collect()
}

/// Finishes all deletions, checking the limit each time; returns the number of times.
async fn finish(reconciler: &mut Reconciler<FakeKernel>) -> usize {
    for times in 1.. {
        let before = real_servers(reconciler).len();
        reconciler.trash = Trash::default();
        let left = reconciler.finish_drains(|_| false).await.unwrap();
        let deleted = before - real_servers(reconciler).len();
        assert!(deleted <= MOST, "{deleted}");
        if left == 0 {
            return times;
        }
    }
    unreachable!("there are enough numbers");
}

fn assert_as_desired(reconciler: &Reconciler<FakeKernel>) {
    let desired = reconciler.desired.read(|desired| desired.state.clone());
    assert_eq!(reconciler.dataplane.state, desired);
}

#[tokio::test]
async fn services_deleted_together_stop_answering_and_are_deleted_over_time() {
    let mut reconciler = reconciler();
    reconcile(&mut reconciler, &table(Protocol::Tcp, 1)).await;
    reconcile(&mut reconciler, &Arc::default()).await;
    let left = real_servers(&reconciler);
    assert_eq!(left.len(), ALL - MOST - FEW);
    assert!(left.iter().all(|config| config.weight == 0));
    let state = &reconciler.dataplane.state;
    assert!(state.routes.is_empty() && state.sets["KUBE-CLUSTER-IP"].entries.is_empty());
    // They are ours for as long as they exist.
    let foreign = state.foreign_virtual_servers(&Names::default());
    assert!(foreign.is_empty(), "{}", foreign.len());
    assert!(reconciler.has_put_off());
    // The next reading of the kernel finds nothing to do about them.
    reconciler.forget();
    let outcome = reconciler.reconcile(&Arc::default()).await.unwrap();
    assert_eq!(outcome.objects, 0);

    // A restart continues with them.
    let mut restarted = Reconciler::new(reconciler.into_dataplane(), Config::default());
    reconcile(&mut restarted, &Arc::default()).await;
    assert_eq!(finish(&mut restarted).await, 1);
    assert!(!restarted.has_put_off());
    assert_as_desired(&restarted);
}

#[tokio::test]
async fn services_that_come_back_reuse_waiting_real_servers() {
    let mut reconciler = reconciler();
    reconcile(&mut reconciler, &table(Protocol::Tcp, 1)).await;
    reconcile(&mut reconciler, &Arc::default()).await;
    reconciler.dataplane.applied.clear();
    reconcile(&mut reconciler, &table(Protocol::Tcp, 1)).await;
    assert_as_desired(&reconciler);
    let taken = reconciler.dataplane.applied.iter();
    let added = taken.filter(|step| matches!(step, Step::AddRealServer { .. }));
    assert_eq!(added.count(), MOST + FEW);
    // Having waited does not delete them.
    finish(&mut reconciler).await;
    assert_as_desired(&reconciler);
}

#[tokio::test]
async fn services_wait_on_when_connections_of_others_cannot_be_read() {
    let mut reconciler = reconciler();
    let all = table(Protocol::Tcp, 1);
    reconcile(&mut reconciler, &all).await;
    // One Service stays, and one of its endpoints drains.
    let (key, record) = all.records.iter().next().unwrap();
    let mut record = Record::clone(record);
    record.destinations.pop();
    let rest = NodeTable {
        records: [(key.clone(), Arc::new(record))].into_iter().collect(),
        ..NodeTable::default()
    };
    reconcile(&mut reconciler, &Arc::new(rest)).await;
    assert!(reconciler.has_put_off());
    reconciler.trash = Trash::default();
    reconciler.dataplane.unreadable_connections = 1;
    let before = real_servers(&reconciler).len();
    assert!(reconciler.finish_drains(|_| false).await.is_err());
    assert_eq!(real_servers(&reconciler).len(), before);
    assert!(reconciler.has_put_off());
    finish(&mut reconciler).await;
    assert!(!reconciler.has_put_off());
    assert_as_desired(&reconciler);
}

#[tokio::test]
async fn udp_server_with_clients_is_deleted_at_once_and_idle_ones_wait() {
    let mut reconciler = reconciler();
    reconcile(&mut reconciler, &table(Protocol::Udp, 0)).await;
    let busy = (0..SERVICES).map(|service| {
        let connections = Connections {
            inactive: 1,
            ..Connections::default()
        };
        let key = key(Protocol::Udp, service);
        ((key, endpoint(0, service, ENDPOINTS - 1)), connections)
    });
    reconciler.dataplane.connections = busy.collect();
    for version in 1..=3 {
        reconcile(&mut reconciler, &table(Protocol::Udp, version)).await;
        let servers = reconciler.dataplane.state.virtual_servers.clone();
        for (service, number) in (0..SERVICES).map(|service| (service, ENDPOINTS - 1)) {
            let servers = &servers[&key(Protocol::Udp, service)].real_servers;
            assert!(!servers.contains_key(&endpoint(0, service, number)));
        }
        let weights = real_servers(&reconciler).into_iter().map(|c| c.weight);
        assert_eq!(weights.filter(|weight| *weight > 0).count(), ALL);
    }
    // Including the busy ones, and few in each round.
    let deleted = reconciler.dataplane.applied.iter();
    let deleted = deleted.filter(|step| matches!(step, Step::DelRealServer { .. }));
    let deleted = deleted.count();
    assert!(
        deleted <= MOST + usize::from(SERVICES) + 3 * FEW,
        "{deleted}"
    );
    finish(&mut reconciler).await;
    assert_as_desired(&reconciler);
}

#[tokio::test]
async fn few_are_deleted_at_once_in_any_case() {
    let mut reconciler = reconciler();
    let table = table(Protocol::Tcp, 1);
    reconcile(&mut reconciler, &table).await;
    reconciler.trash.add(10 * MOST, Instant::now());
    let mut fewer = NodeTable::clone(&table);
    for _ in 0..10 {
        let first = fewer.records.keys().next().cloned().unwrap();
        fewer.records.remove(&first);
    }
    reconcile(&mut reconciler, &Arc::new(fewer)).await;
    assert_as_desired(&reconciler);
}

#[test]
fn one_that_exceeds_the_room_is_deleted_when_it_is_empty() {
    assert_eq!(room_after(MOST, MOST + 1), Some(0));
    assert_eq!(room_after(MOST - 1, MOST), None);
    assert_eq!(room_after(MOST - 1, 9), Some(MOST - 10));
}
