// SPDX-License-Identifier: Apache-2.0

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use portolan_model::check::{Check, HealthPolicy, Probe};
use portolan_model::ipvs::{Flags, ForwardingMethod, GueChecksum, Thresholds, Tunnel};
use portolan_model::{
    AdministrativeState, Affinity, Balancing, ContentHash, Destination, Families, Family, Frontend,
    FrontendAddress, FrontendKind, Lists, NodeInfo, NodeOverlay, Persistence, PortRange, Profile,
    Protocol, Record, RecordKey, Scheduling, SorryServer, ZoneMask,
};
use proptest::collection::{btree_map, btree_set, vec};
use proptest::option;
use proptest::prelude::*;
use proptest::sample::select;
use prost::Message;

use super::*;
use crate::v1;

/// Patches of records.
mod patch;
/// Refusals and omissions by the rules, case by case.
mod rules;

const CLUSTER: &str = "east";

fn cluster() -> Arc<str> {
    CLUSTER.into()
}

fn ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<Ipv4Addr>().prop_map(IpAddr::V4),
        any::<Ipv6Addr>().prop_map(IpAddr::V6),
    ]
}

fn port() -> impl Strategy<Value = u16> {
    prop_oneof![Just(80), 1..=u16::MAX]
}

fn addresses() -> impl Strategy<Value = BTreeSet<SocketAddr>> {
    let mixed = btree_set((ip(), port()).prop_map(SocketAddr::from), 0..8);
    let one_port = (btree_set(ip(), 0..8), port())
        .prop_map(|(ips, port)| ips.into_iter().map(|ip| (ip, port).into()).collect());
    prop_oneof![mixed, one_port]
}

fn destinations() -> impl Strategy<Value = Vec<Destination>> {
    let weights = prop_oneof![Just(vec![1; 8]), vec(any::<u32>(), 8)];
    (addresses(), weights).prop_map(|(addresses, weights)| {
        let pairs = addresses.into_iter().zip(weights);
        pairs
            .map(|(address, weight)| Destination { address, weight })
            .collect()
    })
}

fn key() -> impl Strategy<Value = RecordKey> {
    let protocol = select(vec![Protocol::Tcp, Protocol::Udp, Protocol::Sctp]);
    ("[a-z]{0,5}", "\\PC{0,5}", "[a-z]{0,3}", protocol).prop_map(
        |(namespace, service, port, protocol)| RecordKey {
            cluster: CLUSTER.into(),
            namespace: namespace.into(),
            service: service.into(),
            port: port.into(),
            protocol,
        },
    )
}

fn frontend() -> impl Strategy<Value = Frontend> {
    let kind = select(vec![
        FrontendKind::ClusterIp,
        FrontendKind::ExternalIp,
        FrontendKind::LoadBalancer,
        FrontendKind::NodePort,
        FrontendKind::Balanced,
        FrontendKind::BalancedRanges,
    ]);
    let mark = (select(Family::ALL.to_vec()), 1..=u32::MAX);
    let address = prop_oneof![
        ip().prop_map(FrontendAddress::Vip),
        select(Family::ALL.to_vec()).prop_map(FrontendAddress::NodeAddresses),
        mark.prop_map(|(family, mark)| FrontendAddress::Mark { family, mark }),
    ];
    let bounds = btree_set(1..=u16::MAX, 2..8);
    let lists = select(vec![Lists::Cluster, Lists::Local]);
    let ranges = btree_set((any::<u128>(), 0..=128_u8), 0..4);
    let sources = (any::<(bool, bool)>(), ranges);
    (kind, address, port(), bounds, lists, sources).prop_map(
        |(kind, address, port, bounds, lists, ((masquerade, bind), ranges))| {
            let bounds: Vec<u16> = match kind {
                FrontendKind::BalancedRanges => bounds.into_iter().collect(),
                _ => Vec::new(),
            };
            let pairs = bounds.chunks_exact(2);
            let ports = pairs.map(|pair| PortRange {
                first: pair[0],
                last: pair[1],
            });
            let mut frontend = Frontend {
                kind,
                address,
                port,
                ranges: ports.collect(),
                lists,
                masquerade,
                source_ranges: Vec::new(),
                bind,
            };
            let family = frontend.family();
            let ranges: BTreeSet<IpNet> = ranges.iter().map(|r| range(family, *r)).collect();
            frontend.source_ranges = ranges.into_iter().collect();
            frontend
        },
    )
}

