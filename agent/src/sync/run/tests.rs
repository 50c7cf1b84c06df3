// SPDX-License-Identifier: Apache-2.0

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use portolan_dataplane::{
    Dataplane, DataplaneError, FakeKernel, Flow, HostPlane, KubeProxyObjects, NodePortAddresses,
    OtherPlane, StepError, Tuple,
};
use portolan_model::ipvs::{Connections, VirtualServerKey};
use portolan_model::{
    Destination, Family, Frontend, FrontendAddress, FrontendKind, NodeTable, Protocol, Record,
    RecordKey,
};
use portolan_plan::host::{HostDesired, HostState, HostStep, Owned};
use portolan_plan::kube_proxy::PacketRules;
use portolan_plan::{
    Config, KernelState, MarkMask, MaskError, Names, NodeFacts, Rules, Step, VipBinding,
};
use portolan_runtime::Readiness;
use prometheus_client::registry::Registry;
use tokio::sync::Mutex;

use super::super::BootClock;
use super::*;
use crate::kube_proxy::Search;
use crate::sync::Reconciler;

mod disk;
mod hung;
mod others;
mod rig;
mod settles;
mod succession;

use rig::*;

#[tokio::test(start_paused = true)]
async fn cheap_comparison_repairs_at_once_and_full_one_the_rest() {
    let mut rig = Rig::start();
    rig.put(1, tcp(&[STAYS])).await;
    let seen: [fn(&mut KernelState); 3] = [
        |state| state.virtual_servers.clear(),
        |state| state.routes.clear(),
        |state| state.sets.values_mut().for_each(|set| set.entries.clear()),
    ];
    for change in seen {
        let whole = rig.kernel.0.lock().await.state.clone();
        let owned = whole.sets["KUBE-PORTOLAN-OWNED"].clone();
        change(&mut rig.kernel.0.lock().await.state);
        // Without the record the virtual servers would be foreign.
        let mut kernel = rig.kernel.0.lock().await;
        let set = kernel.state.sets.get_mut("KUBE-PORTOLAN-OWNED");
        set.unwrap().entries.extend(owned.entries);
        drop(kernel);
        pass(6).await;
        assert_eq!(rig.kernel.0.lock().await.state, whole);
    }
    rig.kernel.0.lock().await.state.rules.clear();
    pass(31).await;
    assert_eq!(rig.kernel.0.lock().await.state.rules.len(), 2);
}

#[tokio::test(start_paused = true)]
async fn draining_real_server_is_deleted_when_idle_or_at_its_deadline() {
    let mut rig = Rig::start();
    rig.put(1, tcp(&[STAYS, LEAVES])).await;
    rig.connect(Protocol::Tcp, LEAVES).await;
    rig.put(2, tcp(&[STAYS])).await;
    pass(890).await;
    assert_eq!(rig.weight(LEAVES).await, Some(0));
    pass(10).await;
    assert_eq!(rig.weight(LEAVES).await, None);
    assert_eq!(rig.weight(STAYS).await, Some(1));

    rig.put(3, tcp(&[STAYS, LEAVES])).await;
    rig.put(4, tcp(&[STAYS])).await;
    rig.kernel.0.lock().await.connections.clear();
    pass(5).await;
    assert_eq!(rig.weight(LEAVES).await, None);
}

#[tokio::test(start_paused = true)]
async fn drain_time_of_a_record_is_used() {
    for (seconds, before) in [(7, Some(0)), (0, None)] {
        let mut rig = Rig::start();
        rig.put(1, tcp(&[STAYS, LEAVES])).await;
        rig.connect(Protocol::Tcp, LEAVES).await;
        let record = Record {
            drain_seconds: Some(seconds),
            ..record(Protocol::Tcp, &[STAYS])
        };
        rig.put(2, table(record)).await;
        assert_eq!(rig.weight(LEAVES).await, before, "{seconds}");
        pass(7).await;
        assert_eq!(rig.weight(LEAVES).await, None, "{seconds}");
    }
}

#[tokio::test(start_paused = true)]
async fn returning_endpoint_gets_its_weight_and_a_new_deadline() {
    let mut rig = Rig::start();
    rig.put(1, tcp(&[STAYS, LEAVES])).await;
    rig.connect(Protocol::Tcp, LEAVES).await;
    rig.put(2, tcp(&[STAYS])).await;
    pass(600).await;
    rig.put(3, tcp(&[STAYS, LEAVES])).await;
    assert_eq!(rig.weight(LEAVES).await, Some(1));
    rig.put(4, tcp(&[STAYS])).await;
    pass(600).await;
    assert_eq!(rig.weight(LEAVES).await, Some(0));
    pass(300).await;
    assert_eq!(rig.weight(LEAVES).await, None);
}

#[tokio::test(start_paused = true)]
async fn destination_desired_at_weight_zero_stays() {
    let mut rig = Rig::start();
    let mut record = record(Protocol::Tcp, &[STAYS, LEAVES]);
    record.destinations[1].weight = 0;
    rig.put(1, table(record)).await;
    pass(2000).await;
    assert_eq!(rig.weight(LEAVES).await, Some(0));
}

