// SPDX-License-Identifier: Apache-2.0

//! The incremental state equals one computed from scratch after any change.

use std::net::SocketAddr;
use std::sync::Arc;

use portolan_model::AdministrativeState;
use portolan_model::ipvs::{ForwardingMethod, Thresholds};
use portolan_model::{
    Balancing, Destination, Frontend, FrontendAddress, FrontendKind, Lists, NodeOverlay, PortRange,
    Profile, Protocol, Record,
};
use proptest::prelude::*;
use proptest::sample::select;

use super::*;
use crate::{plan, plan_touched};

fn key(service: u8, protocol: Protocol) -> RecordKey {
    RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: match service {
            2 | 3 => format!("s{service}@clusterset").into(),
            _ => format!("s{service}").into(),
        },
        port: "".into(),
        protocol,
    }
}

/// One of a few frontends; different records often share the address, sometimes the port.
fn frontend() -> impl Strategy<Value = Frontend> {
    const KINDS: [FrontendKind; 3] = [
        FrontendKind::ClusterIp,
        FrontendKind::NodePort,
        FrontendKind::ExternalIp,
    ];
    let kind = select(&KINDS[..]);
    (kind, 1..3u8, 80..86u16, prop::bool::weighted(0.2)).prop_map(|(kind, last, port, local)| {
        let address = match kind {
            FrontendKind::NodePort => FrontendAddress::NodeAddresses(Family::V4),
            _ => FrontendAddress::Vip([10, 96, 0, last].into()),
        };
        Frontend {
            lists: if local { Lists::Local } else { Lists::Cluster },
            ..Frontend::new(kind, address, port)
        }
    })
}

fn record() -> impl Strategy<Value = (Record, NodeOverlay)> {
    let protocol = select(&[Protocol::Tcp, Protocol::Udp][..]);
    let destinations = || prop::collection::btree_set(1..5u8, 0..3);
    let health = prop::option::weighted(0.3, 30_000..30_002u16);
    let frontends = prop::collection::vec(frontend(), 1..3);
    (
        0..5u8,
        protocol,
        frontends,
        destinations(),
        destinations(),
        health,
    )
        .prop_map(
            |(service, protocol, frontends, cluster, own, health_check_port)| {
                let address = |last: u8| SocketAddr::from(([10, 0, 0, last], 80));
                let record = Record {
                    frontends,
                    available: cluster.iter().map(|_| Family::V4).collect(),
                    destinations: cluster
                        .into_iter()
                        .map(|d| Destination::new(address(d)))
                        .collect(),
                    health_check_port,
                    ..Record::new(key(service, protocol))
                };
                let record = if service == 4 {
                    balanced(record)
                } else {
                    record
                };
                let lists = NodeOverlay {
                    own: own.into_iter().map(address).collect(),
                    ..NodeOverlay::default()
                };
                (record, lists)
            },
        )
}

/// A load balancer's record: the first frontend has ranges of ports, the second one is a mark.
fn balanced(mut record: Record) -> Record {
    let port = record.frontends[0].port;
    let address = FrontendAddress::Vip([10, 96, 0, 1].into());
    record.frontends[0] = Frontend {
        ranges: vec![PortRange {
            first: port,
            last: port + 2,
        }],
        ..Frontend::new(FrontendKind::BalancedRanges, address, 0)
    };
    if let Some(second) = record.frontends.get_mut(1) {
        let (family, mark) = (Family::V4, second.port.into());
        let address = FrontendAddress::Mark { family, mark };
        *second = Frontend::new(FrontendKind::Balanced, address, 0);
    }
    let profile = Profile {
        forwarding: ForwardingMethod::Direct,
        thresholds: Thresholds::default(),
        checks: Vec::new(),
        administrative_state: AdministrativeState::Enabled,
    };
    record.balancing = Some(Arc::new(Balancing {
        profiles: vec![profile],
        profile_of: vec![0; record.destinations.len()],
        ..Balancing::default()
    }));
    record
}

/// A record to put or to delete.
fn edit() -> impl Strategy<Value = (Record, Option<NodeOverlay>)> {
    (record(), prop::bool::weighted(0.8)).prop_map(|((record, lists), stays)| {
        let lists = stays.then_some(lists);
        (record, lists)
    })
}

fn edited(table: &NodeTable, edits: Vec<(Record, Option<NodeOverlay>)>) -> NodeTable {
    let mut table = table.clone();
    for (record, lists) in edits {
        let key = record.key.clone();
        match lists {
            Some(lists) => {
                table.lists.insert(key.clone(), Arc::new(lists));
                table.records.insert(key, Arc::new(record));
            }
            None => {
                table.lists.remove(&key);
                table.records.remove(&key);
            }
        }
    }
    table
}

fn config() -> Config {
    Config {
        families: [Family::V4].into(),
        ..Config::default()
    }
}

fn facts() -> NodeFacts {
    NodeFacts {
        // One of the VIPs is an address of the node.
        addresses: [[10, 96, 0, 2].into()].into(),
        node_port_addresses: [[192, 0, 2, 1].into()].into(),
        ..NodeFacts::default()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn incremental_state_equals_one_from_scratch(
        rounds in prop::collection::vec(prop::collection::vec(edit(), 1..4), 1..8),
        routed in prop::bool::weighted(0.2),
    ) {
        let (facts, config) = (facts(), config());
        let (mut table, mut state) = (NodeTable::default(), KernelState::default());
        if routed {
            state.foreign_routes.insert([10, 96, 0, 1].into());
        }
        let mut kept = IncrementalDesired::new(&table, &facts, &config, &state);
        plan(kept.desired(), &state, &config).iter().for_each(|step| state.advance(step));
        for edits in rounds {
            let next = edited(&table, edits);
            let anew = IncrementalDesired::new(&next, &facts, &config, &state);
            let steps = plan(anew.desired(), &state, &config);
            match kept.update(&table, &next, &facts, &config, &state) {
                Some(touched) => {
                    prop_assert_eq!(&kept, &anew);
                    let fewer = plan_touched(kept.desired(), &state, &config, &touched);
                    prop_assert_eq!(&fewer, &steps);
                }
                None => kept = anew,
            }
            steps.iter().for_each(|step| state.advance(step));
            table = next;
        }
    }
}

#[test]
fn changed_endpoint_touches_one_virtual_server() {
    let (facts, config) = (facts(), config());
    let vip = FrontendAddress::Vip([10, 96, 0, 1].into());
    let with = |last: u8| Record {
        frontends: vec![Frontend::new(FrontendKind::ClusterIp, vip, 80)],
        destinations: vec![Destination::new(SocketAddr::from(([10, 0, 0, last], 80)))],
        ..Record::new(key(0, Protocol::Tcp))
    };
    let of = |last| {
        edited(
            &NodeTable::default(),
            vec![(with(last), Some(NodeOverlay::default()))],
        )
    };
    let mut state = KernelState::default();
    let mut kept = IncrementalDesired::new(&of(1), &facts, &config, &state);
    plan(kept.desired(), &state, &config)
        .iter()
        .for_each(|step| state.advance(step));
    let touched = kept.update(&of(1), &of(2), &facts, &config, &state);
    let touched = touched.expect("a change of one record alone");
    let servers: Vec<_> = touched.servers.iter().collect();
    let server = VirtualServerKey::new(Protocol::Tcp, [10, 96, 0, 1].into(), 80);
    assert_eq!((servers, touched.routes.len()), (vec![&server], 0));
}
