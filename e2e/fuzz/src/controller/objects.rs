// SPDX-License-Identifier: Apache-2.0

//! Objects, from JSON to an agent's messages.
//!
//! Invariants: nothing panics. An object is attributed to the name that it states. An agent accepts
//! unchanged all that is computed from objects: no object produces a record that agents refuse.

use std::sync::Arc;

use portolan_catalog::Kind;
use portolan_proto::convert::{
    decode_lists, decode_node, decode_record, encode_lists, encode_node, encode_record,
};
use portolan_select::{Pipeline, TableDelta};
use portolan_source::objects::{self, Converted, Scope};
use serde_json::Value;

use super::Outcome;

/// Applies objects, one a line, to one catalog.
pub(super) fn check(input: &[u8]) -> Outcome {
    let cluster: Arc<str> = "".into();
    let mut pipeline = Pipeline::default();
    let mut outcome = Outcome::default();
    for line in input.split(|byte| *byte == b'\n') {
        let Ok(value) = serde_json::from_slice::<Value>(line) else {
            continue;
        };
        let converted = objects::convert(kind(&value), &value, &Scope::new(&cluster));
        let named = objects::reference(kind(&value), &value, &cluster);
        if let Some(reference) = converted.reference() {
            assert_eq!(Some(reference), named, "another object: {value}");
        }
        outcome.troubled += usize::from(is_troubled(&converted));
        if let Some(change) = converted.into_change() {
            pipeline.apply(change);
            outcome.computed += travels(&pipeline.flush(), &cluster);
        }
    }
    outcome
}

fn kind(value: &Value) -> Kind {
    match value["kind"].as_str() {
        Some("Service") => Kind::Service,
        Some("Node") => Kind::Node,
        Some("Pod") => Kind::Pod,
        _ => Kind::EndpointSlice,
    }
}

fn is_troubled(converted: &Converted) -> bool {
    match converted {
        Converted::Put { problems, .. } => !problems.is_empty(),
        Converted::Refused { .. } => true,
        Converted::NotOurs(_) => false,
    }
}

/// Checks that computed values survive encoding and decoding. Returns the number of records and
/// lists.
fn travels(delta: &TableDelta, cluster: &Arc<str>) -> usize {
    let mut count = 0;
    for record in delta.records.values().flatten() {
        let message = encode_record(record, record.content_hash());
        let decoded = decode_record(&message, cluster).expect("a record that agents take");
        assert_eq!(
            (&decoded.record, decoded.hash),
            (&**record, record.content_hash())
        );
        assert!(decoded.left_out.is_empty(), "{:?}", decoded.left_out);
        count += 1;
    }
    for (key, lists) in delta.lists.values().flatten() {
        let Some(lists) = lists else { continue };
        let message = encode_lists(key, lists, lists.content_hash(key));
        let decoded = decode_lists(&message, cluster).expect("lists that agents take");
        assert_eq!((&decoded.key, &decoded.lists), (key, &**lists));
        count += 1;
    }
    for node in delta.nodes.values() {
        let message = encode_node(node, node.content_hash());
        let decoded = decode_node(&message).expect("a node that agents take");
        assert_eq!(decoded.node, *node);
    }
    count
}
