// SPDX-License-Identifier: Apache-2.0

use std::net::SocketAddr;
use std::sync::Arc;

use portolan_dataplane::{FakeKernel, Flow, Tuple};
use portolan_model::ipvs::Connections;
use portolan_model::{
    Destination, Frontend, FrontendAddress, FrontendKind, NodeTable, Record, RecordKey,
};

use super::*;

const PATIENCE: Duration = Duration::from_secs(60);
const PROTOCOLS: [Protocol; 2] = [Protocol::Tcp, Protocol::Udp];

fn pod() -> SocketAddr {
    "10.0.0.1:80".parse().unwrap()
}

fn key(protocol: Protocol) -> VirtualServerKey {
    VirtualServerKey::new(protocol, [10, 96, 0, 1].into(), 80)
}

/// A table with one Service of one endpoint, for TCP and UDP.
fn table() -> Arc<NodeTable> {
    let record = |protocol| {
        let key = RecordKey {
            cluster: "".into(),
            namespace: "ns".into(),
            service: "svc".into(),
            port: "".into(),
            protocol,
        };
        let address = FrontendAddress::Vip([10, 96, 0, 1].into());
        let record = Record {
            frontends: vec![Frontend::new(FrontendKind::ClusterIp, address, 80)],
            destinations: [Destination::new(pod())].into(),
            ..Record::new(key)
        };
        (record.key.clone(), Arc::new(record))
    };
    Arc::new(NodeTable {
        records: PROTOCOLS.into_iter().map(record).collect(),
        ..NodeTable::default()
    })
}

/// A kernel that our IPVS dataplane has programmed, with connections of one kind.
async fn programmed(busy: Protocol) -> FakeKernel {
    let mut reconciler = Reconciler::new(FakeKernel::default(), Config::default());
    reconciler.reconcile(&table()).await.unwrap();
    let mut kernel = reconciler.into_dataplane();
    let some = Connections {
        active: 1,
        ..Connections::default()
    };
    kernel.connections.insert((key(busy), pod()), some);
    let client: SocketAddr = "192.0.2.1:4000".parse().unwrap();
    let vip = key(Protocol::Udp).socket().unwrap();
    kernel.flows = vec![Flow {
        original: Tuple {
            source: client,
            destination: vip,
        },
        reply: Tuple {
            source: pod(),
            destination: client,
        },
        id: 1,
    }];
    kernel
}

async fn former(kernel: FakeKernel) -> FormerIpvs<FakeKernel> {
    let former = FormerIpvs::open(kernel, Config::default(), PATIENCE).await;
    former.unwrap()
}

#[tokio::test]
async fn what_has_connections_stays_until_they_end_or_the_deadline() {
    for (busy, ends) in PROTOCOLS.into_iter().flat_map(|p| [(p, true), (p, false)]) {
        let mut former = former(programmed(busy).await).await;
        let now = Instant::now();
        assert_eq!(former.retire(now).await.unwrap(), Retirement::More);
        let waiting = Retirement::Waiting { left: 1 };
        for _ in 0..2 {
            assert_eq!(former.retire(now).await.unwrap(), waiting);
            let state = &former.dataplane.state;
            let servers: Vec<_> = state.virtual_servers.keys().copied().collect();
            assert_eq!(servers, [key(busy)]);
            assert_eq!(state.routes.len(), 1, "the address is still local");
            let is_owned = state.owns(&Config::default().names, &key(busy));
            assert!(is_owned, "the record has it");
            let kept = usize::from(busy == Protocol::Udp);
            assert_eq!(former.dataplane.flows.len(), kept);
        }
        let later = match ends {
            true => {
                former.dataplane.connections.clear();
                now
            }
            false => now + PATIENCE,
        };
        assert_eq!(former.retire(later).await.unwrap(), Retirement::Done);
        let state = &former.dataplane.state;
        assert!(state.virtual_servers.is_empty() && state.routes.is_empty());
        assert!(state.sets.is_empty() && state.rules.is_empty(), "{state:?}");
        assert!(former.dataplane.flows.is_empty());
    }
}

