// SPDX-License-Identifier: Apache-2.0

//! Initial inputs: real messages, made from objects with a wide range of fields.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::sync::Arc;

use portolan_model::{ContentHash, NodeKey, Record};
use portolan_proto::convert::{encode_key, encode_lists, encode_node, encode_record};
use portolan_proto::v1;
use portolan_proto::v1::agent_message::Message as Said;
use portolan_proto::v1::frame::Frame;
use portolan_select::{Pipeline, TableDelta};
use portolan_source::objects::{self, Scope};
use prost::Message;
use serde_json::{Value, json};

use crate::controller::kind;
use crate::controller::signer::{AUDIENCE, ISSUER, NODE};
use crate::input::{join, join_bytes};

/// The name of an input, and the input.
pub type Seed = (&'static str, Vec<u8>);

/// The words of texts in libFuzzer's notation of a dictionary, from which it makes its changes: it does
/// not find a field's name by changing bytes.
#[must_use]
pub fn dictionary(seeds: &[Seed]) -> String {
    let is_part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_-".contains(byte);
    let inputs = seeds.iter().map(|(_, input)| input.as_slice());
    let words = inputs.flat_map(|input| input.split(|byte| !is_part(byte)));
    let words: BTreeSet<&[u8]> = words
        .filter(|word| (3..=32).contains(&word.len()))
        .collect();
    let mut lines = String::new();
    for word in words {
        let _ = writeln!(lines, "\"{}\"", String::from_utf8_lossy(word));
    }
    lines
}

/// The objects of the seeds.
///
/// # Panics
/// If the embedded file is not JSON lines.
#[must_use]
pub fn objects() -> Vec<Value> {
    let text = include_str!("seeds.jsonl");
    let lines = text.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().expect("JSON, one a line")
}

/// The table that a controller computes from [`objects`].
#[must_use]
pub fn table() -> TableDelta {
    let cluster: Arc<str> = "".into();
    let mut pipeline = Pipeline::default();
    for value in objects() {
        let kind = match value["kind"].as_str() {
            Some("Service") => portolan_catalog::Kind::Service,
            Some("Node") => portolan_catalog::Kind::Node,
            _ => portolan_catalog::Kind::EndpointSlice,
        };
        let change = objects::convert(kind, &value, &Scope::new(&cluster)).into_change();
        pipeline.apply(change.expect("an object with a name"));
    }
    pipeline.flush()
}

/// A Hello without a table.
#[must_use]
pub fn hello() -> v1::Hello {
    v1::Hello {
        version: 1,
        node: NODE.to_owned(),
        agent_version: "1".to_owned(),
        ..v1::Hello::default()
    }
}

fn frame(frame: Frame) -> v1::Frame {
    v1::Frame { frame: Some(frame) }
}

/// A Commit whose hashes the target completes.
fn commit(revision: u64, snapshot: bool) -> v1::Frame {
    frame(Frame::Commit(v1::Commit {
        revision,
        snapshot,
        ..v1::Commit::default()
    }))
}

/// A Commit without a hash of the node's own part.
fn shared_commit(revision: u64) -> v1::Frame {
    frame(Frame::Commit(v1::Commit {
        revision,
        own_hash: vec![0],
        ..v1::Commit::default()
    }))
}

fn welcome(epoch: u64) -> v1::Frame {
    frame(Frame::Welcome(v1::Welcome {
        version: 1,
        epoch,
        ..v1::Welcome::default()
    }))
}

fn put(put: Vec<v1::Record>) -> v1::Frame {
    frame(Frame::Records(v1::Records {
        put,
        ..v1::Records::default()
    }))
}

fn records() -> Vec<Arc<Record>> {
    table().records.into_values().flatten().collect()
}

fn messages() -> Vec<v1::Record> {
    let records = records().into_iter();
    records
        .map(|r| encode_record(&r, r.content_hash()))
        .collect()
}

/// The own part of node `a`.
fn own() -> v1::Own {
    let node = NodeKey {
        cluster: "".into(),
        name: NODE.into(),
    };
    let table = table();
    let lists = table.lists.get(&node).into_iter().flatten();
    let put = lists.filter_map(|(key, lists)| {
        let lists = lists.as_ref()?;
        Some(encode_lists(key, lists, lists.content_hash(key)))
    });
    v1::Own {
        put: put.collect(),
        node: table
            .nodes
            .get(&node)
            .map(|n| encode_node(n, n.content_hash())),
        ..v1::Own::default()
    }
}

/// A change after which the node is in no zone.
fn moved() -> v1::Own {
    v1::Own {
        node: Some(v1::NodeInfo::default()),
        ..v1::Own::default()
    }
}

/// The frames of a whole table.
fn snapshot() -> Vec<v1::Frame> {
    vec![
        welcome(7),
        put(messages()),
        frame(Frame::Own(own())),
        commit(1, true),
    ]
}

/// A whole table, followed by frames.
fn followed_by(frames: &[v1::Frame]) -> Vec<u8> {
    join(&[&snapshot(), frames].concat())
}

/// A record that every agent refuses.
fn refused() -> v1::Record {
    let record = messages().remove(0);
    v1::Record {
        affinity_seconds: u32::MAX,
        hash: ContentHash(9).to_bytes().into(),
        ..record
    }
}

/// The inputs of the agent's target.
#[must_use]
pub fn agent() -> Vec<Seed> {
    let records = records();
    let first = encode_key(&records[0].key);
    let delete = frame(Frame::Records(v1::Records {
        delete: vec![first.clone()],
        ..v1::Records::default()
    }));
    let buckets = frame(Frame::Records(v1::Records {
        put: messages(),
        replace_buckets: vec![0, 1],
        bucket_count: 2,
        ..v1::Records::default()
    }));
    let patch = frame(Frame::Records(v1::Records {
        patch: vec![v1::RecordPatch {
            key: Some(first),
            base: records[0].content_hash().to_bytes().into(),
            hash: ContentHash(5).to_bytes().into(),
            put: messages()[0].destinations.clone(),
            ..v1::RecordPatch::default()
        }],
        ..v1::Records::default()
    }));
    let replaced = frame(Frame::Own(v1::Own {
        replace: true,
        ..own()
    }));
    let raw = v1::Records {
        put: messages(),
        ..v1::Records::default()
    };
    let compressed = zstd::bulk::compress(&raw.encode_to_vec(), 3).expect("compressed");
    let again = v1::Frame::default();
    vec![
        ("snapshot", join(&snapshot())),
        ("empty", join(&[welcome(7), commit(0, true)])),
        ("delta", followed_by(&[delete.clone(), commit(2, false)])),
        ("shared", followed_by(&[delete.clone(), shared_commit(2)])),
        (
            "not-shared",
            followed_by(&[frame(Frame::Own(moved())), shared_commit(2)]),
        ),
        (
            "refused",
            followed_by(&[put(vec![refused()]), commit(2, false)]),
        ),
        (
            "refused-whole",
            followed_by(&[
                again.clone(),
                welcome(8),
                put(vec![refused()]),
                commit(2, true),
            ]),
        ),
        (
            "resumed",
            followed_by(&[delete, again, welcome(7), commit(3, false)]),
        ),
        ("wrong", followed_by(&[put(messages()), wrong()])),
        ("buckets", followed_by(&[buckets, commit(2, false)])),
        ("patch", followed_by(&[patch, commit(2, false)])),
        ("own", followed_by(&[replaced, commit(2, false)])),
        (
            "compressed",
            join(&[
                welcome(7),
                frame(Frame::Compressed(compressed)),
                commit(1, true),
            ]),
        ),
        ("others", join(&others())),
    ]
}

/// A Commit with false hashes.
fn wrong() -> v1::Frame {
    frame(Frame::Commit(v1::Commit {
        revision: 2,
        records_hash: vec![1; 16],
        own_hash: vec![2; 16],
        ..v1::Commit::default()
    }))
}

fn others() -> [v1::Frame; 5] {
    [
        welcome(1),
        frame(Frame::AskBuckets(v1::AskBuckets { count: 64 })),
        frame(Frame::Confirm(v1::Confirm { revision: 1 })),
        frame(Frame::Goaway(v1::Goaway { spread_ms: 1 })),
        frame(Frame::Versions(v1::Versions { newest: vec![1, 2] })),
    ]
}

/// The inputs of the controller's target.
#[must_use]
pub fn controller() -> Vec<Seed> {
    let lines: Vec<_> = objects().iter().map(Value::to_string).collect();
    let of = |kind: u8, bytes: &[u8]| [&[kind], bytes].concat();
    let stream = join(&stream().map(|message| v1::AgentMessage {
        message: Some(message),
    }));
    let claims = json!({
        "aud": [AUDIENCE], "iss": ISSUER, "exp": 4_102_444_800_u64, "iat": 1, "nbf": 1,
        "kubernetes.io": { "namespace": "kube-system", "node": { "name": NODE, "uid": "1" },
            "serviceaccount": { "name": "agent", "uid": "2" } },
    });
    let token = b"Bearer eyJhbGciOiJFUzI1NiIsImtpZCI6IjEifQ.eyJleHAiOjF9.AAAA";
    let hello = v1::AgentMessage {
        message: Some(Said::Hello(hello())),
    };
    let hello = hello.encode_to_vec();
    let length = u32::try_from(hello.len()).unwrap_or_default();
    let body = [&[0], &length.to_be_bytes()[..], &hello[..]].concat();
    vec![
        ("messages", of(kind::MESSAGES, &stream)),
        ("hello", of(kind::MESSAGES, &join_bytes(&[&hello[..]]))),
        ("longest-name", of(kind::MESSAGES, &named(253))),
        ("too-long-name", of(kind::MESSAGES, &named(254))),
        ("body", of(kind::BODY, &body)),
        ("token", of(kind::TOKEN, token)),
        ("claims", of(kind::CLAIMS, claims.to_string().as_bytes())),
        ("objects", of(kind::OBJECTS, lines.join("\n").as_bytes())),
    ]
}

/// A Hello whose node name has `length` bytes.
fn named(length: usize) -> Vec<u8> {
    let hello = v1::Hello {
        node: "n".repeat(length),
        ..hello()
    };
    join(&[v1::AgentMessage {
        message: Some(Said::Hello(hello)),
    }])
}

/// One message of each kind that an agent sends.
fn stream() -> [Said; 4] {
    let key = records().first().map(|record| encode_key(&record.key));
    [
        Said::Hello(v1::Hello {
            epoch: 1,
            revision: 1,
            records_hash: vec![1; 16],
            own_hash: vec![2; 16],
            source_versions: vec![1, 2, 3],
            ..hello()
        }),
        Said::Received(v1::Received {
            revision: 1,
            refused: vec![v1::Refusal {
                key: key.clone(),
                reason: "no".to_owned(),
            }],
            refused_total: 1,
            held: Some(v1::Held {
                deleted: 1,
                records: 2,
                remaining_ms: 3,
            }),
        }),
        Said::Programmed(v1::Programmed {
            revision: 1,
            records_hash: vec![1; 16],
            own_hash: vec![2; 16],
            duration_us: 5,
            errors: vec![v1::RecordError {
                key,
                message: "no".to_owned(),
            }],
            errors_total: 1,
        }),
        Said::Buckets(v1::Buckets {
            hashes: vec![0; 64],
        }),
    ]
}

#[cfg(test)]
mod tests;