#[tokio::test(start_paused = true)]
async fn restart_during_a_drain_changes_nothing() {
    let clock = boot_clock(Instant::now());
    let state = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(Shared::default(), state, clock.clone());
    rig.put(1, tcp(&[STAYS, LEAVES])).await;
    rig.connect(Protocol::Tcp, LEAVES).await;
    rig.put(2, tcp(&[STAYS])).await;
    let (kernel, state) = rig.stop().await;
    pass(600).await;

    let mut rig = Rig::with(kernel, state, clock.clone());
    rig.put(2, tcp(&[STAYS])).await;
    pass(290).await;
    assert_eq!(rig.weight(LEAVES).await, Some(0));
    pass(10).await;
    assert_eq!(rig.weight(LEAVES).await, None);
}

#[tokio::test(start_paused = true)]
async fn drains_without_a_file_get_the_full_time() {
    let mut rig = Rig::start();
    rig.put(1, tcp(&[STAYS, LEAVES])).await;
    rig.connect(Protocol::Tcp, LEAVES).await;
    rig.put(2, tcp(&[STAYS])).await;
    let (kernel, _) = rig.stop().await;
    pass(600).await;

    let empty = tempfile::tempdir().unwrap();
    let mut rig = Rig::with(kernel, empty, boot_clock(Instant::now()));
    rig.put(2, tcp(&[STAYS])).await;
    pass(890).await;
    assert_eq!(rig.weight(LEAVES).await, Some(0));
    pass(10).await;
    assert_eq!(rig.weight(LEAVES).await, None);
}

#[tokio::test(start_paused = true)]
async fn changed_addresses_are_followed_and_unchanged_ones_cost_nothing() {
    let mut rig = Rig::start();
    let mut record = record(Protocol::Tcp, &[STAYS]);
    let way = FrontendAddress::NodeAddresses(Family::V4);
    record.frontends = vec![Frontend::new(FrontendKind::NodePort, way, 30080)];
    rig.put(1, table(record)).await;
    assert!(rig.kernel.0.lock().await.state.virtual_servers.is_empty());

    let taken = rig.kernel.0.lock().await.applied.len();
    rig.addresses.notify_one();
    pass(1).await;
    assert_eq!(rig.kernel.0.lock().await.applied.len(), taken);

    let address = "192.168.77.11".parse().unwrap();
    let facts = NodeFacts {
        addresses: [address].into(),
        node_port_addresses: [address].into(),
        ..NodeFacts::default()
    };
    rig.kernel.0.lock().await.facts = facts;
    rig.addresses.notify_one();
    pass(1).await;
    assert_eq!(rig.kernel.0.lock().await.state.virtual_servers.len(), 1);

    rig.kernel.0.lock().await.facts = NodeFacts::default();
    rig.addresses.notify_one();
    pass(1).await;
    assert!(rig.kernel.0.lock().await.state.virtual_servers.is_empty());
}

#[tokio::test(start_paused = true)]
async fn stale_udp_flows_are_deleted_with_destinations_and_not_read_otherwise() {
    let flow = |answers: &str| {
        let client = "10.0.9.9:4000".parse().unwrap();
        Flow {
            original: Tuple {
                source: client,
                destination: "10.96.0.1:80".parse().unwrap(),
            },
            reply: Tuple {
                source: answers.parse().unwrap(),
                destination: client,
            },
            id: 1,
        }
    };
    let mut rig = Rig::start();
    let udp = |destinations: &[&str]| table(record(Protocol::Udp, destinations));
    let reads = async |rig: &Rig| rig.kernel.0.lock().await.flow_reads;
    rig.put(1, tcp(&[STAYS])).await;
    // A killed agent may have left some, in either family.
    assert_eq!(reads(&rig).await, 2);
    rig.put(2, udp(&[])).await;
    assert_eq!(reads(&rig).await, 2);
    // A client sent before the first destination existed.
    rig.kernel.0.lock().await.flows = vec![flow("10.96.0.1:80")];
    rig.put(3, udp(&[STAYS])).await;
    assert!(rig.kernel.0.lock().await.flows.is_empty());
    let first = reads(&rig).await;

    rig.kernel.0.lock().await.flows = vec![flow(STAYS), flow(LEAVES)];
    rig.put(4, udp(&[STAYS, LEAVES])).await;
    pass(100).await;
    assert_eq!(
        reads(&rig).await,
        first,
        "one more destination makes no flow stale"
    );
    rig.put(5, udp(&[STAYS])).await;
    assert_eq!(rig.kernel.0.lock().await.flows, [flow(STAYS)]);

    // Without any destination no flow is stale.
    rig.put(6, udp(&[])).await;
    assert_eq!(rig.kernel.0.lock().await.flows, [flow(STAYS)]);
}
