// SPDX-License-Identifier: Apache-2.0

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use portolan_dataplane::FakeKernel;
use portolan_model::Protocol;
use portolan_model::ipset::{Set, SetEntry, SetHeader, SetKind};
use portolan_model::ipvs::{
    SyncDaemon, SyncRole, VirtualServer, VirtualServerConfig, VirtualServerKey,
};
use portolan_plan::host::{HostState, Neighbour};
use portolan_plan::ownership_entry;

use super::*;

fn vip() -> IpAddr {
    "10.96.0.1".parse().unwrap()
}

fn set(entries: &[SetEntry]) -> Set {
    let header = SetHeader {
        kind: SetKind::HashIpPort,
        family: Family::V4,
        max_entries: 65_536,
    };
    Set {
        header,
        entries: entries.iter().cloned().collect(),
    }
}

#[test]
fn a_dataplane_that_could_not_be_removed_is_an_error_also_if_it_is_not_named() {
    let done = || Ok(Cleaned::Done);
    let absent = || Ok(Cleaned::Absent(anyhow::anyhow!("no module")));
    let failed = || Err(anyhow::anyhow!("busy"));
    let said = |named, ipvs, tables| {
        let judged = judge(named, ipvs, tables);
        judged.map_err(|error: anyhow::Error| error.to_string())
    };
    let busy = || Err("busy".to_owned());
    for named in [
        DataplaneKind::Ipvs,
        DataplaneKind::Nftables,
        DataplaneKind::Auto,
    ] {
        assert_eq!(said(named, done(), done()), Ok(()));
        assert_eq!(said(named, failed(), done()), busy());
        assert_eq!(said(named, done(), failed()), busy());
        assert_eq!(said(named, absent(), failed()), busy());
    }
    let missing = || Err("no module".to_owned());
    assert_eq!(said(DataplaneKind::Ipvs, absent(), done()), missing());
    assert_eq!(said(DataplaneKind::Ipvs, done(), absent()), Ok(()));
    assert_eq!(said(DataplaneKind::Nftables, done(), absent()), missing());
    assert_eq!(said(DataplaneKind::Nftables, absent(), done()), Ok(()));
    assert_eq!(said(DataplaneKind::Auto, absent(), done()), Ok(()));
    assert_eq!(said(DataplaneKind::Auto, absent(), absent()), missing());
}

#[test]
fn a_hand_over_starts_with_the_dataplane_that_has_programmed_the_node() {
    use DataplaneKind::{Auto, Ipvs, Nftables};
    for has_sets in [false, true] {
        assert_eq!(start(Nftables, false, has_sets), Start::Tables);
        assert_eq!(start(Nftables, true, has_sets), Start::Tables);
        assert_eq!(start(Auto, true, has_sets), Start::Tables);
        assert_eq!(start(Auto, false, has_sets), Start::Ipvs);
        assert_eq!(start(Ipvs, false, has_sets), Start::Ipvs);
    }
    assert_eq!(start(Ipvs, true, true), Start::Ipvs);
    assert_eq!(start(Ipvs, true, false), Start::Refused);
}

#[test]
fn a_hand_over_without_ipvs_leaves_tables_alone() {
    let missing = || Cleaned::Absent(anyhow::anyhow!("no module"));
    let no_tables = || Tables::Absent(DataplaneError::Capabilities(vec!["CAP_NET_ADMIN"]));
    let said = |named, ipvs, tables| {
        let next = after_ipvs(named, ipvs, tables);
        next.map_err(|error| error.to_string())
    };
    let (ipvs, auto) = (DataplaneKind::Ipvs, DataplaneKind::Auto);
    let error = || Err("no module".to_owned());
    for named in [ipvs, auto] {
        assert_eq!(said(named, Cleaned::Done, Tables::There), Ok(true));
        assert_eq!(said(named, Cleaned::Done, Tables::None), Ok(false));
        assert_eq!(said(named, Cleaned::Done, no_tables()), Ok(false));
        assert_eq!(said(named, missing(), Tables::There), error());
        assert_eq!(said(named, missing(), no_tables()), error());
    }
    assert_eq!(said(ipvs, missing(), Tables::None), error());
    // A hand-over that is repeated finds nothing.
    assert_eq!(said(auto, missing(), Tables::None), Ok(false));
}

/// Clears a node whose flags name a dataplane.
async fn clear_node(kernel: &mut FakeKernel, named: DataplaneKind) {
    let config = Config::default();
    let there: BTreeSet<String> = kernel.state.sets.keys().cloned().collect();
    let has = |name: &str| Ok::<_, DataplaneError>(there.contains(name));
    let has_sets = has_any(&own_sets(&config), has).unwrap();
    clear_ours(kernel, named, &config, &Family::ALL, has_sets)
        .await
        .unwrap();
}

