// SPDX-License-Identifier: Apache-2.0

//! Values of a controller that is newer than this agent: the hashes cover all of them.

use portolan_model::ContentHash;
use portolan_proto::v1::network::Network;
use prost::Message;

use super::*;

/// A field that this version does not know, of number 500.
const UNKNOWN: [u8; 3] = [0xa0, 0x1f, 1];

/// A message as this version reads it that has such a field too.
fn with_unknown<M: Message + Default>(message: &M) -> M {
    let mut bytes = message.encode_to_vec();
    bytes.extend(UNKNOWN);
    M::decode(bytes.as_slice()).unwrap()
}

fn network(network: Network, prefix_length: u32) -> v1::Network {
    v1::Network {
        network: Some(network),
        prefix_length,
    }
}

/// A Commit of these records, and of a node of this hash.
fn with_node(records: &[v1::Record], node: ContentHash) -> v1::Commit {
    let own: SetHash = [node].into_iter().collect();
    v1::Commit {
        own_hash: own.to_bytes().into(),
        ..snapshot(sums(records, &[], None))
    }
}

fn send(agent: &mut Agent, node: v1::NodeInfo, records: &[v1::Record]) -> Committed {
    let hash = ContentHash::from_bytes(&node.hash).unwrap();
    let own = v1::Own {
        node: Some(node),
        ..v1::Own::default()
    };
    agent.put(records);
    agent.0.take_frame(frame(Frame::Own(own))).unwrap();
    agent.commit(with_node(records, hash)).unwrap()
}

fn info(zone: &str, hash: u128) -> v1::NodeInfo {
    v1::NodeInfo {
        zone: zone.to_owned(),
        hash: ContentHash(hash).to_bytes().into(),
        ..v1::NodeInfo::default()
    }
}

#[test]
fn a_new_field_of_the_node_is_no_obstacle() {
    let mut agent = Agent::new();
    let committed = send(&mut agent, with_unknown(&info("a", 77)), &[encoded("x", 1)]);
    assert_eq!(committed.table.node.zone.as_deref(), Some("a"));
    assert!(committed.refused.is_empty());
    // A change that is the same for all nodes, and one of the node.
    agent.put(&[encoded("y", 1)]);
    let both = [encoded("x", 1), encoded("y", 1)];
    let shared = v1::Commit {
        own_hash: vec![],
        ..sums(&both, &[], None)
    };
    let committed = agent.commit(shared).unwrap();
    assert_eq!(services(&committed).len(), 2);
    let committed = send(&mut agent, with_unknown(&info("b", 78)), &both);
    assert_eq!(committed.table.node.zone.as_deref(), Some("b"));
}

#[test]
fn a_pod_cidr_of_an_unknown_family_is_left_out_by_name() {
    let known = network(Network::V4(0x0a00_0000), 8);
    let node = v1::NodeInfo {
        pod_cidrs: vec![v1::Network::default(), known],
        ..info("a", 77)
    };
    let mut agent = Agent::new();
    let committed = send(&mut agent, node, &[encoded("x", 1)]);
    assert_eq!(
        committed.table.node.pod_cidrs,
        ["10.0.0.0/8".parse().unwrap()]
    );
    let refused = &committed.refused[0];
    assert_eq!(refused.key, None);
    assert!(refused.reason.contains("pod CIDR 0"), "{}", refused.reason);
    assert_eq!(services(&committed).len(), 1);
}

#[test]
fn a_node_that_breaks_a_rule_keeps_its_last_facts_and_all_else_applies() {
    let mut agent = Agent::new();
    send(&mut agent, info("a", 77), &[encoded("x", 1)]);
    let two = network(Network::V4(0), 8);
    let node = v1::NodeInfo {
        pod_cidrs: vec![two.clone(), two],
        ..info("b", 78)
    };
    let committed = send(&mut agent, node, &[encoded("y", 2)]);
    assert_eq!(committed.table.node.zone.as_deref(), Some("a"));
    assert_eq!(services(&committed), [("y".into(), 2)]);
    let reason = &committed.refused[0].reason;
    assert!(
        reason.contains("the node's info: refused: node.pod_cidrs"),
        "{reason}"
    );
    let committed = send(&mut agent, info("c", 79), &[encoded("y", 2)]);
    assert_eq!(committed.table.node.zone.as_deref(), Some("c"));
    assert!(committed.refused.is_empty());
}

