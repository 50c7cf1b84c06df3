// SPDX-License-Identifier: Apache-2.0

//! Tables from disk, which may be older than the kernel's state.

use portolan_dataplane::{Flow, Tuple};
use portolan_model::check::{HealthPolicy, OnFailure};
use portolan_model::ipvs::{ForwardingMethod, Thresholds};
use portolan_model::{
    AdministrativeState, Balancing, Profile, RecordHealth, SorryServer, Standing,
};
use portolan_plan::Step;
use portolan_plan::kube_proxy::RuleMode;

use super::*;

const NEWER: &str = "10.0.0.3:80";
/// In no table any more.
const GONE: &str = "10.0.0.4:80";
const SORRY: &str = "10.0.0.9:80";

fn of_service(service: &str, vip: &str, protocol: Protocol, destinations: &[&str]) -> Record {
    let mut record = record(protocol, destinations);
    record.key.service = service.into();
    let vip = FrontendAddress::Vip(vip.parse().unwrap());
    record.frontends = vec![Frontend::new(FrontendKind::ExternalIp, vip, 80)];
    record
}

fn tables(records: Vec<Record>) -> NodeTable {
    let records = records.into_iter();
    NodeTable {
        records: records.map(|r| (r.key.clone(), Arc::new(r))).collect(),
        ..NodeTable::default()
    }
}

/// The table programmed last, by an agent that was killed before saving it.
fn newer() -> NodeTable {
    tables(vec![
        of_service("old", "10.96.0.1", Protocol::Tcp, &[STAYS, NEWER]),
        of_service("udp", "10.96.0.2", Protocol::Udp, &[NEWER]),
        of_service("new", "10.96.0.3", Protocol::Tcp, &[NEWER]),
    ])
}

fn older() -> NodeTable {
    tables(vec![
        of_service("old", "10.96.0.1", Protocol::Tcp, &[STAYS, LEAVES]),
        of_service("udp", "10.96.0.2", Protocol::Udp, &[LEAVES]),
        of_service("other", "10.96.0.4", Protocol::Tcp, &[STAYS]),
    ])
}

fn flow() -> Flow {
    let tuple = |source: &str, destination: &str| Tuple {
        source: source.parse().unwrap(),
        destination: destination.parse().unwrap(),
    };
    Flow {
        original: tuple("10.244.0.9:5000", "10.96.0.2:80"),
        reply: tuple(NEWER, "10.244.0.9:5000"),
        id: 1,
    }
}

fn deletes(step: &Step) -> bool {
    match step {
        Step::SetRealServer { config, .. } => config.weight == 0,
        Step::DelEntries { .. }
        | Step::DelRoute { .. }
        | Step::DelVirtualServer { .. }
        | Step::DelRealServer { .. } => true,
        _ => false,
    }
}

#[tokio::test(start_paused = true)]
async fn table_from_disk_deletes_nothing_before_one_of_a_controller() {
    let mut rig = Rig::start();
    // They drain, without connections.
    let drained = of_service("old", "10.96.0.1", Protocol::Tcp, &[LEAVES, GONE]);
    rig.put(1, tables(vec![drained])).await;
    rig.put(2, newer()).await;
    rig.kernel.0.lock().await.flows = vec![flow()];
    let before = rig.kernel.0.lock().await.state.clone();
    let (kernel, state) = rig.stop().await;
    kernel.0.lock().await.applied.clear();

    let mut rig = Rig::with(kernel, state, boot_clock(Instant::now()));
    rig.put_from(true, 1, older()).await;
    pass(1_000).await;
    {
        let kernel = rig.kernel.0.lock().await;
        let deleting: Vec<_> = kernel.applied.iter().filter(|step| deletes(step)).collect();
        assert!(deleting.is_empty(), "{deleting:?}");
        assert_eq!(kernel.flows, [flow()]);
        for (key, server) in &before.virtual_servers {
            let now = &kernel.state.virtual_servers[key].real_servers;
            for address in server.real_servers.keys() {
                assert!(now.contains_key(&address), "{address} of {key}");
            }
        }
        let count = |protocol, last: u8| {
            let key = VirtualServerKey::new(protocol, [10, 96, 0, last].into(), 80);
            kernel.state.virtual_servers[&key].real_servers.len()
        };
        assert_eq!(count(Protocol::Tcp, 1), 4);
        assert_eq!((count(Protocol::Udp, 2), count(Protocol::Tcp, 4)), (2, 1));
    }

    rig.put(3, newer()).await;
    pass(1_000).await;
    assert_eq!(
        rig.kernel.0.lock().await.state,
        before_without_drained(&before)
    );
    assert_eq!(rig.kernel.0.lock().await.flows, [flow()]);
}