#[tokio::test]
async fn an_agent_that_starts_after_a_crash_anywhere_retires_the_rest() {
    for limit in 0..60 {
        let mut kernel = programmed(Protocol::Tcp).await;
        kernel.connections.clear();
        kernel.crash_after = Some(kernel.applied.len() + limit);
        let mut first = former(kernel).await;
        let mut ended = false;
        for _ in 0..3 {
            match first.retire(Instant::now()).await {
                Ok(Retirement::Done) => ended = true,
                Ok(_) => {}
                Err(_) => break,
            }
        }
        let mut kernel = first.dataplane;
        kernel.crash_after = None;
        let markers = ipvs_marker_sets(&Config::default());
        let is_found = markers
            .iter()
            .any(|set| kernel.state.sets.contains_key(set));
        assert_eq!(is_found, !ended, "{limit}");
        if is_found {
            let mut second = former(kernel).await;
            assert_eq!(
                second.retire(Instant::now()).await.unwrap(),
                Retirement::More
            );
            assert_eq!(
                second.retire(Instant::now()).await.unwrap(),
                Retirement::Done
            );
            assert!(second.dataplane.state.virtual_servers.is_empty());
            assert!(second.dataplane.state.sets.is_empty());
        }
    }
}

#[tokio::test]
async fn foreign_virtual_servers_and_sets_stay() {
    let mut kernel = programmed(Protocol::Tcp).await;
    let foreign = VirtualServerKey::new(Protocol::Tcp, [192, 0, 2, 1].into(), 80);
    let server = kernel.state.virtual_servers[&key(Protocol::Tcp)].clone();
    kernel.state.virtual_servers.insert(foreign, server);
    let set = kernel.state.sets["KUBE-CLUSTER-IP"].clone();
    kernel.state.sets.insert("theirs".to_owned(), set);
    let mut former = former(kernel).await;
    let now = Instant::now();
    former.retire(now).await.unwrap();
    former.retire(now).await.unwrap();
    assert_eq!(
        former.retire(now + PATIENCE).await.unwrap(),
        Retirement::Done
    );
    let state = &former.dataplane.state;
    assert_eq!(state.virtual_servers.keys().collect::<Vec<_>>(), [&foreign]);
    assert_eq!(state.sets.keys().collect::<Vec<_>>(), ["theirs"]);
}

#[tokio::test]
async fn tables_stay_until_virtual_servers_are_behind_their_addresses() {
    let gone = VirtualServerKey::new(Protocol::Tcp, [10, 96, 0, 9].into(), 80);
    let frontends = BTreeSet::from([key(Protocol::Tcp), key(Protocol::Udp), gone]);
    for limit in (0..40).map(Some).chain([None]) {
        let kernel = FakeKernel {
            tables: Family::ALL.map(|family| (family, frontends.clone())).into(),
            crash_after: limit,
            ..FakeKernel::default()
        };
        let mut reconciler = Reconciler::new(kernel, Config::default());
        // Nothing is known yet.
        let early = reconciler.retire_tables().await;
        assert!(
            matches!(early, Ok(Retirement::Waiting { .. }) | Err(_)),
            "{early:?}"
        );
        let _ = reconciler.reconcile(&table()).await;
        let _ = reconciler.retire_tables().await;
        let mut kernel = reconciler.into_dataplane();
        kernel.crash_after = None;
        let mut second = Reconciler::new(kernel, Config::default());
        second.reconcile(&table()).await.unwrap();
        assert_eq!(second.retire_tables().await.unwrap(), Retirement::Done);
        assert!(second.dataplane.tables.is_empty());
        // The Service that the table lacks is served no more, and nothing else was without service.
        assert_eq!(
            second.dataplane.unserved_frontends,
            [gone].into(),
            "{limit:?}"
        );
    }
}

#[tokio::test]
async fn a_table_of_a_family_that_is_not_served_stays() {
    let kernel = FakeKernel {
        tables: [(Family::V6, BTreeSet::new())].into(),
        ..FakeKernel::default()
    };
    let config = Config {
        families: [Family::V4].into(),
        ..Config::default()
    };
    let mut reconciler = Reconciler::new(kernel, config);
    reconciler.reconcile(&table()).await.unwrap();
    assert_eq!(reconciler.retire_tables().await.unwrap(), Retirement::Done);
    assert_eq!(reconciler.dataplane.tables.len(), 1);
}