fn range(family: Family, (bits, length): (u128, u8)) -> IpNet {
    let net = match family {
        Family::V4 => {
            let bits = u32::try_from(bits >> 96).unwrap();
            IpNet::new(IpAddr::V4(bits.into()), (length / 4).max(1))
        }
        Family::V6 => IpNet::new(IpAddr::V6(bits.into()), length.max(1)),
    };
    net.unwrap().trunc()
}

fn record() -> impl Strategy<Value = Record> {
    let frontends = btree_set(frontend(), 0..4);
    let mask = option::of((btree_set("[a-z]{1,2}", 1..5), vec(any::<u64>(), 8)));
    let affinity = option::of(1..=86_400_u32);
    let rest = (
        families(),
        scheduling(),
        option::of(any::<u32>()),
        option::of(port()),
        option::of("[a-z/]{1,5}"),
    );
    (key(), frontends, destinations(), mask, affinity, rest).prop_map(
        |(key, frontends, destinations, mask, affinity, rest)| Record {
            key,
            frontends: frontends.into_iter().collect(),
            zone_mask: mask.map(|(zones, masks)| ZoneMask {
                zones: zones.into_iter().map(Into::into).collect(),
                masks: masks[..destinations.len()].to_vec(),
            }),
            destinations,
            affinity: affinity.map(|timeout_seconds| Affinity { timeout_seconds }),
            available: rest.0,
            scheduling: rest.1,
            drain_seconds: rest.2,
            health_check_port: rest.3,
            balancing: None,
            node_group: rest.4.map(Into::into),
        },
    )
}

/// A load balancer's record: all ports of an address, and a setting of each kind.
fn balanced() -> Record {
    let profile = |forwarding, checks| Profile {
        forwarding,
        thresholds: Thresholds { upper: 5, lower: 2 },
        checks,
        administrative_state: AdministrativeState::Enabled,
    };
    let gue = Tunnel::Gue {
        port: 6080,
        checksum: GueChecksum::Full,
    };
    let http = Check::new(Probe::Http(Box::default()));
    let balancing = Balancing {
        persistence: Some(Persistence {
            timeout_seconds: 2_678_400,
            ipv4_prefix_length: 24,
            ipv6_prefix_length: 64,
            engine: Some("sip".into()),
        }),
        profiles: vec![
            profile(ForwardingMethod::Direct, vec![]),
            profile(ForwardingMethod::Tunnel(gue), vec![Arc::new(http)]),
        ],
        profile_of: vec![1, 0],
        sorry_server: Some(SorryServer {
            address: "10.0.0.9:0".parse().unwrap(),
            forwarding: ForwardingMethod::Masquerade,
            keep_idle: true,
        }),
        health: HealthPolicy::default(),
        group: None,
    };
    let address = FrontendAddress::Vip([192, 0, 2, 1].into());
    Record {
        frontends: vec![Frontend::new(FrontendKind::Balanced, address, 0)],
        destinations: ["10.0.0.1:0", "10.0.0.2:0"]
            .map(|address| Destination::new(address.parse().unwrap()))
            .into(),
        balancing: Some(Arc::new(balancing)),
        ..Record::new(RecordKey {
            cluster: CLUSTER.into(),
            namespace: "default".into(),
            service: "ftp".into(),
            port: "all".into(),
            protocol: Protocol::Tcp,
        })
    }
}

#[test]
fn a_load_balancer_survives_the_wire() {
    let record = balanced();
    let sent = transmit(&encode_record(&record, record.content_hash()));
    let decoded = decode_record(&sent, &cluster()).unwrap();
    assert_eq!(decoded.record, record);
    // Without the column beside them, its destinations must have ports.
    let service = v1::Record {
        balancing: Vec::new(),
        ..sent.clone()
    };
    let error = decode_record(&service, &cluster()).unwrap_err();
    assert_eq!(error.to_string(), "destinations.ports: 0 is out of range");
    let mut short = sent.clone();
    short.destinations.as_mut().unwrap().v4.pop();
    let error = decode_record(&short, &cluster()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "balancing.profile_of: 2 elements instead of 1"
    );
    let mut restless = Check::new(Probe::Icmp);
    restless.timers.interval = std::time::Duration::ZERO;
    let mut balancing = Balancing::clone(record.balancing.as_ref().unwrap());
    balancing.profiles[0].checks = vec![Arc::new(restless)];
    let unbounded = v1::Record {
        balancing: balancing.to_json(),
        ..sent.clone()
    };
    let error = decode_record(&unbounded, &cluster()).unwrap_err();
    assert_eq!(error.field, "balancing.profiles.checks.timers");
    let broken = v1::Record {
        balancing: b"{".to_vec(),
        ..sent
    };
    let error = decode_record(&broken, &cluster()).unwrap_err();
    assert!(error.to_string().starts_with("balancing: EOF"), "{error}");
}