/// Real servers that had drained when the agent stopped are deleted.
fn before_without_drained(before: &KernelState) -> KernelState {
    let mut state = before.clone();
    for server in state.virtual_servers.values_mut() {
        for address in [LEAVES, GONE] {
            Arc::make_mut(&mut server.real_servers).remove(&address.parse().unwrap());
        }
    }
    state
}

/// A load balancer whose failed backends leave, and its health: the second backend has failed or not, and the sorry
/// server serves or not.
fn balanced(protocol: Protocol, destinations: &[&str], fails: bool) -> NodeTable {
    let profile = Profile {
        forwarding: ForwardingMethod::Masquerade,
        thresholds: Thresholds::default(),
        checks: Vec::new(),
        administrative_state: AdministrativeState::Enabled,
    };
    let mut record = record(protocol, destinations);
    record.balancing = Some(Arc::new(Balancing {
        profile_of: vec![0; destinations.len()],
        profiles: vec![profile],
        sorry_server: Some(SorryServer {
            address: SORRY.parse().unwrap(),
            forwarding: ForwardingMethod::Masquerade,
            keep_idle: false,
        }),
        health: HealthPolicy {
            on_failure: OnFailure::Remove,
            ..HealthPolicy::default()
        },
        ..Balancing::default()
    }));
    let judged = |address: &&str| {
        let standing = match fails && *address == LEAVES {
            true => Standing::Failed,
            false => Standing::Weight(1),
        };
        (address.parse().unwrap(), standing)
    };
    let health = RecordHealth {
        backends: destinations.iter().map(judged).collect(),
        is_sorry: Some(!fails),
        ..RecordHealth::default()
    };
    let health = (record.key.clone(), Arc::new(health));
    NodeTable {
        health: [health].into_iter().collect(),
        ..table(record)
    }
}

#[tokio::test(start_paused = true)]
async fn health_takes_out_what_a_table_from_disk_has_and_nothing_else() {
    for (protocol, sorry) in [(Protocol::Tcp, Some(0)), (Protocol::Udp, None)] {
        let mut rig = Rig::start();
        let newer = balanced(protocol, &[STAYS, LEAVES, NEWER], false);
        rig.put(1, newer).await;
        assert_eq!(rig.weight(SORRY).await, Some(1));
        let (kernel, state) = rig.stop().await;

        let mut rig = Rig::with(kernel, state, boot_clock(Instant::now()));
        let older = balanced(protocol, &[STAYS, LEAVES], true);
        rig.put_from(true, 1, older).await;
        assert_eq!(rig.weight(LEAVES).await, None, "{protocol}");
        assert_eq!(rig.weight(SORRY).await, sorry, "{protocol}");
        for kept in [STAYS, NEWER] {
            assert_eq!(rig.weight(kept).await, Some(1), "{protocol} {kept}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn rules_of_a_kube_proxy_stay_until_a_controller_has_sent_a_table() {
    let key = |last: u8| VirtualServerKey::new(Protocol::Tcp, [10, 96, 0, last].into(), 80);
    let left = PacketRules {
        modes: [RuleMode::Iptables].into(),
        frontends: [key(1), key(2)].into(),
    };
    let old = of_service("old", "10.96.0.1", Protocol::Tcp, &[STAYS]);
    let new = of_service("new", "10.96.0.2", Protocol::Tcp, &[STAYS]);
    // The controller's table may equal that from disk: then the rules of the other Service are really left over.
    for records in [vec![old.clone(), new], vec![old.clone()]] {
        let kernel = Shared::default();
        kernel.0.lock().await.packet_rules = left.clone();
        let clock = boot_clock(Instant::now());
        let mut rig = Rig::with(kernel, tempfile::tempdir().unwrap(), clock);
        rig.put_from(true, 1, tables(vec![old.clone()])).await;
        pass(1_000).await;
        assert_eq!(rig.kernel.0.lock().await.packet_rules, left);

        let served: BTreeSet<_> = [key(1), key(2)].into_iter().take(records.len()).collect();
        rig.put(2, tables(records)).await;
        pass(1).await;
        let kernel = rig.kernel.0.lock().await;
        assert!(kernel.packet_rules.is_empty());
        let servers = &kernel.state.virtual_servers;
        assert!(servers.keys().eq(&served), "{served:?}");
        assert_eq!(kernel.unserved_frontends.len(), 2 - served.len());
    }
}