#[test]
fn an_unknown_family_of_a_record_is_no_obstacle() {
    let mut odd = with_unknown(&encoded("odd", 1));
    odd.hash = ContentHash(5).to_bytes().into();
    odd.available = vec![1, 9];
    odd.frontends = vec![with_unknown(&v1::Frontend {
        kind: 1,
        port: 80,
        lists: 1,
        ..v1::Frontend::default()
    })];
    let mut columns = encoded("columns", 1);
    columns.hash = ContentHash(6).to_bytes().into();
    // Two destinations, of which one is in a column that this version does not know.
    columns.destinations.as_mut().unwrap().ports = vec![1, 2];
    let records = [odd, columns, encoded("x", 1)];
    let mut agent = Agent::new();
    agent.put(&records);
    let committed = agent.commit(snapshot(sums(&records, &[], None))).unwrap();
    assert_eq!(services(&committed), [("odd".into(), 1), ("x".into(), 1)]);
    let reasons: Vec<_> = committed
        .refused
        .iter()
        .map(|r| r.reason.as_str())
        .collect();
    assert!(
        reasons[0].starts_with("refused: destinations"),
        "{reasons:?}"
    );
    assert!(
        reasons[1].contains("left out: unknown address"),
        "{reasons:?}"
    );
}

/// Otherwise a newer version of the agent would never receive fields unknown to this one.
#[test]
fn unknown_fields_are_requested_again_after_a_restart() {
    let mut record = with_unknown(&encoded("x", 1));
    record.hash = ContentHash(5).to_bytes().into();
    let cases = [
        (info("", 0), record),
        (with_unknown(&info("a", 77)), encoded("x", 1)),
    ];
    for (mut node, record) in cases {
        if node.zone.is_empty() {
            node.hash = NodeInfo::default().content_hash().to_bytes().into();
        }
        let mut agent = Agent::new();
        let committed = send(&mut agent, node, std::slice::from_ref(&record));
        let (mut staging, again) = resume::restored(&agent.0.save());
        assert_eq!(again.table, committed.table);
        let (before, after) = (agent.hello(), staging.begin(v1::Hello::default()));
        assert_eq!((after.epoch, after.revision), (0, 0));
        let same = |one: &v1::Hello| (one.records_hash.clone(), one.own_hash.clone());
        assert_ne!(same(&before), same(&after));
    }
}

#[test]
fn a_director_that_cannot_be_followed_leaves_the_last_good_one_in_force() {
    let mut agent = Agent::new();
    let of = |text: &str, hash| v1::NodeInfo {
        director: text.as_bytes().to_vec(),
        ..info("a", hash)
    };
    let good = portolan_director::Director::new("node-1").to_sent();
    let committed = send(&mut agent, of(&good, 5), &[]);
    assert_eq!(committed.table.node.director.as_deref(), Some(&*good));
    assert!(committed.refused.is_empty());

    // Of another node, and with a field of a later version; all else of the node applies.
    for bad in [
        good.replace("node-1", "node-2"),
        good.replace("\"spec\":{", "\"spec\":{\"teleport\":1"),
    ] {
        let node = v1::NodeInfo {
            zone: "b".to_owned(),
            ..of(&bad, 6)
        };
        let committed = send(&mut agent, node, &[]);
        let node = &committed.table.node;
        assert_eq!(node.director.as_deref(), Some(&*good));
        assert_eq!(node.zone.as_deref(), Some("b"));
        let reason = &committed.refused[0].reason;
        assert!(reason.contains("Director node-1: "), "{reason}");
    }
    assert_eq!(
        send(&mut agent, info("a", 7), &[]).table.node.director,
        None
    );
}