#[test]
fn older_agents_leave_the_load_balancers_of_groups_out() {
    let mut record = balanced();
    let without = record.content_hash();
    let balancing = Arc::make_mut(record.balancing.as_mut().unwrap());
    balancing.group = portolan_model::group_name(&[("a".to_owned(), "b".to_owned())].into());
    assert_ne!(record.content_hash(), without);
    let sent = transmit(&encode_record(&record, record.content_hash()));
    // None of the kinds that they know.
    assert_eq!(sent.frontends[0].kind, 7);
    assert_eq!(decode_record(&sent, &cluster()).unwrap().record, record);
}

#[test]
fn a_load_balancer_is_never_patched() {
    let old = balanced();
    let mut new = old.clone();
    new.destinations[0].weight = 7;
    let hash = ContentHash(1);
    assert_eq!(make_patch(&old, hash, &new, hash), None);
    let error = apply_patch(&old, &v1::RecordPatch::default()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "patch.base: the record of a load balancer"
    );
}

fn families() -> impl Strategy<Value = Families> {
    any::<(bool, bool)>().prop_map(|(v4, v6)| {
        let both = [(v4, Family::V4), (v6, Family::V6)];
        both.into_iter()
            .filter(|(is, _)| *is)
            .map(|(_, f)| f)
            .collect()
    })
}

fn scheduling() -> impl Strategy<Value = Scheduling> {
    let scheduler = option::of("[a-z]{1,15}".prop_map(Into::into));
    let flags = option::of(any::<u32>().prop_map(Flags));
    (scheduler, flags).prop_map(|(scheduler, flags)| Scheduling { scheduler, flags })
}

fn lists() -> impl Strategy<Value = NodeOverlay> {
    (destinations(), destinations(), addresses(), families()).prop_map(
        |(cluster, local, own, terminating)| NodeOverlay {
            cluster,
            local,
            own: own.into_iter().collect(),
            terminating,
        },
    )
}

fn node() -> impl Strategy<Value = NodeInfo> {
    let cidr = |family| {
        option::of(
            any::<(u128, u8)>().prop_map(move |(bits, length)| range(family, (bits, length % 129))),
        )
    };
    let zone = option::of("[a-z]{1,3}".prop_map(Into::into));
    let groups = btree_set("[a-z]{0,3}", 0..3);
    let director = option::of("[a-z{}]{1,9}".prop_map(Into::into));
    (
        zone,
        cidr(Family::V4),
        cidr(Family::V6),
        any::<bool>(),
        groups,
        director,
    )
        .prop_map(|(zone, v4, v6, eligible, groups, director)| NodeInfo {
            zone,
            pod_cidrs: v4.into_iter().chain(v6).collect(),
            eligible,
            groups: groups.into_iter().map(Into::into).collect(),
            director,
        })
}

/// Over the wire as bytes, not as a message.
fn transmit<M: Message + Default>(message: &M) -> M {
    M::decode(message.encode_to_vec().as_slice()).unwrap()
}

/// A message whose columns need not fit each other.
fn wild_record() -> impl Strategy<Value = v1::Record> {
    let small = || vec(0..4_u8, 0..33);
    let numbers = || vec(prop_oneof![0..3_u32, any::<u32>()], 0..4);
    let columns = (numbers(), small(), numbers(), numbers());
    let frontends = vec((0..6_i32, 0..4_u8, small(), 0..70_000_u32, 0..4_i32), 0..3);
    let zones = (vec("[a-b]{0,1}", 0..3), vec(any::<u64>(), 0..4));
    let key = option::of(0..5_i32);
    (key, small(), columns, frontends, zones, any::<u32>()).prop_map(
        |(protocol, hash, (v4, v6, ports, weights), frontends, (zones, zone_masks), seconds)| {
            v1::Record {
                key: protocol.map(|protocol| v1::RecordKey {
                    protocol,
                    ..v1::RecordKey::default()
                }),
                hash,
                frontends: frontends.into_iter().map(wild_frontend).collect(),
                destinations: Some(v1::Destinations {
                    v4,
                    v6,
                    ports,
                    weights,
                }),
                zones,
                zone_masks,
                affinity_seconds: seconds,
                ..v1::Record::default()
            }
        },
    )
}

