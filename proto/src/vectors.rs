// SPDX-License-Identifier: Apache-2.0

//! Test vectors of the protocol, for programs in other languages: `docs/protocol-vectors.json`.
//!
//! The file is written from these values with `UPDATE_REFERENCE=1` and compared without.

use std::net::SocketAddr;
use std::path::Path;

use ipnet::IpNet;
use portolan_model::ipvs::Flags;
use portolan_model::{
    Affinity, ContentHash, Destination, Families, Family, Frontend, FrontendAddress, FrontendKind,
    Lists, NodeInfo, NodeOverlay, Protocol, Record, RecordKey, Scheduling, SetHash, ZoneMask,
    node_hash,
};
use prost::Message;
use serde_json::{Value, json};

use crate::buckets::bucket_of;
use crate::convert::{encode_key, encode_lists, encode_node, encode_record, make_patch};
use crate::v1;
use crate::v1::frame::Frame;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn key(cluster: &str, service: &str, port: &str, protocol: Protocol) -> RecordKey {
    RecordKey {
        cluster: cluster.into(),
        namespace: "default".into(),
        service: service.into(),
        port: port.into(),
        protocol,
    }
}

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn destinations(addresses: &[&str]) -> Vec<Destination> {
    let parsed = addresses.iter().map(|text| text.parse::<SocketAddr>());
    parsed.map(|it| Destination::new(it.unwrap())).collect()
}

fn vip(kind: FrontendKind, address: &str, port: u16) -> Frontend {
    Frontend::new(kind, FrontendAddress::Vip(address.parse().unwrap()), port)
}

/// One cluster IP, two endpoints.
fn simple() -> Record {
    Record {
        frontends: vec![vip(FrontendKind::ClusterIp, "10.96.0.10", 80)],
        destinations: destinations(&["10.244.1.2:8080", "10.244.2.2:8080"]),
        available: Families::from_iter([Family::V4]),
        ..Record::new(key("", "web", "", Protocol::Tcp))
    }
}

/// Every field set.
fn full() -> Record {
    let mut frontends = vec![
        vip(FrontendKind::ClusterIp, "fd00:10:96::20", 53),
        vip(FrontendKind::ExternalIp, "198.51.100.1", 53),
        vip(FrontendKind::LoadBalancer, "203.0.113.1", 53),
        Frontend::new(
            FrontendKind::NodePort,
            FrontendAddress::NodeAddresses(Family::V6),
            30053,
        ),
    ];
    frontends[1].bind = false;
    frontends[2].lists = Lists::Local;
    frontends[2].source_ranges = vec![net("192.0.2.0/24"), net("192.0.2.128/25")];
    frontends[3].masquerade = true;
    let mut destinations = destinations(&["10.244.1.3:5353", "10.244.2.3:53", "[fd00::3]:5353"]);
    destinations[1].weight = 7;
    Record {
        frontends,
        destinations,
        zone_mask: Some(ZoneMask {
            zones: vec!["zone-a".into(), "zone-b".into()],
            masks: vec![1, 2, 3],
        }),
        affinity: Some(Affinity {
            timeout_seconds: 10_800,
        }),
        available: Families::from_iter(Family::ALL),
        scheduling: Scheduling {
            scheduler: Some("mh".into()),
            flags: Some(Flags(Flags::SCHED1 | Flags::SCHED2)),
        },
        drain_seconds: Some(0),
        health_check_port: Some(32_000),
        node_group: Some("ImportPolicy/edge".into()),
        ..Record::new(key("east", "names", "dns", Protocol::Udp))
    }
}

fn overlay() -> NodeOverlay {
    NodeOverlay {
        cluster: destinations(&["10.244.1.3:5353"]),
        local: destinations(&["[fd00::3]:5353"]),
        terminating: Families::from_iter([Family::V6]),
        own: vec!["10.244.1.3:5353".parse().unwrap()],
    }
}

fn node() -> NodeInfo {
    NodeInfo {
        zone: Some("zone-a".into()),
        pod_cidrs: vec![net("10.244.1.0/24"), net("fd00:1::/64")],
        eligible: true,
        groups: vec!["ImportPolicy/edge".into()],
        director: None,
    }
}

fn content(name: &str, cluster: &str, message: &impl Message, hash: ContentHash) -> Value {
    let (message, hash) = (hex(&message.encode_to_vec()), hash.to_string());
    json!({ "name": name, "cluster": cluster, "message": message, "hash": hash })
}

