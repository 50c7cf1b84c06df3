// SPDX-License-Identifier: Apache-2.0

use std::sync::Arc;

use portolan_model::{Frontend, FrontendAddress, FrontendKind, NodeOverlay, Protocol, Record};
use serde_json::json;

use super::*;
use crate::table::show;

fn destination(last: u8) -> Destination {
    Destination::new(([10, 0, 0, last], 8080).into())
}

/// A shared record with two destinations, and a cluster-wide list of the node itself.
fn table(own: &[u8]) -> NodeTable {
    let key = RecordKey {
        cluster: "".into(),
        namespace: "ns".into(),
        service: "web".into(),
        port: "".into(),
        protocol: Protocol::Tcp,
    };
    let vip = FrontendAddress::Vip([10, 96, 0, 1].into());
    let record = Record {
        frontends: vec![Frontend::new(FrontendKind::ClusterIp, vip, 80)],
        destinations: vec![destination(1), destination(2)],
        ..Record::new(key.clone())
    };
    let lists = NodeOverlay {
        cluster: own.iter().map(|last| destination(*last)).collect(),
        ..NodeOverlay::default()
    };
    let mut table = NodeTable::default();
    table.records.insert(key.clone(), Arc::new(record));
    table.lists.insert(key, Arc::new(lists));
    table
}

#[test]
fn two_nodes_differ_in_destinations() {
    let reply = of_two("a", &table(&[]), "b", &table(&[2, 3]));
    let expected = "--- a\n+++ b\nns/web/TCP (policy Cluster)\n  \
                    - 10.0.0.1:8080 weight 1\n  + 10.0.0.3:8080 weight 1\n";
    assert_eq!((&*reply.text, reply.code), (expected, 1));
    let difference = &reply.value["differences"][0];
    assert_eq!(difference["removed"][0]["address"], "10.0.0.1:8080");
    let reply = of_two("a", &table(&[]), "b", &table(&[1, 2]));
    assert_eq!((&*reply.text, reply.code), ("--- a\n+++ b\nequal\n", 0));
    assert_eq!(reply.value["equal"], true);
}

#[test]
fn a_table_survives_its_dump() {
    let table = table(&[2]);
    let dumped = serde_json::to_value(&table).unwrap();
    let read = crate::table::parse(dumped).unwrap();
    assert_eq!(read, table);
    let expected = "TCP 10.96.0.1:80 default (ns/web/TCP)\n  -> 10.0.0.2:8080 weight 1\n";
    assert_eq!(show(&read), expected);
}

#[test]
fn a_kernel_is_equal_or_behind() {
    let standing = |equal: bool, programmed: Option<u64>, changed| {
        let answer = json!({
            "revision": 7, "programmed": programmed, "records_equal": equal, "own_equal": true,
            "changed": changed,
        });
        let reply = of_one("a", answer).unwrap();
        assert_eq!(reply.code, u8::from(!equal));
        reply.text
    };
    let nothing = json!([]);
    assert_eq!(
        standing(true, Some(7), nothing),
        "node a: equal to revision 7\n"
    );
    let one = json!([{ "record": "ns/web/TCP", "own": true, "deleted": true }]);
    assert_eq!(
        standing(false, Some(5), one),
        "node a: has revision 5, must have 7\n  - ns/web/TCP (of this node only)\n"
    );
    let unknown = standing(false, Some(1), json!(null));
    assert!(unknown.ends_with("no longer known\n"));
    assert_eq!(
        standing(false, None, json!(null)),
        "node a: has programmed nothing yet\n"
    );
}