fn kernel_with(sets: &[&str], has_device: bool) -> FakeKernel {
    let mut kernel = FakeKernel::default();
    if has_device {
        let bound = BTreeSet::from([vip()]);
        kernel.devices.insert(VIP_DEVICE.to_owned(), bound);
    }
    let sets = sets.iter().map(|name| ((*name).to_owned(), set(&[])));
    kernel.state.sets = sets.collect();
    kernel
}

#[tokio::test]
async fn a_kube_proxy_keeps_its_sets_and_chains_where_nothing_is_ours() {
    for (named, has_device) in [
        (DataplaneKind::Nftables, false),
        (DataplaneKind::Nftables, true),
        (DataplaneKind::Auto, false),
        (DataplaneKind::Ipvs, true),
    ] {
        let mut kernel = kernel_with(&["KUBE-CLUSTER-IP"], has_device);
        let devices = kernel.devices.clone();
        clear_node(&mut kernel, named).await;
        let sets: Vec<_> = kernel.state.sets.keys().collect();
        assert_eq!(sets, ["KUBE-CLUSTER-IP"], "{named:?}");
        assert_eq!(kernel.devices, devices, "{named:?}");
        assert!(kernel.removed_chains.is_empty(), "{named:?}");
    }
}

#[tokio::test]
async fn a_record_of_ours_lets_all_objects_go_whatever_dataplane_is_named() {
    for marker in own_sets(&Config::default()) {
        for named in [DataplaneKind::Nftables, DataplaneKind::Ipvs] {
            let mut kernel = kernel_with(&["KUBE-CLUSTER-IP", &marker], true);
            clear_node(&mut kernel, named).await;
            let sets: Vec<_> = kernel.state.sets.keys().collect();
            assert_eq!(sets, [""; 0], "{marker}, {named:?}");
            // The device of a kube-proxy is none of ours.
            assert!(kernel.devices.contains_key(VIP_DEVICE));
        }
    }
    // The dataplane that is named is cleared without a record, too, unless a kube-proxy is there.
    let mut kernel = kernel_with(&[], false);
    clear_node(&mut kernel, DataplaneKind::Ipvs).await;
    assert!(!kernel.removed_chains.is_empty());
}

#[tokio::test]
async fn our_objects_go_and_foreign_ones_stay() {
    let key = |port| VirtualServerKey::new(Protocol::Tcp, vip(), port);
    let mark = |mark| VirtualServerKey::Mark {
        family: Family::V4,
        mark,
    };
    let config = VirtualServerConfig::round_robin();
    let server = VirtualServer {
        config: config.into(),
        real_servers: Arc::default(),
    };
    let ours = [ownership_entry(&key(80)), ownership_entry(&mark(1))];
    let mut kernel = FakeKernel::default();
    kernel.state.sets = BTreeMap::from([
        ("KUBE-PORTOLAN-OWNED".to_owned(), set(&ours)),
        ("KUBE-CLUSTER-IP".to_owned(), set(&ours[..1])),
        ("PORTOLAN-REPLACEMENT".to_owned(), set(&[])),
        ("somebody-elses".to_owned(), set(&[])),
    ]);
    kernel.state.virtual_servers = [key(80), key(81), mark(1), mark(2)]
        .map(|key| (key, server.clone()))
        .into();
    kernel.state.routes = BTreeMap::from([(vip(), None)]);

    clear(&mut kernel, &Config::default(), &Family::ALL)
        .await
        .unwrap();
    assert_eq!(
        kernel.state.virtual_servers,
        BTreeMap::from([(key(81), server.clone()), (mark(2), server)])
    );
    assert_eq!(
        kernel.state.sets.keys().collect::<Vec<_>>(),
        ["somebody-elses"]
    );
    assert!(kernel.state.routes.is_empty());
}

#[tokio::test]
async fn what_a_director_made_goes_and_an_operators_daemon_stays() {
    let ours = SyncDaemon::new("eth0");
    let operators = SyncDaemon {
        id: 7,
        ..SyncDaemon::new("eth1")
    };
    let neighbour = Neighbour {
        interface: "eth0".to_owned(),
        address: "2001:db8::1".parse().unwrap(),
    };
    let mut kernel = FakeKernel::default();
    kernel.host.state = HostState {
        daemons: [
            (SyncRole::Master, ours.clone()),
            (SyncRole::Backup, operators.clone()),
        ]
        .into(),
        neighbours: [neighbour].into(),
        announced: [(199, vip())].into(),
        ..HostState::default()
    };
    // The agent had started both roles; somebody has started another backup since.
    let owned = Owned {
        daemons: SyncRole::ALL.map(|role| (role, ours.clone())).into(),
        tables: [199].into(),
        stands_by: false,
    };
    clean_host(&mut kernel, &owned).await.unwrap();
    let left = HostState {
        daemons: [(SyncRole::Backup, operators)].into(),
        ..HostState::default()
    };
    assert_eq!(kernel.host.state, left);
    clean_host(&mut kernel, &Owned::default()).await.unwrap();
    assert_eq!(kernel.host.applied.len(), 3, "{:?}", kernel.host.applied);
}