fn wild_frontend(
    (kind, case, octets, number, lists): (i32, u8, Vec<u8>, u32, i32),
) -> v1::Frontend {
    let address = match case {
        0 => None,
        1 => Some(v1::frontend::Address::V4(number)),
        2 => Some(v1::frontend::Address::V6(octets.clone())),
        _ => Some(v1::frontend::Address::NodeAddresses(lists)),
    };
    v1::Frontend {
        kind,
        address,
        port: number,
        lists,
        masquerade: false,
        source_ranges: vec![v1::Network {
            network: Some(v1::network::Network::V6(octets)),
            prefix_length: number,
        }],
        unbound: false,
        ranges: Vec::new(),
    }
}

proptest! {
    #[test]
    fn a_record_comes_back_as_it_was(record in record()) {
        let sent = encode_record(&record, record.content_hash());
        let got = decode_record(&transmit(&sent), &cluster()).unwrap();
        prop_assert_eq!(got.hash, record.content_hash());
        prop_assert!(got.left_out.is_empty());
        prop_assert_eq!(got.record.content_hash(), record.content_hash());
        prop_assert_eq!(got.record, record);
    }

    #[test]
    fn lists_come_back_as_they_were(key in key(), lists in lists()) {
        let hash = lists.content_hash(&key);
        let sent = encode_lists(&key, &lists, hash);
        let got = decode_lists(&transmit(&sent), &cluster()).unwrap();
        prop_assert_eq!(got, DecodedLists { key, lists, hash });
    }

    #[test]
    fn a_node_comes_back_as_it_was(node in node()) {
        let hash = node.content_hash();
        let sent = encode_node(&node, hash);
        let without_hash = v1::NodeInfo { hash: vec![], ..sent.clone() };
        let expected = DecodedNode { node, hash, left_out: vec![] };
        for sent in [sent, without_hash] {
            prop_assert_eq!(&decode_node(&transmit(&sent)).unwrap(), &expected);
        }
    }

    #[test]
    fn no_two_records_are_encoded_alike(records in btree_map(key(), record(), 0..4)) {
        let encoded: BTreeSet<Vec<u8>> = records
            .values()
            .map(|record| encode_record(record, record.content_hash()).encode_to_vec())
            .collect();
        let hashes: BTreeSet<_> = records.values().map(Record::content_hash).collect();
        prop_assert_eq!(encoded.len(), hashes.len());
    }

    #[test]
    fn any_columns_are_decoded_or_refused(from in wild_record()) {
        if let Ok(decoded) = decode_record(&from, &cluster()) {
            let again = encode_record(&decoded.record, decoded.hash);
            let again = decode_record(&again, &cluster()).unwrap();
            prop_assert_eq!(again.record, decoded.record);
        }
    }

    #[test]
    fn any_bytes_are_decoded_or_refused(bytes in vec(any::<u8>(), 0..200)) {
        if let Ok(record) = v1::Record::decode(bytes.as_slice()) {
            let _ = decode_record(&record, &cluster());
        }
        if let Ok(lists) = v1::NodeLists::decode(bytes.as_slice()) {
            let _ = decode_lists(&lists, &cluster());
        }
        let _ = v1::Frame::decode(bytes.as_slice());
        let _ = v1::AgentMessage::decode(bytes.as_slice());
    }

    #[test]
    fn a_flipped_bit_is_decoded_or_refused(
        record in record(),
        at in any::<prop::sample::Index>(),
        bit in 0..8_u8,
    ) {
        let mut bytes = encode_record(&record, record.content_hash()).encode_to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        if let Ok(record) = v1::Record::decode(bytes.as_slice()) {
            let _ = decode_record(&record, &cluster());
        }
    }
}