fn patches() -> Value {
    let base = full();
    let mut new = base.clone();
    new.destinations.remove(0);
    new.destinations[0].weight = 9;
    let added = destinations(&["10.244.3.3:53"]);
    new.destinations.splice(1..1, added);
    new.zone_mask.as_mut().unwrap().masks = vec![2, 0, 3];
    let (before, after) = (base.content_hash(), new.content_hash());
    let patch = make_patch(&base, before, &new, after).unwrap();
    let base = encode_record(&base, before).encode_to_vec();
    json!([{
        "name": "one destination gone, one with another weight, one new",
        "cluster": "east",
        "base": hex(&base),
        "patch": hex(&patch.encode_to_vec()),
        "hash": after.to_string(),
    }])
}

/// A snapshot, then a transition that replaces the bucket of its only record.
fn stream() -> Value {
    let record = simple();
    let hash = record.content_hash();
    let empty = NodeInfo::default().content_hash();
    let own = |members: &[ContentHash]| SetHash::from_iter(members.iter().copied());
    let records = |message: v1::Records| Frame::Records(message);
    let commit = |revision, snapshot, records: &[ContentHash], own: SetHash| {
        Frame::Commit(v1::Commit {
            revision,
            snapshot,
            records_hash: SetHash::from_iter(records.iter().copied())
                .to_bytes()
                .into(),
            own_hash: own.to_bytes().into(),
            ..v1::Commit::default()
        })
    };
    let other = Record::new(key("", "other", "", Protocol::Tcp));
    let replaced = bucket_of(&encode_key(&record.key), 16);
    let frames = [
        Frame::Welcome(v1::Welcome {
            version: 1,
            epoch: 7,
            cluster_id: "cluster".to_owned(),
        }),
        records(v1::Records {
            put: vec![encode_record(&record, hash)],
            ..v1::Records::default()
        }),
        commit(1, true, &[hash], own(&[empty])),
        Frame::Own(v1::Own {
            node: Some(encode_node(&node(), node().content_hash())),
            ..v1::Own::default()
        }),
        records(v1::Records {
            put: vec![encode_record(&other, other.content_hash())],
            replace_buckets: vec![replaced],
            bucket_count: 16,
            ..v1::Records::default()
        }),
        commit(
            2,
            false,
            &[other.content_hash()],
            own(&[node().content_hash()]),
        ),
    ];
    let frames = frames.map(|frame| {
        let frame = v1::Frame { frame: Some(frame) };
        hex(&frame.encode_to_vec())
    });
    json!(frames)
}

fn vectors() -> Value {
    let (simple, full) = (simple(), full());
    let members = [
        simple.content_hash(),
        full.content_hash(),
        ContentHash(u128::MAX),
    ];
    let bucket = |key: &RecordKey, count: u32| {
        let key = encode_key(key);
        let bucket = bucket_of(&key, count);
        json!({ "key": hex(&key.encode_to_vec()), "count": count, "bucket": bucket })
    };
    let lists = overlay();
    let lists_hash = lists.content_hash(&full.key);
    let grouped = NodeInfo {
        groups: ["{\"a\":\"1\"}", "{\"b\":\"2\"}"].map(Into::into).into(),
        ..node()
    };
    let directed = NodeInfo {
        director: Some("{\"kind\":\"Director\"}".into()),
        ..grouped.clone()
    };
    let own = SetHash::from_iter([lists_hash, node().content_hash()]);
    json!({
        "records": [
            content("one cluster IP", "", &encode_record(&simple, members[0]), members[0]),
            content("every field", "east", &encode_record(&full, members[1]), members[1]),
        ],
        "overlays": [
            content("every field", "east", &encode_lists(&full.key, &lists, lists_hash), lists_hash),
        ],
        "nodes": [
            content("empty", "", &encode_node(&NodeInfo::default(), NodeInfo::default().content_hash()),
                NodeInfo::default().content_hash()),
            content("every field", "", &encode_node(&node(), node().content_hash()), node().content_hash()),
            content("two groups", "", &encode_node(&grouped, grouped.content_hash()), grouped.content_hash()),
            content("two groups and a Director", "", &encode_node(&directed, directed.content_hash()),
                directed.content_hash()),
        ],
        "sums": [{
            "members": members.map(|member| member.to_string()),
            "sum": SetHash::from_iter(members).to_string(),
        }],
        "relay_nodes": [{
            "name": "node-a", "own_hash": own.to_string(), "hash": node_hash("node-a", own).to_string(),
        }],
        "buckets": [bucket(&simple.key, 1), bucket(&simple.key, 1024), bucket(&full.key, 4096)],
        "patches": patches(),
        "stream": stream(),
    })
}

#[test]
fn the_published_vectors_are_those_of_the_code() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/protocol-vectors.json");
    let text = format!("{:#}\n", vectors());
    if std::env::var_os("UPDATE_REFERENCE").is_some() {
        std::fs::write(&path, &text).unwrap();
    }
    let published = std::fs::read_to_string(&path).unwrap();
    assert!(published == text, "stale: run `make reference`");
}
